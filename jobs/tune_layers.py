"""One τ for each layer as a further candidate: long texts found, and the search by gradient on a worker."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pyarrow as pa

from jobs import actor, sources, tasks
from jobs.corpus import usable_text
from jobs.crew import Crew
from jobs.runs import Model, RunOf
from jobs.tune_config import TuneConfig
from tempscale.temperature import Temperature
from tempscale.tiles import keyed_hash

FOUND = "layers.json"
"""What the search found, in the run folder: it is not made twice."""
_SHORT = 32
"""Tokens of the short prefix, the shortest of the prefix probe."""
_FEWEST = 8
_ROWS = 20_000
_BATCH = 256

Tuned = RunOf[TuneConfig]


def search(run: Tuned, crew: Crew, model: Model, states: dict[str, Any]) -> dict[str, Any]:
    """What `layers.json` holds: `temperatures`, or None where the search found nothing, and `note`.

    Args:
        run: the run.
        crew: one worker of it searches.
        model: the model.
        states: what shows whether the texts changed since an earlier search.

    Raises:
        UsageError: a task's data cannot be had.
        IncompleteRun: a worker failed for good.
    """
    if not run.storage.exists(FOUND) or run.storage.read_json(FOUND)["states"] != states:
        run.storage.remove(FOUND)
        texts = _long_texts(run, model)
        if len(texts) < _FEWEST or _prefix(run, model) <= _SHORT:
            note = "left out: too few texts are long enough"
            run.storage.write_json(FOUND, {"temperatures": None, "note": note, "states": states})
        else:
            choosing = run.config.choosing
            settings = {"tokens": _prefix(run, model), "steps": choosing.layer_steps, "seed": run.config.seed}
            work = pa.table({"text": texts}).replace_schema_metadata({name: str(value) for name, value in settings.items()})
            for report in crew.work(leave_layers, {0: work}):
                run.storage.write_json(FOUND, report["found"] | {"states": states})
    found: dict[str, Any] = run.storage.read_json(FOUND)
    return found


def candidate(found: dict[str, Any]) -> list[Temperature]:
    """The schedule that was found, if one was."""
    return [] if found["temperatures"] is None else [Temperature.by_layer(found["temperatures"])]


def leave_layers(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Search; what was found is the report."""
    from tempscale.search import layer_temperatures

    settings = {name.decode(): int(value) for name, value in work.schema.metadata.items()}
    texts = work.column("text").to_pylist()
    short, long = (worker.encoder.tokenizer(texts, n).ids for n in (_SHORT, settings["tokens"]))
    found = layer_temperatures(worker.encoder, short, long, steps=settings["steps"], seed=settings["seed"])
    told: dict[str, Any] = {
        "temperatures": found.temperatures, "texts": len(texts), "tokens": settings["tokens"],
        "objective_before": found.before.objective, "objective_after": found.after.objective,
        "note": f"{', '.join(f'{tau:g}' for tau in found.temperatures)} from {len(texts)} texts",
    }  # fmt: skip
    # The same schedule as another candidate, or no better than none: nothing to try.
    if found.after.objective >= found.before.objective or len(set(found.temperatures)) == 1:
        told |= {"temperatures": None, "note": "the search found nothing better than τ 1 in every layer"}
    return {"number": number, "found": told}


def _prefix(run: Tuned, model: Model) -> int:
    """The long prefix in tokens: as configured, where the model reaches so far."""
    return min(run.config.choosing.layer_tokens, model.max_length)


def _long_texts(run: Tuned, model: Model) -> list[str]:
    """A seeded sample of the texts that reach the long prefix, of the first 20,000 rows."""
    tokenizer, wanted = actor.tokenizer(model.name, model.max_length, "truncate"), _prefix(run, model)
    rows = dict.fromkeys(islice(_texts(run, tokenizer), _ROWS))
    ordered = sorted(rows, key=lambda text: (keyed_hash(text, run.config.seed + 1), text))
    found: list[str] = []
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        lengths = tokenizer(batch, isolate=True).lengths
        found += [text for text, length in zip(batch, lengths, strict=True) if length >= wanted]
        if len(found) >= run.config.choosing.layer_texts:
            return found[: run.config.choosing.layer_texts]
    return found


def _texts(run: Tuned, tokenizer: Any) -> Iterator[str]:
    """Texts of the corpus, or of the tasks."""
    config = run.config
    if not config.tasks:
        for row in sources.rows(config.texts(), config.out):
            text, _ = usable_text(row.text)
            if text is not None:
                yield text[: config.texts().max_characters]
        return
    for unit in tasks.expand(config.tasks):
        yield from tasks.texts(tasks.load(unit, config.seed, tokenizer, config.choosing.intervals))
