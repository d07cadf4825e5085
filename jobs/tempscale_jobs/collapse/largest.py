"""The most collapsed pairs among the texts of largest tr Σ that were dealt to groups, of which all pairs are measured.

Groups have few pairs, and the worst of few are less bad than the worst of many. A pair of large d_Σ needs texts of large
tr Σ: d_Σ ≤ (tr Σ_1 + tr Σ_2)/4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.collapse import groups, socm, socm_tables
from tempscale_jobs.collapse.group_tables import Grouped
from tempscale_jobs.collapse.socm_tables import Sample
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.embedding import factors
from tempscale_jobs.embedding.layout import Layout, embeddings
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.tables.audit import SOCM_PAIRS
from tempscale_jobs.workers.crew import Crew
from tempscale_jobs.workers.engine import Cluster

_FACTORS, _TILES = "partials/largest", "partials/largest_pairs"
"""The folders of these texts' factors and of their pairs, until they are ranked."""
_TILE_TEXTS = 32
"""Texts on a side of a tile: ten tiles, so that several workers have some."""


def collect(
    run: Run, crew: Crew, model: Model, layout: Layout, index: Index, analysis: Analysis, dealt: int,
    on_texts: Callable[[int], None],
) -> int:  # fmt: skip
    """Write the factors of the texts that are ranked under any temperature; return how many they are."""
    wanted = {
        i
        for t in run.temperatures
        for i in chosen(groups.read(run, model, t, analysis, dealt), analysis.socm_ranked).tolist()
    }
    return factors.collect(run, crew, model, layout, index, wanted, on_texts, _FACTORS)


def collected(run: Run, model: Model, temperature: Temperature) -> int:
    """The texts whose factors are there: those of largest tr Σ under any temperature."""
    return sum(map(run.storage.rows, run.storage.list(run.place(_FACTORS, model, temperature))))


def chosen(found: Grouped, texts: int) -> np.ndarray:
    """The ids of the texts of largest tr Σ; ties by id."""
    return found.ids[np.lexsort((found.ids.astype(str), -found.trace))[:texts]]


def ranked(run: Run, model: Model) -> bool:
    """Whether the pairs of every temperature are ranked."""
    return all(run.storage.exists(_file(run, model, t)) for t in run.temperatures)


def _file(run: Run, model: Model, temperature: Temperature) -> str:
    return f"{run.place('partials/socm', model, temperature)}/socm_pairs.parquet"


def rank(
    run: Run, cluster: Cluster, crew: Crew, model: Model, temperature: Temperature, layout: Layout, analysis: Analysis,
    on_pairs: Callable[[int, float], None],
) -> int:  # fmt: skip
    """Write socm_pairs of one temperature; return the number of pairs that are ranked."""
    name, place = _file(run, model, temperature), run.place("partials/socm", model, temperature)
    dealt = int(run.storage.read_json(f"{place}/done.json")["groups"])
    ids = chosen(groups.read(run, model, temperature, analysis, dealt), analysis.socm_ranked)
    pairs = len(ids) * (len(ids) - 1) // 2
    if not run.storage.exists(name):
        every = socm.all_pairs(
            run, crew, model, temperature, layout, analysis, on_pairs, _FACTORS, _TILES, _TILE_TEXTS
        )  # fmt: skip
        own = _of(every, np.flatnonzero(np.isin(every.ids, ids)))
        vectors = embeddings(run, cluster, model, temperature, layout, layout.places(own.ids.tolist()))
        rows = socm_tables.ranked(own, vectors, analysis.worst_pairs, "largest_trace")
        key = run.key(model, temperature)
        run.storage.write_table(name, SOCM_PAIRS.build_rows([key | row for row in rows]))
    for kind in (_FACTORS, _TILES):
        run.storage.remove(run.place(kind, model, temperature))
    return pairs


def _of(sample: Sample, places: np.ndarray) -> Sample:
    """Some of the texts of a sample, with their pairs."""
    of_texts = {name: getattr(sample, name)[places] for name in ("ids", "tokens", "interval")}
    of_pairs = {name: getattr(sample, name)[np.ix_(places, places)] for name in ("d_mu", "d_sigma", "value")}
    return replace(sample, **of_texts, **of_pairs)
