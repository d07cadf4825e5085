"""The entries of run.json that only an audit has."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from tempscale.stats.errors import equal_documents
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.steps import cosine, lookup, precision, source_order
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers import actor


def facts(audited: Sequence[Embedded], queries: Index | None) -> dict[str, Any]:
    """The entries of run.json of an audit, from the scope of each model."""
    first = audited[0]
    run, index = first.run, first.index
    rejected = sum(index.analysed - len(scope.texts) for scope in audited if scope.model != GIVEN)
    found: dict[str, Any] = {"seed": first.config.seed, "corpus": index.facts() | {"rejected_by_models": rejected}}
    if run.storage.exists(folder.SIZES):
        found["sizes"] = run.storage.read_json(folder.SIZES)
    if queries is not None:
        found["queries"] = queries.facts()
    found["models"] = {scope.model.label: _of_model(scope) for scope in audited}
    found["versions"] = {"altair": metadata.version("altair")}
    return found


def _of_model(scope: Embedded) -> dict[str, Any]:
    run, model, texts = scope.run, scope.model, scope.texts
    found: dict[str, Any] = {"texts": len(texts)}
    if texts.documents is not None:
        found["documents"] = len(np.unique(texts.documents))
        found["documents_equal"] = equal_documents(texts.documents)
    elif run.storage.exists(source_order.result_name(model)):
        found["source_order"] = run.storage.read_json(source_order.result_name(model))
    moved = {t.canonical: cosine.rounding(run, model, t) for t in run.temperatures}
    if any(moved.values()):
        found["cosine_rounding"] = moved
    if model == GIVEN:
        found["dimensions"] = folder.dimensions(run, model, run.temperatures[0])
    if run.storage.exists(actor.budget_name(model)):
        found |= run.storage.read_json(actor.budget_name(model))
    if run.storage.exists(precision.result_name(model)):
        found["precision"] = run.storage.read_json(precision.result_name(model))
    done = f"{run.place('partials/socm', model, run.temperatures[0])}/done.json"
    if run.storage.exists(done):
        found["socm"] = run.storage.read_json(done)["way"]
    if ignored := lookup.ignored(run, model):
        found["cache_ignored"] = ignored
    return found
