"""The texts and the queries under other models, for each `model:NAME` of --what-if; removed once they are compared.

They are embedded in the same way as by the run's own models, but before them and only under the first temperature.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tempscale.correction.variant_names import by_model, model_of
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.steps import carried, lookup
from tempscale_jobs.steps.blocks import COSINE
from tempscale_jobs.steps.carried import TEXTS_OF_PAIRS, Compared, Pairs
from tempscale_jobs.steps.layout import Order, layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers.marks import MARKS

_WRITTEN = ("texts", "shards", MARKS, COSINE, lookup.PLACE)
"""The folders of what is removed."""


def run_of(run: Run) -> Run:
    """The same run, as the other models embed its texts."""
    return replace(run, models=[*run.models, *run.other_models], temperatures=run.temperatures[:1])


def asked(scope: Embedded) -> dict[str, Model]:
    """The model of each variant that is another model."""
    names = [what for what in scope.analysis.what_if if model_of(what) is not None]
    return dict(zip(names, scope.run.other_models, strict=True))


def embedded(scope: Embedded, model: Model) -> Embedded:
    """The texts of a run under another model, once they are embedded."""
    run, texts = run_of(scope.run), scope.texts
    order = Order(texts.edges, texts.seed, scope.index.usable, tuple(scope.config.by))
    return replace(scope, run=run, model=model, texts=layout(run, scope.cluster, model, order))


def thresholds(scope: Embedded, other: Embedded) -> list[dict[str, Any]]:
    """The rows of `what_if_thresholds` of another model; `other` are the same texts under it, without those it rejects."""
    temperature, texts = scope.run.temperatures[0], scope.texts
    sample = np.sort(texts.sample(TEXTS_OF_PAIRS))
    names = texts.ids[sample].tolist()
    where = other.texts.where(names)
    if len(where) < TEXTS_FOR_AN_INTERVAL:
        return []
    known = sample[[name in where for name in names]]
    places = np.array([where[name] for name in names if name in where], np.int64)
    vectors = scope.embeddings(temperature, known), other.embeddings(temperature, places)
    pairs = Pairs.of(vectors, texts.interval[known], None if texts.documents is None else texts.documents[known])
    of_lengths = (Compared(texts.edges[b], inside.histograms(), inside) for b, inside in pairs.by_length())
    rows = carried.rows([Compared(None, pairs.histograms(), pairs), *of_lengths])
    key = scope.run.key(scope.model, temperature) | {"what": by_model(other.model.label)}
    return [key | row for row in rows]


def forget(run: Run) -> None:
    """Remove what the other models computed; the texts that they reject stay recorded."""
    for model in run.other_models:
        for folder in (run, run.below("queries")):
            for kind in _WRITTEN:
                folder.storage.remove(folder.place(kind, model))
