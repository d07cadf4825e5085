"""Choose a temperature without labels, which improves the prefix gap or the exposure of long texts and worsens nothing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa
from scipy.special import stdtrit

from tempscale.stats import paired
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.stats.errors import documents_error, enough_documents, equal_documents, within_error
from tempscale.stats.paired import Error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.text import interval_name, share
from tempscale_jobs.runs.folder import Model, Run, all_means_by_text
from tempscale_jobs.steps.neighbours import CORRECTED
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.tune.findings import passes_fair

_LEVEL = 0.05


class Seen(NamedTuple):
    """An audit's parts under one candidate, for the choice."""

    texts: pl.DataFrame
    """Columns text_id, group (lower edge of the length interval), inside (the text's mean cosine within it) and document."""
    probe: pl.DataFrame
    """Columns text_id, group (tokens of the prefix), inside and document; empty if the probe was left out."""
    near: dict[str, set[str]]
    """The nearest texts of each text, by id."""

    @property
    def document(self) -> dict[str, int] | None:
        """The document of each text, by id; None if the texts have no documents."""
        if self.texts["document"].null_count():
            return None
        return dict(self.texts.select("text_id", "document").iter_rows())


class Noise(NamedTuple):
    """The standard errors that a change must exceed to be more than noise, by Student's t."""

    worse: float
    """For one change, two-sided at 5 %."""
    better: float
    """For the changes of all candidates together (Bonferroni)."""

    @classmethod
    def of(cls, first: Seen, candidates: int) -> Noise:
        """The noise with one degree of freedom less than the documents of the length interval that has the fewest."""
        intervals = [table["document"] for _, table in first.texts.group_by("group") if len(table) >= TEXTS_FOR_AN_INTERVAL]
        fewest = min(len(ids) if ids.null_count() else equal_documents(ids.to_numpy()) for ids in intervals)
        freedom = fewest - 1
        levels = (_LEVEL / 2, _LEVEL / 2 / max(1, candidates))
        return cls(*(-float(stdtrit(max(1.0, freedom), level)) for level in levels))


def measured(run: Run, model: Model, temperature: Temperature) -> Seen:
    """Read the parts of a finished audit under one candidate."""
    tables = []
    for step in ("cosine", "probe"):
        place = run.place(f"partials/{step}", model, temperature)
        empty = pl.DataFrame(schema={"text_id": pl.String, "group": pl.Int32, "inside": pl.Float64, "document": pl.Int64})
        tables.append(pl.concat([empty, *run.storage.read_frames(all_means_by_text(run.storage, place), empty.columns)]))
    parts = [run.storage.read_table(name) for name in run.storage.list(run.place("neighbours", model, temperature))]
    graph = pa.concat_tables(parts) if parts else pa.table({"text_id": pa.array([], pa.string()), "neighbours": []})
    columns = (graph.column(name).to_pylist() for name in ("text_id", "neighbours"))
    texts, probe = (table.select("text_id", "group", "inside", "document") for table in tables)
    return Seen(texts, probe, {text_id: set(near) for text_id, near in zip(*columns, strict=True)})


def corrected(run: Run, model: Model, temperature: Temperature, first: Seen) -> Seen | None:
    """The first candidate with a correction by length, which moves neighbours only; None without a correction.

    Only the texts that the correction was not fitted to ask.
    """
    names = run.storage.list(run.place(CORRECTED, model, temperature))
    tables = [run.storage.read_table(name) for name in names]
    near = {
        i: set(neighbours)
        for t in tables
        for i, neighbours in zip(t["text_id"].to_pylist(), t["neighbours"].to_pylist(), strict=True)
    }
    return first._replace(near=near) if near else None


def by_interval(own: Seen, first: Seen) -> list[dict[str, Any]]:
    """The mean cosine inside each length interval with at least 30 texts, and its change on the same texts."""
    both = own.texts.join(first.texts.select("text_id", "inside"), on="text_id", suffix="_first", maintain_order="left")
    rows = []
    for (edge,), texts in both.group_by("group", maintain_order=True):
        if len(texts) >= TEXTS_FOR_AN_INTERVAL:
            moved = (texts["inside"] - texts["inside_first"]).to_numpy()
            change, error = float(moved.mean()), _pairs_error(moved, texts["document"])
            mean = float(texts["inside"].to_numpy().mean())
            rows.append({"interval": edge, "texts": len(texts), "cosine_mean": mean, "change": change, "change_se": error})
    return sorted(rows, key=lambda row: row["interval"])


