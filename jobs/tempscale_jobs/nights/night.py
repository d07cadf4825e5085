"""The end of a night: judge it, enter it into the record, and remove the embeddings of old nights."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import polars as pl

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.nights import Gate, RecordOfNights, history_folder
from tempscale_jobs.errors import RunError, UsageError
from tempscale_jobs.nights import gate
from tempscale_jobs.nights import record as history
from tempscale_jobs.report.text import count, model_at
from tempscale_jobs.runs import folder as runs
from tempscale_jobs.runs.folder import Run, parts_of_texts
from tempscale_jobs.runs.inventory import PRUNED
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.nights import GATE
from tempscale_jobs.urls import masked, reason

TABLE = "tables/gate.parquet"
_EMBEDDINGS = ("texts", "factors", "neighbours", "queries", "verify")
_DRAWN = 30
"""Number of nights in the charts of a report."""
_TREND = (
    "night", "model", "model_fingerprint", "temperature", "texts", "gate", "gate_reason", "gate_note", "accepted",
    *(f"{name}_se_superpopulation" for name in ("cosine", "collapse_gap", "prefix_gap", "socm")),
    "cosine_mean", "collapse_gap", "prefix_gap", "socm_mean",
)  # fmt: skip
_UNKNOWN = dict.fromkeys(("texts_added", "texts_removed", "texts_edited"))


@dataclass(frozen=True)
class Night:
    """A run as a night: its checks, and where the record of nights is."""

    run: Run
    gate: Gate
    record: RecordOfNights
    out: str

    @classmethod
    def of(cls, run: Run, config: AuditConfig) -> Night:
        """The night of an audit, with the sections of its configuration."""
        return cls(run, config.gate, config.record, config.out)

    @property
    def history(self) -> Storage:
        """The folder of the record of nights."""
        return Storage(history_folder(self.record, self.out))

    @property
    def folder(self) -> str:
        """The run's folder as the record names it: relative if it is next to the record, so that both can be moved."""
        parent = self.history.root.rpartition("/")[0]
        root = self.run.storage.root
        if root == parent:
            return "."
        return root.removeprefix(f"{parent}/") if root.startswith(f"{parent}/") else masked(root)


