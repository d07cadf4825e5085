"""Whether consecutive texts of the source are similar, so that they may be parts of unnamed documents."""

from __future__ import annotations

from typing import Any

import numpy as np

from tempscale.stats.order import serial_correlation
from tempscale_jobs.runs.folder import Model, Run, all_means_by_text, place
from tempscale_jobs.steps.blocks import COSINE
from tempscale_jobs.steps.scope import Embedded

_SHARDS = 256
"""The most shards that are read; of more, evenly spaced stretches of four."""
_STRETCH = 4
_EMBEDDINGS, _EMBEDDINGS_STRETCHES = 16_384, 64
"""User-supplied embeddings of a stretch, and the number of stretches."""
_PAIRS = 1024
"""Consecutive pairs whose cosine is computed."""
_ERRORS = 4.0
_LEAST_FACTOR = 1.2
"""Errors that are too small by a smaller factor are not reported."""


def result_name(model: Model) -> str:
    """The file of a model's result."""
    return f"{place('partials/order', model)}.json"


def look(scope: Embedded) -> None:
    """Write the similarity of consecutive texts under the first temperature, unless texts are few or have documents."""
    run, model, layout = scope.run, scope.model, scope.texts
    if layout.documents is not None or run.storage.exists(result_name(model)):
        return
    temperature = run.temperatures[0]
    folder = run.place(COSINE, model, temperature)
    (means,) = run.storage.arrays(all_means_by_text(run.storage, folder), ["overall"], len(layout))
    texts = np.maximum(layout.texts_by_interval(), 1)
    # Subtract the interval's mean: texts may be sorted by length, which makes consecutive ones similar.
    ordinary = np.bincount(layout.interval, means, len(texts)) / texts
    stretches = _stretches(scope)
    comparison = serial_correlation([means[stretch] - ordinary[layout.interval[stretch]] for stretch in stretches])
    if comparison is None:
        return
    pairs = np.concatenate([np.stack([stretch[:-1], stretch[1:]], axis=1) for stretch in stretches if len(stretch) > 1])
    pairs = pairs[np.linspace(0, len(pairs) - 1, min(_PAIRS, len(pairs))).astype(int)]
    first, second = (scope.embeddings(temperature, pairs[:, side]).astype(float) for side in (0, 1))
    closed = run.storage.read_json(f"{folder}/closed.json")
    result: dict[str, Any] = {
        "correlation": comparison.correlation, "factor": comparison.factor, "whole": comparison.whole,
        "cosine_beside": float(np.einsum("nd,nd->n", first, second).mean()), "cosine_mean": closed["cosine_mean"],
        "alike": comparison.correlation > _ERRORS * comparison.error and comparison.factor >= _LEAST_FACTOR,
    }  # fmt: skip
    run.storage.write_json(result_name(model), result)


def _stretches(scope: Embedded) -> list[np.ndarray]:
    """Places of consecutive texts of the source, by stretch."""
    run, layout, index = scope.run, scope.texts, scope.index
    if not index.shards:  # User-supplied embeddings are stored in the source's order.
        stride = max(_EMBEDDINGS, -(-len(layout) // _EMBEDDINGS_STRETCHES))
        chosen_places = np.flatnonzero(layout.stored % stride < _EMBEDDINGS)
        stored = layout.stored[chosen_places]
        order = np.argsort(stored)
        return np.split(chosen_places[order], np.flatnonzero(np.diff(stored[order] // stride)) + 1)
    names = [shard.name for shard in index.shards]
    chosen = [range(len(names))]
    if len(names) > _SHARDS:
        starts = np.linspace(0, len(names) - _STRETCH, _SHARDS // _STRETCH).astype(int).tolist()
        chosen = [range(start, start + _STRETCH) for start in starts]
    ids = [[i for k in numbers for i in _ids(run, names[k])] for numbers in chosen]
    where = layout.where(i for stretch in ids for i in stretch)
    return [np.array([where[i] for i in stretch if i in where], dtype=np.int64) for stretch in ids]


def _ids(run: Run, shard: str) -> list[str]:
    ids: list[str] = run.storage.read_table(shard, ["text_id"]).column("text_id").to_pylist()
    return ids