def _pairs_error(moved: np.ndarray, document: pl.Series) -> float | None:
    """The error of a change of a mean over pairs, from the changes of the texts' means; None for too few documents."""
    if document.null_count():
        return within_error(float(moved.var(ddof=1)), len(moved))
    return finite(documents_error([moved], [2.0], [document.to_numpy()]))


def prefix_gap(own: Seen, first: Seen) -> tuple[float | None, Error]:
    """The prefix gap and its change on the same texts; None if no text was long enough for the probe."""
    if own.probe.is_empty():
        return None, Error(None, None)
    gaps = []
    for candidate in (own, first):
        ends = (
            candidate.probe.filter(pl.col("group") == edge)
            for edge in (candidate.probe["group"].min(), candidate.probe["group"].max())
        )
        short, long = (end.select("text_id", "inside", "document") for end in ends)
        both = long.join(short, on="text_id", suffix="_short").sort("text_id")
        gaps.append((both["inside"] - both["inside_short"]).to_numpy())
    moved = gaps[0] - gaps[1]
    return float(gaps[0].mean()), Error(float(moved.mean()), _pairs_error(moved, both["document"]))


def exposure(own: Seen, first: Seen, long: set[str]) -> tuple[float, Error]:
    """Exposure of the longest texts (their share of neighbour slots over their share of texts), and its change."""
    share, asking = len(long) / len(first.near), sorted(own.near)
    taken, before = (
        np.array([len(candidate.near[i] & long) / len(candidate.near[i]) for i in asking]) / share
        for candidate in (own, first)
    )
    document = own.document
    if document is None:
        return float(taken.mean()), paired.mean(taken - before)
    clusters = np.array([document[i] for i in asking])
    moved = paired.mean(taken - before, clusters)
    return float(taken.mean()), moved if enough_documents(clusters) else Error(moved.value, None)


def kept(own: Seen, first: Seen, short: set[str]) -> float:
    """The share of the shortest texts' nearest texts that this candidate keeps."""
    shares = [len(own.near[i] & first.near[i]) / len(first.near[i]) for i in sorted(short & own.near.keys())]
    return float(np.mean(shares)) if shares else 0.0


