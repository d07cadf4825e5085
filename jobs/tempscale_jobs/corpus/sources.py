"""Read every kind of source as a stream of rows, in a fixed order."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import fsspec
from fsspec.implementations.local import LocalFileSystem

from tempscale.optional import missing, needs
from tempscale_jobs.config.sections import Corpus, Queries
from tempscale_jobs.corpus import folders, hub, lakes, states, stores
from tempscale_jobs.corpus.folders import Listing
from tempscale_jobs.corpus.readers import (
    COMPRESSIONS,
    KINDS,
    UNREADABLE,
    Columns,
    Record,
    check_columns,
    read,
    suffix,
    utf8_or_bytes,
)
from tempscale_jobs.errors import Changed, UsageError
from tempscale_jobs.urls import masked, reason

_NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_DOCUMENTED = (ast.Module, *_NAMED)
_MODULE = "module"
"""The column of docstrings that names their module, which is their document."""
NO_COLUMN = object()
"""The value of a column that a source lacks."""
IDS = ("id", "_id")
"""The columns of ids unless one is named: the first that a row has. BEIR, MongoDB and Elasticsearch write `_id`."""


class Source(Protocol):
    """The section of a configuration that names a source; error messages call it `kind`."""

    kind: ClassVar[str]

    @property
    def source(self) -> str:
        """A path or glob, a URL, hf:NAME or docstrings:PKG,…"""


class Row(NamedTuple):
    """One row of a corpus. `text` is str, bytes (perhaps not UTF-8), None, or an object that is not a text."""

    place: str
    id: Any
    text: Any
    problem: str | None = None
    document: Any = None
    """The document that the text is a part of."""
    groups: Mapping[str, Any] = MappingProxyType({})
    """Its values of the columns whose values are groups; `NO_COLUMN` where a source of queries lacks one."""


def rows(corpus: Corpus, run_folder: str | None = None) -> Iterator[Row]:
    """All rows of the corpus, in the order of `records`; `id` is None if a row has none."""
    for row, _ in rows_with(corpus, {}, run_folder):
        yield row


def rows_with(
    corpus: Corpus, further: dict[str, str | None], run_folder: str | None = None
) -> Iterator[tuple[Row, Mapping[str, Any]]]:
    """Each row of the corpus with all its values, also those of the required `further` columns (with their options)."""
    for record in records(corpus, columns_of(corpus, further), run_folder):
        yield _row(corpus, record), record.values


def columns_of(corpus: Corpus, further: Mapping[str, str | None] = MappingProxyType({}), by: Sequence[str] = ()) -> Columns:
    """The columns of a corpus of texts, the `further` ones, and those whose values are groups."""
    named, optional = id_columns(corpus)
    columns = Columns({corpus.text_column: "--text-column", **further}, named | document_columns(corpus), optional)
    return with_groups(corpus, columns, by)


def with_groups(corpus: Corpus, columns: Columns, by: Sequence[str]) -> Columns:
    """The columns, and those whose values are groups, which queries may lack."""
    of_groups: dict[str, str | None] = dict.fromkeys(by, "--by")
    if isinstance(corpus, Queries):
        return columns._replace(optional=of_groups | columns.optional)
    return columns._replace(ids=of_groups | columns.ids)


def groups_in(corpus: Corpus, values: Mapping[str, Any], by: Sequence[str]) -> dict[str, Any]:
    """The values of the columns whose values are groups."""
    return {name: values.get(name, NO_COLUMN if isinstance(corpus, Queries) else None) for name in by}


def id_columns(corpus: Corpus) -> tuple[dict[str, str | None], dict[str, str | None]]:
    """The required and the optional columns of ids, with their option."""
    option = "--id-column"
    return ({}, dict.fromkeys(IDS, option)) if corpus.id_column is None else ({corpus.id_column: option}, {})


def id_in(values: Mapping[str, Any], column: str | None = None) -> Any:
    """The value of a row's id, from `column` or else the first of `IDS` that it has."""
    return next((values[name] for name in ((column,) if column else IDS) if name in values), None)


