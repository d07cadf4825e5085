"""Texts that come in versions of different length, such as a document and its summaries: which text is of which document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from jobs import corpus, sources
from jobs.diagnose_config import DiagnoseConfig
from jobs.errors import UsageError
from jobs.readers import utf8_or_bytes
from jobs.runs import RunOf
from tempscale.tiles import keyed_hash

_OPTION = "--versions-of"
_FOUND = "partials/versions.parquet"


def documents(run: RunOf[DiagnoseConfig], index: dict[str, Any]) -> dict[str, str]:
    """The document of every text that was read and names one, by the text's id; empty where versions are not asked for.

    The source is read once more for it, unless that was done before.

    Raises:
        UsageError: the column is not there or holds no names, or the source changed meanwhile.
    """
    asked = run.config.diagnosis.versions_of
    if asked is None:
        return {}
    if not run.storage.exists(_FOUND):
        corpus.check_unchanged(run.config.reading(), index)
        read = {i for shard in index["shards"] for i in run.storage.read_table(shard["name"], ["text_id"])[0].to_pylist()}
        found = _documents(run.config, asked, read)
        run.storage.write_table(_FOUND, pa.table({"text_id": list(found), "document": list(found.values())}))
        return found
    return dict(zip(*(column.to_pylist() for column in run.storage.read_table(_FOUND).columns), strict=True))


def check(config: DiagnoseConfig) -> None:
    """Raise where versions are asked for and the source has no such column; reads its first row.

    Raises:
        UsageError: it has not.
    """
    if config.diagnosis.versions_of is not None:
        next(sources.rows_with(config.corpus, {config.diagnosis.versions_of: _OPTION}, config.out), None)


def _documents(config: DiagnoseConfig, column: str, read: set[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for row, values in sources.rows_with(config.corpus, {column: _OPTION}, config.out):
        if row.problem is not None or corpus.usable_text(row.text)[1] is not None:
            continue
        text_id, problem = corpus.identifier(row)
        if problem is None and text_id is not None and text_id in read and text_id not in found:
            found[text_id] = _document(values.get(column), column)
    return {text_id: document for text_id, document in found.items() if document}


def _versions(document_of: Mapping[str, str], lengths: Mapping[str, int]) -> dict[str, list[tuple[int, str]]]:
    """(tokens, id) of each document's versions, ascending, by document; documents of one length only are left out."""
    groups: dict[str, list[tuple[int, str]]] = {}
    for text_id, tokens in lengths.items():
        if text_id in document_of:
            groups.setdefault(document_of[text_id], []).append((tokens, text_id))
    found = {name: sorted(own) for name, own in sorted(groups.items())}
    return {name: own for name, own in found.items() if own[0][0] < own[-1][0]}


def _document(value: Any, column: str) -> str:
    """The document that a value names; nothing where it names none.

    Raises:
        UsageError: it is neither a string nor a whole number.
    """
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # As pandas writes whole numbers of a column with gaps.
    document, problem = corpus.usable_id(utf8_or_bytes(value))
    if document is None:
        raise UsageError(f"column '{column}' ({_OPTION}): {str(problem).replace('the id', 'a value')}")
    return document


def sample(document_of: Mapping[str, str], lengths: Mapping[str, int], wanted: int, seed: int, column: str) -> list[str]:
    """Ids of whole documents' versions, `wanted` at most, the documents in the order of their keyed hashes.

    Args:
        document_of: the document of each text.
        lengths: tokens of each text that can be looked into.
        wanted: how many texts.
        seed: of the hash.
        column: what names the documents, for sentences.

    Raises:
        UsageError: no document has two versions of different length, or none fits into `wanted`.
    """
    versions = {name: [text_id for _, text_id in own] for name, own in _versions(document_of, lengths).items()}
    if not versions:
        raise UsageError(
            f"no two texts of different length share a value of column '{column}': give versions of one document the same "
            f"value, or leave out {_OPTION}"
        )
    chosen: list[str] = []
    fitting = {name: own for name, own in versions.items() if len(own) <= wanted}
    if not fitting:
        least = min(map(len, versions.values()))
        raise UsageError(f"the document of fewest versions has {least} of them: look into at least as many with --texts")
    for name in sorted(fitting, key=lambda name: (keyed_hash(name, seed), name)):
        if len(chosen) + len(fitting[name]) > wanted:
            break  # A smaller one further on would be favoured.
        chosen += fitting[name]
    return sorted(chosen)


def ends(document_of: Mapping[str, str], lengths: Mapping[str, int]) -> list[tuple[str, str]]:
    """The shortest and the longest version of each document, by document; those of one length only are left out."""
    return [(own[0][1], own[-1][1]) for own in _versions(document_of, lengths).values()]
