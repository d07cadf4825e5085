"""Figures, errors, shares and names as text, for reports and the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tempscale.stats.errors import Z_95

_LONGEST_LABEL, _LABEL_END = 40, 15
FIGURES = {
    "cosine_mean": "mean cosine", "collapse_gap": "collapse gap", "prefix_gap": "prefix gap", "socm_mean": "mean SOCM",
}  # fmt: skip
"""The four figures of an audit that a reader sees first, and their names."""
NAMES = FIGURES | {
    "exposure_short": "exposure of the shortest texts", "exposure_long": "exposure of the longest texts",
    "truncated_share": "share of truncated texts", "rejected_share": "share of rejected rows",
    "spread_mean": "mean spread of a text's tokens, tr Σ", "spread_over_2_share": "share of texts with tr Σ > 2",
    "within_cosine_over_third_share": "share of texts whose tokens are alike", "texts": "number of texts",
    "socm_over_1_share": "share of pairs with SOCM above 1",
    "k_occurrence_skewness": "hubness", "reciprocity": "reciprocity",
    "near_duplicate_pairs": "near-duplicate pairs", "effective_rank": "effective rank", "top_component": "top component",
    "tokens": "number of tokens",
    "corpus_texts": "number of usable texts", "rows": "number of rows", "rejected": "number of rejected rows",
    "verified_texts": "vectors compared with the model's", "wrong_share": "share of vectors that are not the model's",
    "socm_texts": "texts with SOCM", "socm_pairs": "pairs with SOCM", "socm_groups": "groups for SOCM",
}  # fmt: skip
"""The names of all figures of collapse_summary."""
_OF_VECTORS = "given"
"""The label of `runs.folder.GIVEN`, which stands for the model of the user's vectors."""

# ---------------------------------------------------------------------------------------------- numbers and names


def number(value: float | None) -> str:
    """A figure to three significant digits, never as 0.000 unless it is 0."""
    if value is None:
        return "–"
    if value == 0:
        return "0"
    if abs(value) < 0.001:
        return "<0.001" if value > 0 else ">−0.001"
    # From 999.5 on three digits would be written 1e+03.
    text = f"{value:.3g}" if abs(value) < 999.5 else f"{value:,.0f}"
    return text.replace("-", "−")


def with_error(value: float | None, error: float | None) -> str:
    """A figure and the 95 % half-width of its error, to the same decimal place; `± ?` where the error is not known."""
    if value is None:
        return "–"
    if error is None:
        return f"{number(value)} ± ?"
    if error == 0:
        return number(value)
    half = Z_95 * error
    places = min(6, max(0, -int(f"{half:e}".split("e")[1]) + 1))
    width = f"{half:,.{places}f}"
    return f"{_fixed(value, places)} ± {width if float(width.replace(',', '')) else '<0.000001'}"


def signed(figure: object) -> str:
    """A change as text, with a plus where it is above 0."""
    text = str(figure)
    return text if text.startswith(("−", "0 ", "–", ">")) or text == "0" else f"+{text}"


def parted(figure: str) -> tuple[str, str]:
    """A figure without its error, and the error; empty where it has none."""
    value, _, error = figure.partition(" ± ")
    return value, error


def share(value: float | None) -> str:
    """A share in per cent to one decimal; it is 0 % or 100 % only if it is exactly 0 or 1."""
    if value is None or value in (0, 1):
        return "–" if value is None else f"{100 * value:.0f} %"
    text = f"{100 * value:.1f}"
    return {"0.0": "<0.1 %", "100.0": ">99.9 %"}.get(text, f"{text} %")


def share_with_error(value: float | None, error: float | None) -> str:
    """A share in per cent and the 95 % half-width of its error; without one where every text or none has it."""
    if value is None or value in (0, 1) or not error:
        return share(value)
    return f"{with_error(100 * value, 100 * error)} %"


