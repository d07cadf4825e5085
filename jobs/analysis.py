"""What an audit does with one model, from the shards of its texts to partial tables: a stage a step."""

from __future__ import annotations

import dataclasses
from typing import Any

from jobs import (
    blocks,
    budget,
    cache,
    embed,
    engine,
    exposure,
    factors,
    pairwise,
    pairwise_socm,
    precision,
    probe,
    runs,
    socm_sample,
    socm_top,
)
from jobs.config import Analysis
from jobs.crew import Crew
from jobs.errors import IncompleteRun, UsageError
from jobs.headline import count as counted
from jobs.layout import Layout, layout
from jobs.progress import Journal
from jobs.runs import Run


def analyse(
    run: Run, cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], queries: Run | None, asked: dict[str, Any],
    journal: Journal,
) -> tuple[Layout, int]:  # fmt: skip
    """Everything of one model, up to its partial tables."""
    rejected = 0
    if run.config.corpus.embedding_column is not None:
        texts = layout(run, model, index["usable"])
    else:
        run = _settled(run, cluster, model, index, journal)
        texts, rejected = _embedded(run, cluster, model, index, journal)
        if queries is not None:
            settled = queries.config.model_copy(update={"embedding": run.config.embedding})
            queries = dataclasses.replace(queries, config=settled)
            _embed(queries, cluster, model, asked, journal, f"embed the queries{_of(run, model)}", embed.QueryActor)
    for temperature in run.temperatures:
        _paired(run, cluster, model, temperature, texts, journal, queries)
    if run.config.analysis.socm_top_over == "corpus":
        _searched(run, cluster, model, texts, index, journal)
    _drop_blocks(run, model, texts)
    return texts, rejected


def _embed(
    run: Run, cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], journal: Journal, name: str,
    worker: type[embed.EmbedActor],
) -> int:  # fmt: skip
    """Embed what no cache knows; returns how many texts were rejected."""
    if run.config.execution.cache is not None:
        with journal.stage(f"cache{_of(run, model)}") as stage:
            plan = cache.look_up(run, cluster, model, index, worker.role)
            stage.note = f"{plan['found']:,} of {counted(index['analysed'], 'text')} known"
    else:
        plan = cache.look_up(run, cluster, model, index, worker.role)
    taus = ", ".join(t.canonical for t in run.temperatures)
    journal.count("cache_hits", plan["found"])
    with journal.stage(name, index["analysed"], "texts") as stage:
        counts = embed.embed(run, cluster, model, index | {"shards": plan["shards"]}, stage.advance, plan["found"], worker)
        journal.count("rejected", counts["rejected"])
        lost = f", {counts['rejected']:,} rejected" if counts["rejected"] else ""
        stage.note = f"{counted(counts['embedded'], 'text')} under τ {taus}{lost}"
        if not counts["embedded"]:
            raise UsageError(
                f"model {model.label} gives no finite embedding for any text under all of τ {taus}; leave out what breaks it"
                f"{runs.commonest_reason(run, model)}"
            )
        if (problem := cache.remember(run, cluster, model, plan["shards"], worker.role)) is not None:
            stage.note = f"{stage.note}; {problem}"
    return counts["rejected"]


def _settled(run: Run, cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], journal: Journal) -> Run:
    """The run with the model's token budget."""
    if not run.config.embedding.tune_batches:
        return budget.settle(run, cluster, model, index)
    with journal.stage(f"micro-batches{_of(run, model)}") as stage:

        def note(text: str) -> None:
            stage.note = text

        return budget.settle(run, cluster, model, index, note)


def _embedded(
    run: Run, cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], journal: Journal
) -> tuple[Layout, int]:
    """Embed the texts, then the SOCM sample for its factors, then the probe's prefixes."""
    of = _of(run, model)
    rejected = _embed(run, cluster, model, index, journal, f"embed {model.label}", embed.EmbedActor)
    texts = layout(run, model, index["usable"])
    if len(texts) != index["analysed"] - rejected or not texts.are_distinct():
        raise IncompleteRun("texts/ does not hold every text once; start over with --fresh")
    sample = _socm_sample(run, cluster, model, texts, index, journal) if run.config.analysis.socm_sample else []
    with Crew(run, cluster, model) as crew:
        if run.config.embedding.precision != "float32":
            with journal.stage(f"precision{of}", min(len(texts), precision.SAMPLE)) as stage:
                found = precision.measure(run, crew, model, texts, index, stage.advance)
                stage.note = (
                    f"cosine to float32: {found['cosine_least']:.6f} at least, {found['cosine_mean']:.6f} in the mean"
                )
        if sample:
            with journal.stage(f"covariance factors{of}", len(sample)) as stage:
                stage.note = f"{factors.collect(run, crew, model, texts, index, sample, stage.advance):,} sampled texts"
        if run.config.analysis.probe_sample:
            with journal.stage(f"prefix probe{of}") as stage:
                probed = probe.probe(run, crew, model, texts, index, stage.advance)
                stage.note = f"{probed['texts']:,} long texts at {', '.join(map(str, probed['prefixes']))} tokens"
                if not probed["texts"]:
                    stage.note = "left out: too few texts are long enough"
    return texts, rejected