def rows_of(corpus: Corpus, records: Iterable[Record], by: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a corpus of texts from its records, with the values of the columns `by`."""
    return (_row(corpus, record)._replace(groups=groups_in(corpus, record.values, by)) for record in records)


def _row(corpus: Corpus, record: Record) -> Row:
    values = record.values
    text_id = utf8_or_bytes(id_in(values, corpus.id_column))
    return Row(record.place, text_id, values.get(corpus.text_column), record.problem, document_in(corpus, values))


def document_columns(corpus: Corpus) -> dict[str, str | None]:
    """The column of documents with its option, if it is set."""
    return {} if corpus.document_column is None else {corpus.document_column: "--document-column"}


def document_in(corpus: Corpus, values: Mapping[str, Any]) -> Any:
    """The document that a row names; docstrings are parts of their modules."""
    column = corpus.document_column
    if column is None:
        return values.get(_MODULE) if corpus.source.startswith("docstrings:") else None
    return values.get(column)


def records(section: Source, columns: Columns, run_folder: str | None = None) -> Iterator[Record]:
    """All rows of a source, in its order, without files in `run_folder`; a UsageError if a file or column is missing."""
    source = section.source
    if source.startswith("docstrings:"):
        yield from _docstrings(section, columns)
    elif hub.is_dataset(source):
        yield from hub.records(source, columns)
    elif (store := stores.of(source)) is not None:
        yield from stores.records(store, source, columns)
    else:
        yield from _files(section, columns, run_folder)


def state(section: Source, run_folder: str | None = None) -> dict[str, Any]:
    """Sizes, times and places, or versions, which change when the source does; no file is read."""
    source = section.source
    if source.startswith("docstrings:"):
        return {package: _version(package) for package in _packages(source)}
    if hub.is_dataset(source):
        return hub.state(source)
    if (store := stores.of(source)) is not None:
        return store.state(source)
    fs, files = expand(section, run_folder)
    return _of_files(fs, files)


def identity(section: Source, run_folder: str | None = None) -> dict[str, Any]:
    """The state of a source with a digest of each local file, so that a copy is recognised as equal."""
    facts_by_name = state(section, run_folder)
    if not hub.is_dataset(section.source) and not is_local(section):
        return facts_by_name
    local = {name: facts for name, facts in facts_by_name.items() if isinstance(facts, list) and os.path.isfile(name)}
    return facts_by_name | states.digested(local)


def content(section: Source, run_folder: str | None = None) -> dict[str, Any]:
    """The state of a source like `identity`, but without the times and places of local files."""
    return {name: states.content(facts) for name, facts in identity(section, run_folder).items()}


def _of_files(fs: Any, files: Iterable[str]) -> dict[str, Any]:
    local = isinstance(fs, LocalFileSystem)
    return {masked(file): states.of_local(file) if local else states.of_remote(fs.info(file)) for file in files}


def check_unchanged(section: Source, out: str, before: dict[str, Any]) -> None:
    """Raise a UsageError if a source has changed since the run in `out` read it."""
    if changes(section, before, out):
        raise UsageError(
            f"{section.kind} '{masked(section.source)}' changed since the run in '{masked(out)}' read it; "
            "start over with --fresh or choose another --out"
        )


@contextmanager
def unchanged(
    section: Source, before: dict[str, Any], run_folder: str | None = None, files: Sequence[str] | None = None
) -> Iterator[None]:
    """Raise a Changed if the source, or these `files` of it, are not in the state `before`, first or after the block."""
    check_state(section, before, run_folder, files)
    try:
        yield
    except UsageError:
        check_state(section, before, run_folder, files)  # A file that cannot be read may be half written.
        raise
    check_state(section, before, run_folder, files)


def changes(
    section: Source, before: dict[str, Any], run_folder: str | None = None, files: Sequence[str] | None = None
) -> list[str]:  # fmt: skip
    """The names of the files of a source, or of these `files`, that are not in the state `before`."""
    if files is None:
        earlier, now = before, state(section, run_folder)
        if stores.of(section.source) is lakes:  # An older version of tempscale kept only the table's version.
            now = {name: value for name, value in now.items() if name in earlier}
    else:
        earlier = {masked(file): before.get(masked(file)) for file in files}
        now = _of_files(file_system(section), files)
    return sorted(name for name in {*earlier, *now} if not states.is_same(name, earlier.get(name), now.get(name)))


def check_state(
    section: Source, before: dict[str, Any], run_folder: str | None, files: Sequence[str] | None = None
) -> None:  # fmt: skip
    """Raise a Changed if the source, or these `files` of it, are not in the state `before`."""
    try:
        changed = changes(section, before, run_folder, files)
    except (OSError, UsageError):  # The source is gone.
        changed = sorted(before if files is None else map(masked, files))
    if changed:
        more = f" and {len(changed) - 1:,} more" if len(changed) > 1 else ""
        raise Changed(
            f"{section.kind} '{masked(section.source)}' changed while it was read ({changed[0]}{more}), so nothing of it is "
            "used; start over with --fresh when nothing writes to it"
        )


def is_fixed(section: Source) -> bool:
    """Whether what is read stays as it was planned whatever is written meanwhile, as a version of a table does."""
    store = stores.of(section.source)
    return store is not None and store.FIXED


def release(section: Source) -> None:
    """Give back what was held so that the source stays as it was."""
    if (store := stores.of(section.source)) is not None:
        store.release(section.source)


def check_rows(section: Source, out: str, rows: Iterable[Any]) -> None:
    """Raise a UsageError if a source has no row; a source that can be read only once is not read."""
    if is_read_again(section, out) and next(iter(rows), None) is None:
        raise UsageError(f"{section.kind} '{masked(section.source)}' has no row")


def _files(section: Source, columns: Columns, run_folder: str | None) -> Iterator[Record]:
    fs, files = expand(section, run_folder)
    for file, place in zip(files, places(files), strict=True):
        check_kind(section, file)
        with readable(file), fs.open(file, "rb") as stream:
            yield from read(stream, file, place, columns)


def places(files: Sequence[str]) -> list[str]:
    """The name of each file in the places of its rows: its path below their common folder, without secrets."""
    names = [masked(file) for file in files]
    common = os.path.dirname(names[0]) if len(names) == 1 else os.path.commonpath(names)
    return [os.path.relpath(name, common) for name in names]


def check_kind(section: Source, file: str) -> None:
    """Raise a UsageError if the ending of a file names no format."""
    if suffix(file) not in KINDS:
        raise UsageError(
            f"{section.kind} file '{masked(file)}' is of no known kind; "
            f"known endings: {', '.join(KINDS)} (and {', '.join(COMPRESSIONS)})"
        )


@contextmanager
def readable(file: str) -> Iterator[None]:
    """Turn the errors of a damaged file into a UsageError that names it."""
    try:
        yield
    except UNREADABLE as error:
        raise UsageError(
            f"'{masked(file)}' cannot be read to its end as {KINDS[suffix(file)]}: {reason(error, file)}; "
            "replace or leave out the file"
        ) from None


def file_system(section: Source) -> Any:
    """The file system of a source's files, without cached listings, which would hide changes."""
    return _opened(section.source)[0]


def _opened(source: str) -> tuple[Any, str]:
    """The file system, without cached listings, and the path of a source."""
    fs, path = fsspec.core.url_to_fs(os.path.expanduser(source))
    fs.invalidate_cache()
    return fs, path


def is_read_twice(file: str) -> bool:
    """Whether a file can be read again: a pipe cannot."""
    return os.path.isfile(file) or not os.path.exists(file)


def check_not_a_pipe(section: Source, run_folder: str | None) -> None:
    """Raise a UsageError if a source that must be read again can be read only once."""
    if not is_read_again(section, run_folder):
        raise UsageError(
            f"{section.kind} '{masked(section.source)}': most embeddings have other dimensions than the first, and a pipe "
            "cannot be read again; write the rows to a file first"
        )


def is_read_again(section: Source, run_folder: str | None) -> bool:
    """Whether a source can be read more than once, as a pipe cannot; a UsageError if there is no such source."""
    source = section.source
    if source.startswith("docstrings:") or hub.is_dataset(source) or stores.of(source) is not None:
        return True
    return all(map(is_read_twice, expand(section, run_folder)[1]))


def is_local(section: Source) -> bool:
    """Whether a source's files are on a file system of this machine."""
    if (store := stores.of(section.source)) is not None:
        return bool(store.files(section.source))
    return isinstance(file_system(section), LocalFileSystem)


def expand(section: Source, run_folder: str | None) -> tuple[Any, list[str]]:
    """The file system and the files of a path, folder or glob, in order."""
    fs, listing = _listed(section, run_folder)
    return fs, listing.files


def left_out(section: Source, run_folder: str | None) -> str:
    """The files of a folder or glob that are no data, as the end of a sentence; may be empty."""
    source = section.source
    if source.startswith("docstrings:") or hub.is_dataset(source) or stores.of(source) is not None:
        return ""
    _, listing = _listed(section, run_folder)
    begin, sentence = len(listing.root.rstrip("/")) + 1, ""
    for paths, what in ((listing.hidden, "hidden"), (listing.again, "linked twice")):
        if paths:
            sentence += f", {len(paths):,} {what} left out ({masked(paths[0])[begin:]}{', …' * (len(paths) > 1)})"
    return sentence


def _listed(section: Source, run_folder: str | None) -> tuple[Any, Listing]:
    """The file system and the content of a path, folder or glob; a UsageError if it has no data."""
    source, kind = section.source, section.kind
    try:
        fs, path = _opened(source)
        web = _is_web_file(fs, path)
        is_folder = not web and fs.isdir(path)
        listing = Listing([], [], [], False, os.path.dirname(path))
        if is_folder:
            listing = folders.of_folder(fs, path)
        elif fs.exists(path):
            listing = listing._replace(files=[path])
        elif not web and any(magic in path for magic in "*?["):
            listing = folders.of_glob(fs, path)
        files = _outside(fs, listing.root, listing.files, run_folder)
        _check_links(section, fs, files)
    except UsageError:
        raise
    except Exception as error:  # Every file system has its own exceptions.
        if (module := missing(error)) is not None:
            raise UsageError(needs(f"{kind} '{masked(source)}'", module)) from None
        raise UsageError(f"{kind} '{masked(source)}' cannot be opened: {reason(error, source)}") from None
    if files:
        return fs, listing._replace(files=files)
    hidden = f" besides hidden ones ({len(listing.hidden):,})" if listing.hidden else ""
    if is_folder:
        raise UsageError(
            f"{kind} folder '{masked(source)}' holds no Parquet, JSONL, CSV or text file{hidden}; known endings: "
            f"{', '.join(KINDS)}"
        )
    if listing.files or listing.folders or listing.hidden:
        raise UsageError(
            f"{kind} '{masked(source)}' matches folders or the run's own files only{hidden}; match the {kind}'s files"
        )
    raise UsageError(f"{kind} '{masked(source)}' is not there; give a file, a folder, a glob, hf:NAME or docstrings:PACKAGE")


def _check_links(section: Source, fs: Any, files: Iterable[str]) -> None:
    """Raise a UsageError for a broken link, such as git-annex and DVC make until the data is fetched."""
    for file in files if isinstance(fs, LocalFileSystem) else ():
        if not os.path.exists(file) and os.path.islink(file):
            raise UsageError(
                f"{section.kind} '{masked(section.source)}': '{masked(file)}' is a link to a missing file; fetch "
                "the file, or remove the link"
            )


def _is_web_file(fs: Any, path: str) -> bool:
    """Whether a web address names a data file; fsspec would call any page with links a folder."""
    return "http" in fs.protocol and suffix(path) in KINDS and "*" not in path


def _outside(fs: Any, root: str, files: list[str], run_folder: str | None) -> list[str]:
    """The files below `root` that are not in the folder `run_folder`."""
    if run_folder is None:
        return files
    try:
        other_fs, path = fsspec.core.url_to_fs(os.path.expanduser(run_folder))
    except (ImportError, ValueError):
        return files  # A broken folder is reported where it is opened.
    if type(other_fs) is not type(fs):
        return files
    real = os.path.realpath if isinstance(fs, LocalFileSystem) else str
    prefix = real(path).rstrip("/") + "/"
    if (real(root).rstrip("/") + "/").startswith(prefix):
        return files
    return [file for file in files if not real(file).startswith(prefix)]


def _docstrings(section: Source, columns: Columns) -> Iterator[Record]:
    """The distinct docstrings of installed packages, without their tests; files are parsed and never imported."""
    check_columns(["id", "text", _MODULE], section.source, columns)
    seen: set[str] = set()
    for package in _packages(section.source):
        root = _package_folder(package)
        for file in sorted(root.rglob("*.py")):
            relative = file.relative_to(root.parent)
            if any(part in ("tests", "test", "_vendor", "__pycache__") for part in relative.parts):
                continue
            try:
                tree = ast.parse(file.read_bytes())
            except (SyntaxError, ValueError, RecursionError):
                continue
            module = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
            for name, text in _documented(tree, module):
                if text not in seen:
                    seen.add(text)
                    yield Record(f"{relative.as_posix()}:{name}", {"id": name, "text": text, _MODULE: module})


def _documented(tree: ast.Module, module: str) -> Iterator[tuple[str, str]]:
    """(qualified name, docstring) in source order; a repeated name gets #2, #3, …"""
    counts: dict[str, int] = {}
    # Only statements can contain a definition, so expressions are not walked.
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


def _packages(source: str) -> list[str]:
    packages = source.removeprefix("docstrings:").split(",")
    if not all(packages):
        raise UsageError(
            f"corpus '{source}' has an empty package name; give installed packages, e.g. docstrings:scipy,torch"
        )
    return packages


def _package_folder(package: str) -> Path:
    try:
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise UsageError(f"corpus 'docstrings:{package}': no package '{package}' is installed here")
    return Path(spec.submodule_search_locations[0])


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return str(_package_folder(package))
