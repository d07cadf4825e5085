"""`tempscale pairs`, top to bottom: SOCM of explicit pairs of texts."""

from __future__ import annotations

from typing import Any

from threadpoolctl import threadpool_limits

from jobs import engine, lock, pair_chunks, pair_socm, pairs_summary, runs, shared, sources
from jobs.errors import UsageError
from jobs.pairs_config import PairsConfig
from jobs.progress import Journal
from jobs.runs import RunOf
from jobs.storage import Storage
from jobs.urls import shown


def pairs(config: PairsConfig, journal: Journal, *, fresh: bool = False) -> RunOf[PairsConfig]:
    """Measure every pair, or what is missing of it, and leave tables and run.json.

    Raises:
        UsageError: the configuration, source, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call goes on.
    """
    with lock.held(Storage(config.out), lambda: journal.stage("look whether another run lives")):
        return _pairs(config, journal, fresh)


def _pairs(config: PairsConfig, journal: Journal, fresh: bool) -> RunOf[PairsConfig]:
    if fresh:
        _check_inputs(config)  # A mistake must not cost the run that is to be replaced.
    run = runs.begin(config, fresh=fresh)
    journal.follow(run)
    with journal.stage("read the pairs") as stage:
        if run.complete:
            sources.check_unchanged(config.pairs, config.out, run.storage.read_json(runs.DONE)["pairs"])
            stage.note = "the run is complete: nothing to do"
            return run
        index = pair_chunks.chunk(run.storage, config, stage.advance)
        stage.note = f"{index['pairs']:,} pairs of {index['read']:,} rows" + (
            f", {index['rejected']:,} rejected" if index["rejected"] else ""
        )
    rejected = 0
    # Numbers merged in this process must not depend on how many cores it finds.
    with engine.session(config.execution) as cluster, threadpool_limits(1):
        shared.check_run(run, [("--out", run.storage)])
        for model in run.models:
            rejected += _measured(run, cluster, model, index, journal)
        with journal.stage("tables") as stage:
            stage.note = f"{len(pairs_summary.summarise(run, index))} tables"
    facts = {key: value for key, value in index.items() if key != "shards"}
    runs.complete(
        run,
        runs.facts(run)
        | {"command": config.command, "pairs": facts | {"rejected_by_models": rejected}}
        | {"steps": dict(journal.steps), "peak_memory_bytes": journal.peak_memory_bytes},
    )
    return run


def _check_inputs(config: PairsConfig) -> None:
    """Raise unless the source gives a first row and the Ray cluster answers.

    Raises:
        UsageError: one of them does not.
    """
    sources.state(config.pairs, config.out)
    if next(pair_chunks.records(config), None) is None:
        raise UsageError(f"pairs '{shown(config.pairs.source)}' has no row")
    engine.check_reachable(config.execution)


def _measured(
    run: RunOf[PairsConfig], cluster: engine.Cluster, model: runs.Model, index: dict[str, Any], journal: Journal
) -> int:
    """Embed and compare; returns the number of pairs that the model cannot measure."""
    taus = ", ".join(t.canonical for t in run.temperatures)
    with journal.stage(f"SOCM {model.label}", index["pairs"]) as stage:
        counts = pair_socm.measure(run, cluster, model, index, stage.advance)
        stage.note = f"{counts['measured']:,} pairs under τ {taus}" + (
            f", {counts['rejected']:,} rejected" if counts["rejected"] else ""
        )
        if not counts["measured"]:
            raise UsageError(
                f"model {model.label} gives no finite figures for any pair under all of τ {taus}; leave out what breaks it"
                f"{runs.commonest_reason(run, model)}"
            )
    return counts["rejected"]
