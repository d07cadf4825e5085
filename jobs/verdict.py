"""The first screen of an audit's report: the answer in one or two sentences, and the four figures behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from jobs.headline import count, estimate, finding
from jobs.night_figures import sparkline

Row = dict[str, Any]
TILES = (
    ("cosine_mean", "mean cosine"),
    ("collapse_gap", "collapse gap"),
    ("prefix_gap", "prefix gap"),
    ("socm_mean", "mean SOCM"),
)
_GAP = {
    "up": "Yes: longer texts lie closer together, by {collapse} in mean cosine.",
    "down": "No: longer texts lie further apart, by {collapse} in mean cosine.",
    "noise": "Not by length: long and short texts lie equally close, as far as noise lets tell.",
    "unknown": "Not known: too few texts to tell whether longer ones lie closer together.",
    "absent": "Not measured by length: fewer than two length intervals hold at least 30 texts.",
}
_PREFIX = {
    "up": " The same texts, cut shorter, lie further apart, by {prefix}: length itself draws them together.",
    "down": " The same texts, cut shorter, lie closer together, by {prefix}: length itself draws them apart.",
    "noise": " In the prefix probe length itself makes no difference beyond noise.",
}
_SAYS = {
    "collapse_gap": {
        "up": "long texts lie closer together", "down": "long texts lie further apart",
        "noise": "no difference beyond noise",
    },
    "prefix_gap": {
        "up": "length itself draws them together", "down": "length itself draws them apart",
        "noise": "no difference beyond noise",
    },
}  # fmt: skip


def verdict(row: Row, effects: Sequence[Row]) -> str:
    """The answer to «do these embeddings collapse?» in a sentence or three.

    Args:
        row: the row of collapse_summary under the first temperature.
        effects: the rows of temperature_effect of the same model.
    """
    told = _GAP[finding(row, "collapse_gap")] + _PREFIX.get(finding(row, "prefix_gap"), "")
    sizes = {name: estimate(row, f"{name}_gap").removeprefix("−") for name in ("collapse", "prefix")}
    return told.format(**sizes) + _lowered(row, effects)


def _lowered(row: Row, effects: Sequence[Row]) -> str:
    """What the temperatures do to a gap that is there."""
    mine = [effect for effect in effects if effect["figure"] == "collapse_gap"]
    if finding(row, "collapse_gap") != "up" or not mine:
        return ""
    less = [effect for effect in mine if finding(effect, "change") == "down"]
    if not less:
        return " No temperature tried narrows that gap beyond noise."
    best = min(less, key=lambda effect: effect["change"])
    return f" {best['temperature']} narrows that gap by {estimate(best, 'change').removeprefix('−')}."


def tiles(row: Row, effects: Sequence[Row], trend: pl.DataFrame, place: str) -> list[dict[str, Any]]:
    """The four figures under the first temperature: value, what it says, what the other temperatures change, its trend.

    Args:
        row: the row of collapse_summary under the first temperature.
        effects: the rows of temperature_effect of the same model.
        trend: the nights of the same model and temperature up to this one, as run.json has them.
        place: id of the model on the page.
    """
    found = []
    for name, label in TILES:
        value, _, error = estimate(row, name).partition(" ± ")
        moved = [f"{effect['temperature']}: {_signed(effect)}" for effect in effects if effect["figure"] == name]
        found.append(
            {
                "id": f"{place}-trend-{name}", "name": label, "value": value, "error": error, "says": _says(row, name),
                "changes": moved, "chart": sparkline(trend, name),
                "nights": 0 if trend.is_empty() else trend[name].drop_nulls().len(),
            }
        )  # fmt: skip
    return found


def _says(row: Row, name: str) -> str:
    if name in _SAYS:
        return _SAYS[name].get(finding(row, name), "not known" if row[name] is not None else "not measured")
    if row[name] is None:
        return "not measured"
    texts = row["texts"] if name == "cosine_mean" else row["socm_texts"]
    return f"over {count(texts * (texts - 1) // 2, 'pair')} of texts"


def _signed(effect: Row) -> str:
    return f"{'+' if effect['change'] > 0 else ''}{estimate(effect, 'change')}"
