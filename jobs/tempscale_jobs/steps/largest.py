"""The most collapsed pairs among all pairs of those texts of groups that have the largest tr Σ.

Pairs inside groups are too few for a ranking. A pair of large d_Σ needs texts of large tr Σ: d_Σ ≤ (tr Σ_1 + tr Σ_2)/4.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.steps import factors, groups, socm, socm_tables
from tempscale_jobs.steps.group_tables import MeasuredGroups
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.socm_tables import Sample
from tempscale_jobs.tables.audit import SOCM_PAIRS

_FACTORS, _TILES = "partials/largest", "partials/largest_pairs"
"""The folders of these texts' factors and of their pairs, until they are ranked."""
_TILE_TEXTS = 32
"""Texts on a side of a tile: there are ten tiles, so that several workers have some."""


def collect(scope: Embedded, dealt: int) -> None:
    """Write the factors of the texts of `dealt` groups that are ranked under any temperature."""
    if all(scope.run.storage.exists(_file(scope, t)) for t in scope.run.temperatures):
        return
    with scope.journal.stage(scope.named("texts of largest tr Σ")) as stage:
        ranked = scope.analysis.socm_ranked
        ids = {i for t in scope.run.temperatures for i in chosen(groups.read(scope, t, dealt), ranked).tolist()}
        stage.note = f"factors of {factors.collect(scope, ids, _FACTORS, stage):,} texts"


def chosen(measured: MeasuredGroups, texts: int) -> np.ndarray:
    """The ids of the texts of largest tr Σ; ties by id."""
    return measured.ids[np.lexsort((measured.ids.astype(str), -measured.trace))[:texts]]


def _file(scope: Embedded, temperature: Temperature) -> str:
    return f"{scope.run.place('partials/socm', scope.model, temperature)}/socm_pairs.parquet"


def rank(scope: Embedded, temperature: Temperature, dealt: int) -> None:
    """Write socm_pairs of one temperature, from the texts of `dealt` groups."""
    run, model, name = scope.run, scope.model, _file(scope, temperature)
    texts = sum(map(run.storage.rows, run.storage.list(run.place(_FACTORS, model, temperature))))
    step = scope.named("worst pairs", temperature)
    with scope.journal.stage(step, texts * (texts - 1) // 2, "pairs", Pace(1.0)) as stage:
        ids = chosen(groups.read(scope, temperature, dealt), scope.analysis.socm_ranked)
        if not run.storage.exists(name):
            measured = socm.all_pairs(scope, temperature, socm.Folders(_FACTORS, _TILES, _TILE_TEXTS), stage)
            sample = _of(measured, np.flatnonzero(np.isin(measured.ids, ids)))
            places = scope.texts.places(sample.ids.tolist())
            vectors = scope.embeddings(temperature, places)
            rows = socm_tables.ranked(sample, vectors, scope.analysis.worst_pairs, "largest_trace")
            key = run.key(model, temperature)
            run.storage.write_table(name, SOCM_PAIRS.build_rows([key | row for row in rows]))
        for kind in (_FACTORS, _TILES):
            run.storage.remove(run.place(kind, model, temperature))
        pairs = len(ids) * (len(ids) - 1) // 2
        stage.note = f"{pairs:,} pairs of texts of largest tr Σ, {groups.method(scope.analysis)}"


def _of(sample: Sample, places: np.ndarray) -> Sample:
    """Some of the texts of a sample, with their pairs."""
    of_texts = {name: getattr(sample, name)[places] for name in ("ids", "tokens", "interval")}
    of_pairs = {name: getattr(sample, name)[np.ix_(places, places)] for name in ("d_mu", "d_sigma", "value")}
    return replace(sample, **of_texts, **of_pairs)
