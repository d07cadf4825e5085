"""The end of a night: it is judged, entered into the record, and old nights lose their embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import polars as pl

from jobs import gate, history, night_config, runs
from jobs.config import AuditConfig
from jobs.headline import count
from jobs.night_schema import GATE
from jobs.runs import Run
from jobs.storage import Storage
from jobs.urls import reason, shown

PRUNED = "pruned.json"
TABLE = "tables/gate.parquet"
_EMBEDDINGS = ("texts", "factors", "neighbours", "queries")
_DRAWN = 30
"""Nights that a report draws."""
_TREND = (
    "night", "model", "model_fingerprint", "temperature", "texts", "gate", "gate_reason", "accepted",
    *(f"{name}_se_superpopulation" for name in ("cosine", "collapse_gap", "prefix_gap", "socm")),
    "cosine_mean", "collapse_gap", "prefix_gap", "socm_mean",
)  # fmt: skip
_UNKNOWN = dict.fromkeys(("texts_added", "texts_removed", "texts_edited"))


def judge(run: Run, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Judge the run and write the table `gate`; returns what run.json says of it.

    Args:
        run: the run, with its tables.
        record: what run.json will hold, without the verdict.
        summary: the rows of its collapse_summary.

    Raises:
        UsageError: the baseline is no finished audit.
    """
    config = run.config.gate
    asked, baselines = _rows(run, record, summary), [gate.Baseline(None, "")] * len(summary)
    if config.baseline == history.LATEST:
        baselines = history.latest(history.load(_record(run)), asked)
    elif config.baseline is not None:
        baselines = history.of_run(config.baseline, asked)
    rows = gate.judge(config, summary, baselines)
    run.storage.write_table(TABLE, GATE.build_rows(rows))
    verdict, failed = gate.verdict(rows)
    without = [
        (f"{row['model']} at {row['temperature']}", baseline.label)
        for row, baseline in zip(summary, baselines, strict=True)
        if config.baseline is not None and baseline.row is None and config.holds_for(row["temperature"])
    ]
    single = [
        row["reason"] for row in rows
        if row["verdict"] == "not comparable" and (f"{row['model']} at {row['temperature']}") not in dict(without)
    ]  # fmt: skip
    return {
        "verdict": verdict,
        "failed": failed,
        "checks": sum(row["verdict"] != "not comparable" for row in rows),
        "not_compared": [*(f"{what} is not compared: {why}" for what, why in without), *single],
    }


def told(judged: dict[str, Any]) -> str:
    """The verdict in a few words."""
    if judged["verdict"] == "none":
        return "held to nothing"
    failed, checks = len(judged["failed"]), count(judged["checks"], "check")
    found = f"failed: {failed} of {checks}" if failed else f"passed: {checks}"
    return f"{found}; not all is comparable" if judged["not_compared"] else found


def changes_told(changed: dict[str, int | None]) -> str:
    """How the texts changed, as a further part of a line; nothing where it is not known."""
    if changed["texts_added"] is None:
        return ""
    texts = ", ".join(f"{changed[f'texts_{what}']:,} {what}" for what in ("added", "removed", "edited"))
    return f"; texts since the night before: {texts}"


