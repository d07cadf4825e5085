"""The steps of an audit for one model, from the shards of texts to partial tables."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.collapse import cosine, dealing, exposure, groups, largest, socm, source_order, worst
from tempscale_jobs.collapse.cosine import Needed
from tempscale_jobs.config import sections
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.embedding import budget, embed, factors, precision, probe
from tempscale_jobs.embedding.layout import Layout, layout
from tempscale_jobs.embedding.scope import Embedded, Scope
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew


@dataclass(frozen=True)
class Queries:
    """The query texts, in a separate run below queries/."""

    run: Run
    corpus: sections.Queries
    index: Index


@dataclass(frozen=True)
class Audit:
    """The values that all models of one audit share."""

    config: AuditConfig
    run: Run
    cluster: Cluster
    index: Index
    """The index of the corpus."""
    queries: Queries | None
    journal: Journal


def analyse(audit: Audit, model: Model) -> tuple[Layout, int]:
    """Embed and compare the texts under one model; returns its texts in canonical order and how many it rejected."""
    config, run, cluster, journal = audit.config, audit.run, audit.cluster, audit.journal
    if model is run.models[0]:
        journal.count("rejected", audit.index.rejected)
    with Crew(run, cluster, model, config.embedding) as crew:
        scope = Scope(config, config.embedding, config.corpus, audit.index, run, model, cluster, crew, journal)
        scope, rejected = _embedded(scope, audit.queries)
        # The workers load the model once. They end before the steps over all pairs, which need their processors, unless
        # their GPUs compute the tiles.
        if not cluster.gpus or config.analysis.cosine != "full":
            crew.dismiss()
        asking = None if audit.queries is None else audit.queries.run
        for temperature in run.temperatures:
            cosine.cosine(scope, temperature, _needed(scope, temperature))
            if config.analysis.compares:
                exposure.expose(scope, temperature, asking)
    source_order.look(scope)
    if config.analysis.socm_top_over == "corpus":
        worst.search(scope)
    for temperature in run.temperatures:  # Only the steps over all pairs read these copies of the embeddings.
        run.storage.remove(f"{run.place('partials/cosine', model, temperature)}/blocks")
    return scope.texts, rejected


def _embedded(scope: Scope, queries: Queries | None) -> tuple[Embedded, int]:
    """Embed the corpus and run all steps that need the model; returns how many texts the model rejected.

    Embeddings of the user's own are taken as they are.
    """
    if scope.source.embedding_column is not None:
        return Embedded.of(scope, _in_order(scope)), 0
    scope = replace(scope, encoding=budget.settle(scope))
    rejected = embed.embed(scope, f"embed {scope.model.label}")
    texts = _in_order(scope)
    if len(texts) != scope.index.analysed - rejected or not texts.are_distinct():
        raise IncompleteRun("texts/ does not hold every text once; start over with --fresh")
    own = Embedded.of(scope, texts)
    precision.measure(own)
    sample = socm_sample(own)
    if sample:
        factors.collect_sample(own, sample)
    dealt = groups.measure(own) if sample is None else []
    ranks_largest = sample is None and scope.analysis.socm_top_over == "sample"
    if ranks_largest:
        largest.collect(own, len(dealt))
    probe.probe(own)
    for temperature in scope.run.temperatures:
        if ranks_largest:
            largest.rank(own, temperature, len(dealt))
        if sample:
            socm.socm(own, temperature, len(sample))
    if scope.analysis.socm_top_over == "corpus":
        worst.begin(own)
    if queries is not None:
        asking = replace(scope, run=queries.run, source=queries.corpus, index=queries.index)
        embed.embed(asking, scope.named("embed the queries"), "query")
    return own, rejected


def _in_order(scope: Scope) -> Layout:
    """The texts in canonical order."""
    edges = tuple(scope.analysis.intervals)
    return layout(scope.run, scope.cluster, scope.model, scope.index.usable, edges, scope.config.seed)


def socm_sample(scope: Embedded) -> list[str] | None:
    """The texts of which all pairs are measured: as configured, or all of a corpus too small for groups; None for groups."""
    analysis, texts = scope.analysis, scope.texts
    if analysis.socm_sample is None and dealing.enough(texts, analysis):
        return None
    places = np.arange(len(texts)) if analysis.socm_sample is None else texts.sample(analysis.socm_sample)
    return list(texts.ids[places])


def _needed(scope: Embedded, temperature: Temperature) -> Needed:
    """What the steps over all pairs still need of the tiles."""
    run, model, analysis = scope.run, scope.model, scope.analysis
    near = analysis.compares and not exposure.is_done(run, model, temperature)
    search = analysis.socm_top_over == "corpus" and not worst.is_done(run, model, temperature)
    return Needed(near or search, near)
