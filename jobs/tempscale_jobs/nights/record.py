"""The record of nights: one small Parquet part per run, the baseline of a night, and runs accepted by the user."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import polars as pl
from scipy.special import stdtrit

from tempscale_jobs.errors import Damaged, RunError, UsageError
from tempscale_jobs.nights import gate
from tempscale_jobs.nights.gate import FIRST_NIGHT, Baseline
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import DONE, finished, missing_table, now
from tempscale_jobs.runs.inventory import check_tables, results
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY
from tempscale_jobs.tables.columns import KEY
from tempscale_jobs.tables.nights import HISTORY
from tempscale_jobs.urls import masked

ACCEPTED = "accepted"
LATEST = "latest"
_UNWRITTEN: dict[str, Any] = {"prompts": {}, "socm": "sample"}
"""The values of settings that decided a night before they were written down."""
_UNKNOWN_BEFORE = ("dimensions",)
"""Settings whose value is not known where an older version did not write them."""
_ALWAYS_THERE = {
    "run",
    "night",
    "name",
    "started",
    "folder",
    "model",
    "temperature",
    "model_fingerprint",
    "measured",
    "gate",
}
"""Columns that the parts of every version have."""
_TEXTS = ("run", "night", "name", "started", "folder", "temperature", "model")
"""Columns that are null in no part."""
_READERS = 16
"""Parts that are read at the same time."""
_NAMED = 3
_FIGURES = tuple(c.name for c in COLLAPSE_SUMMARY.columns if c not in KEY)


def open_record(folder: str) -> Storage:
    """Open the record in a folder of nights, in a run folder, or in its own folder; raises UsageError if there is none."""
    storage = Storage(folder)
    storage.check_reachable()
    for record in (Storage(f"{storage.root}/history"), storage):
        if any(name.startswith("part-") and name.endswith(".parquet") for name in record.names()):
            return record
    raise UsageError(
        f"'{masked(folder)}' holds no record of nights; give the folder of the nights, or what --history or [record] named"
    )


def measured(config: dict[str, Any], model: dict[str, Any]) -> str:
    """The settings that decide a figure besides corpus, model and temperature, as JSON; `config` and `model` are those of
    run.json.
    """
    corpus, embedding, analysis = config["corpus"], config["embedding"], config["analysis"]
    vector_settings = (
        ("embedding_column", "length_column", "dims", "bits", "scale") if corpus.get("embedding_column") else ()
    )
    width = {"dimensions": model["dimensions"]} if "dimensions" in model else {}
    analysed = ("intervals", "neighbours", "socm_alpha", "socm_beta", "socm_regularization")
    return json.dumps(
        {"max_length": model["max_length"], "prompts": model.get("prompts", {})}
        | {name: corpus.get(name) for name in ("max_characters", *vector_settings)}
        | width
        | {"long": embedding.get("long"), "precision": _computed_in(embedding, model)}
        | {name: analysis.get(name) for name in analysed}
        | {"socm": model.get("socm", _UNWRITTEN["socm"])},
        sort_keys=True,
    )


def _computed_in(embedding: dict[str, Any], model: dict[str, Any]) -> str | None:
    """What the model computed in: what `auto` led to, or what was asked for."""
    precision: str | None = model.get("computed_in", embedding).get("precision")
    return precision


def rows(record: dict[str, Any], summary: Sequence[dict[str, Any]], folder: str, name: str) -> list[dict[str, Any]]:
    """The rows of a run for the record of nights, from its run.json and the rows of its collapse_summary."""
    entries = []
    for row in summary:
        model = record["models"][row["model"]]
        entries.append(
            {
                "run": record["run"], "night": record["night"], "name": name, "started": record["started"],
                "finished": record["finished"], "folder": folder, "tempscale": record["tempscale"],
                "corpus": record["corpus"]["source"], "corpus_fingerprint": record["corpus"]["fingerprint"],
                "model_fingerprint": model["fingerprint"], "measured": measured(record["config"], model),
                "gate": record["gate"]["verdict"], "gate_reason": "; ".join(record["gate"]["failed"]),
                "gate_note": "; ".join(gate.notes(record["gate"])),
                "compared": key_of(row) not in record["gate"].get("without_baseline", ()),
            }
            | {key: record["changed_texts"][key] for key in ("texts_added", "texts_removed", "texts_edited")}
            | row
        )  # fmt: skip
    return entries


def key_of(row: dict[str, Any]) -> str:
    """What run.json calls the model and the temperature of a row."""
    return f"{row['model']} at {row['temperature']}"


def add(storage: Storage, found: Sequence[dict[str, Any]]) -> None:
    """Write the part of a run; a repeated call for the same run writes the same part."""
    if (name := part(found)) is not None:
        storage.write_table(name, HISTORY.build_rows(found))


def part(found: Sequence[dict[str, Any]]) -> str | None:
    """The file name of a run's part; None without rows."""
    if not found:
        return None
    started = "".join(c for c in found[0]["started"][:19] if c.isalnum())
    return f"part-{started}-{found[0]['run']}.parquet"


