"""Where texts come from: every kind of source read as a stream of rows, in a fixed order.

A row is given as it stands; `corpus.py` decides what is usable. A file that cannot be read at all is an error.
"""

from __future__ import annotations

import ast
import csv
import gzip
import importlib.metadata
import importlib.util
import inspect
import json
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from jobs.config import Corpus
from jobs.errors import UsageError

_READERS = {".parquet": "parquet", ".pq": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl",
            ".csv": "csv", ".tsv": "csv", ".txt": "text"}  # fmt: skip
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst")
_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, *_NAMED)


class Row(NamedTuple):
    """One row of a source. `text` is str, bytes that may not be UTF-8, None, or something that is no text."""

    place: str
    id: Any
    text: Any
    problem: str | None = None


def rows(corpus: Corpus) -> Iterator[Row]:
    """All rows of the corpus's source, in its order; `id` is None where the source has no id column.

    Raises:
        UsageError: no such source, a missing column, or a file that cannot be read.
    """
    source = corpus.source
    if source.startswith("docstrings:"):
        yield from _docstrings(source.removeprefix("docstrings:"))
    elif source.startswith("hf:") and not source.startswith("hf://"):
        yield from _hub_dataset(source.removeprefix("hf:"), corpus)
    else:
        yield from _files(source, corpus)


def state(corpus: Corpus) -> dict[str, Any]:
    """What shows whether a source changed between two looks, without reading it: sizes and times, or versions."""
    source = corpus.source
    if source.startswith("docstrings:"):
        return {package: _version(package) for package in source.removeprefix("docstrings:").split(",")}
    if source.startswith("hf:") and not source.startswith("hf://"):
        return {}
    fs, files = _expand(source)
    facts = {file: fs.info(file) for file in files}
    return {f: [i.get("size"), str(i.get("mtime") or i.get("LastModified") or i.get("ETag"))] for f, i in facts.items()}


def _files(source: str, corpus: Corpus) -> Iterator[Row]:
    fs, files = _expand(source)
    common = os.path.dirname(files[0]) if len(files) == 1 else os.path.commonpath(files)
    for file in files:
        kind, compression = _kind(file)
        place = os.path.relpath(file, common)
        try:
            if kind == "parquet":
                with fs.open(file, "rb") as stream:
                    yield from _parquet(stream, place, corpus)
            else:
                with fs.open(file, "rb", compression=compression) as stream:
                    yield from {"jsonl": _jsonl, "csv": _csv, "text": _lines}[kind](stream, place, corpus)
        except (
            pa.ArrowInvalid,
            pa.ArrowNotImplementedError,
            EOFError,
            gzip.BadGzipFile,
            zlib.error,
            OSError,
            csv.Error,
        ) as error:
            raise UsageError(
                f"'{file}' cannot be read to its end as {kind}: {_first_line(error)}; replace or leave out the file"
            ) from None


def _expand(source: str) -> tuple[Any, list[str]]:
    try:
        fs, path = fsspec.core.url_to_fs(os.path.expanduser(source))
        if fs.isdir(path):
            files = sorted(file for file in fs.find(path) if _suffix(file) in _READERS)
        else:
            files = sorted(fs.glob(path)) if any(c in path for c in "*?[") and not fs.exists(path) else [path]
        missing = not files or (len(files) == 1 and not fs.exists(files[0]))
    except (ImportError, ValueError, OSError) as error:
        raise UsageError(f"corpus '{source}' cannot be opened: {_first_line(error)}") from None
    if missing:
        raise UsageError(f"corpus '{source}' is not there; give a file, a folder, a glob, hf:NAME or docstrings:PACKAGE")
    return fs, files


def _suffix(file: str) -> str:
    name = file.lower()
    for ending in _COMPRESSED:
        name = name.removesuffix(ending)
    return os.path.splitext(name)[1]


def _kind(file: str) -> tuple[str, str | None]:
    suffix = _suffix(file)
    if suffix not in _READERS:
        raise UsageError(
            f"corpus file '{file}' is of no known kind; known endings: {', '.join(_READERS)} (and .gz, .bz2, .xz, .zst)"
        )
    return _READERS[suffix], "infer" if file.lower().endswith(_COMPRESSED) else None


def _check_columns(present: list[str], where: str, corpus: Corpus) -> str | None:
    """The id column to read, or None; raises where a column that was asked for is missing."""
    for option, column in (("--text-column", corpus.text_column), ("--id-column", corpus.id_column)):
        if column is not None and column not in present:
            raise UsageError(
                f"'{where}' has no column '{column}'; it has {', '.join(map(repr, present))}: name one with {option}"
            )
    return corpus.id_column or ("id" if "id" in present else None)


