"""The run, top to bottom."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from threadpoolctl import threadpool_limits

import tempscale
from jobs import corpus, embed, engine, factors, pairwise, pairwise_socm, probe, report, runs, sources, summary
from jobs.config import AuditConfig
from jobs.errors import UsageError
from jobs.layout import Layout, layout
from jobs.progress import Journal
from jobs.runs import Run
from jobs.storage import Storage


def audit(config: AuditConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Run a whole audit, or what is missing of it, and leave tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call goes on.
    """
    if fresh:
        _check_inputs(config)  # A mistake must not cost the run that is to be replaced.
    run = runs.begin(config, fresh=fresh)
    with journal.stage("read the corpus") as stage:
        if run.complete:
            corpus.check_unchanged(config, run.storage.read_json(runs.DONE)["corpus"])
            stage.note = "the run is complete: nothing to do"
            return run
        index = corpus.shard(run.storage, config, stage.advance)
        stage.note = f"{index['analysed']:,} of {index['usable']:,} texts, {index['rejected']:,} rows rejected"
    # Numbers merged in this process must not depend on how many cores it finds.
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        layouts, rejected = {}, 0
        for model in run.models:
            layouts[model.label], lost = _embedded(run, cluster, model, index, journal)
            rejected += lost
            for temperature in run.temperatures:
                _paired(run, cluster, model, temperature, layouts[model.label], journal)
        with journal.stage("tables") as stage:
            stage.note = f"{len(summary.summarise(run, layouts, index))} tables"
    with journal.stage("report") as stage:
        record = _record(run, index, layouts, rejected, journal)
        run.storage.write("report.html", report.render(summary.load_tables(run.storage), record).encode())
        stage.note = "report.html"
    runs.complete(run, record)
    return run


def _check_inputs(config: AuditConfig) -> None:
    """Raise unless the corpus gives a first row and the Ray cluster answers.

    Raises:
        UsageError: one of them does not.
    """
    sources.state(config.corpus, config.out)
    if next(iter(sources.rows(config.corpus, config.out)), None) is None:
        raise UsageError(f"corpus '{sources.shown(config.corpus.source)}' has no row")
    engine.check_reachable(config.execution)


def _embedded(
    run: Run, cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], journal: Journal
) -> tuple[Layout, int]:
    """Embed the texts, then the SOCM sample for its factors, then the probe's prefixes."""
    taus = ", ".join(t.canonical for t in run.temperatures)
    of = _of(run, model)
    with journal.stage(f"embed {model.label}", index["analysed"]) as stage:
        counts = embed.embed(run, cluster, model, index, stage.advance)
        stage.note = f"{counts['embedded']:,} texts under τ {taus}" + (
            f", {counts['rejected']:,} rejected" if counts["rejected"] else ""
        )
        if not counts["embedded"]:
            raise UsageError(
                f"model {model.label} gives no finite embedding for any text under all of τ {taus}; leave out what breaks it"
            )
    texts = layout(run, model, index["usable"])
    analysis = run.config.analysis
    if analysis.socm_sample:
        with journal.stage(f"covariance factors{of}", min(analysis.socm_sample, len(texts))) as stage:
            stage.note = f"{factors.collect(run, cluster, model, texts, index, stage.advance):,} sampled texts"
    if analysis.probe_sample:
        with journal.stage(f"prefix probe{of}") as stage:
            probed = probe.probe(run, cluster, model, texts, index, stage.advance)
            stage.note = f"{probed['texts']:,} long texts at {', '.join(map(str, probed['prefixes']))} tokens"
            if not probed["texts"]:
                stage.note = "left out: too few texts are long enough"
    return texts, counts["rejected"]


def _of(run: Run, model: runs.Model) -> str:
    """Names the model in the stages of a run that has several."""
    return f" of {model.label}" if len(run.models) > 1 else ""


def _paired(run: Run, cluster: engine.Cluster, model: runs.Model, temperature: Any, texts: Layout, journal: Journal) -> None:
    """All pairs: cosine over the whole corpus, SOCM over the sample."""
    pairs = len(texts) * (len(texts) - 1) // 2
    with journal.stage(f"cosine{_of(run, model)}, τ {temperature.canonical}", pairs) as stage:
        pairwise.cosine(run, cluster, model, temperature, texts, stage.advance)
        stage.note = f"{pairs:,} pairs, equal to their closed form"
    if run.config.analysis.socm_sample:
        sample = min(run.config.analysis.socm_sample, len(texts))
        with journal.stage(f"SOCM{_of(run, model)}, τ {temperature.canonical}", sample * (sample - 1) // 2) as stage:
            pairwise_socm.socm(run, cluster, model, temperature, texts, stage.advance)
            stage.note = f"{sample * (sample - 1) // 2:,} pairs, exact"


def render_again(folder: str) -> str:
    """Write the report of a finished run again from its tables; returns where it is.

    Raises:
        UsageError: the folder holds no finished run.
    """
    storage = Storage(folder)
    if not storage.exists(runs.DONE):
        raise UsageError(f"'{folder}' holds no finished run: there is no {runs.DONE} in it")
    storage.write("report.html", report.render(summary.load_tables(storage), storage.read_json(runs.DONE)).encode())
    return f"{storage.root}/report.html"


def _shown_config(config: AuditConfig) -> dict[str, Any]:
    """The configuration without what may hold a secret."""
    data = config.model_dump(mode="json", exclude={"execution": {"address"}})
    data["corpus"]["source"] = sources.shown(config.corpus.source)
    return data


def _record(run: Run, index: dict[str, Any], layouts: dict[str, Layout], rejected: int, journal: Journal) -> dict[str, Any]:
    """What run.json says of the run."""
    begun = runs.started(run)
    versions = begun["identity"]["versions"] | {"python": platform.python_version(), "altair": metadata.version("altair")}
    facts = {key: value for key, value in index.items() if key != "shards"}
    exceptions = []
    if begun["processor"] != runs.processor():
        exceptions.append(f"begun on {begun['processor']}, finished on {runs.processor()}")
    return {
        "tempscale": tempscale.__version__,
        "started": begun["started"],
        "finished": runs.now(),
        "config": _shown_config(run.config),
        "seed": run.config.seed,
        "models": {
            m.label: {
                "name": m.label,
                "fingerprint": m.fingerprint,
                "max_length": m.max_length,
                "texts": len(layouts[m.label]),
            }
            for m in run.models
        },
        "corpus": facts | {"rejected_by_models": rejected},
        "versions": versions,
        "processor": runs.processor(),
        "steps": dict(journal.steps),
        "peak_memory_bytes": journal.peak_memory_bytes,
        "byte_identity_exceptions": exceptions,
    }
