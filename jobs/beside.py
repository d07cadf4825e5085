"""Runs of `diagnose` and `evaluate` beside an audit of the same model: what its report takes from them."""

from __future__ import annotations

from typing import Any

from jobs import diagnose_report, evaluate_report, runs
from jobs.errors import UsageError
from jobs.summary import load_tables
from jobs.urls import shown

_DRAWN = {"layers": ("filter", "parts", "contraction", "concentration"), "downstream": ("changes", "types", "best")}


def read(folder: str, record: dict[str, Any], place: int = 0) -> list[dict[str, Any]]:
    """What a finished run says of the models of an audit.

    Args:
        folder: a run of `tempscale diagnose` or `tempscale evaluate`.
        record: run.json of the audit.
        place: which of several such runs it is; ids on the page begin with it.

    Returns:
        For each model that both have: id, kind (`layers` or `downstream`), name, sentences, charts, rows, folder.

    Raises:
        UsageError: it is no such run, or has no model of the audit.
    """
    storage = runs.finished(folder, "--with ")
    other = storage.read_json(runs.DONE)
    command, tables = other.get("command", "audit"), load_tables(storage)
    if command == "diagnose":
        kind, models = "layers", diagnose_report.of_models(tables, other)
    elif command == "evaluate":
        kind, models = "downstream", evaluate_report.of_models(tables, other)
    else:
        raise UsageError(f"--with '{shown(folder)}' holds a run of tempscale {command}; give one of diagnose or evaluate")
    audited = {known["fingerprint"] for known in record["models"].values()}
    same = [model for model in models if other["models"][model["name"]]["fingerprint"] in audited]
    if not same:
        raise UsageError(
            f"--with '{shown(folder)}' looks into {', '.join(model['name'] for model in models)}, and the audit has "
            f"{', '.join(record['models'])}: no model is the same"
        )
    return [
        {
            "id": f"{kind}{place}{model['id']}", "kind": kind, "name": model["name"],
            "sentences": model["sentences"], "folder": shown(storage.root), "rows": model.get("rows"),
            "charts": {key: model["charts"].get(key) for key in _DRAWN[kind]},
        }
        for model in same
    ]  # fmt: skip
