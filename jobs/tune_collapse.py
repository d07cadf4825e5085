"""A temperature chosen without labels: by the prefix gap and the exposure of long texts, where nothing else gets worse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pyarrow as pa

from jobs import paired
from jobs.errors import UsageError
from jobs.headline import interval_name, share
from jobs.layout import folder
from jobs.paired import Error
from jobs.runs import Model, Run
from tempscale.length import FEWEST_TEXTS, within_error
from tempscale.temperature import Temperature

_Z = 1.96
_LEVEL = 0.05


class Seen(NamedTuple):
    """What an audit left of the corpus under one candidate, texts by id."""

    texts: pl.DataFrame
    """text_id, group: the lower edge of its length interval, inside: its mean cosine within that."""
    probe: pl.DataFrame
    """text_id, group: the prefix, inside; empty where the probe was left out."""
    near: dict[str, set[str]]
    """The nearest texts of each."""


def seen(run: Run, model: Model, temperature: Temperature) -> Seen:
    """Read it from the parts of a finished audit."""
    tables = []
    for step in ("cosine", "probe"):
        name = f"{folder(run, step, model, temperature)}/text_means.parquet"
        empty = pl.DataFrame(schema={"text_id": pl.String, "group": pl.Int32, "inside": pl.Float64})
        tables.append(pl.DataFrame(pl.from_arrow(run.storage.read_table(name))) if run.storage.exists(name) else empty)
    parts = [run.storage.read_table(name) for name in run.storage.list(run.place("neighbours", model, temperature))]
    graph = pa.concat_tables(parts) if parts else pa.table({"text_id": pa.array([], pa.string()), "neighbours": []})
    columns = (graph.column(name).to_pylist() for name in ("text_id", "neighbours"))
    texts, probe = (table.select("text_id", "group", "inside") for table in tables)
    return Seen(texts, probe, {text_id: set(near) for text_id, near in zip(*columns, strict=True)})


def by_interval(own: Seen, first: Seen) -> list[dict[str, Any]]:
    """The mean cosine inside each length interval of at least 30 texts, and its change on the same texts."""
    both = own.texts.join(first.texts.select("text_id", "inside"), on="text_id", suffix="_first", maintain_order="left")
    rows = []
    for (edge,), mine in both.group_by("group", maintain_order=True):
        if len(mine) >= FEWEST_TEXTS:
            change, error = _pairs_change(mine)
            mean = float(mine["inside"].to_numpy().mean())
            rows.append({"interval": edge, "texts": len(mine), "cosine_mean": mean, "change": change, "change_se": error})
    return sorted(rows, key=lambda row: row["interval"])


def _pairs_change(both: pl.DataFrame) -> tuple[float, float]:
    """Of a mean over pairs, from each text's own mean: 2·sd/√n, for each pair counts in two texts."""
    moved = (both["inside"] - both["inside_first"]).to_numpy()
    return float(moved.mean()), within_error(float(moved.var(ddof=1)), len(moved))


def prefix_gap(own: Seen, first: Seen) -> tuple[float | None, Error]:
    """The prefix gap and its change on the same texts; None where no text was long enough to be probed."""
    if own.probe.is_empty():
        return None, Error(None, None)
    gaps = []
    for each in (own, first):
        ends = (
            each.probe.filter(pl.col("group") == edge) for edge in (each.probe["group"].min(), each.probe["group"].max())
        )
        short, long = (end.select("text_id", "inside") for end in ends)
        both = long.join(short, on="text_id", suffix="_short").sort("text_id")
        gaps.append((both["inside"] - both["inside_short"]).to_numpy())
    moved = gaps[0] - gaps[1]
    error = within_error(float(moved.var(ddof=1)), len(moved))
    return float(gaps[0].mean()), Error(float(moved.mean()), error)


def exposure(own: Seen, first: Seen, long: set[str]) -> tuple[float, Error]:
    """Exposure of the longest texts: their share of all neighbour slots over their share of the texts, and its change."""
    share = len(long) / len(own.near)
    taken, before = (
        np.array([len(each.near[i] & long) / len(each.near[i]) for i in sorted(each.near)]) / share for each in (own, first)
    )
    return float(taken.mean()), paired.mean(taken - before)


def kept(own: Seen, first: Seen, short: set[str]) -> float:
    """The share of their nearest texts that the shortest texts keep."""
    return float(np.mean([len(own.near[i] & first.near[i]) / len(first.near[i]) for i in sorted(short)]))


