"""The stages of an audit for one model, from the shards of texts to partial tables."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.collapse import cosine, dealing, exposure, groups, largest, socm, source_order, worst
from tempscale_jobs.config import sections
from tempscale_jobs.config.audit import Analysis, AuditConfig, Embedding
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.embedding import budget, cache, embed, expected, factors, lookup, precision, probe
from tempscale_jobs.embedding.cache import Cache
from tempscale_jobs.embedding.layout import Layout, layout
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import Model, Run, gives_nothing, rejected_reasons
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.crew import Crew
from tempscale_jobs.workers.engine import Cluster


@dataclass(frozen=True)
class Queries:
    """The query texts, in a separate run below queries/."""

    run: Run
    corpus: sections.Queries
    index: Index


@dataclass(frozen=True)
class Audit:
    """The values that all stages of one audit share."""

    config: AuditConfig
    run: Run
    cluster: Cluster
    index: Index
    """The index of the corpus."""
    queries: Queries | None
    journal: Journal


def analyse(audit: Audit, model: Model) -> tuple[Layout, int]:
    """Embed and compare the texts under one model; returns its texts in canonical order and how many it rejected."""
    config, run = audit.config, audit.run
    edges = tuple(config.analysis.intervals)
    with Crew(run, audit.cluster, model, config.embedding) as crew:
        if config.corpus.embedding_column is None:
            encoding = settle(audit, crew, model)
            texts, rejected = _run_model(audit, crew, model, encoding, edges)
        else:
            encoding, rejected = config.embedding, 0
            texts = layout(run, audit.cluster, model, audit.index.usable, edges, config.seed)
        # The workers load the model once. They end before the steps over all pairs, which need their processors, unless
        # their GPUs compute the tiles.
        if not audit.cluster.gpus or config.analysis.cosine != "full":
            crew.dismiss()
        if model is run.models[0]:
            audit.journal.count("rejected", audit.index.rejected)
        for temperature in run.temperatures:
            _compare_all_pairs(audit, crew, model, temperature, texts)
    source_order.look(run, audit.cluster, model, texts, audit.index)
    if config.analysis.socm_top_over == "corpus":
        _search_worst_pairs(audit, model, encoding, texts)
    for temperature in run.temperatures:  # Only the steps over all pairs read these copies of the embeddings.
        run.storage.remove(f"{run.place('partials/cosine', model, temperature)}/blocks")
    return texts, rejected


def _run_model(
    audit: Audit, crew: Crew, model: Model, encoding: Embedding, edges: tuple[int, ...]
) -> tuple[Layout, int]:  # fmt: skip
    """Embed the texts, samples of them again, and the queries; returns the texts and how many were rejected."""
    run = audit.run
    index, name = audit.index, f"embed {model.label}"
    rejected = _embed(audit, crew, model, encoding, run, audit.config.corpus, index, name, actor.ROLE)
    texts = layout(run, audit.cluster, model, index.usable, edges, audit.config.seed)
    if len(texts) != index.analysed - rejected or not texts.are_distinct():
        raise IncompleteRun("texts/ does not hold every text once; start over with --fresh")
    _embed_samples(audit, crew, model, encoding, texts)
    for temperature in run.temperatures:
        _measure_socm(audit, crew, model, temperature, texts)
    if audit.config.analysis.socm_top_over == "corpus":
        with audit.journal.stage(f"texts of largest tr Σ{run.named(model)}") as stage:
            stage.note = f"factors of {worst.begin(_searched(audit, model, encoding, texts), crew):,} texts"
    if (asking := audit.queries) is not None:
        name = f"embed the queries{run.named(model)}"
        _embed(audit, crew, model, encoding, asking.run, asking.corpus, asking.index, name, "query")
    return texts, rejected


def settle(audit: Audit, crew: Crew, model: Model) -> Embedding:
    """The embedding configuration with the model's token budget, measured first if the user asked for that."""
    how = (audit.run, audit.cluster, crew, model, audit.config.embedding, audit.index.shards[0])
    if not audit.config.embedding.tune_batches:
        return budget.settle(*how)
    with audit.journal.stage(f"micro-batches{audit.run.named(model)}") as stage:

        def note(text: str) -> None:
            stage.note = text

        return budget.settle(*how, note)


