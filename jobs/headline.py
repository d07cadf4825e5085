"""The finding in words: every number with its error, «no difference beyond noise» where it is so, no more than was seen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

import polars as pl

_Z = 1.96
_LONGEST_LABEL, _LABEL_END = 40, 15
_ENDS = ("shortest", "longest")
_FEWEST = 30
"""Texts that an interval needs before its exposure is told."""
NOTE = (
    "± is a 95 % interval for texts drawn like these (1.96 standard errors, from per-text means because pairs share texts); "
    "± ? means too few texts to tell. "
    "For this very corpus the error is smaller, and 0 where every text was used: the …_se columns of the tables."
)
Tables = dict[str, pl.DataFrame]

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
    half = _Z * error
    places = min(6, max(0, -int(f"{half:e}".split("e")[1]) + 1))
    width = f"{half:,.{places}f}"
    return f"{_fixed(value, places)} ± {width if float(width.replace(',', '')) else '<0.000001'}"


def share(value: float | None) -> str:
    """A share in per cent to one decimal, as 0 % or 100 % only where it is exactly that."""
    if value is None or value in (0, 1):
        return "–" if value is None else f"{100 * value:.0f} %"
    text = f"{100 * value:.1f}"
    return {"0.0": "<0.1 %", "100.0": ">99.9 %"}.get(text, f"{text} %")


def count(n: int, noun: str) -> str:
    """`1 text`, `2,000 texts`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def interval_name(edge: int, edges: Sequence[int]) -> str:
    """`100–199` for the interval from 100 to the next of the configured edges, `500+` for the last."""
    later = [e for e in edges if e > edge]
    if not later:
        return f"{edge}+"
    return f"{edge}–{min(later) - 1}" if min(later) - 1 > edge else str(edge)


def labels(temperatures: Iterable[str]) -> dict[str, str]:
    """What the page calls each temperature: `τ 0.8`, a schedule's text, or its two ends where it is long.

    Long texts that look alike when cut are numbered, so that equal labels mean equal temperatures.
    """
    short = {text: _label(text) for text in temperatures}
    found: dict[str, str] = {}
    for text, label in short.items():
        alike = [other for other in short if short[other] == label]
        found[text] = label if len(alike) == 1 else f"{label} #{alike.index(text) + 1}"
    return found


def labelled(tables: Tables) -> Tables:
    """The tables with each temperature, and each reference, under its label."""
    names = labels(tables["collapse_summary"]["temperature"].unique(maintain_order=True))
    return {
        key: table.with_columns(pl.col(c).replace(names) for c in ("temperature", "reference") if c in table.columns)
        for key, table in tables.items()
    }


def beyond_noise(value: float, error: float | None) -> bool:
    """Whether a figure differs from 0 by more than its 95 % error; a figure without an error never does."""
    return error is not None and abs(value) > _Z * error


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


# ---------------------------------------------------------------------------------------------- what is told


def headline(tables: Tables, edges: Sequence[int]) -> dict[str, list[str]]:
    """The sentences of the report's first screen, by model.

    Args:
        tables: the run's tables, as `labelled` gives them.
        edges: the configured lower edges of the length intervals.
    """
    sentences = {}
    for model, mine in tables["collapse_summary"].group_by("model", maintain_order=True):
        rows = mine.to_dicts()
        effects = tables["temperature_effect"].filter(pl.col("model") == model[0]).to_dicts()
        sentences[str(model[0])] = [
            _length(rows[0], tables, edges),
            _prefix(rows[0], tables, edges),
            *_exposures(rows[0], tables, edges),
            *(_effect(rows[0], row, effects) for row in rows[1:]),
            _second_order(rows[0]),
            _assumptions(rows[0]),
        ]
    return sentences


