"""The entries of run.json that only an audit has."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np

from tempscale.stats.errors import equal_documents
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.results import ResultsIndex
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.steps import cosine, lookup, precision, served, source_order
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.verify.stage import Verified
from tempscale_jobs.verify.words import answer, whole
from tempscale_jobs.workers import actor


def facts(
    audited: Sequence[Embedded], queries: Index | None, verified: Verified | None = None, results: ResultsIndex | None = None
) -> dict[str, Any]:
    """The entries of run.json of an audit, from the scope of each model."""
    first = audited[0]
    run, index = first.run, first.index
    rejected = sum(index.analysed - len(scope.texts) for scope in audited if scope.model != GIVEN)
    entries: dict[str, Any] = {"seed": first.config.seed, "corpus": index.facts() | {"rejected_by_models": rejected}}
    if run.storage.exists(folder.SIZES):
        entries["sizes"] = run.storage.read_json(folder.SIZES)
    if queries is not None:
        entries["queries"] = queries.facts()
    if results is not None:
        entries["results"] = results.facts()
    if verified is not None:
        entries["verified"] = verified.sources["embeddings"] | verified.facts | _of_vectors(verified)
    entries["models"] = {scope.model.label: _of_model(scope) for scope in audited}
    if run.other_models:
        entries["other_models"] = {
            model.label: model.identity() | {"rejected": dict(folder.rejected_reasons(run, model))}
            for model in run.other_models
        }
    entries["versions"] = {"altair": metadata.version("altair")}
    return entries


def _of_vectors(verified: Verified) -> dict[str, Any]:
    """The answer, and what the gate judges it by."""
    summary = verified.frames["verify_summary"]
    total = whole(summary)[0]
    return {"model": total["model"], "answer": answer(summary)} | {name: total[name] for name in ("sampled", "wrong", "low")}


def _of_model(scope: Embedded) -> dict[str, Any]:
    run, model, texts = scope.run, scope.model, scope.texts
    entries: dict[str, Any] = {"texts": len(texts)}
    if texts.documents is not None:
        entries["documents"] = len(np.unique(texts.documents))
        entries["documents_equal"] = equal_documents(texts.documents)
    elif run.storage.exists(source_order.result_name(model)):
        entries["source_order"] = run.storage.read_json(source_order.result_name(model))
    if texts.groupings:
        entries["by"] = {
            grouping.by: {"groups": len(grouping.digests), "joined": grouping.joined, "names": list(grouping.joined_names)}
            for grouping in texts.groupings
        }
    moved = {t.canonical: cosine.recorded_rounding(run, model, t) for t in run.temperatures}
    if any(moved.values()):
        entries["cosine_rounding"] = moved
    if model == GIVEN:
        entries["dimensions"] = folder.dimensions(run, model, run.temperatures[0])
    if run.storage.exists(actor.budget_name(model)):
        entries |= run.storage.read_json(actor.budget_name(model))
    if run.storage.exists(precision.result_name(model)):
        entries["precision"] = run.storage.read_json(precision.result_name(model))
    done_file = f"{run.place('partials/socm', model, run.temperatures[0])}/done.json"
    if run.storage.exists(done_file):
        entries["socm"] = run.storage.read_json(done_file)["way"]
    if run.storage.exists(served.done_name(scope)):
        entries["served"] = run.storage.read_json(served.done_name(scope))["facts"]
    if ignored := lookup.ignored(run, model):
        entries["cache_ignored"] = ignored
    return entries