def _parquet(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    file = pq.ParquetFile(stream)
    id_column = _check_columns(file.schema_arrow.names, place, corpus)
    wanted = [corpus.text_column] + ([id_column] if id_column and id_column != corpus.text_column else [])
    number = 0
    for batch in file.iter_batches(batch_size=4096, columns=wanted):
        texts = _values(batch.column(corpus.text_column))
        ids = _values(batch.column(id_column)) if id_column else [None] * len(texts)
        for text_id, text in zip(ids, texts, strict=True):
            yield Row(f"{place}:{number}", _utf8_or_bytes(text_id), text)
            number += 1


def _values(column: pa.Array) -> list[Any]:
    """Python values; strings as bytes, because Arrow does not check that they are UTF-8."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def _utf8_or_bytes(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value
    return value


def _jsonl(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    id_column, checked = corpus.id_column, False
    for number, line in enumerate(stream):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except UnicodeDecodeError:
            yield Row(f"{place}:{number}", None, None, "the line is not valid UTF-8")
            continue
        except (ValueError, RecursionError):
            yield Row(f"{place}:{number}", None, None, "the line is not valid JSON")
            continue
        if not isinstance(record, dict):
            yield Row(f"{place}:{number}", None, None, "the line is not a JSON object")
            continue
        if not checked:
            id_column, checked = _check_columns(list(record), place, corpus), True
        yield Row(f"{place}:{number}", record.get(id_column) if id_column else None, record.get(corpus.text_column))


def _csv(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    csv.field_size_limit(sys.maxsize)
    # Bytes that are no UTF-8 survive as lone surrogates, which `corpus.py` refuses row by row.
    text = (line.decode("utf-8", "surrogateescape") for line in stream)
    reader = csv.DictReader(text, delimiter="\t" if ".tsv" in place.lower() else ",")
    names = [name.removeprefix("\ufeff") for name in reader.fieldnames or []]
    reader.fieldnames = names
    id_column = _check_columns(names, place, corpus)
    for number, record in enumerate(reader):
        yield Row(f"{place}:{number}", record.get(id_column) if id_column else None, record.get(corpus.text_column))


def _lines(stream: Any, place: str, corpus: Corpus) -> Iterator[Row]:
    for number, line in enumerate(stream):
        yield Row(f"{place}:{number}", None, line.rstrip(b"\r\n"))


def _hub_dataset(name: str, corpus: Corpus) -> Iterator[Row]:
    import datasets

    parts = name.split(":")
    if not 1 <= len(parts) <= 3 or not parts[0]:
        raise UsageError(f"corpus 'hf:{name}' is not of the form hf:NAME[:CONFIG][:SPLIT]")
    split = parts[-1] if len(parts) > 1 else "train"
    config = parts[1] if len(parts) == 3 else None
    try:
        stream = datasets.load_dataset(parts[0], config, split=split, streaming=True)
        for number, record in enumerate(stream):
            if number == 0:
                id_column = _check_columns(list(record), f"hf:{name}", corpus)
            yield Row(f"{name}:{number}", record.get(id_column) if id_column else None, record.get(corpus.text_column))
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"dataset 'hf:{name}' cannot be loaded: {_first_line(error)}") from None


def _docstrings(packages: str) -> Iterator[Row]:
    """Docstrings of installed packages, parsed and never imported, each distinct text once; tests left out."""
    seen: set[str] = set()
    for package in packages.split(","):
        root = _package_folder(package)
        for file in sorted(root.rglob("*.py")):
            inside = file.relative_to(root.parent)
            if any(part in ("tests", "test", "_vendor", "__pycache__") for part in inside.parts):
                continue
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, RecursionError):
                continue
            module = ".".join(inside.with_suffix("").parts).removesuffix(".__init__")
            for name, text in _documented(tree, module):
                if text not in seen:
                    seen.add(text)
                    yield Row(f"{inside.as_posix()}:{name}", name, text)


def _documented(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) in source order; a name that comes again gets #2, #3, …"""
    counts: dict[str, int] = {}
    # Only statements can hold a definition, so expressions are never walked.
    stack: list[tuple[ast.AST, str]] = [(tree, module)]
    while stack:
        node, name = stack.pop()
        if isinstance(node, _DOCUMENTED):
            text = ast.get_docstring(node, clean=False)
            if text and text.strip():
                counts[name] = counts.get(name, 0) + 1
                yield (name if counts[name] == 1 else f"{name}#{counts[name]}"), inspect.cleandoc(text)
        inner = [
            child for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
        ]
        for child in reversed(inner):
            stack.append((child, f"{name}.{child.name}" if isinstance(child, _NAMED) else name))


def _package_folder(package: str) -> Path:
    try:
        found = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        found = None
    if found is None or not found.submodule_search_locations:
        raise UsageError(f"corpus 'docstrings:{package}': no package '{package}' is installed here")
    return Path(found.submodule_search_locations[0])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(_package_folder(package))


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