def enter(run: Run, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> None:
    """Enter the run into the record of nights."""
    history.add(_record(run), _rows(run, record, summary))


def trend(run: Run, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The last nights of the run's own series up to itself, as the report draws them."""
    nights = history.load(_record(run)).filter(pl.col("name") == run.config.record.name, pl.col("night") <= record["night"])
    last = nights["night"].unique().sort().tail(_DRAWN)
    found: list[dict[str, Any]] = nights.filter(pl.col("night").is_in(last.to_list())).select(_TREND).to_dicts()
    return found


def check(config: AuditConfig) -> None:
    """Raise where the record or the baseline cannot be had: a mistake in them must not cost a night.

    Raises:
        UsageError: the record's storage cannot be reached, or the baseline is no finished run.
    """
    Storage(night_config.history_folder(config.record, config.out)).check_reachable()
    if config.gate.baseline not in (None, history.LATEST):
        history.baseline_run(str(config.gate.baseline))


def changed_texts(run: Run, record: dict[str, Any]) -> dict[str, int | None]:
    """How many texts were added, removed and edited since the night before; unknown where that one's are gone."""
    with suppress(Exception):  # It is told beside the night's figures, and must not cost them.
        return _changed_texts(run, record)
    return dict(_UNKNOWN)


def _changed_texts(run: Run, record: dict[str, Any]) -> dict[str, int | None]:
    nights = history.load(_record(run)).filter(
        pl.col("name") == run.config.record.name,
        pl.col("run") != record["run"],
        pl.col("folder") != _named(run),  # There this run itself has replaced it.
        pl.col("night") <= record["night"],
    )
    if nights.is_empty():
        return dict(_UNKNOWN)
    last = nights.row(-1, named=True)
    folder = Storage(_full(run, last["folder"]))
    if not folder.exists(runs.DONE) or folder.read_json(runs.DONE).get("run") != last["run"]:
        return dict(_UNKNOWN)
    before, now = _contents(folder), _contents(run.storage)
    if before is None or now is None:
        return dict(_UNKNOWN)
    both = now.join(before, on="text_id", suffix="_before")
    return {
        "texts_added": len(now) - len(both),
        "texts_removed": len(before) - len(both),
        "texts_edited": both.filter(pl.col("content_sha") != pl.col("content_sha_before")).height,
    }


def pruned(run: Run, keep: int) -> str:
    """Remove the embeddings of nights before the last `keep`; returns what came of it in words. Tables and reports stay."""
    try:
        gone = prune_record(_record(run), run.config.record.name, keep, _named(run))
    except Exception as error:  # The night is done, whatever becomes of older ones.
        return f"old nights keep their embeddings: {reason(error, run.storage.root)}"
    return f"the embeddings of {count(len(gone), 'old night')} removed"


def prune_record(record: Storage, name: str | None, keep: int, spared: str | None = None) -> list[str]:
    """The same for the record in a folder; for all that share it where no name is given.

    Only folders beside the record are touched, and only those that hold the very run that the record names; never `spared`.
    """
    nights, gone = history.load(record), []
    for _, own in nights.group_by("name", maintain_order=True):
        if name is not None and own["name"][0] != name:
            continue
        kept = own["night"].unique().sort().tail(keep).to_list()
        for row in own.unique(["folder"], keep="last", maintain_order=True).to_dicts():
            if row["night"] in kept or row["folder"] == spared or not _is_beside(row["folder"]):
                continue
            folder = Storage(_beside(record, row["folder"]))
            held = folder.read_json(runs.DONE).get("run") if folder.exists(runs.DONE) else None
            if held == row["run"] and not folder.exists(PRUNED):
                for part in _EMBEDDINGS:
                    folder.remove(part)
                folder.write_json(PRUNED, {"removed": list(_EMBEDDINGS), "at": runs.now()})
                gone.append(row["folder"])
    return gone


def _rows(run: Run, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {"gate": {"verdict": "none", "failed": []}, "changed_texts": _UNKNOWN} | record
    return history.rows(known, summary, _named(run), run.config.record.name)


def _record(run: Run) -> Storage:
    return Storage(night_config.history_folder(run.config.record, run.config.out).rstrip("/"))


def _named(run: Run) -> str:
    """The run's folder as the record names it: short where it lies beside the record, so that both may be moved."""
    parent = _record(run).root.rpartition("/")[0]
    own = run.storage.root.rstrip("/")
    if own == parent:
        return "."
    return own.removeprefix(f"{parent}/") if own.startswith(f"{parent}/") else shown(own)


def _is_beside(folder: str) -> bool:
    return "://" not in folder and not folder.startswith("/")


def _beside(record: Storage, folder: str) -> str:
    parent = record.root.rpartition("/")[0]
    return parent if folder == "." else f"{parent}/{folder}"


def _full(run: Run, folder: str) -> str:
    return _beside(_record(run), folder) if _is_beside(folder) else folder


def _contents(storage: Storage) -> pl.DataFrame | None:
    """Id and content of every text of a run; None where they are gone."""
    parts = storage.list("texts", ".parquet")
    if not parts:
        return None
    first = parts[0].rpartition("/")[0]  # Every model and temperature holds the same texts but for those it rejected.
    mine = [name for name in parts if name.startswith(f"{first}/")]
    return pl.concat(storage.read_frames(mine, ["text_id", "content_sha"]))
