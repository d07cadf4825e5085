"""The first screen of an audit's report: the answer in up to three sentences, and the four figures behind it."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.nights.charts import sparkline
from tempscale_jobs.report.findings import Finding, Findings, changed
from tempscale_jobs.report.sections import Figure
from tempscale_jobs.report.text import FIGURES, Edges, capital, count, estimate, interval_name, number, parted, signed

Row = dict[str, Any]
_HOW = {"up": "closer together", "down": "further apart"}
_NO_CLAIM = {"noise": "no difference beyond noise", "unknown": "not known", "absent": "not measured"}


def compared(name: str, row: Row, found: Findings, edges: Edges) -> str:
    """What the collapse gap or the prefix gap says, in words."""
    state = found.at(name, row).state
    if state not in _HOW:
        return _NO_CLAIM[state]
    if name == "collapse_gap":
        short, long = (interval_name(row[f"gap_{end}"], edges) for end in ("shortest", "longest"))
        return f"long texts ({long} tokens) are {_HOW[state]} than short ones ({short})"
    short, long = row["prefix_shortest"], row["prefix_longest"]
    cut = f"cut to {long} tokens than to {short}"
    return f"the same {count(row['prefix_texts'], 'long text')} are {_HOW[state]} when {cut}"


def answer(row: Row, found: Findings, edges: Edges) -> str:
    """The answer to «do these embeddings collapse?», from the first row of collapse_summary and the findings."""
    gap, prefix = found.at("collapse_gap", row), found.at("prefix_gap", row)
    text = {
        "up": f"Yes: {compared('collapse_gap', row, found, edges)}, by {_size(gap)} in mean cosine.",
        "down": f"No: {compared('collapse_gap', row, found, edges)}, by {_size(gap)} in mean cosine.",
        "noise": f"No difference beyond noise: the mean cosines of long and short texts differ by at most "
        f"{number(gap.largest)}.",
        "unknown": "Not known: too few texts to tell whether long texts are closer together than short ones.",
        "absent": "Not measured: fewer than two length intervals have at least 30 texts.",
    }[gap.state]
    if prefix.is_beyond_noise:
        text += f" {capital(compared('prefix_gap', row, found, edges))}, by {_size(prefix)}."
    elif prefix.state == "noise":
        text += f" The same {count(row['prefix_texts'], 'long text')}, cut short and cut long: no difference beyond noise."
    return text + _lowered(gap, found)


def _lowered(gap: Finding, found: Findings) -> str:
    """A sentence on the temperature that narrows the collapse gap most, or nothing where there is no gap to narrow."""
    changes = found.named(changed("collapse_gap"), gap.model)
    if gap.state != "up" or not changes:
        return ""
    lowered = [change for change in changes if change.state == "down"]
    if not lowered:
        return " No temperature tried narrows this gap, the collapse gap, beyond noise."
    best = min(lowered, key=lambda change: change.value or 0.0)
    cosine = found.of(changed("cosine_mean"), gap.model, best.temperature)
    closer = ", but raises the mean cosine of all texts" if cosine.state == "up" else ""
    return f" {best.temperature} narrows this gap, the collapse gap, by {_size(best)}{closer}."


def _size(finding: Finding) -> str:
    return str(finding).removeprefix("−")


def figures(row: Row, found: Findings, edges: Edges, trend: pl.DataFrame, place: str) -> list[Figure]:
    """The four figures of `row`, each with its meaning, its change under other temperatures and its trend over nights.

    `place` begins the keys of the trends.
    """
    return [
        Figure(
            f"{label}, {row['temperature']}", *parted(estimate(row, name)), _says(row, name, found, edges),
            [f"change at {change.temperature}: {signed(change)}" for change in found.named(changed(name), row["model"])],
            f"{place}-trend-{name}", sparkline(trend, name),
        )
        for name, label in FIGURES.items()
    ]  # fmt: skip


def _says(row: Row, name: str, found: Findings, edges: Edges) -> str:
    if name in ("collapse_gap", "prefix_gap"):
        return compared(name, row, found, edges)
    if row[name] is None:
        return "not measured"
    if name == "socm_mean" and row["socm_groups"] is not None:
        return f"from {count(row['socm_pairs'], 'pair')} in {row['socm_groups']} random groups of texts"
    texts = row["texts"] if name == "cosine_mean" else row["socm_texts"]
    return f"over {count(texts * (texts - 1) // 2, 'pair')} of texts"