class Nights(NamedTuple):
    """What a record holds."""

    rows: pl.DataFrame
    """By night, the last run of each night and folder, with a column `accepted`."""
    damaged: list[str]
    """The parts that cannot be read; each is one run."""


def load(storage: Storage) -> pl.DataFrame:
    """The rows of the record; see `read`."""
    return read(storage).rows


def read(storage: Storage) -> Nights:
    """All of the record that can be read: a damaged part takes only its own run with it."""
    frames, damaged = list[pl.DataFrame](), list[str]()
    names = [name for name in storage.list("", ".parquet") if name.startswith("part-")]
    with ThreadPoolExecutor(_READERS) as pool:
        for name, frame in zip(names, pool.map(lambda name: _part(storage, name), names), strict=True):
            if frame is None:
                damaged.append(name)
            else:
                frames.append(frame)
    empty = pl.DataFrame(pl.from_arrow(HISTORY.schema().empty_table()))
    accepted = {name.rsplit("/", 1)[-1].removesuffix(".json") for name in storage.list(ACCEPTED, ".json")}
    rows = (
        pl.concat([empty, *frames], how="diagonal_relaxed")
        .sort("night", "started", "run", maintain_order=True)
        .unique(["name", "folder", "night", "model", "temperature"], keep="last", maintain_order=True)
        .with_columns(pl.col("run").is_in(list(accepted)).alias("accepted"))
    )
    return Nights(rows, damaged)


def _part(storage: Storage, name: str) -> pl.DataFrame | None:
    """The rows of one run; None where its part cannot be read, or is no part of a record."""
    try:
        frame = pl.DataFrame(pl.from_arrow(storage.read_table(name)))
    except (RunError, OSError):
        return None
    return _typed(frame) if _ALWAYS_THERE.issubset(frame.columns) else None


def _typed(part: pl.DataFrame) -> pl.DataFrame | None:
    """A part with the types of the record's columns; None where its values do not fit them."""
    schema = pl.DataFrame(pl.from_arrow(HISTORY.schema().empty_table())).schema
    if any(kind.is_nested() for kind in part.select(*(set(schema) & {*part.columns})).dtypes):
        return None
    try:
        part = part.with_columns(pl.col(name).cast(kind) for name, kind in schema.items() if name in part.columns)
        settings = map(json.loads, part["measured"])
    except (pl.exceptions.PolarsError, TypeError, ValueError):
        return None
    try:
        is_one = all(isinstance(setting, dict) for setting in settings) and not any(part.select(_TEXTS).null_count().row(0))
    except (TypeError, ValueError):
        return None
    return part if is_one else None


def damage_in_words(damaged: Sequence[str], record: Storage) -> list[str]:
    """Sentences on the parts of a record that cannot be read; none where all can."""
    if not damaged:
        return []
    named = ", ".join(damaged[:_NAMED]) + (f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else "")
    return [
        f"{count(len(damaged), 'run')} of the record of nights in '{masked(record.root)}' cannot be read and nothing is "
        f"compared with it: {named}; start the command of that night again to write it anew, or remove the file"
    ]


def accept(storage: Storage, which: str) -> dict[str, Any]:
    """Accept a run, given by id, night or folder, so that it may be the `latest` baseline; returns one of its rows.

    Raises:
        UsageError: there is no such run, or there are several.
    """
    record = load(storage)
    name = which.rstrip("/")
    matches = record.filter((pl.col("run") == name) | (pl.col("night") == name) | (pl.col("folder") == name))
    if matches.is_empty():
        matches = record.filter(pl.col("folder").str.split("/").list.last() == name.rsplit("/", 1)[-1])
    nights = record["night"].unique().sort().to_list()
    if matches.is_empty():
        content = f"it holds {nights[0]} to {nights[-1]}" if nights else "it is empty"
        raise UsageError(f"--accept '{which}' is no run of the record in '{masked(storage.root)}': {content}")
    if matches["run"].n_unique() > 1:
        raise UsageError(
            f"--accept '{which}' names {matches['run'].n_unique()} runs; give the id of one: "
            f"{', '.join(matches['run'].unique().sort())}"
        )
    row: dict[str, Any] = matches.row(0, named=True)
    storage.write_json(f"{ACCEPTED}/{row['run']}.json", {"run": row["run"], "night": row["night"], "accepted": now()})
    return row


