"""Search one τ per layer, a further candidate, by gradient on long texts, on a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tempscale.stats.enough import TEXTS_FOR_LAYERS
from tempscale.stats.sample import keyed_hash
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.rows import usable_text
from tempscale_jobs.evaluate import tasks
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece

FOUND = "layers.json"
"""The result of the search, so that a resumed run does not search again."""
_SHORT = 32
"""Tokens of the short prefix, as of the shortest prefix of the probe."""
_ROWS = 20_000
_BATCH = 256


@dataclass(frozen=True)
class SearchTexts:
    """The source of texts for the search: the tasks or, without tasks, the corpus."""

    config: TuneConfig
    states: dict[str, Any]
    """States of the sources, which change with their texts."""


def search(run: Run, crew: Crew, model: Model, source: SearchTexts) -> dict[str, Any]:
    """The content of layers.json, after a search if it is missing; `temperatures` is None if nothing better was found."""
    if not run.storage.exists(FOUND) or run.storage.read_json(FOUND)["states"] != source.states:
        run.storage.remove(FOUND)
        choosing, seed = source.config.choosing, source.config.seed
        tokens = min(choosing.layer_tokens, model.max_length)
        texts = long_texts(model, source.config, tokens)
        if len(texts) < TEXTS_FOR_LAYERS or tokens <= _SHORT:
            note = "left out: too few texts are long enough"
            run.storage.write_json(FOUND, {"temperatures": None, "note": note, "states": source.states})
        else:
            settings = {"tokens": tokens, "steps": choosing.layer_steps, "seed": seed}
            for _, result in crew.run(search_layers, [Piece(0, (texts, settings), "temperatures by layer")]):
                run.storage.write_json(FOUND, result | {"states": source.states})
    content: dict[str, Any] = run.storage.read_json(FOUND)
    return content


def candidate(result: dict[str, Any]) -> list[Temperature]:
    """The schedule that the search found, as a list of at most one."""
    return [] if result["temperatures"] is None else [Temperature.by_layer(result["temperatures"])]


def search_layers(worker: actor.ModelActor, texts: list[str], settings: dict[str, int]) -> dict[str, Any]:
    """Search on a worker."""
    from tempscale.choosing.by_layer import layer_temperatures

    short, long = (worker.encoder.tokenizer(texts, n).ids for n in (_SHORT, settings["tokens"]))
    outcome = layer_temperatures(worker.encoder, short, long, steps=settings["steps"], seed=settings["seed"])
    result: dict[str, Any] = {
        "temperatures": outcome.temperatures, "texts": len(texts), "tokens": settings["tokens"],
        "objective_before": outcome.before.objective, "objective_after": outcome.after.objective,
        "note": f"{', '.join(f'{tau:g}' for tau in outcome.temperatures)} from {len(texts)} texts",
    }  # fmt: skip
    # It is no better than τ 1, or it is a constant, which is a candidate already.
    if outcome.after.objective >= outcome.before.objective or len(set(outcome.temperatures)) == 1:
        result |= {"temperatures": None, "note": "the search found nothing better than τ 1 in every layer"}
    return result


def long_texts(model: Model, config: TuneConfig, tokens: int) -> list[str]:
    """A seeded sample of texts with at least `tokens` tokens, from the first 20,000 rows."""
    how = actor.Tokenising(model.name, model.max_length, "truncate", model.document_prompt, model.settings)
    tokenizer = actor.tokenizer(how)
    rows = dict.fromkeys(islice(texts_of_source(config, tokenizer), _ROWS))
    ordered = sorted(rows, key=lambda text: (keyed_hash(text, config.seed + 1), text))
    texts: list[str] = []
    for start in range(0, len(ordered), _BATCH):
        batch = ordered[start : start + _BATCH]
        lengths = tokenizer(batch, isolate=True).lengths
        texts += [text for text, length in zip(batch, lengths, strict=True) if length >= tokens]
        if len(texts) >= config.choosing.layer_texts:
            return texts[: config.choosing.layer_texts]
    return texts


def texts_of_source(config: TuneConfig, tokenizer: Any) -> Iterator[str]:
    """The texts of the tasks or, without tasks, of the corpus."""
    if not config.tasks:
        corpus = config.texts()
        for row in sources.rows(corpus, config.out):
            text, _ = usable_text(row.text)
            if text is not None:
                yield text[: corpus.max_characters]
        return
    for unit in tasks.expand(config.tasks):
        yield from tasks.texts(tasks.load(unit, config.seed, tokenizer, config.choosing.intervals))
