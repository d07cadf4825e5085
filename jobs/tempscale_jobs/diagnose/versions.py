"""Texts that are versions of one document with different lengths, such as a document and its summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import rows, sources
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Run

_OPTION = "--versions-of"
_FOUND = "partials/versions.parquet"


def documents(run: Run, corpus: Corpus, column: str | None, out: str, index: Index) -> dict[str, str]:
    """The document of each text, by its id, from `column` of the source; empty without a column."""
    if column is None:
        return {}
    if not run.storage.exists(_FOUND):
        sources.check_unchanged(corpus, out, index.source_state)
        read = {i for shard in index.shards for i in run.storage.read_table(shard.name, ["text_id"])[0].to_pylist()}
        with sources.unchanged(corpus, index.source_state, out):
            document_of = _documents(corpus, column, out, read)
        run.storage.write_table(_FOUND, pa.table({"text_id": list(document_of), "document": list(document_of.values())}))
        return document_of
    return dict(zip(*(column.to_pylist() for column in run.storage.read_table(_FOUND).columns), strict=True))


def check_column(corpus: Corpus, column: str | None, out: str) -> None:
    """Raise if versions are configured and the first row of the source has no such column."""
    if column is not None:
        next(sources.rows_with(corpus, {column: _OPTION}, out), None)


def _documents(corpus: Corpus, column: str, out: str, read: set[str]) -> dict[str, str]:
    document_of: dict[str, str] = {}
    for row, values in sources.rows_with(corpus, {column: _OPTION}, out):
        if row.problem is not None or rows.usable_text(row.text)[1] is not None:
            continue
        text_id, problem = rows.identifier(row)
        if problem is None and text_id is not None and text_id in read and text_id not in document_of:
            document_of[text_id] = _document(values.get(column), column)
    return {text_id: document for text_id, document in document_of.items() if document}


def _versions(document_of: Mapping[str, str], lengths: Mapping[str, int]) -> dict[str, list[tuple[int, str]]]:
    """(tokens, id) of each document's versions, ascending, by document, without documents of a single length."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for text_id, tokens in lengths.items():
        if text_id in document_of:
            groups.setdefault(document_of[text_id], []).append((tokens, text_id))
    ordered = {name: sorted(versions) for name, versions in sorted(groups.items())}
    return {name: versions for name, versions in ordered.items() if versions[0][0] < versions[-1][0]}


def _document(value: Any, column: str) -> str:
    """The document that a value names, or an empty string; raise unless the value is a string or a whole number."""
    document, problem = rows.named_document(value)
    if problem is not None:
        raise UsageError(f"column '{column}' ({_OPTION}): {problem.replace('the document', 'a value')}")
    return document or ""


def sample(document_of: Mapping[str, str], lengths: Mapping[str, int], wanted: int, seed: int, column: str) -> list[str]:
    """Ids of all versions of whole documents, at most `wanted` texts, the documents in order of their keyed hashes."""
    versions = {name: [text_id for _, text_id in pairs] for name, pairs in _versions(document_of, lengths).items()}
    if not versions:
        raise UsageError(
            f"no two texts of different length share a value of column '{column}': give versions of one document the same "
            f"value, or leave out {_OPTION}"
        )
    chosen: list[str] = []
    fitting = {name: ids for name, ids in versions.items() if len(ids) <= wanted}
    if not fitting:
        least = min(map(len, versions.values()))
        raise UsageError(f"the document with the fewest versions has {least}: allow at least as many texts with --texts")
    for name in sorted(fitting, key=lambda name: (keyed_hash(name, seed), name)):
        if len(chosen) + len(fitting[name]) > wanted:
            break  # A later, smaller document would bias the sample towards small documents.
        chosen += fitting[name]
    return sorted(chosen)


def shortest_and_longest(document_of: Mapping[str, str], lengths: Mapping[str, int]) -> list[tuple[str, str]]:
    """The shortest and the longest version of each document, by document, without documents of a single length."""
    return [(versions[0][1], versions[-1][1]) for versions in _versions(document_of, lengths).values()]