def _embed(
    audit: Audit, crew: Crew, model: Model, encoding: Embedding, run: Run, corpus: sections.Corpus, index: Index, name: str,
    role: str,
) -> int:  # fmt: skip
    """Embed the texts of a run that are not in the cache; returns how many were rejected."""
    journal, cluster, root = audit.journal, audit.cluster, audit.config.execution.cache
    store = None if root is None else Cache(root, encoding, corpus.max_characters, role)
    if store is None:
        plan = lookup.look_up(run, cluster, model, store, index, corpus, encoding)
    else:
        with journal.stage(f"cache{run.named(model)}") as stage:
            plan = lookup.look_up(run, cluster, model, store, index, corpus, encoding)
            stage.note = plan.in_words(index.analysed)
    journal.count("cache_hits", plan.found)
    workers = cluster.workers if audit.config.execution.address else min(cluster.workers, os.cpu_count() or 1)
    soon = None if cluster.gpus else expected.seconds(model, plan.shards, len(run.temperatures), workers)
    work = sum(expected.about_tokens(shard, model.max_length) or shard.texts for shard in plan.shards)
    with journal.stage(name, index.analysed, "texts", Pace(work or 1.0, soon)) as stage:
        rejected = embed.embed(run, crew, model, encoding, plan.shards, role, stage.advance, plan.found)
        journal.count("rejected", rejected)
        lost = f", {rejected:,} rejected" if rejected else ""
        stage.note = f"{count(index.analysed - rejected, 'text')} under τ {run.taus}{lost}"
        _check_rejected(run, model, corpus, index, rejected)
        if store is not None and (problem := cache.remember(run, cluster, model, store, len(plan.shards))) is not None:
            stage.note = f"{stage.note}; {problem}"
    return rejected


def _check_rejected(run: Run, model: Model, corpus: sections.Corpus, index: Index, rejected: int) -> None:
    """Raise a UsageError if the model rejected every text, or with the unusable rows more than the setting allows."""
    if rejected == index.analysed:
        raise gives_nothing(run, model, "embedding for any text")
    if rejected:
        reasons = Counter(index.rejected_reasons) + rejected_reasons(run, model)
        lost = index.rejected + round(rejected * index.usable / index.analysed)  # In proportion, where it is a sample.
        check_rejected(corpus, (lost, index.read), reasons, run.storage.root)


def _embed_samples(audit: Audit, crew: Crew, model: Model, encoding: Embedding, texts: Layout) -> None:
    """Embed samples of the texts again, for the precision check, the covariance factors and the prefix probe."""
    run, index, analysis = audit.run, audit.index, audit.config.analysis
    of, journal, drawn = run.named(model), audit.journal, socm_sample(audit, texts)
    if encoding.precision != "float32":
        with journal.stage(f"precision{of}", min(len(texts), precision.SAMPLE)) as stage:
            found = precision.cosine_to_float32(run, crew, model, encoding.precision, texts, index, stage.advance)
            stage.note = f"cosine to float32: {found['cosine_least']:.6f} at least, {found['cosine_mean']:.6f} in the mean"
    if drawn:
        with journal.stage(f"covariance factors{of}", len(drawn)) as stage:
            stage.note = f"{factors.collect(run, crew, model, texts, index, drawn, stage.advance):,} sampled texts"
    if drawn is None:
        _measure_groups(audit, crew, model, texts)
    if analysis.probe_sample != 0:
        with journal.stage(f"prefix probe{of}") as stage:
            probed = probe.probe(run, crew, model, texts, index, analysis, stage.advance)
            stage.note = f"{probed['texts']:,} long texts at {', '.join(map(str, probed['prefixes']))} tokens"
            if not probed["texts"]:
                stage.note = "left out: too few texts are long enough"


def socm_sample(audit: Audit, texts: Layout) -> list[str] | None:
    """The texts of which all pairs are measured: as configured, or all of a corpus too small for groups; None for groups."""
    analysis = audit.config.analysis
    if analysis.socm_sample is None and dealing.enough(texts, analysis):
        return None
    places = np.arange(len(texts)) if analysis.socm_sample is None else texts.sample(analysis.socm_sample)
    return list(texts.ids[places])


