"""Stored vectors verified in a folder: a sample of them embedded again, compared, and explained.

`tempscale verify` does that in its run's folder, an audit of your own vectors in the folder verify/ below its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import polars as pl
import pyarrow as pa

from tempscale.stored.rounding import Storage as Stored
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.stored import Read, StoredVectors
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.verify import compare, computed, earlier, explain, findings, sample, summary
from tempscale_jobs.verify.compare import Judged, Rules, Tolerance
from tempscale_jobs.verify.earlier import EarlierTexts
from tempscale_jobs.verify.explain import Known, WrongRows
from tempscale_jobs.verify.joined import join, keep_rejected
from tempscale_jobs.verify.words import whole
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew, Piece

OTHER = "other"
"""The folder of the texts, where they are in another table; it is removed at the end."""


class Verified(NamedTuple):
    """What a verification found."""

    tables: dict[str, pa.Table]
    frames: dict[str, pl.DataFrame]
    """The same tables for sentences."""
    findings: Findings
    facts: dict[str, Any]
    """How the vectors are stored and were compared, for run.json."""
    sources: dict[str, Any]
    """What was read, by the name of the source, for run.json."""

    @property
    def figures(self) -> dict[str, Any]:
        """The figures of all vectors, for the summary of an audit."""
        total = whole(self.frames["verify_summary"])[0]
        return {"verified_texts": total["sampled"], "wrong_share": total["share"]}


def contents(config: VerifyConfig) -> list[StoredVectors]:
    """The table of vectors and, where they are apart, that of the texts."""
    title, by = config.embeddings.title_column, tuple(config.by)
    if config.texts is None:
        return [StoredVectors(config.drawn(), Read(title=title, by=by), config.out)]
    return [
        StoredVectors(config.drawn(), Read(text=False, by=by), config.out),
        StoredVectors(config.texts_drawn(), Read(vector=False, title=title), config.out),
    ]


def check_inputs(config: VerifyConfig) -> None:
    """Raise a UsageError if a source has no row, or lacks a column, or the earlier run knows no texts."""
    earlier.check(config)
    for of in contents(config):
        sources.check_rows(of.corpus, config.out, sources.records(of.corpus, of.columns, config.out))


def open_sources(config: VerifyConfig, run: Run, journal: Journal) -> list[SourceReader]:
    """Plan the sources; those of a single unit are read at once."""
    earlier.check(config)  # A run that goes on may not find it any more.
    with journal.stage("read the vectors") as stage:
        readers = [
            SourceReader(place, of, config.seed, config.out, stage)
            for place, of in zip(_places(run), contents(config), strict=False)
        ]
        stage.note = ", and of texts ".join(reader.described() for reader in readers)
    return readers


def _places(run: Run) -> tuple[Storage, Storage]:
    """The folders of the vectors and, where they are apart, of the texts."""
    return run.storage, run.below(OTHER).storage


def verified(
    config: VerifyConfig, run: Run, readers: Sequence[SourceReader], cluster: Cluster, journal: Journal
) -> Verified:
    """Read the sample, compare it and explain what is wrong."""
    model = run.models[0]
    for reader, name in zip(readers, ("vectors", "texts"), strict=False):
        reader.read_all(cluster, journal, f"all of the {name}")
    sides = [(place, reader.index) for place, reader in zip(_places(run), readers, strict=False)]
    index, missing = sides[0][1], dict[str, Any]()
    if len(sides) > 1:
        with journal.stage("join by ids") as stage:
            joined = join(sides[0], sides[1], config.seed)
            index, missing = joined.rows, {"ids": joined.ids, "missing": joined.missing}
            stage.note = f"{joined.ids:,} ids; {', '.join(f'{k:,} × {why}' for why, k in joined.missing.items())}"
    size = sum(shard.texts for shard in index.shards) if config.sample == "all" else int(config.sample)
    rows = sample.chosen(run.storage, index, size, config.seed)
    with Crew(run, cluster, model, config.embedding) as crew:
        tolerance = _tolerance(config, run, crew, index, journal)
        every = compare.pieces(run, model, index, rows, tolerance)
        with journal.stage(f"compare {model.label}", sum(map(len, rows.values()))) as stage:
            compare.compare_all(run, crew, model, every, stage)
            judged = compare.judge(run, model, every, tolerance)._replace(of_all=_are_all(sides, index, rows))
            found = sum(judged.table.column("wrong").to_pylist())
            stage.note = f"{found:,} of {count(judged.table.num_rows, 'vector')} are not the model's"
        wrong, known = explain.gather(run, index, judged), Known.of(model, judged.rules)
        _explain(run, crew, wrong, known, journal)
    for candidate in run.models[1:]:
        with Crew(run, cluster, candidate, config.embedding) as crew:
            left = explain.pieces(run, candidate, [*wrong.first, *wrong.rest], known)
            _explain_by_candidate(crew, candidate, left, journal)
    texts = None if config.earlier is None else _earlier(config.earlier, run, judged, journal)
    causes = summary.causes(run, judged, [piece.files[0] for piece in every], texts)
    tables = summary.tables_of(run, judged, config.by, causes)
    if len(sides) > 1:
        keep_rejected(sides[1][0], run.storage)
    read = {name: index.facts() for name, (_, index) in zip(("embeddings", "texts"), sides, strict=False)}
    frames = {name: pl.DataFrame(pl.from_arrow(table)) for name, table in tables.items()}
    decided = findings.decide(frames, config.max_wrong)
    facts = _facts(config, judged.rules) | ({} if texts is None else {"known_earlier": len(texts.known)}) | missing
    return Verified(tables, frames, decided, facts, read)


def _earlier(folder: str, run: Run, judged: Judged, journal: Journal) -> EarlierTexts:
    """What an earlier audit knows of the compared rows."""
    with journal.stage("texts of the earlier audit") as stage:
        digests = dict(zip(*(judged.table.column(name).to_pylist() for name in ("text_id", "text_sha")), strict=True))
        texts = earlier.read(folder, run.models[0], run.temperatures[0], digests)
        stage.note = f"it has {len(texts.known):,} of {count(len(digests), 'row')}, {len(texts.edited):,} with another text"
    return texts


def _tolerance(config: VerifyConfig, run: Run, crew: Crew, index: Index, journal: Journal) -> Tolerance:
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
            raise UsageError(
                f"model {model.label} gives no finite vectors in {config.computed}; set computed to another precision"
            )
    scale, offset = (tuple(each) if isinstance(each, list) else each for each in (vectors.scale, vectors.offset))
    storage = Stored(vectors.bits, None if scale == 1.0 and offset is None else scale, offset)
    return Tolerance(storage, vectors.dims, errors[config.computed])


def _are_all(
    sides: list[tuple[Storage, Index]], joined: Index, rows: Mapping[int, Sequence[int]]
) -> bool:  # fmt: skip
    """Whether every row was drawn and compared."""
    is_read = all(index.analysed == index.usable for _, index in sides)
    return is_read and sum(map(len, rows.values())) == sum(shard.texts for shard in joined.shards)


def _explain(run: Run, crew: Crew, wrong: WrongRows, known: Known, journal: Journal) -> None:
    """Look for what explains the wrong rows, in a stage if there are any."""
    if not wrong.first:
        return
    model = run.models[0]
    with journal.stage(f"explain by {model.label}", wrong.total) as stage:
        crew.finish(explain.explain_piece, explain.pieces(run, model, wrong.first, known), stage)
        seen = known._replace(causes=explain.causes_of(run, wrong.first))
        crew.finish(explain.explain_piece, explain.pieces(run, model, wrong.rest, seen), stage)
        stage.note = f"{wrong.total:,} wrong rows"


def _explain_by_candidate(crew: Crew, candidate: Model, every: Sequence[Piece], journal: Journal) -> None:
    """Look for rows of a candidate among those that the run's model does not explain."""
    if not every:
        return
    rows = sum(piece.size for piece in every)
    with journal.stage(f"explain by {candidate.label}", rows) as stage:
        crew.finish(explain.explain_by_candidate, every, stage)
        stage.note = f"{rows:,} wrong rows"


def _facts(config: VerifyConfig, rules: Rules) -> dict[str, Any]:
    """What run.json says of how the vectors are stored and were compared."""
    return {
        "format": rules.format, "dimensions": rules.width, "norms": rules.norms, "computed": config.computed,
        "relative_distance": rules.tolerance.error, "max_wrong": config.max_wrong,
    }  # fmt: skip