def choose(
    every: Sequence[Seen], keep_neighbours: float, edges: Sequence[int]
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The rows of `tuning_collapse`, without their key, and those of `tuning_intervals` of each candidate.

    A candidate is eligible if in no interval the mean cosine rises beyond its error (flattening by raising short texts is
    no gain) and short texts keep their neighbours. Of those, it must better the prefix gap or the exposure of long texts
    beyond noise, with the error shared among all candidates (Bonferroni), and worsen neither. The smallest gap is chosen.

    Args:
        every: what was seen under each candidate, the reference first.
        keep_neighbours: share of their nearest texts that short texts must keep.
        edges: of the length intervals.

    Raises:
        UsageError: fewer than two length intervals hold at least 30 texts.
    """
    first = every[0]
    found = [by_interval(own, first) for own in every]
    if len(found[0]) < 2:
        raise UsageError(
            f"fewer than two length intervals hold {FEWEST_TEXTS} texts, so that nothing can be told of length; give a "
            "larger --sample or other --intervals"
        )
    ends = (found[0][place]["interval"] for place in (0, -1))
    short, long = (set(first.texts.filter(pl.col("group") == edge)["text_id"]) for edge in ends)
    z = NormalDist().inv_cdf(1 - _LEVEL / 2 / max(1, len(every) - 1))
    rows: list[dict[str, Any]] = []
    for own, intervals in zip(every, found, strict=True):
        gap, gap_change = prefix_gap(own, first)
        exposed, exposed_change = exposure(own, first, long)
        worst = max(intervals, key=lambda row: _size(row["change"], row["change_se"]))
        row: dict[str, Any] = {
            "prefix_gap": gap, "prefix_gap_change": gap_change.value, "prefix_gap_change_se": gap_change.se,
            "exposure_long": exposed, "exposure_long_change": exposed_change.value,
            "exposure_long_change_se": exposed_change.se, "rise": _size(worst["change"], worst["change_se"]),
            "rise_interval": worst["interval"], "short_kept": kept(own, first, short), "eligible": True, "chosen": False,
        }  # fmt: skip
        rows.append(row | _judged(row, rows[0] if rows else row, worst, keep_neighbours, z, edges))
    better = [row for row in rows[1:] if row["better"]]
    probed = rows[0]["prefix_gap"] is not None
    chosen = min(better, key=lambda row: row["prefix_gap"] if probed else -_fairer(row, rows[0])) if better else rows[0]
    chosen["chosen"] = True
    if chosen is rows[0]:
        chosen["reason"] = "no eligible candidate betters it by more than noise"
    else:
        chosen["reason"] += f"; of such candidates the {'smallest prefix gap' if probed else 'fairest exposure'}"
    return [{name: value for name, value in row.items() if name != "better"} for row in rows], found


def _judged(
    row: dict[str, Any], first: dict[str, Any], worst: dict[str, Any], keep: float, z: float, edges: Sequence[int]
) -> dict[str, Any]:
    """Whether a candidate may be chosen, whether it is better, and why."""
    if row["rise"] > _Z:
        where = f"texts of {interval_name(worst['interval'], edges)} tokens"
        return {"eligible": False, "better": False, "reason": f"raises the mean cosine of {where} beyond its error"}
    if row["short_kept"] < keep:
        told = f"short texts keep {share(row['short_kept'])} of their nearest texts; {share(keep)} are asked"
        return {"eligible": False, "better": False, "reason": told}
    gap = -_size(row["prefix_gap_change"], row["prefix_gap_change_se"])
    exposed = _fairer(row, first)
    if min(gap, exposed) < -_Z:
        what = "prefix gap" if gap < -_Z else "exposure of long texts"
        return {"eligible": True, "better": False, "reason": f"worsens the {what} beyond its error"}
    good = [what for what, size in (("prefix gap", gap), ("exposure of long texts", exposed)) if size > z]
    if not good:
        return {"eligible": True, "better": False, "reason": "betters neither prefix gap nor exposure by more than noise"}
    return {"eligible": True, "better": True, "reason": f"betters the {' and the '.join(good)} beyond noise"}


def _fairer(row: dict[str, Any], first: dict[str, Any]) -> float:
    """How much nearer to 1 the exposure of long texts is, on a scale of ratios, in standard errors of its change."""
    own, before = row["exposure_long"], first["exposure_long"]
    if own <= 0 or before <= 0:
        return _size(own - before, row["exposure_long_change_se"])
    error = row["exposure_long_change_se"]
    return _size(abs(math.log(before)) - abs(math.log(own)), None if error is None else error / own)


def _size(change: float | None, error: float | None) -> float:
    """A change in its standard errors; 0 where nothing moved or nothing is known."""
    if change is None or error is None or change == 0:
        return 0.0
    return change / error if error > 0 else float(np.copysign(np.inf, change))
