"""`tempscale diagnose`, top to bottom: why a model's embeddings collapse, layer by layer."""

from __future__ import annotations

from typing import Any

from threadpoolctl import threadpool_limits

from jobs import (
    corpus,
    diagnose_report,
    diagnose_summary,
    engine,
    lock,
    looks,
    repeated,
    runs,
    shared,
    sources,
    summary,
    two_texts,
    versions,
)
from jobs.crew import Crew
from jobs.diagnose_config import DiagnoseConfig
from jobs.errors import UsageError
from jobs.headline import count as counted
from jobs.looks import Look
from jobs.progress import Journal
from jobs.storage import Storage
from jobs.urls import shown


def diagnose(config: DiagnoseConfig, journal: Journal, *, fresh: bool = False) -> Look:
    """Look into a sample of texts, or what is missing of it, and leave tables and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call goes on.
    """
    with lock.held(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        return _diagnose(config, journal, fresh)


def _diagnose(config: DiagnoseConfig, journal: Journal, fresh: bool) -> Look:
    if fresh:
        _check_inputs(config)  # A mistake must not cost the run that is to be replaced.
    run = runs.begin(config, fresh=fresh)
    journal.follow(run)
    with journal.stage("read the corpus") as stage:
        if run.complete:
            corpus.check_unchanged(config.reading(), run.storage.read_json(runs.DONE)["corpus"])
            stage.note = "the run is complete: nothing to do"
            return run
        versions.check(config)  # A mistyped column must not cost the reading.
        index = corpus.shard(run.storage, config.reading(), stage.advance)
        stage.note = f"{index['analysed']:,} of {index['usable']:,} texts, {index['rejected']:,} rows rejected"
    import sklearn.manifold  # noqa: F401 - what is not loaded yet, the limit of threads would not reach

    # Numbers merged in this process must not depend on how many cores it finds.
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        shared.check_run(run, [("--out", run.storage)])
        try:
            two_texts.check(run, index)
            chosen, longest = _chosen(run, cluster, index, journal)
        except UsageError:
            run.storage.remove(runs.SHARDED)  # Nothing is worth going on with: a mistake blocks no folder.
            raise
        # Not among those mistakes: a smaller machine must not cost what a larger one has looked into.
        for model, tokens in zip(run.models, longest, strict=True):
            looks.check_memory(run, model, tokens)
        for model in run.models:
            _looked(run, cluster, model, index, chosen, journal)
        looked = {"texts": len(chosen), "rejected": {m.label: looks.rejected(run, m) for m in run.models}}
        with journal.stage("tables") as stage:
            stage.note = f"{len(diagnose_summary.summarise(run, index))} tables"
    with journal.stage("report") as stage:
        facts = {key: value for key, value in index.items() if key != "shards"}
        record = runs.facts(run) | {"command": config.command, "seed": config.seed, "corpus": facts}
        record |= {"looked_into": looked, "steps": dict(journal.steps), "peak_memory_bytes": journal.peak_memory_bytes}
        diagnose_report.render(summary.load_tables(run.storage), record).leave(run.storage)
        stage.note = "report.html"
    runs.complete(run, record)
    return run


def _check_inputs(config: DiagnoseConfig) -> None:
    """Raise unless the corpus gives a first row and the Ray cluster answers.

    Raises:
        UsageError: one of them does not.
    """
    sources.state(config.corpus, config.out)
    versions.check(config)
    if next(iter(sources.rows(config.corpus, config.out)), None) is None:
        raise UsageError(f"corpus '{shown(config.corpus.source)}' has no row")
    engine.check_reachable(config.execution)


def _chosen(run: Look, cluster: engine.Cluster, index: dict[str, Any], journal: Journal) -> tuple[list[str], list[int]]:
    """Ids of the texts that every model is to look into, and tokens of the longest for each model.

    Raises:
        UsageError: there is none.
    """
    found: list[dict[str, int]] = []
    for model in run.models:
        with journal.stage(f"lengths{_of(run, model)}", index["analysed"]) as stage:
            found.append(looks.lengths(run, cluster, model, index, stage.advance))
            stage.note = counted(len(found[-1]), "text")
            if not found[-1]:
                raise UsageError(f"model {model.label}: its tokenizer fails on every text")
    with journal.stage("choose texts") as stage:
        chosen = looks.sample(run, found, versions.documents(run, index))
        by = "document" if run.config.diagnosis.versions_of else "length interval"
        stage.note = f"{counted(len(chosen), 'text')} by {by}"
    if not chosen:
        raise UsageError("there is no text of at least two tokens on which the tokenizers of all models work")
    return chosen, [max(lengths[i] for i in chosen) for lengths in found]


def _of(run: Look, model: runs.Model) -> str:
    return f" of {model.label}" if len(run.models) > 1 else ""


def _looked(
    run: Look, cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], chosen: list[str], journal: Journal
) -> None:
    """Everything of one model, up to its partial tables."""
    of = _of(run, model)
    with Crew(run, cluster, model) as crew:
        with journal.stage(f"look into {model.label}", len(chosen)) as stage:
            looks.look(run, crew, model, index, chosen, stage.advance)
            stage.note = f"{counted(len(chosen), 'text')} under τ {', '.join(t.canonical for t in run.temperatures)}"
        with journal.stage(f"two texts{of}") as stage:
            pair = two_texts.look(run, crew, model, index)
            stage.note = "left out: there is one text only" if pair is None else f"{pair[0]} and {pair[1]}"
        with journal.stage(f"repeated tokens{of}") as stage:
            stage.note = f"{run.config.diagnosis.repeated_pairs} pairs at {repeated.measure(run, crew, model)} lengths"
