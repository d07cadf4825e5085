"""`tempscale diagnose`, top to bottom: why a model's embeddings collapse, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec

from tempscale.optional import needs
from tempscale_jobs import lifecycle
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.corpus import peek, shards, sources
from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.diagnose import looks, repeated, sampling, summary, two_texts, versions
from tempscale_jobs.diagnose.looks import Read
from tempscale_jobs.diagnose.sampling import Sample
from tempscale_jobs.errors import UsageError
from tempscale_jobs.lifecycle import Lifecycle
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import PLANNED, REPORT, SHARDED, Model, Run, load_tables, rejected_reasons
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.steps import pieces
from tempscale_jobs.tables.diagnose import KINDS
from tempscale_jobs.workers.dispatch import Crew


@lifecycle.mended
def diagnose(config: DiagnoseConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Measure a sample of texts layer by layer, or the missing ones, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    texts = TextShards(config.candidates(), Embedding.model_validate({}), config.out)
    with lifecycle.locked(config, journal, fresh=fresh) as opening:
        if opening.will_read:
            versions.check_column(config.corpus, config.diagnosis.versions_of, config.out)
            peek.first_items(texts, config.out)
        with opening.run() as life:
            if not _finished(config, life, journal):
                _measure(config, life, texts, journal)
    return life.run


def _finished(config: DiagnoseConfig, life: Lifecycle, journal: Journal) -> bool:
    """Whether the run is complete, and its corpus is still the same."""
    if life.finished is None:
        return False
    with journal.stage("read the corpus") as stage:
        sources.check_unchanged(config.candidates(), config.out, life.finished["corpus"]["source_state"])
        return not life.reopen_if_damaged(stage)


def _measure(config: DiagnoseConfig, life: Lifecycle, texts: TextShards, journal: Journal) -> None:
    """Read the corpus, look into a sample of it under every model, and write the tables and the report."""
    run, settings = life.run, config.diagnosis
    with journal.stage("read the corpus") as stage:
        stream = SourceReader(run.storage, texts, config.seed, config.out, stage)
        stage.note = stream.described()
    with suppress(ImportError):  # The limit of threads applies only to libraries that are already loaded.
        import sklearn.manifold  # noqa: F401

    if stream.complete:
        with _leaving_nothing(run):
            two_texts.check_named(run, settings.pair, stream.index)
    with life.cluster() as cluster:
        stream.read_all(cluster, journal, "its units")
        read = Read(config, run, cluster, stream.index, journal)
        with _leaving_nothing(run):
            two_texts.check_named(run, settings.pair, read.index)
            document_of = versions.documents(run, config.candidates(), settings.versions_of, config.out, read.index)
            chosen, longest = _choose(read, document_of)
        # Outside of the block: on a smaller machine the work of a larger one is kept.
        for model, tokens in zip(run.models, longest, strict=True):
            looks.check_memory(model, tokens, config.execution.workers or 1)
        for model in run.models:
            _look(read, model, chosen)
        looked = {"texts": len(chosen), "rejected": {m.label: looks.rejected(run, m) for m in run.models}}
        with journal.stage("tables") as stage:
            parts_of = shards.documents_of(run.storage, read.index, set(chosen))
            tables = summary.summarise(run, settings.intervals, config.seed, document_of, parts_of)
            stage.note = f"{len(tables)} tables"
            if find_spec("sklearn") is None:
                stage.note += f"; {needs('the map of texts', 'sklearn')}"
    with journal.stage("report") as stage:
        from tempscale_jobs.diagnose import report  # What draws it is slow to import, and Ray starts before.
        from tempscale_jobs.report.page import page

        record = life.record(command=config.command, seed=config.seed, corpus=read.index.facts(), looked_into=looked)
        page(report.report_of(load_tables(run.storage), record), record["config"]).write_to(run.storage)
        stage.note = REPORT


@contextmanager
def _leaving_nothing(run: Run) -> Iterator[None]:
    """Leave nothing to resume of a run that ends in a mistake in the block."""
    try:
        yield
    except UsageError:
        for name in (SHARDED, PLANNED):
            run.storage.remove(name)
        raise


def _choose(read: Read, document_of: dict[str, str]) -> Sample:
    """The texts to look into; raises unless there are enough that every model's tokenizer takes."""
    config, run, index, journal = read.config, read.run, read.index, read.journal
    for model in run.models:
        with journal.stage(f"lengths{run.named(model)}", index.analysed) as stage:
            texts = sampling.write_lengths(read, model, stage)
            stage.note = count(texts, "text")
            if not texts:
                raise UsageError(f"model {model.label}: its tokenizer fails on every text")
            lost = (index.analysed - texts, index.analysed)
            check_rejected(config.corpus, lost, rejected_reasons(run, model), run.storage.root, "text")
    with journal.stage("choose texts") as stage:
        chosen = sampling.choose(read, document_of)
        by = "document" if config.diagnosis.versions_of else "length interval"
        stage.note = f"{count(len(chosen.ids), 'text')} by {by}"
    if not chosen.ids:
        raise UsageError("there is no text of at least two tokens on which the tokenizers of all models work")
    return chosen


def _look(read: Read, model: Model, chosen: list[str]) -> None:
    """Write all partial tables of one model."""
    run, settings, of, journal = read.run, read.config.diagnosis, read.run.named(model), read.journal
    with Crew(run, read.cluster, model, read.config.embedding) as crew:
        with journal.stage(f"look into {model.label}", len(chosen)) as stage:
            looks.look(read, crew, pieces.of_sample(run, model, chosen, settings.piece_texts, KINDS), stage)
            stage.note = f"{count(len(chosen), 'text')} under τ {run.taus}"
        with journal.stage(f"two texts{of}") as stage:
            pair = two_texts.look(read, crew, model)
            stage.note = "left out: there is one text only" if pair is None else f"{pair[0]} and {pair[1]}"
        with journal.stage(f"repeated tokens{of}") as stage:
            lengths = repeated.embed_repeated(read, crew, model)
            stage.note = f"{settings.repeated_pairs} pairs at {lengths} lengths"
