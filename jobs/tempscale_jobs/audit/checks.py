"""What an audit refuses before the long work: services, sources and embeddings that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from tempscale.correction.variant_names import Chunks, chunks_of, most_dims
from tempscale.model import checkpoint
from tempscale.model.checkpoint import ModelError
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import peek, results, sources
from tempscale_jobs.corpus.reading import Contents
from tempscale_jobs.corpus.rows import check_rejected
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import night
from tempscale_jobs.runs.folder import GIVEN, PLANNED, SHARDED, Model, Run, dimensions
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked
from tempscale_jobs.verify import stage as verification


def check_services(config: AuditConfig) -> None:
    """Raise if the cache, the record of nights or the baseline is unavailable."""
    if config.execution.cache is not None:
        Storage(config.execution.cache).check_reachable()
    night.check_record(config.record, config.gate, config.out)


def check_inputs(config: AuditConfig) -> None:
    """Raise if the first rows of the corpus or of the queries cannot be used, or their embeddings do not fit together."""
    if config.results is not None:
        sources.check_rows(config.results, config.out, results.records(config.results, config.out))
    corpora = [source for source in (config.queries, config.corpus) if source is not None]
    first_items = [peek.first_items(contents_of(config, source, "texts"), config.out) for source in corpora]
    if config.corpus.embedding_column is not None and len(first_items) == 2:
        widths = [Counter(len(item.embedding) for item in items).most_common(1) for items in first_items]
        if all(widths):
            _check_same_width(*(width for ((width, _),) in widths))
    if config.corpus.embedding_column is not None and first_items[-1]:
        _check_variants(config, len(first_items[-1][0].embedding))
    if config.verification is not None:
        verification.check_inputs(config.verification)


def check_models(config: AuditConfig, models: Sequence[Model]) -> None:
    """Raise if a variant keeps more dimensions than a model has, or has chunks that it cannot read."""
    for what in config.analysis.what_if:
        if (chunks := chunks_of(what)) is not None:
            _check_chunks(what, chunks, [model for model in models if model != GIVEN])
    if not any(map(most_dims, config.analysis.what_if)):
        return
    from tempscale.model.loading import dimensions as of_checkpoint  # It imports transformers.

    for model in models:
        if model != GIVEN:
            _check_variants(config, of_checkpoint(checkpoint.resolve(model.name)))


def _check_chunks(what: str, chunks: Chunks, models: Sequence[Model]) -> None:
    from tempscale.model.pooling import load_head
    from tempscale.model.tokens import Tokenizer  # It imports transformers.

    for model in models:
        if chunks.tokens > model.max_length:
            raise UsageError(
                f"--what-if {what}: {model.label} reads {model.max_length:,} tokens of a text; name at most so many"
            )
        folder = checkpoint.resolve(model.name)
        try:
            tokenizer = Tokenizer(folder, model.max_length, prompt=model.document_prompt)
            tokenizer.splitter(chunks.tokens, chunks.overlap)
        except ModelError as error:
            raise UsageError(f"--what-if {what}: {error}") from None
        together = (tokenizer.max_length + len(tokenizer([""]).ids[0])) // 2
        if chunks.late and chunks.tokens > together:
            raise UsageError(
                f"--what-if {what}: no two such chunks fit into the {model.max_length:,} tokens that {model.label} reads at "
                f"once, so that each would be read alone; name at most {together:,} tokens, or leave out :late"
            )
        if chunks.late and (pooling := load_head(folder).pooling) != "mean":
            raise UsageError(f"--what-if {what}: late pooling is a mean of tokens, and {model.label} pools by {pooling}")


def _check_variants(config: AuditConfig, width: int) -> None:
    for what in config.analysis.what_if:
        if most_dims(what) > width:
            raise UsageError(f"--what-if {what}: the vectors have {width} dimensions; name at most so many")


def check_unchanged(config: AuditConfig, finished: dict[str, Any]) -> None:
    """Raise if the corpus or the queries changed since a finished run read them, or too many of their rows are rejected."""
    for section, name in ((config.corpus, "corpus"), (config.queries, "queries")):
        if section is not None:
            sources.check_unchanged(section, config.out, finished[name]["source_state"])
            rejected = finished[name]["rejected"], finished[name]["read"]
            check_rejected(section, rejected, finished[name]["rejected_reasons"], config.out)
    if config.results is not None:
        sources.check_unchanged(config.results, config.out, finished["results"]["source_state"])


def check_dimensions(config: AuditConfig, run: Run, queries: Run | None) -> None:
    """Raise if the user's embeddings of the corpus have not as many dimensions as those of the queries."""
    if config.corpus.embedding_column is not None and queries is not None:
        _check_same_width(*(dimensions(folder, GIVEN, folder.temperatures[0]) for folder in (queries, run)))


def check_results(config: AuditConfig, run: Run, queries: SourceReader | None, corpus: SourceReader) -> None:
    """Raise if the results name no query, or no text, of a source that has been read."""
    if config.results is None or queries is None:
        return
    table = run.below("results").storage
    rows = results.Rows.read(table)
    sides = (
        ("query_id", rows.query, queries, run.below("queries"), "queries", "id_column of [queries]"),
        ("text_id", rows.text, corpus, run, "corpus", "--id-column"),
    )
    for column, keys, source, folder, name, option in sides:
        if not source.complete:
            continue
        files = [shard.name for shard in source.index.shards]
        files = files or folder.storage.list(folder.place("texts", GIVEN, folder.temperatures[0]))
        if not results.any_known(folder.storage, files, keys, config.seed):
            for file in (SHARDED, PLANNED):  # A mistake must not block the folder.
                run.storage.remove(file)
            raise UsageError(
                f"results '{masked(config.results.source)}': none of the {len(np.unique(keys)):,} values of {column} is "
                f"an id of the {name} (first {results.row_at(table, 0)[column]!r}); give the results of these queries and "
                f"this corpus, and see {option}"
            )


def contents_of(config: AuditConfig, source: Corpus, folder_of_vectors: str) -> Contents:
    """What a source holds: texts to embed, or embeddings that are taken as they are."""
    if source.embedding_column is not None:
        return Vectors(folder_of_vectors, source, config.out, config.by)
    return TextShards(source, config.embedding, config.out, config.by)


def _check_same_width(queries: int, corpus: int) -> None:
    """Raise unless the embeddings of the queries and of the corpus have as many dimensions."""
    if queries != corpus:
        raise UsageError(f"the queries have {queries} dimensions, and the corpus {corpus}; give vectors of one model")
