"""`tempscale verify`, top to bottom: a sample of stored vectors, embedded again, compared, and explained."""

from __future__ import annotations

from typing import Any

from tempscale.model import checkpoint
from tempscale.model.settings import Settings
from tempscale.stored.rounding import Storage as Stored
from tempscale_jobs import lifecycle
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.stored import Extra, StoredVectors
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import REPORT, Model, Run, load_tables
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.verify import compare, computed, explain, sample, summary
from tempscale_jobs.verify.compare import How, Judged
from tempscale_jobs.verify.explain import Rules
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew, Piece


@lifecycle.mended
def verify(config: VerifyConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Verify a sample of stored vectors, or the missing rows, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, source, models or run folder cannot be used, or nothing can be compared.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    contents = StoredVectors(config.drawn(), Extra(config.embeddings.title_column, tuple(config.by)), config.out)
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        if opening.will_read:
            rows = sources.records(config.embeddings, contents.columns, config.out)
            sources.check_rows(config.embeddings, config.out, rows)
        with opening.run() as life:
            if not _finished(config, life, journal):
                _verify_all(config, life, contents, journal)
    return life.run


def _finished(config: VerifyConfig, life: Lifecycle, journal: Journal) -> bool:
    """Whether the run is complete, and its vectors are still the same."""
    if life.finished is None:
        return False
    with journal.stage("read the vectors") as stage:
        sources.check_unchanged(config.embeddings, config.out, life.finished["embeddings"]["source_state"])
        return not life.reopen_if_damaged(stage)


def _verify_all(config: VerifyConfig, life: Lifecycle, contents: StoredVectors, journal: Journal) -> None:
    """Read the sample, compare it, explain what is wrong, and write the tables and the report."""
    run, model = life.run, life.run.models[0]
    with journal.stage("read the vectors") as stage:
        reader = SourceReader(run.storage, contents, config.seed, config.out, stage)
        stage.note = reader.described()
    with life.cluster() as cluster:
        reader.read_all(cluster, journal, "all of the vectors")
        size = reader.index.analysed if config.sample == "all" else int(config.sample)
        rows = sample.chosen(run.storage, reader.index, size, config.seed)
        with Crew(run, cluster, model, config.embedding) as crew:
            how, errors = _how(config, run, crew, reader.index, journal)
            every = compare.pieces(run, model, reader.index, rows, how)
            with journal.stage(f"compare {model.label}", sum(map(len, rows.values()))) as stage:
                compare.compare_all(run, crew, model, every, stage)
                judged = compare.judge(run, model, every, how)
                wrong = sum(judged.table.column("wrong").to_pylist())
                stage.note = f"{wrong:,} of {count(judged.table.num_rows, 'vector')} are not the model's"
            rules = Rules(how, errors, judged.convention, judged.format, judged.width, _prompts(model))
            files = explain.gather(run, reader.index, judged)
            _explain(life, crew, model, files, rules)
        for candidate in run.models[1:]:
            with Crew(run, cluster, candidate, config.embedding) as crew:
                _explain(life, crew, candidate, files, rules)
        with journal.stage("tables") as stage:
            compared = [piece.files[0] for piece in every]
            stage.note = f"{len(summary.summarise(run, judged, config.by, compared, config.max_wrong))} tables"
    with journal.stage("report") as stage:
        from tempscale_jobs.verify import report  # What draws it is slow to import, and Ray starts before.

        record = life.record(**_facts(config, reader.index, judged, errors))
        report.render(load_tables(run.storage), record).write_to(run.storage)
        stage.note = REPORT


def _how(
    config: VerifyConfig, run: Run, crew: Crew, index: Index, journal: Journal
) -> tuple[How, dict[str, float]]:  # fmt: skip
    """What a piece needs, and the distance that each precision explains, which is measured once."""
    model, vectors = run.models[0], config.embeddings
    with journal.stage(f"precision of {model.label}") as stage:
        if not run.storage.exists(computed.name_of(model)):
            texts = computed.spread(run.storage, index)
            for _ in crew.run(computed.measure, [Piece(0, (texts,), "precision")]):
                pass
        errors = computed.allowed(run.storage.read_json(computed.name_of(model)))
        stage.note = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
    scale = tuple(vectors.scale) if isinstance(vectors.scale, list) else None if vectors.scale == 1.0 else vectors.scale
    return How(Stored(vectors.bits, scale), vectors.dims, errors[config.computed]), errors


def _prompts(model: Model) -> tuple[str, ...]:
    return tuple(Settings.of(checkpoint.resolve(model.name)).prompts.values())


def _explain(life: Lifecycle, crew: Crew, model: Model, files: list[tuple[str, int]], rules: Rules) -> None:
    """Look for what explains the wrong rows, in a stage if there are any."""
    if not files:
        return
    rows = sum(number for _, number in files)
    with life.journal.stage(f"explain by {model.label}", rows) as stage:
        explain.explain_all(life.run, crew, model, files, rules, stage)
        stage.note = f"{rows:,} wrong rows"


def _facts(config: VerifyConfig, index: Index, judged: Judged, errors: dict[str, float]) -> dict[str, Any]:
    """What run.json says of the run."""
    verified = {
        "format": judged.format, "dimensions": judged.width, "norms": judged.convention, "computed": config.computed,
        "relative_distance": errors[config.computed], "max_wrong": config.max_wrong,
    }  # fmt: skip
    return {"command": config.command, "embeddings": index.facts(), "verified": verified}
