"""The task that a worker keeps loaded, with its model."""

from __future__ import annotations

import json
from typing import Any

from tempscale_jobs.errors import Changed, UsageError
from tempscale_jobs.evaluate import tasks
from tempscale_jobs.evaluate.tasks import RunTask
from tempscale_jobs.urls import reason
from tempscale_jobs.workers import actor

_OF_TASK = ("unit", "state", "seed", "prompts", "edges", "lengths_by", "max_length", "piece_texts", "columns")
"""The arguments that decide a task and its model."""

loaded: dict[str, tuple[Any, Any] | str] = {}
"""In a worker: the last task and its model, or why it cannot be loaded."""


def load_once(worker: actor.ModelActor, spec: dict[str, Any]) -> tuple[Any, Any] | str:
    """The loaded task of a piece of work and its model, or a sentence on the failure."""
    from tempscale.model.checkpoint import resolve
    from tempscale.model.settings import Settings
    from tempscale_jobs.evaluate.grid_model import Checkpoint, GridModel

    key = json.dumps([worker.storage.root, worker.model.fingerprint, *(spec[name] for name in _OF_TASK)])
    if key not in loaded:
        loaded.clear()
        unit = RunTask(**spec["unit"])
        try:
            # The first model's tokenizer measures lengths, so that all models get the same texts.
            how = actor.Tokenising(spec["lengths_by"], spec["max_length"], "truncate", digest=spec["settings_of_lengths"])
            task = tasks.load(unit, spec["seed"], actor.tokenizer(how), spec["edges"], spec["columns"])
            if tasks.state(unit) != spec["state"]:
                raise Changed(
                    f"task '{unit.name}' changed while it was read; start the same command again when nothing writes "
                    "its files"
                )
            settings = Settings.of(resolve(worker.model.name)) if spec["prompts"] == "model" else None
            run_model = worker.model
            model = GridModel(
                worker.encoder,
                Checkpoint(run_model.label, run_model.fingerprint, run_model.similarity, settings),
                spec["piece_texts"],
            )
            loaded[key] = task, model
        except Changed:
            raise
        except Exception as error:
            actor.end_if_lost(error)
            loaded[key] = sentence(unit.name, error)
    return loaded[key]


def sentence(name: str, error: Exception) -> str:
    """A sentence on the failure of a task."""
    if isinstance(error, UsageError):
        return str(error)
    return f"task '{name}' failed with {type(error).__name__}: {reason(error)}"