def closing_figures(tables: Tables) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Per model: its temperatures, and a row for each figure that matters: its name, then value ± error at each."""
    figures = {}
    for model, rows in labelled(tables)["collapse_summary"].group_by("model", maintain_order=True):
        each = rows.to_dicts()
        lines = [
            [label, *(estimate(row, name) for row in each)]
            for label, name in (
                ("mean cosine", "cosine_mean"), ("collapse gap", "collapse_gap"),
                ("prefix gap", "prefix_gap"), ("mean SOCM", "socm_mean"),
            )
        ]  # fmt: skip
        figures[str(model[0])] = [row["temperature"] for row in each], lines
    return figures


def estimate(row: dict[str, Any], name: str) -> str:
    """A figure of a row and the 95 % half-width of its error, as of texts drawn like these."""
    return with_error(row[name], row[f"{name.removesuffix('_mean')}_se_superpopulation"])


def finding(row: dict[str, Any], name: str) -> str:
    """`absent`, `unknown` (no error), `noise`, `up` or `down`: what may be said of a figure."""
    value, error = row[name], row[f"{name.removesuffix('_mean')}_se_superpopulation"]
    if value is None or error is None:
        return "absent" if value is None else "unknown"
    return "noise" if not beyond_noise(value, error) else "up" if value > 0 else "down"


def _length(row: dict[str, Any], tables: Tables, edges: Sequence[int]) -> str:
    state = finding(row, "collapse_gap")
    if state == "absent":
        return "Length collapse cannot be measured: fewer than two length intervals hold at least 30 texts."
    start = {
        "up": "Longer texts lie closer together",
        "down": "Longer texts lie further apart, the opposite of length collapse",
        "noise": "Longer texts do not collapse measurably: no difference beyond noise",
        "unknown": "Whether longer texts lie closer together is not known: too few texts to tell",
    }[state]
    cells = _of(tables["length_collapse"], row).filter(pl.col("interval_a") == pl.col("interval_b"))
    short, long = (cells.row(by_predicate=pl.col("interval_a") == row[f"gap_{end}"], named=True) for end in _ENDS)
    names = _gap_names(row, edges)
    return (
        f"{start}. At {row['temperature']} two texts of {names[1]} tokens have a mean cosine of "
        f"{estimate(long, 'cosine_mean')}, two of {names[0]} tokens {estimate(short, 'cosine_mean')}: "
        f"a collapse gap of {estimate(row, 'collapse_gap')}."
    )


def _gap_names(row: dict[str, Any], edges: Sequence[int]) -> list[str]:
    return [interval_name(row[f"gap_{end}"], edges) for end in _ENDS]


def _of(table: pl.DataFrame, row: dict[str, Any]) -> pl.DataFrame:
    """The rows of the same model and temperature."""
    return table.filter((pl.col("model") == row["model"]) & (pl.col("temperature") == row["temperature"]))


def _prefix(row: dict[str, Any], tables: Tables, edges: Sequence[int]) -> str:
    """What length itself does, between the prefixes that were probed and no further."""
    gap, probed = finding(row, "collapse_gap"), finding(row, "prefix_gap")
    if probed == "absent":
        asked = "How much of that is length itself" if gap in ("up", "down") else "Whether length itself moves texts"
        return f"{asked} is not known: too few texts are long enough for the prefix probe, or it was left out."
    start = {
        "up": "Length itself brings texts closer together within the probed range",
        "down": "Length itself drives texts apart within the probed range",
        "noise": "Of length itself there is no effect beyond noise within the probed range",
        "unknown": "What length itself does is not known, too few texts to tell",
    }[probed]
    rows = _of(tables["prefix_probe"], row).sort("prefix_tokens").to_dicts()
    first, last = rows[0], rows[-1]
    limit = f"outside {first['prefix_tokens']} to {last['prefix_tokens']} tokens the probe does not tell length from topic"
    return (
        f"{start}: the same {count(first['texts'], 'text')} have a mean cosine of {estimate(first, 'cosine_mean')} cut to "
        f"{first['prefix_tokens']} tokens and {estimate(last, 'cosine_mean')} cut to {last['prefix_tokens']}, "
        f"a prefix gap of {estimate(row, 'prefix_gap')}. {_beside(row, gap, probed, edges, limit)}"
    )


def _beside(row: dict[str, Any], gap: str, probed: str, edges: Sequence[int], limit: str) -> str:
    """How the prefix gap stands beside the collapse gap, which spans other lengths and compares different texts."""
    if gap == "absent":
        return f"There is no collapse gap to set it beside; {limit}."
    short, long = _gap_names(row, edges)
    named = f"the collapse gap ({estimate(row, 'collapse_gap')}, between different texts of {short} and of {long} tokens)"
    if gap == "unknown":
        return f"Too few texts to tell how {named} compares; {limit}."
    if gap == "noise":
        return f"T{named[1:]} is no difference beyond noise; {limit}."
    if probed == "unknown":
        return f"So it does not tell how much of {named} is length itself."
    if probed == "noise":
        return f"So nothing of {named} is shown to be length itself; {limit}."
    if probed == gap:
        return f"It goes the same way as {named}; {limit}."
    return f"It runs against {named}, which length within this range does not explain; {limit}."


def _exposures(row: dict[str, Any], tables: Tables, edges: Sequence[int]) -> list[str]:
    """Whose texts fill the results: one sentence for each who asked."""
    every = _of(tables["exposure"], row).filter(pl.col("k") == pl.col("k").max()) if "exposure" in tables else pl.DataFrame()
    sentences = []
    for asked_by in ("corpus", "queries"):
        mine = [] if every.is_empty() else every.filter(pl.col("asked_by") == asked_by).to_dicts()
        # Looking at several intervals at once, 95 % holds for all of them together.
        tested = [r for r in mine if r["texts"] >= _FEWEST and r["exposure_se_superpopulation"]]
        z = NormalDist().inv_cdf(1 - 0.025 / max(1, len(tested)))
        unfair = [r for r in tested if abs(r["exposure"] - 1) > z * r["exposure_se_superpopulation"]]
        if not mine:
            continue
        k, queries = mine[0]["k"], mine[0]["queries"]
        asking = "each text" if asked_by == "corpus" else "the query" if queries == 1 else f"{queries:,} queries"
        results = f"the {count(k, 'nearest text')} of {asking}" if k > 1 else f"the nearest text of {asking}"
        if not unfair:
            sentences.append(
                f"Search results ({results}) at {row['temperature']}: no length takes more or less than its share."
            )
            continue
        told = [
            f"texts of {interval_name(r['interval'], edges)} tokens are {share(r['texts_share'])} of the corpus and take "
            f"{share(r['slots_share'])} (exposure {with_error(r['exposure'], r['exposure_se_superpopulation'])})"
            for r in sorted(unfair, key=lambda r: -abs(r["exposure"] - 1))[:2]
        ]
        sentences.append(f"Search results ({results}) at {row['temperature']}: {'; '.join(told)}.")
    return sentences


def _effect(reference: dict[str, Any], row: dict[str, Any], effects: list[dict[str, Any]]) -> str:
    found = {e["figure"]: e for e in effects if e["temperature"] == row["temperature"]}
    told: dict[str, list[str]] = {"moved": [], "noise": [], "unknown": []}
    for figure, label in (
        ("collapse_gap", "the collapse gap"), ("prefix_gap", "the prefix gap"),
        ("cosine_mean", "mean cosine"), ("socm_mean", "mean SOCM"),
    ):  # fmt: skip
        if figure in found:
            state = finding(found[figure], "change")
            moved = state in ("up", "down")
            told["moved" if moved else state].append(f"{label} by {estimate(found[figure], 'change')}" if moved else label)
    parts = [
        f"{start} {', '.join(told[key])}"
        for key, start in (
            ("moved", "it moves"),
            ("noise", "no difference beyond noise in"),
            ("unknown", "too few texts to tell for"),
        )
        if told[key]
    ]
    text = f"{row['temperature']} against {reference['temperature']}, on the same texts: "
    text += "; ".join(parts) or "nothing was measured under both"
    helps = "Whether that helps is for downstream scores to say; a" if told["moved"] else "A"
    return f"{text}. {helps} changed temperature means embedding the whole index again."


def _second_order(row: dict[str, Any]) -> str:
    if row["socm_mean"] is None:
        return "Second-order collapse was not measured: no SOCM sample."
    texts = row["socm_texts"]
    unknown = ", too few texts to tell how far off it is" if finding(row, "socm_mean") == "unknown" else ""
    return (
        f"Second-order collapse: mean SOCM {estimate(row, 'socm_mean')} over the "
        f"{count(texts * (texts - 1) // 2, 'pair')} of {count(texts, 'text')} at {row['temperature']}{unknown}. "
        "In print, on 1,000 Wikipedia sentences and with a regulariser that lowers it: bert-base-uncased .396, "
        "all-MiniLM-L12-v2 .313, e5-base-v2 .029, gte-base .018."
    )


def _assumptions(row: dict[str, Any]) -> str:
    if row["spread_over_2_share"] is None:
        return "Lengths are as given, and no token was seen: nothing is said of second-order collapse."
    over = f", and {share(row['socm_over_1_share'])} of the pairs have SOCM above 1"
    return (
        f"Assumptions: {share(row['spread_over_2_share'])} of the texts have tr Σ > 2, which the papers take never to happen"
        f"{'' if row['socm_over_1_share'] is None else over}; {share(row['truncated_share'])} of the texts were truncated."
    )
