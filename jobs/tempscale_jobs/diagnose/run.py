"""`tempscale diagnose`, top to bottom: why a model's embeddings collapse, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from tempscale.optional import needs
from tempscale_jobs import lifecycle
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.corpus import peek, shards, sources
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.corpus.shards import Texts
from tempscale_jobs.corpus.stream import Stream
from tempscale_jobs.diagnose import looks, repeated, summary, two_texts, versions
from tempscale_jobs.embedding import pieces
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import PLANNED, SHARDED, Model, Run, load_tables, rejected_reasons
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.tables.diagnose import KINDS
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew


@lifecycle.mended
def diagnose(config: DiagnoseConfig, journal: Journal, *, fresh: bool = False) -> Run:
    """Measure a sample of texts layer by layer, or the missing ones, and write tables, report and run.json.

    Raises:
        UsageError: the configuration, corpus, models or run folder cannot be used.
        IncompleteRun: it stopped before its end; the same call resumes it.
    """
    corpus, settings = config.candidates(), config.diagnosis
    texts = Texts(corpus, Embedding.model_validate({}), config.out)

    def check_inputs() -> None:
        versions.check_column(config.corpus, settings.versions_of, config.out)
        peek.first_items(texts, config.out)

    def check_unchanged(done: dict[str, Any]) -> None:
        sources.check_unchanged(corpus, config.out, done["corpus"]["source_state"])

    with lifecycle.running(config, journal, fresh=fresh, check_inputs=check_inputs) as life:
        run = life.run
        if life.done("read the corpus", check_unchanged) is not None:
            return run
        with journal.stage("read the corpus") as stage:
            stream = Stream(run.storage, texts, config.seed, config.out, stage.advance)
            stage.note = stream.described()
        with suppress(ImportError):  # The limit of threads applies only to libraries that are already loaded.
            import sklearn.manifold  # noqa: F401

        if stream.complete:
            with _leaving_nothing(run):
                two_texts.check_named(run, settings.pair, stream.index)
        with life.cluster() as cluster:
            stream.read_all(cluster, journal, "its units")
            index = stream.index
            with _leaving_nothing(run):
                two_texts.check_named(run, settings.pair, index)
                document_of = versions.documents(run, corpus, settings.versions_of, config.out, index)
                chosen, longest = _choose(config, run, cluster, index, document_of, journal)
            # Outside of the block: on a smaller machine the work of a larger one is kept.
            for model, tokens in zip(run.models, longest, strict=True):
                looks.check_memory(model, tokens, config.execution.workers or 1)
            for model in run.models:
                _look(config, run, cluster, model, index, chosen, journal)
            looked = {"texts": len(chosen), "rejected": {m.label: looks.rejected(run, m) for m in run.models}}
            with journal.stage("tables") as stage:
                parts_of = shards.documents_of(run.storage, index, set(chosen))
                tables = summary.summarise(run, settings.intervals, config.seed, document_of, parts_of)
                stage.note = f"{len(tables)} tables"
                if find_spec("sklearn") is None:
                    stage.note += f"; {needs('the map of texts', 'sklearn')}"
        with journal.stage("report") as stage:
            from tempscale_jobs.diagnose import report  # What draws it is slow to import, and Ray starts before.

            record = life.record(command=config.command, seed=config.seed, corpus=index.facts(), looked_into=looked)
            report.render(load_tables(run.storage), record).write_to(run.storage)
            stage.note = "report.html"
    return run


@contextmanager
def _leaving_nothing(run: Run) -> Iterator[None]:
    """Leave nothing to resume of a run that ends in a mistake in the block."""
    try:
        yield
    except UsageError:
        for name in (SHARDED, PLANNED):
            run.storage.remove(name)
        raise


def _choose(
    config: DiagnoseConfig, run: Run, cluster: Cluster, index: Index, document_of: dict[str, str], journal: Journal
) -> tuple[list[str], list[int]]:
    """Ids of the texts to look into, and for each model the tokens of the longest of them."""
    found: list[dict[str, int]] = []
    for model in run.models:
        with journal.stage(f"lengths{run.named(model)}", index.analysed) as stage:
            found.append(looks.lengths(run, cluster, model, index, stage))
            stage.note = count(len(found[-1]), "text")
            if not found[-1]:
                raise UsageError(f"model {model.label}: its tokenizer fails on every text")
            lost = index.analysed - len(found[-1])
            check_rejected(config.corpus, (lost, index.analysed), rejected_reasons(run, model), run.storage.root, "text")
    with journal.stage("choose texts") as stage:
        chosen = looks.sample(config.diagnosis, config.seed, found, document_of)
        by = "document" if config.diagnosis.versions_of else "length interval"
        stage.note = f"{count(len(chosen), 'text')} by {by}"
    if not chosen:
        raise UsageError("there is no text of at least two tokens on which the tokenizers of all models work")
    return chosen, [max(lengths[i] for i in chosen) for lengths in found]


def _look(
    config: DiagnoseConfig, run: Run, cluster: Cluster, model: Model, index: Index, chosen: list[str], journal: Journal
) -> None:
    """Write all partial tables of one model."""
    settings, of = config.diagnosis, run.named(model)
    with Crew(run, cluster, model, config.embedding) as crew:
        with journal.stage(f"look into {model.label}", len(chosen)) as stage:
            every = pieces.of_sample(run, model, chosen, settings.piece_texts, KINDS)
            looks.look(run, crew, model, index, every, stage)
            stage.note = f"{count(len(chosen), 'text')} under τ {run.taus}"
        with journal.stage(f"two texts{of}") as stage:
            pair = two_texts.look(run, crew, model, index, settings.pair, config.keep_text)
            stage.note = "left out: there is one text only" if pair is None else f"{pair[0]} and {pair[1]}"
        with journal.stage(f"repeated tokens{of}") as stage:
            lengths = repeated.embed_repeated(run, crew, model, settings.repeated_pairs, config.seed)
            stage.note = f"{settings.repeated_pairs} pairs at {lengths} lengths"
