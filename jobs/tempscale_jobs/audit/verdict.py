"""The first screen of an audit's report: the answer in up to three sentences, and the four figures behind it."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.nights.charts import sparkline
from tempscale_jobs.report.findings import Finding, Findings, changed
from tempscale_jobs.report.sections import Figure
from tempscale_jobs.report.text import FIGURES, count, estimate, number, parted, signed

Row = dict[str, Any]
_GAP = {
    "up": "Yes: longer texts are closer together, by {collapse} in mean cosine.",
    "down": "No: longer texts are further apart, by {collapse} in mean cosine.",
    "noise": "No difference by length beyond noise: long and short texts differ by at most {most} in mean cosine.",
    "unknown": "Not known: too few texts to tell whether longer ones are closer together.",
    "absent": "Not measured by length: fewer than two length intervals have at least 30 texts.",
}
_PREFIX = {
    "up": " Longer prefixes of the same {texts} are closer together, by {prefix}.",
    "down": " Longer prefixes of the same {texts} are further apart, by {prefix}.",
    "noise": " Longer prefixes of the same {texts}: no difference beyond noise.",
}
_SAYS = {
    "collapse_gap": {
        "up": "long texts are closer together", "down": "long texts are further apart",
        "noise": "no difference beyond noise",
    },
    "prefix_gap": {
        "up": "longer prefixes are closer together", "down": "longer prefixes are further apart",
        "noise": "no difference beyond noise",
    },
}  # fmt: skip


def answer(row: Row, found: Findings) -> str:
    """The answer to «do these embeddings collapse?», from the first row of collapse_summary and the findings."""
    gap, prefix = found.at("collapse_gap", row), found.at("prefix_gap", row)
    text = _GAP[gap.state] + _PREFIX.get(prefix.state, "")
    texts, most = count(row["prefix_texts"] or 0, "text"), number(gap.largest)
    return text.format(collapse=_size(gap), prefix=_size(prefix), texts=texts, most=most) + _lowered(gap, found)


def _lowered(gap: Finding, found: Findings) -> str:
    """A sentence on the temperature that narrows the collapse gap most, or nothing where there is no gap to narrow."""
    changes = found.named(changed("collapse_gap"), gap.model)
    if gap.state != "up" or not changes:
        return ""
    lowered = [change for change in changes if change.state == "down"]
    if not lowered:
        return " No temperature tried narrows the collapse gap beyond noise."
    best = min(lowered, key=lambda change: change.value or 0.0)
    return f" {best.temperature} narrows the collapse gap by {_size(best)}."


def _size(finding: Finding) -> str:
    return str(finding).removeprefix("−")


def figures(row: Row, found: Findings, trend: pl.DataFrame, place: str) -> list[Figure]:
    """The four figures of `row`, each with its meaning, its change under other temperatures and its trend over nights.

    `place` begins the keys of the trends.
    """
    return [
        Figure(
            f"{label}, {row['temperature']}", *parted(estimate(row, name)), _says(row, name, found),
            [f"change at {change.temperature}: {signed(change)}" for change in found.named(changed(name), row["model"])],
            f"{place}-trend-{name}", sparkline(trend, name),
        )
        for name, label in FIGURES.items()
    ]  # fmt: skip


def _says(row: Row, name: str, found: Findings) -> str:
    if name in _SAYS:
        return _SAYS[name].get(found.at(name, row).state, "not known" if row[name] is not None else "not measured")
    if row[name] is None:
        return "not measured"
    if name == "socm_mean" and row["socm_groups"] is not None:
        return f"from {count(row['socm_pairs'], 'pair')} in {row['socm_groups']} groups of texts"
    texts = row["texts"] if name == "cosine_mean" else row["socm_texts"]
    return f"over {count(texts * (texts - 1) // 2, 'pair')} of texts"
