"""Read a collection of Qdrant in the order of its ids, from a server or from a folder of its local engine.

Qdrant has no snapshot that readers share, so the ids and the contents of many points are compared before and after reading.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa

from tempscale.optional import missing, needs
from tempscale_jobs.corpus import states
from tempscale_jobs.corpus.address import Part, address, even_ranges
from tempscale_jobs.errors import AGAIN, IncompleteRun, UsageError
from tempscale_jobs.urls import masked, reason

FIXED = False
IDS, VECTORS = "id", "embedding"
"""The columns of the ids, and of the vectors where they have no name."""
_PREFIX = "qdrant:"
_KEY = "QDRANT_API_KEY"
_TRUST = "pickles"
"""The setting that lets the local engine open a folder."""
_SECONDS = 60
_PAGE, _IDS_OF_A_PAGE = 512, 10_000
_LOOKED_AT = 1000
"""Points whose payloads say which columns there are, as of JSON lines."""
_COMPARED = 10_000
"""Points whose contents are compared, evenly among all."""
_LOCK_SECONDS = 600
"""A folder is open in one process at a time: others wait so long."""
_PAYLOAD_BYTES = 512
_TYPES = {str: "string", bool: "bool", int: "int64", float: "double"}


class _Collection(NamedTuple):
    """The columns of a collection."""

    vectors: dict[str, int]
    """The dimensions of each column of vectors."""
    payload: dict[str, str]
    """The type of each column of the payloads."""


def kind(source: str) -> str | None:
    """`qdrant`, by the prefix."""
    return "qdrant" if source.startswith(_PREFIX) else None


def name(source: str) -> str:
    """The collection's name."""
    return _where(source)[1]