def choose(
    every: Sequence[Seen], keep_neighbours: float, edges: Sequence[int]
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The rows of `tuning_collapse`, and by candidate of `tuning_intervals`, without key columns; the reference first."""
    # A candidate is eligible if the mean cosine rises beyond its error in no interval (raising it for short texts is no
    # gain) and short texts keep the share `keep_neighbours` of their nearest texts. It must improve the prefix gap or the
    # exposure of long texts beyond noise (Bonferroni over the candidates) and worsen neither. Of these the smallest gap
    # is chosen; one that moves the exposure past the fair 1 only if all do.
    first = every[0]
    all_intervals = [by_interval(candidate, first) for candidate in every]
    if len(all_intervals[0]) < 2:
        raise UsageError(
            f"fewer than two length intervals have {TEXTS_FOR_AN_INTERVAL} texts, so length collapse cannot be measured; "
            "give a larger --sample or other --intervals"
        )
    ends = (all_intervals[0][place]["interval"] for place in (0, -1))
    short, long = (set(first.texts.filter(pl.col("group") == edge)["text_id"]) for edge in ends)
    of_noise = Noise.of(first, len(every) - 1)
    rows: list[dict[str, Any]] = []
    for candidate, intervals in zip(every, all_intervals, strict=True):
        gap, gap_change = prefix_gap(candidate, first)
        exposed, exposed_change = exposure(candidate, first, long)
        worst = max(intervals, key=lambda row: _size(row["change"], row["change_se"]))
        row: dict[str, Any] = {
            "prefix_gap": gap, "prefix_gap_change": gap_change.value, "prefix_gap_change_se": gap_change.se,
            "exposure_long": exposed, "exposure_long_change": exposed_change.value,
            "exposure_long_change_se": exposed_change.se, "rise": _size(worst["change"], worst["change_se"]),
            "rise_interval": worst["interval"], "short_kept": kept(candidate, first, short), "eligible": True,
            "chosen": False,
        }  # fmt: skip
        rows.append(row | _judged(row, rows[0] if rows else row, intervals, _Bar(keep_neighbours, of_noise, edges)))
    better = [row for row in rows[1:] if row["better"]]
    before = rows[0]["exposure_long"]
    within = [row for row in better if not passes_fair(before, row["exposure_long"], row["exposure_long_change_se"])]
    only = " that does not overshoot" if 0 < len(within) < len(better) else ""
    better = within or better
    probed = rows[0]["prefix_gap"] is not None
    chosen = min(better, key=lambda row: row["prefix_gap"] if probed else -fairer(row, rows[0])) if better else rows[0]
    chosen["chosen"] = True
    if chosen is rows[0]:
        chosen["reason"] = "no eligible candidate betters it by more than noise"
    else:
        chosen["reason"] += f"; of such candidates{only} the {'smallest prefix gap' if probed else 'fairest exposure'}"
    return [{name: value for name, value in row.items() if name != "better"} for row in rows], all_intervals


class _Bar(NamedTuple):
    """The conditions for a candidate."""

    keep: float
    """The share of their nearest texts that short texts must keep under it."""
    noise: Noise
    edges: Sequence[int]


def _judged(
    row: dict[str, Any], first: dict[str, Any], intervals: list[dict[str, Any]], bar: _Bar
) -> dict[str, Any]:  # fmt: skip
    """Whether a candidate is eligible, whether it is better than the reference, and the reason."""
    keep, noise, edges = bar
    changes = [(interval["change"], interval["change_se"]) for interval in intervals]
    changes += [(row[f"{name}_change"], row[f"{name}_change_se"]) for name in ("prefix_gap", "exposure_long")]
    if any(error is None and change for change, error in changes):
        why = "errors of its changes are not known: the texts are of too few documents"
        return {"eligible": False, "better": False, "reason": why}
    if row["rise"] > noise.worse:
        where = f"texts of {interval_name(row['rise_interval'], edges)} tokens"
        return {"eligible": False, "better": False, "reason": f"raises the mean cosine of {where} beyond its error"}
    if row["short_kept"] < keep:
        reason_text = f"short texts keep {share(row['short_kept'])} of their nearest texts; {share(keep)} are asked"
        return {"eligible": False, "better": False, "reason": reason_text}
    gap = -_size(row["prefix_gap_change"], row["prefix_gap_change_se"])
    exposed = fairer(row, first)
    if min(gap, exposed) < -noise.worse:
        what = "prefix gap" if gap < -noise.worse else "exposure of long texts"
        return {"eligible": True, "better": False, "reason": f"worsens the {what} beyond its error"}
    good = [what for what, size in (("prefix gap", gap), ("exposure of long texts", exposed)) if size > noise.better]
    if not good:
        return {"eligible": True, "better": False, "reason": "betters neither prefix gap nor exposure by more than noise"}
    return {"eligible": True, "better": True, "reason": f"betters the {' and the '.join(good)} beyond noise"}


def fairer(row: dict[str, Any], first: dict[str, Any]) -> float:
    """The move of long texts' exposure towards 1, on a log scale, in standard errors of its change."""
    exposed, before = row["exposure_long"], first["exposure_long"]
    if exposed <= 0 or before <= 0:
        return _size(exposed - before, row["exposure_long_change_se"])
    error = row["exposure_long_change_se"]
    return _size(abs(math.log(before)) - abs(math.log(exposed)), None if error is None else error / exposed)


def _size(change: float | None, error: float | None) -> float:
    """A change in units of its standard error; 0 if nothing changed or the error is not known."""
    if change is None or error is None or change == 0:
        return 0.0
    return change / error if error > 0 else float(np.copysign(np.inf, change))