def _measure_groups(audit: Audit, crew: Crew, model: Model, texts: Layout) -> None:
    """Measure the pairs of groups of texts, and collect the factors of the texts that are ranked."""
    run, index, analysis, of = audit.run, audit.index, audit.config.analysis, audit.run.named(model)
    planned = dealing.pairs_of(dealing.deal(texts, analysis, analysis.socm_groups))
    known = analysis.socm_se is None
    with audit.journal.stage(f"SOCM{of}", planned if known else None, "pairs", Pace(1.0 if known else None)) as stage:
        dealt = groups.measure(run, crew, model, texts, index, analysis, stage.advance)
        for temperature in run.temperatures:
            pairs = groups.tabulate(run, model, temperature, texts, analysis, dealt)
        stage.note = f"{pairs:,} pairs of {len(dealt)} groups under τ {run.taus}, {_method(analysis)}"
    if analysis.socm_top_over == "sample" and not largest.ranked(run, model):
        with audit.journal.stage(f"texts of largest tr Σ{of}") as stage:
            collected = largest.collect(run, crew, model, texts, index, analysis, len(dealt), lambda texts: None)
            stage.note = f"factors of {collected:,} texts"


def _measure_socm(audit: Audit, crew: Crew, model: Model, temperature: Temperature, texts: Layout) -> None:
    """Rank the pairs of the texts of largest tr Σ, or measure all pairs of the sample."""
    run, cluster, journal, analysis = audit.run, audit.cluster, audit.journal, audit.config.analysis
    under, sampled = f"{run.named(model)}, τ {temperature.canonical}", socm_sample(audit, texts)
    if sampled is None and analysis.socm_top_over == "sample":
        texts_tiled = largest.collected(run, model, temperature)
        most = texts_tiled * (texts_tiled - 1) // 2
        with journal.stage(f"worst pairs{under}", most, "pairs", Pace(1.0)) as stage:
            pairs = largest.rank(run, cluster, crew, model, temperature, texts, analysis, stage.advance)
            stage.note = f"{pairs:,} pairs of texts of largest tr Σ, {_method(analysis)}"
    elif sampled:
        size = len(sampled)
        with journal.stage(f"SOCM{under}", size * (size - 1) // 2, "pairs", Pace(1.0)) as stage:
            done = socm.socm(run, cluster, crew, model, temperature, texts, analysis, audit.config.seed, stage.advance)
            stage.note = f"{done:,} pairs, {_method(analysis)}"


def _compare_all_pairs(audit: Audit, crew: Crew, model: Model, temperature: Temperature, texts: Layout) -> None:
    """Compute cosines and neighbours over all pairs of the corpus."""
    run, cluster, journal, analysis = audit.run, audit.cluster, audit.journal, audit.config.analysis
    pairs, under = len(texts) * (len(texts) - 1) // 2, f"{run.named(model)}, τ {temperature.canonical}"
    near = analysis.compares and not exposure.is_done(run, model, temperature)
    search = analysis.socm_top_over == "corpus" and not worst.is_done(run, model, temperature)
    needed = cosine.Needed(near or search, near)
    with journal.stage(f"cosine{under}", pairs, "pairs") as stage:
        cosine.cosine(run, cluster, crew, model, temperature, texts, analysis, stage.advance, needed)
        stage.note = f"{pairs:,} pairs, equal to their closed form"
        if (moved := cosine.rounding(run, model, temperature)) is not None:
            stage.note = f"{pairs:,} pairs in {moved['precision']}, equal to their closed form; means are exact"
        if analysis.cosine == "moments":
            stage.note = f"mean and variance of {pairs:,} pairs in closed form"
    if analysis.compares:
        with journal.stage(f"exposure{under}") as stage:
            asking = None if audit.queries is None else audit.queries.run
            exposure.expose(run, cluster, model, temperature, texts, analysis, asking)
            stage.note = f"{analysis.neighbours} nearest of {len(texts):,} texts"
            if analysis.cosine != "full":
                asked = min(len(texts), analysis.exposure_sample)
                stage.note = f"{analysis.neighbours} nearest of {asked:,} texts among all {len(texts):,}"


def _search_worst_pairs(audit: Audit, model: Model, encoding: Embedding, texts: Layout) -> None:
    """Find the most collapsed pairs of the whole corpus."""
    with audit.journal.stage(f"most collapsed pairs{audit.run.named(model)}") as stage:
        found = worst.search(_searched(audit, model, encoding, texts), stage.tell)
        stage.note = f"of {found['pairs']:,} pairs {found['exact']:,} left by the bounds, exact"


def _searched(audit: Audit, model: Model, encoding: Embedding, texts: Layout) -> worst.Searched:
    """The corpus in which the most collapsed pairs are searched."""
    return worst.Searched(audit.run, audit.cluster, model, encoding, audit.index, texts, audit.config.analysis)


def _method(analysis: Analysis) -> str:
    """How d_Σ was computed."""
    return f"with ε = {analysis.socm_regularization:g}" if analysis.socm_regularization else "exact"