def latest(record: pl.DataFrame, tonight: Sequence[dict[str, Any]]) -> list[Baseline]:
    """For each row of a night, the last earlier night of the same model and temperature that passed or was accepted."""
    return [_latest(record, row, tonight) for row in tonight]


def _before(record: pl.DataFrame, row: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the runs before that of a row, of the same name."""
    entries: list[dict[str, Any]] = record.filter(
        pl.col("name") == row["name"],
        # Leave out the run itself and the run that it replaced.
        (pl.col("run") != row["run"]) & ((pl.col("folder") != row["folder"]) | (pl.col("night") != row["night"])),
        (pl.col("night") < row["night"]) | ((pl.col("night") == row["night"]) & (pl.col("started") < row["started"])),
    ).to_dicts()
    return entries


def gone(record: pl.DataFrame, tonight: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences on the models of the run before a night that are not among the night's."""
    before = _before(record, tonight[0]) if tonight else []
    models = {row["model_fingerprint"] for row in tonight}
    last_run = [then for then in before if then["run"] == before[-1]["run"] and then["model_fingerprint"] not in models]
    return [
        f"the night of {last_run[0]['night']} (run {last_run[0]['run']}) measured {model}, and this night does not"
        for model in dict.fromkeys(then["model"] for then in last_run)
    ]


def _latest(record: pl.DataFrame, row: dict[str, Any], tonight: Sequence[dict[str, Any]]) -> Baseline:
    before = _before(record, row)
    earlier = [then for then in before if then["temperature"] == row["temperature"]]
    if any(map(_has_width, earlier)):  # Nights of an older version must not stand for any width.
        earlier = [then for then in earlier if _has_width(then) or then["model_fingerprint"]]
    alike = [then for then in earlier if _continued(then, [row])]
    if fit := [then for then in alike if _fit(then)]:
        return Baseline(fit[-1], f"the night of {fit[-1]['night']} (run {fit[-1]['run']}){other_way(fit[-1], row)}")
    # A model that is added to those of the last good run replaces none of them.
    good = [then for then in earlier if _fit(then)]
    last_run = [then for then in good if then["run"] == good[-1]["run"]] or earlier
    if replaced := [then for then in last_run if not _continued(then, tonight)]:
        return Baseline(None, _another(replaced, row), other=True)
    if not earlier and (others := _of_other_models(before, tonight)):
        return Baseline(None, _another(others, row), other=True)
    if not alike:
        return Baseline(None, FIRST_NIGHT, first=True)
    last = alike[-1]
    return Baseline(None, f"no earlier night passed or was accepted; the latest is {last['night']}, {_state(last)}")


def _of_other_models(before: Sequence[dict[str, Any]], tonight: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last run of a series, good if one is, where none of its models is among tonight's; else nothing."""
    good = [then for then in before if _fit(then)] or before
    last_run = [then for then in good if then["run"] == good[-1]["run"]]
    models = {row["model_fingerprint"] for row in tonight}
    return [] if any(then["model_fingerprint"] in models for then in last_run) else last_run


def _has_width(night: dict[str, Any]) -> bool:
    return "dimensions" in json.loads(night["measured"])


def _fit(night: dict[str, Any]) -> bool:
    """Whether a night may be a baseline.

    A night without checks has not passed, and one that was compared with none would become the measure of the next.
    """
    return bool(night["accepted"] or (night["gate"] == "passed" and night["compared"] is not False))


def _continued(before: dict[str, Any], tonight: Sequence[dict[str, Any]]) -> bool:
    """Whether one of the rows of a night is of the same model and temperature as an earlier one, and measured alike."""
    same = ("temperature", "model_fingerprint")
    return any(all(before[key] == row[key] for key in same) and comparable(before, row) for row in tonight)


def _another(replaced: Sequence[dict[str, Any]], row: dict[str, Any]) -> str:
    """The difference from the nights that a night does not continue: in what it measures otherwise, or its model."""
    same = [then for then in replaced if then["model_fingerprint"] == row["model_fingerprint"]]
    last = (same or replaced)[-1]
    if same:
        return f"it is measured otherwise than on {last['night']}: {_differences(last, row)}"
    return f"the model is another than on {last['night']} ({last['model']})"


def is_quick(record: dict[str, Any]) -> bool:
    """Whether a run was started with --quick, from its run.json."""
    return bool(record.get("config", {}).get("quick"))


def baseline_run(folder: str) -> Storage:
    """The folder of a run to compare with; raises UsageError unless it has a finished run."""
    return finished(folder, "--baseline ", "; or say latest")


def check_baseline(folder: str) -> None:
    """Raise UsageError unless a folder holds a finished audit with its tables."""
    storage = baseline_run(folder)
    try:
        record = storage.read_object(DONE)
        check_tables(storage)
        if record.get("command", "audit") == "audit" and not storage.exists("tables/collapse_summary.parquet"):
            raise missing_table(storage, "collapse_summary")
    except Damaged as error:
        raise UsageError(f"--baseline {error}; the command that made the run makes that file again") from None
    if (command := record.get("command", "audit")) != "audit":
        raise UsageError(f"--baseline '{masked(folder)}' is a run of tempscale {command}; give an audit's")
    if is_quick(record):
        raise UsageError(f"--baseline '{masked(folder)}' is a quick audit, which is never a baseline; give a whole one's")


def of_run(folder: str, tonight: Sequence[dict[str, Any]]) -> list[Baseline]:
    """For each row of a night, the row of the same model and temperature in a finished audit."""
    storage = baseline_run(folder)
    try:
        record, tables = results(storage)
    except Damaged as error:
        return [Baseline(None, f"the baseline run cannot be read: {error}")] * len(tonight)
    if "collapse_summary" not in tables:
        command = record.get("command", "another command")
        raise UsageError(f"--baseline '{masked(folder)}' is a run of tempscale {command}; give an audit's")
    unknown = dict.fromkeys(_FIGURES)  # A run of an older version lacks newer columns.
    baseline_rows = [
        unknown | row | {"model_fingerprint": model["fingerprint"], "measured": measured(record["config"], model)}
        for row in tables["collapse_summary"].to_dicts()
        for model in [record["models"][row["model"]]]
    ]
    return [_in_run(baseline_rows, masked(folder), row, tonight) for row in tonight]


def _in_run(
    baseline_rows: Sequence[dict[str, Any]], folder: str, row: dict[str, Any], tonight: Sequence[dict[str, Any]]
) -> Baseline:
    same = [other for other in baseline_rows if other["temperature"] == row["temperature"]]
    alike = [other for other in same if other["model_fingerprint"] == row["model_fingerprint"]]
    if alike and comparable(alike[0], row):
        return Baseline(alike[0], f"the run {folder}{other_way(alike[0], row)}")
    if alike:
        return Baseline(None, f"it is measured otherwise than the baseline: {_differences(alike[0], row)}", other=True)
    if not same:
        return Baseline(None, f"this temperature was not measured in the baseline run {folder}")
    replaced = any(not _continued(other, tonight) for other in same)  # Otherwise the model is added to those of the run.
    return Baseline(None, f"the model is another than in the baseline run {folder}", other=replaced)


def changed_settings(before: str, after: str) -> list[tuple[str, Any, Any]]:
    """The settings that differ, with both values; one that an older version did not write has the value it had then."""
    old, new = (_UNWRITTEN | json.loads(text) for text in (before, after))
    known = {*old, *new} - {key for key in _UNKNOWN_BEFORE if key not in old or key not in new}
    return [(key, old.get(key), new.get(key)) for key in sorted(known) if old.get(key) != new.get(key)]


def comparable(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Whether two rows of nights are measured alike.

    They are, too, where only the way in which pairs for SOCM are drawn differs and both ways agree within their joint error,
    or one of them measured no SOCM.
    """
    changed = [key for key, _, _ in changed_settings(before["measured"], after["measured"])]
    if changed != ["socm"]:
        return not changed
    known = [(row.get("socm_mean"), row.get("socm_se_superpopulation")) for row in (before, after)]
    if any(value is None for value, _ in known):
        return True  # Nothing but SOCM depends on how its pairs are drawn, and one of the nights has none.
    with_errors = [(value, error) for value, error in known if value is not None and error is not None]
    if len(with_errors) < 2:
        return False
    freedom = min(row.get("socm_freedom") or row["socm_texts"] - 1 for row in (before, after))
    (value, error), (other, other_error) = with_errors
    return bool(abs(value - other) <= stdtrit(max(1.0, freedom), 0.975) * math.hypot(error, other_error))


def other_way(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What to say of a baseline whose pairs for SOCM were drawn in another way; empty where the way is the same."""
    changed = changed_settings(before["measured"], after["measured"])
    descriptions = {"sample": "all pairs of a sample", "groups": "groups of texts"}
    ways = [
        f"{descriptions.get(now, now)} instead of {descriptions.get(then, then)}"
        for key, then, now in changed
        if key == "socm"
    ]
    if not ways or any(row.get("socm_se_superpopulation") is None for row in (before, after)):
        return ""
    return f", whose mean SOCM agrees within error, though it is now from {ways[0]}"


def _differences(before: dict[str, Any], after: dict[str, Any]) -> str:
    changed = changed_settings(before["measured"], after["measured"])
    return ", ".join(f"{key} was {then!r} and is {now!r}" for key, then, now in changed)


def _state(row: dict[str, Any]) -> str:
    if row["gate"] == "none":
        return "which was not checked"
    return "which failed its gate" if row["gate"] == "failed" else "which had no baseline either"