def state(source: str) -> dict[str, Any]:
    """The files of a folder; of a server a digest of all ids, and one of the contents of at most 10,000 points."""
    if local := files(source):
        inside = sorted(os.path.join(top, file) for folder in local for top, _, names in os.walk(folder) for file in names)
        return {file: states.of_local(file) for file in inside}
    with _opened(source) as client:
        ids = list(_ids(client, name(source)))
        # The ids of equal distance, and always the last one.
        chosen = ids[:: -(-len(ids) // _COMPARED) or 1] + ids[-1:]
        content = hashlib.blake2b(digest_size=16)
        for k in range(0, len(chosen), _PAGE):
            points = client.retrieve(name(source), chosen[k : k + _PAGE], with_payload=True, with_vectors=True)
            for point in sorted(points, key=lambda point: str(point.id)):
                content.update(json.dumps([point.id, point.vector, point.payload], sort_keys=True, default=str).encode())
    digest = hashlib.blake2b("\n".join(map(str, ids)).encode(), digest_size=16).hexdigest()
    return {"points": len(ids), "ids": digest, "contents": content.hexdigest()}


def files(source: str) -> list[str]:
    """The collection's folder, if it is on this machine."""
    place, collection = _where(source)
    return [] if "://" in place else [os.path.join(os.path.abspath(place), "collection", collection)]


def columns(source: str) -> list[str]:
    """The id, the vectors, and the keys of the first 1,000 payloads."""
    with _opened(source) as client:
        found = _collection(client, name(source))
    return [IDS, *found.vectors, *(key for key in found.payload if key != IDS and key not in found.vectors)]


def parts(source: str, names: Sequence[str], most: tuple[int, int]) -> list[Part]:
    """Ranges of ids of equal numbers of points."""
    with _opened(source) as client:
        found, ids = _collection(client, name(source)), list(_ids(client, name(source)))
    size = _PAYLOAD_BYTES + 4 * sum(found.vectors.get(key, 0) for key in names)
    # Who reads a part knows nothing of the collection but this.
    return [
        Part(json.dumps([ids[first], *found]), 0, first, last - first, size * (last - first))
        for first, last in even_ranges(len(ids), size, most)
        if last > first
    ]


def batches(source: str, at: str, names: Sequence[str], rows: tuple[int, int]) -> Iterator[pa.RecordBatch]:
    """Points of a range of ids."""
    start, vectors, payload = json.loads(at)
    first, last = rows
    passed = 0
    with _opened(source, lasts=True) as client:
        while start is not None and passed < last:
            read = passed >= first
            size = min(_PAGE, last - passed) if read else min(_IDS_OF_A_PAGE, first - passed)
            points, start = client.scroll(
                name(source), limit=size, offset=start,
                with_payload=read and [key for key in names if key in payload],
                with_vectors=read and any(key in vectors for key in names),
            )  # fmt: skip
            passed += len(points)
            if read:
                yield pa.RecordBatch.from_arrays(
                    [_cells(source, points, key, _Collection(vectors, payload)) for key in names], names=list(names)
                )


def release(source: str) -> None:
    """Nothing is held."""


def _cells(source: str, points: list[Any], key: str, of: _Collection) -> pa.Array:
    """A column of some points."""
    if key == IDS:
        return pa.array([str(point.id) for point in points])
    if key in of.vectors:
        vectors = [point.vector.get(key) if isinstance(point.vector, dict) else point.vector for point in points]
        return pa.array(vectors, pa.list_(pa.float32()))
    cells = [(point.payload or {}).get(key) for point in points]
    kind_of_cells = of.payload[key]
    if kind_of_cells == "string":
        cells = [cell if cell is None or isinstance(cell, str) else json.dumps(cell, sort_keys=True) for cell in cells]
    try:
        return pa.array(cells, pa.type_for_alias(kind_of_cells))
    except pa.ArrowException as error:
        raise UsageError(
            f"'{key}' of collection '{name(source)}' is of type {kind_of_cells} in the first {_LOOKED_AT:,} points, and not "
            f"in all: {reason(error)}; write it as one type"
        ) from None


def _collection(client: Any, collection: str) -> _Collection:
    settings = client.get_collection(collection).config.params.vectors or {}
    named = settings if isinstance(settings, dict) else {VECTORS: settings}
    # Several vectors of a point are no embedding of a text.
    vectors = {key: int(how.size) for key, how in named.items() if how.multivector_config is None}
    kinds = dict[str, set[str]]()
    for point in client.scroll(collection, limit=_LOOKED_AT, with_payload=True, with_vectors=False)[0]:
        for key, cell in (point.payload or {}).items():
            kinds.setdefault(key, set()).update([] if cell is None else [_TYPES.get(type(cell), "string")])
    return _Collection(vectors, {key: _common(found) for key, found in sorted(kinds.items())})


def _common(kinds: set[str]) -> str:
    """The type of a column: texts, where values are of several types."""
    if kinds == {"int64", "double"}:
        return "double"
    return next(iter(kinds)) if len(kinds) == 1 else "string"


def _ids(client: Any, collection: str) -> Iterator[Any]:
    """All ids in order."""
    start, more = None, True
    while more:
        points, start = client.scroll(
            collection, limit=_IDS_OF_A_PAGE, offset=start, with_payload=False, with_vectors=False
        )  # fmt: skip
        yield from (point.id for point in points)
        more = start is not None


# --- the client ---------------------------------------------------------------------------------------------------------


def _where(source: str) -> tuple[str, str]:
    """The folder or address, and the collection."""
    path, settings = address(source.removeprefix(_PREFIX), [_TRUST])
    place, _, collection = path.rpartition("/")
    if not place.strip("/") or not collection:
        raise UsageError(
            f"'{masked(source)}' names no collection; give qdrant:FOLDER/COLLECTION or qdrant:http://HOST:6333/COLLECTION"
        )
    if "://" not in place and settings.get(_TRUST) != "trusted":
        raise UsageError(
            f"'{masked(path)}': Qdrant's local engine keeps points as pickles, which may run code; if you trust what wrote "
            f"the folder, add ?{_TRUST}=trusted"
        )
    return os.path.expanduser(place), collection


@contextmanager
def _opened(source: str, lasts: bool = False) -> Iterator[Any]:
    """A client, and its errors as ours; what `lasts` may be begun again by the same command."""
    place, collection = _where(source)
    try:
        qdrant = importlib.import_module("qdrant_client")
    except ImportError as error:
        raise UsageError(needs(f"'{collection}', a collection of Qdrant,", missing(error) or "qdrant_client")) from None
    client = None
    try:
        client = _client(qdrant, place, lasts)
        if not client.collection_exists(collection):
            others = ", ".join(sorted(each.name for each in client.get_collections().collections)) or "none"
            raise UsageError(f"'{masked(place)}' has no collection '{collection}'; its collections: {others}")
        yield client
    except (UsageError, GeneratorExit, KeyboardInterrupt):
        raise
    except Exception as error:  # The engine and the client have many types of errors.
        what = f"collection '{collection}' of '{masked(place)}' cannot be read: {reason(error, place)}"
        if lasts and "://" in place:
            raise IncompleteRun(what + AGAIN) from None
        raise UsageError(f"{what}; a key is read from {_KEY}") from None
    finally:
        if client is not None:
            client.close()


def _client(qdrant: Any, place: str, lasts: bool) -> Any:
    if "://" in place:
        return qdrant.QdrantClient(url=place, api_key=os.environ.get(_KEY), timeout=_SECONDS, check_compatibility=False)
    # The engine would make a new folder, and opens one in one process at a time.
    if not os.path.isfile(os.path.join(place, "meta.json")):
        raise UsageError(f"'{place}' is no folder of Qdrant's local engine; give the folder that its client was opened with")
    deadline = time.monotonic() + (_LOCK_SECONDS if lasts else 0)
    while True:
        try:
            return qdrant.QdrantClient(path=place)
        except RuntimeError as error:
            if "already accessed" not in str(error) or time.monotonic() >= deadline:
                raise
            time.sleep(0.5)
