"""`tempscale verify`, top to bottom: a sample of stored vectors, embedded again, compared, and explained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tempscale.model import checkpoint
from tempscale.model.settings import Settings
from tempscale.stored.rounding import Storage as Stored
from tempscale_jobs import lifecycle
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.stored import Read, StoredVectors
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.errors import UsageError
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import REPORT, Model, Run, load_tables
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.verify import compare, computed, explain, sample, summary
from tempscale_jobs.verify.compare import How, Rules
from tempscale_jobs.verify.joined import join, keep_rejected
from tempscale_jobs.workers.dispatch import Crew, Piece

OTHER = "other"
"""The folder of the texts, where they are in another table; it is removed at the end."""


@lifecycle.mended
def verify(config: VerifyConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Verify a sample of stored vectors, or the missing rows, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, source, models or run folder cannot be used, or nothing can be compared.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    contents = _contents(config)
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        if opening.will_read:
            for of in contents:
                sources.check_rows(of.corpus, config.out, sources.records(of.corpus, of.columns, config.out))
        with opening.run() as life:
            if not _finished(config, life, journal):
                _verify_all(config, life, contents, journal)
    return life.run


def _contents(config: VerifyConfig) -> list[StoredVectors]:
    """The table of vectors and, where they are apart, that of the texts."""
    title, by = config.embeddings.title_column, tuple(config.by)
    if config.texts is None:
        return [StoredVectors(config.drawn(), Read(title=title, by=by), config.out)]
    return [
        StoredVectors(config.drawn(), Read(text=False, by=by), config.out),
        StoredVectors(config.texts_drawn(), Read(vector=False, title=title), config.out),
    ]


def _finished(config: VerifyConfig, life: Lifecycle, journal: Journal) -> bool:
    """Whether the run is complete, and its vectors are still the same."""
    if life.finished is None:
        return False
    with journal.stage("read the vectors") as stage:
        for of, name in zip(_contents(config), ("embeddings", "texts"), strict=False):
            sources.check_unchanged(of.corpus, config.out, life.finished[name]["source_state"])
        return not life.reopen_if_damaged(stage)


def _verify_all(config: VerifyConfig, life: Lifecycle, contents: list[StoredVectors], journal: Journal) -> None:
    """Read the sample, compare it, explain what is wrong, and write the tables and the report."""
    run, model = life.run, life.run.models[0]
    places = [run.storage, run.below(OTHER).storage]
    with journal.stage("read the vectors") as stage:
        readers = [
            SourceReader(place, of, config.seed, config.out, stage) for place, of in zip(places, contents, strict=False)
        ]
        stage.note = ", and of texts ".join(reader.described() for reader in readers)
    with life.cluster() as cluster:
        for reader, name in zip(readers, ("vectors", "texts"), strict=False):
            reader.read_all(cluster, journal, f"all of the {name}")
        sides = [(place, reader.index) for place, reader in zip(places, readers, strict=False)]
        index, joined = sides[0][1], None
        if len(sides) > 1:
            with journal.stage("join by ids") as stage:
                joined = join(sides[0], sides[1], config.seed)
                index = joined.rows
                stage.note = f"{joined.ids:,} ids; {', '.join(f'{k:,} × {why}' for why, k in joined.missing.items())}"
        size = sum(shard.texts for shard in index.shards) if config.sample == "all" else int(config.sample)
        rows = sample.chosen(run.storage, index, size, config.seed)
        with Crew(run, cluster, model, config.embedding) as crew:
            how = _how(config, run, crew, index, journal)
            every = compare.pieces(run, model, index, rows, how)
            with journal.stage(f"compare {model.label}", sum(map(len, rows.values()))) as stage:
                compare.compare_all(run, crew, model, every, stage)
                judged = compare.judge(run, model, every, how)._replace(of_all=_are_all(sides, index, rows))
                wrong = sum(judged.table.column("wrong").to_pylist())
                stage.note = f"{wrong:,} of {count(judged.table.num_rows, 'vector')} are not the model's"
            files, rules = explain.gather(run, index, judged), judged.rules._replace(prompts=_prompts(model))
            _explain(life, crew, model, explain.pieces(run, model, files, rules))
        for candidate in run.models[1:]:
            with Crew(run, cluster, candidate, config.embedding) as crew:
                _explain(life, crew, candidate, explain.pieces(run, candidate, files, rules))
        with journal.stage("tables") as stage:
            compared = [piece.files[0] for piece in every]
            stage.note = f"{len(summary.summarise(run, judged, config.by, compared, config.max_wrong))} tables"
    with journal.stage("report") as stage:
        from tempscale_jobs.report.page import page
        from tempscale_jobs.verify import report  # What draws it is slow to import, and Ray starts before.

        facts = {"embeddings": sides[0][1].facts()} | ({"texts": sides[1][1].facts()} if joined else {})
        missing = {"ids": joined.ids, "missing": joined.missing} if joined else {}
        record = life.record(**facts, command=config.command, verified=_facts(config, judged.rules) | missing)
        if joined:
            keep_rejected(sides[1][0], run.storage)
        run.storage.remove(OTHER)
        page(report.report_of(load_tables(run.storage), record), record["config"]).write_to(run.storage)
        stage.note = REPORT


def _how(config: VerifyConfig, run: Run, crew: Crew, index: Index, journal: Journal) -> How:
    """What a piece needs; the distance that each precision explains is measured once."""
    model, vectors = run.models[0], config.embeddings
    with journal.stage(f"precision of {model.label}") as stage:
        if not run.storage.exists(computed.name_of(model)):
            texts = computed.spread(run.storage, index)
            for _ in crew.run(computed.measure, [Piece(0, (texts,), "precision")]):
                pass
        errors = computed.allowed(run.storage.read_json(computed.name_of(model)))
        stage.note = ", ".join(f"{name} {error:.1e}" for name, error in errors.items())
        if not math.isfinite(errors[config.computed]):
            raise UsageError(f"model {model.label} gives no finite vectors in {config.computed}; give another --computed")
    scale = tuple(vectors.scale) if isinstance(vectors.scale, list) else None if vectors.scale == 1.0 else vectors.scale
    return How(Stored(vectors.bits, scale), vectors.dims, errors[config.computed])


def _are_all(
    sides: list[tuple[Storage, Index]], joined: Index, rows: Mapping[int, Sequence[int]]
) -> bool:  # fmt: skip
    """Whether every row was drawn and compared."""
    is_read = all(index.analysed == index.usable for _, index in sides)
    return is_read and sum(map(len, rows.values())) == sum(shard.texts for shard in joined.shards)


def _prompts(model: Model) -> tuple[str, ...]:
    return tuple(Settings.of(checkpoint.resolve(model.name)).prompts.values())


def _explain(life: Lifecycle, crew: Crew, model: Model, every: list[Piece]) -> None:
    """Look for what explains the wrong rows, in a stage if there are any."""
    if not every:
        return
    with life.journal.stage(f"explain by {model.label}", sum(piece.size for piece in every)) as stage:
        explain.explain_all(life.run, crew, every, stage, by_candidate=model != life.run.models[0])
        stage.note = f"{sum(piece.size for piece in every):,} wrong rows"


def _facts(config: VerifyConfig, rules: Rules) -> dict[str, Any]:
    """What run.json says of how the vectors are stored and were compared."""
    return {
        "format": rules.format, "dimensions": rules.width, "norms": rules.norms, "computed": config.computed,
        "relative_distance": rules.how.error, "max_wrong": config.max_wrong,
    }  # fmt: skip
