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


def interval_name(edge: int, edges: Sequence[int]) -> str:
    """`100–199` for the interval from 100 to the next of the configured edges, `500+` for the last."""
    later = [e for e in edges if e > edge]
    if not later:
        return f"{edge}+"
    return f"{edge}–{min(later) - 1}" if min(later) - 1 > edge else str(edge)


def labels(temperatures: Iterable[str]) -> dict[str, str]:
    """The label of each temperature: `τ 0.8`, a schedule's text, or the two ends of a long text.

    Long texts that are equal when cut get numbers, so that equal labels mean equal temperatures.
    """
    short = {text: _label(text) for text in temperatures}
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
