"""The run, top to bottom."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib import metadata
from typing import Any

from threadpoolctl import threadpool_limits

from jobs import (
    blocks,
    budget,
    cache,
    corpus,
    embed,
    engine,
    exposure,
    factors,
    lock,
    pairwise,
    pairwise_socm,
    precision,
    probe,
    report,
    runs,
    shared,
    socm_sample,
    socm_top,
    sources,
    summary,
    vectors,
)
from jobs.config import Analysis, AuditConfig
from jobs.crew import Crew
from jobs.errors import IncompleteRun, UsageError
from jobs.headline import count as counted
from jobs.layout import Layout, layout
from jobs.progress import Journal
from jobs.runs import Run
from jobs.storage import Storage
from jobs.urls import shown


def audit(config: AuditConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Run a whole audit, or what is missing of it, and leave tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call goes on.
    """
    with lock.held(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        return _audit(config, journal, fresh)


def _audit(config: AuditConfig, journal: Journal, fresh: bool) -> Run:
    if config.execution.cache is not None:
        Storage(config.execution.cache).check_reachable()
    if fresh:
        _check_inputs(config)  # A mistake must not cost the run that is to be replaced.
    run = runs.begin(config, fresh=fresh)
    with journal.stage("read the corpus") as stage:
        if run.complete:
            done = run.storage.read_json(runs.DONE)
            corpus.check_unchanged(config, done["corpus"])
            if config.queries is not None:
                corpus.check_unchanged(config.model_copy(update={"corpus": config.queries}), done["queries"])
            stage.note = "the run is complete: nothing to do"
            return run
        queries, asked = _queries(run)  # First: a mistake in them then leaves nothing that would have to be gone on with.
        index = _read(run, stage.advance)
        if queries is not None and run.config.corpus.embedding_column is not None:
            vectors.check_queries(run, queries)
        stage.note = f"{index['analysed']:,} of {index['usable']:,} texts, {index['rejected']:,} rows rejected"
    # Numbers merged in this process must not depend on how many cores it finds.
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        shared.check_run(run, _folders(run))
        layouts, rejected = {}, 0
        for model in run.models:
            layouts[model.label], lost = _analysed(run, cluster, model, index, queries, asked, journal)
            rejected += lost
        with journal.stage("tables") as stage:
            stage.note = f"{len(summary.summarise(run, layouts, index))} tables"
    with journal.stage("report") as stage:
        record = _record(run, index, layouts, rejected, journal)
        if config.queries is not None:
            record["queries"] = {key: value for key, value in asked.items() if key != "shards"}
        run.storage.write("report.html", report.render(summary.load_tables(run.storage), record).encode())
        stage.note = "report.html"
    runs.complete(run, record)
    return run


def _folders(run: Run) -> list[tuple[str, Storage]]:
    """What all machines of a run write to."""
    cached = run.config.execution.cache
    return [("--out", run.storage), *([("--cache", Storage(cached))] if cached is not None else [])]


def _check_inputs(config: AuditConfig) -> None:
    """Raise unless the corpus gives a first row and the Ray cluster answers.

    Raises:
        UsageError: one of them does not.
    """
    sources.state(config.corpus, config.out)
    rows = sources.rows if config.corpus.embedding_column is None else vectors.rows
    if next(iter(rows(config.corpus, config.out)), None) is None:
        raise UsageError(f"corpus '{shown(config.corpus.source)}' has no row")
    engine.check_reachable(config.execution)


def _queries(run: Run) -> tuple[Run | None, dict[str, Any]]:
    """The texts that search the corpus, as a run of their own below queries/, read into shards."""
    if run.config.queries is None:
        return None, {}
    config = run.config.model_copy(update={"corpus": run.config.queries})
    own = dataclasses.replace(run, config=config, storage=Storage(f"{run.storage.root}/queries"))
    return own, _read(own)


def _read(run: Run, on_rows: Callable[[int], None] = lambda rows: None) -> dict[str, Any]:
    """The index of the corpus: its texts as shards to embed, or its embeddings as they are."""
    if run.config.corpus.embedding_column is not None:
        return vectors.take(run, on_rows)
    return corpus.shard(run.storage, run.config, on_rows)


def _analysed(
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
    with journal.stage(name, index["analysed"]) as stage:
        counts = embed.embed(run, cluster, model, index | {"shards": plan["shards"]}, stage.advance, plan["found"], worker)
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
    with journal.stage(f"cosine{_of(run, model)}, τ {temperature.canonical}", pairs) as stage:
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
        with journal.stage(f"SOCM{_of(run, model)}, τ {temperature.canonical}", size * (size - 1) // 2) as stage:
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


def _record(run: Run, index: dict[str, Any], layouts: dict[str, Layout], rejected: int, journal: Journal) -> dict[str, Any]:
    """What run.json says of the run."""
    record = runs.facts(run)
    for label, facts in record["models"].items():
        facts["texts"] = len(layouts[label])
    for model in run.models:
        moved = {t.canonical: pairwise.rounding(run, model, t) for t in run.temperatures}
        if any(moved.values()):
            record["models"][model.label]["cosine_rounding"] = moved
        if run.storage.exists(budget.name(model)):
            record["models"][model.label] |= run.storage.read_json(budget.name(model))
        if run.storage.exists(precision.name(model)):
            record["models"][model.label]["precision"] = run.storage.read_json(precision.name(model))
    record["versions"]["altair"] = metadata.version("altair")
    corpus_facts = {key: value for key, value in index.items() if key != "shards"}
    return record | {
        "seed": run.config.seed,
        "corpus": corpus_facts | {"rejected_by_models": rejected},
        "steps": dict(journal.steps),
        "peak_memory_bytes": journal.peak_memory_bytes,
    }