def count(n: int, noun: str) -> str:
    """A number with its noun: `1 text`, `2,000 texts`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def capital(sentence: str) -> str:
    """A sentence with its first letter in upper case."""
    return sentence[:1].upper() + sentence[1:]


class Edges(tuple[int, ...]):
    """The lower edges of length intervals, and the window at which every text is cut."""

    window: int | None = None

    @classmethod
    def of(cls, run: Mapping[str, Any], section: str = "analysis") -> Edges:
        """Those of a section of a run's configuration; without a window where the models have several, or do not cut."""
        windows = [model.get("max_length") for model in run.get("models", {}).values()]
        return cls.cut(run["config"][section]["intervals"], windows, run["config"].get("embedding", {}).get("long"))

    @classmethod
    def cut(cls, lower: Iterable[int], windows: Iterable[int | None], long: str | None) -> Edges:
        """Those of models with these windows, where `long` is what happens to a text beyond a window."""
        edges, several = cls(lower), {*windows}
        if len(several) == 1 and long != "chunk":
            edges.window = several.pop() or None
        return edges


def interval_name(edge: int, edges: Sequence[int]) -> str:
    """`100–199` for the interval from 100 to the next of the edges, `200–256` where a window ends it, else `500+`."""
    ends = [e - 1 for e in edges if e > edge]
    if isinstance(edges, Edges) and edges.window is not None and edges.window >= edge:
        ends.append(edges.window)
    if not ends:
        return f"{edge}+"
    return f"{edge}–{min(ends)}" if min(ends) > edge else str(edge)


def model_name(label: str) -> str:
    """How a reader calls a model: a run on the user's vectors knows none."""
    return "your vectors" if label == _OF_VECTORS else label


def model_at(row: Mapping[str, Any]) -> str:
    """The model and the temperature of a row: `MiniLM at τ 0.8`."""
    return f"{model_name(row['model'])} at {_label(row['temperature'])}"


def figure_at(figure: str, row: Mapping[str, Any]) -> str:
    """A figure of collapse_summary, its column and what it is of: `mean cosine (cosine_mean) of your vectors at τ 1.0`."""
    return f"{NAMES[figure]} ({figure}) of {model_at(row)}"


def labels(temperatures: Iterable[str]) -> dict[str, str]:
    """The label of each temperature: `τ 0.8`, a schedule's text, or the two ends of a long text.

    Long texts that are equal when cut get numbers, so that equal labels mean equal temperatures.
    """
    short = {text: _label(text) for text in dict.fromkeys(temperatures)}
    label_of: dict[str, str] = {}
    for text, label in short.items():
        alike = [other for other in short if short[other] == label]
        label_of[text] = label if len(alike) == 1 else f"{label} #{alike.index(text) + 1}"
    return label_of


def _fixed(value: float, places: int) -> str:
    text = f"{value:,.{places}f}".replace("-", "−")
    return text if text.strip("−0.,") else text.removeprefix("−")  # No minus before a figure that is rounded to 0.


def _label(text: str) -> str:
    try:
        float(text)
    except ValueError:
        if len(text) <= _LONGEST_LABEL:
            return text
        return f"{text[: _LONGEST_LABEL - 1 - _LABEL_END]}…{text[-_LABEL_END:]}"
    return f"τ {text}"


def encoding(known: Mapping[str, Any]) -> str:
    """How a model encodes a text, from its entry in run.json: the window, what is before the text, a chosen precision."""
    prompts = known.get("prompts", {})
    before = [f"«{text.strip()}» before every {role}" for role, text in prompts.items()]
    if len(set(prompts.values())) == 1 and len(prompts) == 2:
        before = [f"«{next(iter(prompts.values())).strip()}» before every text"]
    settled = known.get("computed_in", {})
    computed = [f"{settled['precision']} ({settled['why']})"] if settled.get("asked") else []
    return ", ".join([f"at most {known.get('max_length', '–')} tokens", *before, *computed])


def estimate(row: dict[str, Any], name: str) -> str:
    """A figure of a row and the 95 % half-width of its error, for texts drawn like these."""
    return with_error(row[name], row[f"{name.removesuffix('_mean')}_se_superpopulation"])


def share_of(row: Mapping[str, Any], name: str) -> str:
    """A share of texts in a row and the 95 % half-width of its error, for texts drawn like these."""
    return share_with_error(row[name], row[f"{name}_se_superpopulation"])