def judged(night: Night, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Judge a night and, unless it is quick, enter it into the record of nights.

    Return the entries `gate` and `changed_texts` of run.json.

    Raises:
        UsageError: the baseline is no finished audit.
    """
    entries = {"changed_texts": record["changed_texts"] if "gate" in record else changed_texts(night, record)}
    entries["gate"] = judge(night, record | entries, summary)
    if not history.is_quick(record):  # It measures too little to be the baseline of another night.
        enter(night, record | entries, summary)
    return entries


def judge(night: Night, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Judge the run and write the table `gate`; returns the verdict as an entry of run.json."""
    run, config = night.run, night.gate
    rows_of_night, baselines = _rows(night, record, summary), [gate.Baseline(None, "")] * len(summary)
    earlier = history.read(night.history)
    damaged = _others(night, earlier.damaged, rows_of_night)
    if config.baseline == history.LATEST:
        baselines = history.latest(earlier.rows, rows_of_night)
        if damaged:  # One of the unreadable nights may be the earlier one.
            unread = gate.Baseline(None, "earlier nights of the record cannot be read")
            baselines = [unread if baseline.first else baseline for baseline in baselines]
    elif config.baseline is not None:
        baselines = history.of_run(config.baseline, rows_of_night)
    gone = list[str]()
    if config.baseline == history.LATEST and not any(baseline.other for baseline in baselines):  # Its label names the model.
        gone = history.gone(earlier.rows, rows_of_night)
    rows = gate.judge(config, summary, baselines)
    if (verified := record.get("verified")) is not None:
        rows = [gate.of_vectors(verified, summary[0]), *rows]
    run.storage.write_table(TABLE, GATE.build_rows(rows))
    verdict, failed = gate.verdict(rows)
    missing = [
        (row, baseline)
        for row, baseline in zip(summary, baselines, strict=True)
        if config.baseline is not None and baseline.row is None
    ]
    without = {history.key_of(row): baseline for row, baseline in missing}
    refused = [
        f"{model_at(row)} is not compared with an earlier night: {baseline.label}"
        for row, baseline in missing
        if config.holds_for(row["temperature"]) and not (baseline.first or baseline.other)
    ]
    single = [row["reason"] for row in rows if row["verdict"] == "not comparable" and history.key_of(row) not in without]
    return {
        "verdict": verdict,
        "failed": failed,
        "checks": sum(row["verdict"] in ("held", "failed", "not measured") for row in rows),
        "unknown_noise": [row["reason"] for row in rows if row["verdict"] == "unknown noise"],
        "first_nights": [row["reason"] for row in rows if row["verdict"] == "first night"],
        "not_compared": [*refused, *single],
        "gone_models": gone,
        "unreadable_nights": history.damage_in_words(damaged, night.history),
        "without_baseline": [at for at, baseline in without.items() if not baseline.begins(config)],
    } | _compared_with(night, baselines)


def _compared_with(night: Night, baselines: Sequence[gate.Baseline]) -> dict[str, str]:
    """The folder of the run that a night was compared with, as an entry of run.json; none where there was no such run."""
    row = next((baseline.row for baseline in baselines if baseline.row is not None), None)
    if row is None:
        return {}
    latest = night.gate.baseline == history.LATEST
    return {"compared_with": masked(_full(night, row["folder"]) if latest else str(night.gate.baseline))}


def _others(night: Night, damaged: Sequence[str], rows_of_night: Sequence[dict[str, Any]]) -> list[str]:
    """The damaged parts of a record except this night's part, which is written again."""
    return [name for name in damaged if name != history.part(rows_of_night)]


def verdict_in_words(judged: dict[str, Any]) -> str:
    """The verdict in a few words."""
    if judged["verdict"] == "none":
        return "not checked"
    failed, checks = len(judged["failed"]), judged["checks"]
    passed = f"passed: {count(checks, 'check')}" if checks else "passed"
    return "; ".join([f"failed: {failed} of {checks}" if failed else passed, *notes_in_brief(judged)])


def failure_in_words(judged: dict[str, Any]) -> str:
    """The first failed check, and how many more there are; empty where none failed."""
    if not judged.get("failed"):
        return ""
    first, *others = judged["failed"]
    return f"The gate failed: {first}." + (f" {count(len(others), 'more check')} failed too." if others else "")


def notes_in_brief(judged: dict[str, Any]) -> list[str]:
    """The notes of a night, each kind in a few words."""
    notes, unknown = list[str](), len(judged.get("unknown_noise", ()))
    if judged.get("first_nights"):
        notes.append(gate.FIRST_NIGHT)
    if unknown:
        notes.append(f"{count(unknown, 'change')} of unknown noise")
    if judged["not_compared"]:
        notes.append(f"{count(len(judged['not_compared']), 'figure')} not compared")
    if judged.get("unreadable_nights"):
        notes.append("a night of the record cannot be read")
    return notes


def changes_in_words(changed: dict[str, int | None]) -> str:
    """The changes of the texts, to append to a line; empty where they are not known."""
    if changed["texts_added"] is None:
        return ""
    texts = ", ".join(f"{changed[f'texts_{what}']:,} {what}" for what in ("added", "removed", "edited"))
    return f"; texts since the night before: {texts}"


def enter(night: Night, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> None:
    """Enter the run into the record of nights."""
    history.add(night.history, _rows(night, record, summary))


def trend(night: Night, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the last nights of the run's series up to this night, for the charts of the report."""
    nights = history.load(night.history).filter(pl.col("name") == night.record.name, pl.col("night") <= record["night"])
    last = nights["night"].unique().sort().tail(_DRAWN)
    rows: list[dict[str, Any]] = nights.filter(pl.col("night").is_in(last.to_list())).select(_TREND).to_dicts()
    return rows


def check_record(record: RecordOfNights, checks: Gate, out: str) -> None:
    """Raise UsageError, before the long work, if the record cannot be reached or the baseline is no finished run."""
    Storage(history_folder(record, out)).check_reachable()
    if checks.baseline not in (None, history.LATEST):
        history.check_baseline(str(checks.baseline))


def check_windows(night: Night, asked: int | str | None) -> None:
    """Raise UsageError, before the long work, if no window was asked for and the last night of a series had another one."""
    if asked is not None:
        return
    nights = history.load(night.history).filter(
        pl.col("name") == night.record.name,
        pl.col("temperature").is_in([t.canonical for t in night.run.temperatures]),
        pl.col("night") <= night.run.night,
    )
    for model in night.run.models:
        last = nights.filter(pl.col("model_fingerprint") == model.fingerprint).tail(1).to_dicts()
        window = json.loads(last[0]["measured"]).get("max_length") if last else model.max_length
        if window != model.max_length:
            raise UsageError(
                f"the night of {last[0]['night']} cut the texts of {model.label} at {window} tokens, and this one would cut "
                f"them at {model.max_length}, the model's own window, so that the two could not be compared; say which: "
                f"--max-length {window} goes on as before, --max-length {model.max_length} begins anew"
            )


def changed_texts(night: Night, record: dict[str, Any]) -> dict[str, int | None]:
    """The numbers of texts added, removed and edited since the night before; None where its texts are gone."""
    with suppress(Exception):  # This count is an extra: a failure must not end the night.
        return count_changed_texts(night, record)
    return dict(_UNKNOWN)


def count_changed_texts(night: Night, record: dict[str, Any]) -> dict[str, int | None]:
    """The numbers of texts added, removed and edited since the night before; errors are not caught."""
    known = history.read(night.history)
    nights = known.rows.filter(
        pl.col("name") == night.record.name,
        pl.col("run") != record["run"],
        pl.col("folder") != night.folder,  # This run replaced the nights in its own folder.
        pl.col("night") <= record["night"],
    )
    if nights.is_empty():
        return dict(_UNKNOWN)
    last = nights.row(-1, named=True)
    if any(name > str(history.part([last])) for name in known.damaged):
        return dict(_UNKNOWN)  # The night before is one of those that cannot be read. Names of parts sort by time.
    folder = Storage(_full(night, last["folder"]))
    if not folder.exists(runs.DONE) or folder.read_object(runs.DONE).get("run") != last["run"]:
        return dict(_UNKNOWN)
    before, now = _contents(folder), _contents(night.run.storage)
    if before is None or now is None:
        return dict(_UNKNOWN)
    both = now.join(before, on="text_id", suffix="_before")
    return {
        "texts_added": len(now) - len(both),
        "texts_removed": len(before) - len(both),
        "texts_edited": both.filter(pl.col("content_sha") != pl.col("content_sha_before")).height,
    }


def pruned(night: Night, keep: int) -> str:
    """Remove the embeddings of all but the last `keep` nights, not their tables and reports; returns the result in words."""
    try:
        removed = prune_record(night.history, night.record.name, keep, night.folder)
    except Exception as error:  # Old nights must not fail a finished one.
        return f"old nights keep their embeddings: {reason(error, night.run.storage.root)}"
    return f"the embeddings of {count(len(removed), 'old night')} removed"


def prune_record(record: Storage, name: str | None, keep: int, spared: str | None = None) -> list[str]:
    """Remove the embeddings of old nights of one name, or of all names; returns the folders.

    Only folders next to the record that still have the recorded run are changed, and never `spared`.
    """
    nights, removed = history.load(record), []
    for _, rows in nights.group_by("name", maintain_order=True):
        if name is not None and rows["name"][0] != name:
            continue
        kept_nights = rows["night"].unique().sort().tail(keep).to_list()
        for row in rows.unique(["folder"], keep="last", maintain_order=True).to_dicts():
            if row["night"] in kept_nights or row["folder"] == spared or not _is_below(record, row["folder"]):
                continue
            folder = Storage(_next_to(record, row["folder"]))
            try:
                run = folder.read_object(runs.DONE).get("run") if folder.exists(runs.DONE) else None
            except RunError:
                continue  # Which run a damaged run.json is of is not known.
            if run == row["run"] and not folder.exists(PRUNED):
                for part in _EMBEDDINGS:
                    folder.remove(part)
                folder.write_json(PRUNED, {"removed": list(_EMBEDDINGS), "at": runs.now()})
                removed.append(row["folder"])
    return removed


def _rows(night: Night, record: dict[str, Any], summary: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    known = {"gate": {"verdict": "none", "failed": []}, "changed_texts": _UNKNOWN} | record
    return history.rows(known, summary, night.folder, night.record.name)


def _is_next_to(folder: str) -> bool:
    """Whether the record names a folder by its path from the folder that both are in, which does not leave that."""
    return folder == "." or (not {"", ".", ".."} & {*folder.split("/")} and "://" not in folder)


def _is_below(record: Storage, folder: str) -> bool:
    """Whether a folder that the record names is below the one that holds the record, and no link leads out of it."""
    if not _is_next_to(folder) or not record.is_local:
        return _is_next_to(folder)
    parent = os.path.realpath(os.path.dirname(record.path("")))
    return os.path.commonpath([parent, os.path.realpath(Storage(_next_to(record, folder)).path(""))]) == parent


def _next_to(record: Storage, folder: str) -> str:
    parent = record.root.rpartition("/")[0]
    return parent if folder == "." else f"{parent}/{folder}"


def _full(night: Night, folder: str) -> str:
    return _next_to(night.history, folder) if _is_next_to(folder) else folder


def _contents(storage: Storage) -> pl.DataFrame | None:
    """Id and content digest of every text of a run; None where they were pruned."""
    parts = parts_of_texts(storage)
    return pl.concat(storage.read_frames(parts, ["text_id", "content_sha"])) if parts else None