def _socm_sample(
    run: Run, cluster: engine.Cluster, model: runs.Model, texts: Layout, index: dict[str, Any], journal: Journal
) -> list[str]:
    """A simple random sample, or one drawn by length interval after a pilot has told how large it must be."""
    analysis, seed = run.config.analysis, run.config.seed
    if analysis.socm_cell_se is None:
        return socm_sample.simple(texts, analysis.socm_sample, seed)
    with journal.stage(f"SOCM pilot{_of(run, model)}") as stage:
        pilot = socm_sample.stratified(texts, socm_sample.pilot_sizes(texts), seed)
        with Crew(run, cluster, model) as crew:
            factors.collect(run, crew, model, texts, index, pilot, lambda count: None, "partials/pilot")
        measured = [
            pairwise_socm.measure(run, cluster, model, t, texts, lambda count: None, "partials/pilot", "pilot_socm")
            for t in run.temperatures
        ]
        sizes = socm_sample.wanted_sizes(measured, texts, analysis.socm_cell_se, analysis.socm_sample)
        stage.note = (
            f"{len(pilot):,} texts; {int(sizes.sum()):,} are to give each cell an error of {analysis.socm_cell_se:g}"
        )
    return socm_sample.stratified(texts, sizes, seed)


def _of(run: Run, model: runs.Model) -> str:
    """Names the model in the stages of a run that has several."""
    return f" of {model.label}" if len(run.models) > 1 else ""


def _paired(
    run: Run, cluster: engine.Cluster, model: runs.Model, temperature: Any, texts: Layout, journal: Journal,
    queries: Run | None,
) -> None:  # fmt: skip
    """All pairs: cosine over the whole corpus, SOCM over the sample."""
    pairs = len(texts) * (len(texts) - 1) // 2
    with journal.stage(f"cosine{_of(run, model)}, τ {temperature.canonical}", pairs, "pairs") as stage:
        count = pairwise.cosine(run, cluster, model, temperature, texts, stage.advance)
        stage.note = f"{pairs:,} pairs, equal to their closed form"
        if (moved := pairwise.rounding(run, model, temperature)) is not None:
            stage.note = f"{pairs:,} pairs in {moved['precision']}, equal to their closed form; means are exact"
        if run.config.analysis.cosine == "moments":
            stage.note = f"mean and variance of {pairs:,} pairs in closed form"
    if run.config.analysis.cosine == "full":
        with journal.stage(f"exposure{_of(run, model)}, τ {temperature.canonical}") as stage:
            exposure.expose(run, cluster, model, temperature, texts, count, queries)
            stage.note = f"{run.config.analysis.neighbours} nearest of {len(texts):,} texts"
    if run.config.analysis.socm_sample and run.config.corpus.embedding_column is None:
        size = pairwise_socm.sample_size(run, model, temperature)
        with journal.stage(f"SOCM{_of(run, model)}, τ {temperature.canonical}", size * (size - 1) // 2, "pairs") as stage:
            done = pairwise_socm.socm(run, cluster, model, temperature, texts, stage.advance)
            stage.note = f"{done:,} pairs, {_way(run.config.analysis)}"


def _searched(
    run: Run, cluster: engine.Cluster, model: runs.Model, texts: Layout, index: dict[str, Any], journal: Journal
) -> None:
    """The most collapsed pairs of all texts."""
    with journal.stage(f"most collapsed pairs{_of(run, model)}") as stage:
        found = socm_top.search(run, cluster, model, texts, index, stage.tell)
        stage.note = f"of {found['pairs']:,} pairs {found['exact']:,} left by the bounds, exact"


def _drop_blocks(run: Run, model: runs.Model, texts: Layout) -> None:
    """Remove the embeddings in canonical order, which only the steps over all pairs read."""
    for temperature in run.temperatures:
        run.storage.remove(f"{blocks.tiling(run, model, temperature, texts).place}/blocks")


def _way(analysis: Analysis) -> str:
    """How d_Σ was computed."""
    if analysis.socm_regularization:
        return f"with ε = {analysis.socm_regularization:g}"
    return f"within {analysis.socm_tolerance:g}, certified" if analysis.socm_tolerance else "exact"
