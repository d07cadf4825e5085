"""What a run removes where one of its files is damaged, so that it is made again, with the same bytes."""

from __future__ import annotations

import re

from tempscale_jobs.errors import Damaged
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import DONE, PLANNED, SHARDED, number_of, numbered, place
from tempscale_jobs.runs.storage import Storage

_ALL = "all of the run is made again"
_OF_MODEL = re.compile(r"(?P<kind>[^/]+)/model=(?P<model>[^/]+)/")
_KEPT = {"cache", "budget", "precision", "exceptions", "processors", "takeovers", "marks"}
"""What below partials/ no step of pairs, tables or reports makes: how texts were embedded, and by whom."""
_MADE_OF_TEXTS = ("factors", "neighbours", "tables", "figures", "corrections", "report.html", folder.CALIBRATION)


def mend(storage: Storage, command: str, error: Damaged) -> str:
    """Remove a damaged file of a run, with what must be made with it; return a sentence on what is made again.

    Raises:
        Damaged: the file is none of the run's own.
    """
    if not error.path.startswith(f"{storage.root}/"):
        raise error
    name = error.path.removeprefix(f"{storage.root}/")
    own = storage
    if storage.exists(DONE):  # What the last steps were made of is gone.
        folder.remove_results(storage, command)
        return _ALL
    if name.startswith("queries/"):
        own, name = Storage(f"{storage.root}/queries"), name.removeprefix("queries/")
    if command == "audit" and (what := _of_audit(storage, own, name)) is not None:
        return what
    if command == "evaluate" and name.startswith("cells/") and name.endswith(("items.parquet", "result.json")):
        storage.remove(name.rpartition("/")[0])
        return "its cell is scored again"
    folder.remove_results(storage, command)
    return _ALL


def _of_audit(run: Storage, own: Storage, name: str) -> str | None:
    """The same of an audit, where less than all is made again; `own` is the run's folder or that of its queries."""
    kind, _, rest = name.partition("/")
    of_model, part = _OF_MODEL.match(name), number_of(name)
    if kind in ("texts", "rejected") and of_model is not None and part is not None and of_model["model"] != "given":
        for parts in {file.rpartition("/")[0] for file in own.list(place("texts", of_model["model"]))}:
            own.remove(numbered(parts, part))
        own.remove(name)
        return "the texts of its shard are embedded again"
    if (kind in ("texts", "shards") and of_model is not None and of_model["model"] != "given") or (
        kind == "partials" and rest.startswith("cache/") and of_model is None
    ):
        model = re.search(r"model=([^/]+)", name)
        for made in ("texts", "shards", "rejected", "partials/cache"):
            own.remove(made if model is None else place(made, model[1]))
        return "the texts of its model are looked up in the cache and embedded again"
    if kind in ("shards", "rejected", "texts"):
        return _read_again(own, name)
    is_made = kind in _MADE_OF_TEXTS or (kind == "partials" and rest.partition("/")[0] not in _KEPT and "/" in rest)
    if not is_made:
        return None
    for other in {file.split("/")[1] for file in run.list("partials") if file.count("/") > 1} - _KEPT:
        run.remove(f"partials/{other}")
    for other in _MADE_OF_TEXTS:
        run.remove(other)
    return "all that is made of the embeddings is made again"


def _read_again(own: Storage, name: str) -> str | None:
    """Remove what was read of a source, but not that it was planned; None where that is not known."""
    if not own.exists(PLANNED):
        if name == SHARDED or not own.exists(SHARDED):
            return None
        try:
            state = own.read_json(SHARDED)["source_state"]
        except Damaged:
            return None
        own.write_json(PLANNED, {"source_state": state, "units": 1})
    elif name == PLANNED:
        return None
    for file in own.list("shards"):
        if file != PLANNED and "/model=" not in file:
            own.remove(file)
    for file in own.list("rejected"):
        if "/model=" not in file:
            own.remove(file)
    own.remove(place("texts", folder.GIVEN))
    own.remove(DONE)
    return "the source is read again"
