"""Remove a damaged file of a run, and the files that depend on it, so that they are made again with the same bytes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from tempscale_jobs.errors import Damaged, UsageError
from tempscale_jobs.runs import folder, inventory
from tempscale_jobs.runs.folder import DONE, EXCEPTIONS, GIVEN, PLANNED, SHARDED, SIZES, number_of, place
from tempscale_jobs.runs.inventory import PRUNED
from tempscale_jobs.runs.provenance import BELOW
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked

_ALL = "all of the run is made again"
_OF_MODEL = re.compile(r"(?P<kind>[^=]+)/model=(?P<model>[^/]+)/")
_BELOW = (*BELOW, "measured", "other")
"""Folders that each contain another run."""
_REWRITTEN = ("tables/", "figures/", "mteb/", folder.CALIBRATION, folder.REMOVE, "temperature.json")
"""Files that the last steps of every run write in any case."""
_ANSWERS = ("corpus", "pairs", "embeddings")
"""The entries of run.json with the state of a source."""
_NAMED = 3


def mend(storage: Storage, command: str, error: Damaged) -> str:
    """Remove a damaged file of a run, so that it is made again; return a sentence on what is made again."""
    name = error.path.removeprefix(f"{storage.root}/")
    if name.split("/")[0] not in folder.names_of(command):  # A file of the record of nights, or in another folder.
        raise error
    if name.startswith((SIZES, "partials/budget/")) and not storage.exists(DONE):
        folder.remove_results(storage, command)  # The rest could not be embedded in the same micro-batches.
        return _ALL
    if storage.exists(DONE):  # A run of a version without inventories does not know its missing files.
        inventory.expect(storage, name)
    return _remove(storage, name)


def reopen(storage: Storage, record: dict[str, Any], damaged: Sequence[str]) -> str:
    """Prepare a finished run to make damaged files again, from the sources in its `record`; return a sentence on them."""
    listed = ", ".join(sorted(damaged)[:_NAMED]) + (f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else "")
    subject = f"{listed} of '{masked(storage.root)}' {'is' if len(damaged) == 1 else 'are'} damaged or missing"
    if storage.exists(PRUNED):
        raise UsageError(
            f"{subject}, and the embeddings that the run is made of were pruned; nothing was changed. Start over with "
            "--fresh, or choose another --out"
        )
    read = {
        "": next((entry for entry in _ANSWERS if entry in record), ""), "queries/": "queries", "verify/": "verified",
        "results/": "results",
    }  # fmt: skip
    for below, section in read.items():
        if "source_state" in record.get(section, {}):
            storage.write_json(f"{below}{PLANNED}", {"source_state": record[section]["source_state"], "units": 1})
    if record.get("sizes"):
        storage.write_json(SIZES, record["sizes"])
    for name in set(damaged) - inventory.restore(storage, damaged):
        if not name.startswith(_REWRITTEN) and name != DONE:
            _remove(storage, name)
    return f"{subject}: made again"


def _remove(storage: Storage, name: str) -> str:
    """Remove a damaged file, and other files whose absence makes the run write it again."""
    top, _, rest = name.partition("/")
    if name == folder.BEGUN:
        return "it cannot be made again"
    if top in _BELOW:
        return _remove(Storage(f"{storage.root}/{top}"), rest)
    match = _OF_MODEL.match(name)
    model = None if match is None else match["model"]
    if top in ("shards", "rejected", "texts") and model in (None, GIVEN.label):
        return _read_again(storage, name)
    if name.startswith("partials/cache/") or (model is not None and (top == "shards" or "/part-cached-" in name)):
        return _look_up_again(storage, name)
    storage.remove(name)
    if top == "rejected" and model is not None:
        _remove_one_with(storage, name, model)
        return "the texts of its piece are embedded again"
    if name.startswith(f"{EXCEPTIONS}/"):
        storage.write_json(name, f"a sentence about what may differ was in {name}, which was damaged")
        return "what it said is lost"
    if top == "cells":
        storage.remove("/".join([*name.split("/")[:4], "result.json"]))
        return "its cell is scored again"
    return "it is made again"


def _remove_one_with(storage: Storage, name: str, model: str) -> None:
    """Remove a part of the piece of work that wrote a file of rejected texts, so that the whole piece is repeated."""
    number = number_of(name.replace("/lengths-", "/part-"))
    for kind in ("texts", "partials/pairs", "partials/lengths", "partials/layers", "partials/compared"):
        for part in storage.list(place(kind, model)):
            if number_of(part) == number:
                storage.remove(part)
                return
    storage.remove("partials/what_if")  # It is another model's of --what-if, whose texts did not stay.


def _look_up_again(storage: Storage, name: str) -> str:
    """Remove the texts from a cache and the embedded ones, since it is no longer known which are which."""
    match = re.search(r"model=([^/]+)", name)
    for kind in ("texts", "shards", "rejected", "partials/cache"):
        storage.remove(kind if match is None else place(kind, match[1]))
    return "the texts of its model are looked up in the cache and embedded again"


def _read_again(storage: Storage, name: str) -> str:
    """Remove the record of reading a source, but not of its plan; the parts stay until they are replaced."""
    if name == PLANNED or not storage.exists(PLANNED):
        state = None if name == SHARDED or not storage.exists(SHARDED) else storage.read_json(SHARDED)["source_state"]
        if state is None:
            folder.remove_results(storage, "")
            return _ALL
        storage.write_json(PLANNED, {"source_state": state, "units": 1})
        if name == PLANNED:
            return "it is made again"
    storage.remove(name)
    # A unit without its file is read again. The unit of a part is not known, so the files of all units are removed.
    for file in [SHARDED] if name.endswith(".json") else storage.list("shards", ".json"):
        if file not in (PLANNED, SIZES):
            storage.remove(file)
    return "what is missing is read again"
