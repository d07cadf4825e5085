"""The first screen of an audit's report: the answer in up to three sentences, and the four figures behind it."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.audit.findings import inside
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
    return text + _lowered(gap, row, found, edges)


def _lowered(gap: Finding, row: Row, found: Findings, edges: Edges) -> str:
    """What the temperatures do to the gap: less collapse is where long texts move apart, and no length moves together."""
    changes = found.named(changed("collapse_gap"), gap.model)
    if not changes:
        return ""
    lowered = [change for change in changes if change.state == "down"]
    if gap.state != "up" or not lowered:
        none = " No temperature tried narrows this gap, the collapse gap, beyond noise." * (gap.state == "up")
        return none + _drawn(gap.model, found)
    best = min(lowered, key=lambda change: (bool(_caveat(change, row, found, edges)), change.value or 0.0))
    long = _long(best, row, found)
    gain = f": long texts move apart, by {_size(long)}" if long.is_beyond_noise else ""
    moved = _caveat(best, row, found, edges) or gain
    return f" {best.temperature} narrows this gap, the collapse gap, by {_size(best)}{moved}."


def _long(change: Finding, row: Row, found: Findings) -> Finding:
    """The change of the mean cosine of two long texts under the same temperature."""
    return found.of(changed(inside(row["gap_longest"])), change.model, change.temperature)


def _caveat(change: Finding, row: Row, found: Findings, edges: Edges) -> str:
    """Why a narrower gap is no gain: long texts do not move apart, or others move together; empty where it is one."""
    together = {
        edge: moved for edge in edges
        if (moved := found.of(changed(inside(edge)), change.model, change.temperature)).state == "up"
    }  # fmt: skip
    long = _long(change, row, found)
    if long.state == "absent":  # In a run of an older version.
        cosine = found.of(changed("cosine_mean"), change.model, change.temperature)
        return ", but raises the mean cosine of all texts" * (cosine.state == "up")
    apart = long.state == "down"
    if apart and not together:
        return ""
    short = row["gap_shortest"]
    closer = [short] if short in together else [*together]
    raised = [f"texts of {interval_name(at, edges)} tokens move together, by {_size(together[at])}" for at in closer[:1]]
    if apart:
        return f", but {raised[0]}"
    return f", which is no gain: {', and '.join([*raised, 'long texts do not move apart beyond noise'])}"


def _drawn(model: str, found: Findings) -> str:
    """That a temperature draws texts together, of those that do the one that does it most."""
    raised = [change for change in found.named(changed("cosine_mean"), model) if change.state == "up"]
    if not raised:
        return ""
    most = max(raised, key=lambda change: change.value or 0.0)
    return f" {most.temperature} draws texts together, by {_size(most)} in mean cosine over all pairs."


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
