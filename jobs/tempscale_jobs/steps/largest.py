"""The most collapsed pairs among all pairs of those texts of groups that have the largest tr Σ.

Pairs inside groups are too few for a ranking. A pair of large d_Σ needs texts of large tr Σ: d_Σ ≤ (tr Σ_1 + tr Σ_2)/4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.steps import factors, groups, socm_tables
from tempscale_jobs.steps.factor_pairs import Candidates, FactorFiles, PairPlaces, most_collapsed
from tempscale_jobs.steps.group_tables import MeasuredGroups
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.socm_tables import Named
from tempscale_jobs.tables.audit import SOCM_PAIRS

_FACTORS = "partials/largest"
"""The folder of these texts' factors, until their pairs are ranked."""


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
    run, name = scope.run, _file(scope, temperature)
    with scope.journal.stage(scope.named("worst pairs", temperature)) as stage:
        ids = chosen(groups.read(scope, temperature, dealt), scope.analysis.socm_ranked)
        if not run.storage.exists(name):
            key = run.key(scope.model, temperature)
            rows = [key | {"over": "largest_trace"} | row for row in _ranked(scope, temperature, ids)]
            run.storage.write_table(name, SOCM_PAIRS.build_rows(rows))
        run.storage.remove(run.place(_FACTORS, scope.model, temperature))
        pairs = len(ids) * (len(ids) - 1) // 2
        stage.note = f"of {pairs:,} pairs of texts of largest tr Σ, {groups.method(scope.analysis)}"


def _ranked(scope: Embedded, temperature: Temperature, ids: np.ndarray) -> list[dict[str, Any]]:
    """The most collapsed pairs of these texts, and those of largest d_Σ among the 1 % of highest cosine."""
    layout, analysis = scope.texts, scope.analysis
    places = layout.places(ids.tolist())
    vectors = scope.embeddings(temperature, places).astype(np.float64)
    first, second = np.triu_indices(len(ids), 1)
    cosine = (vectors @ vectors.T)[first, second]
    candidates = {"socm": np.ones(len(cosine), bool), "same_mean": socm_tables.closest(cosine)}
    files = FactorFiles.of(scope.run, scope.model, temperature, _FACTORS)
    wanted = {ranking: Candidates(pairs) for ranking, pairs in candidates.items()}
    found = most_collapsed(scope.cluster, files, PairPlaces(ids, first, second), wanted, analysis)
    texts = Named(ids, layout.tokens[places])
    return [
        {"ranking": ranking} | row
        for ranking in candidates
        for row in found.best(ranking, cosine, texts, analysis.worst_pairs)
    ]  # fmt: skip
