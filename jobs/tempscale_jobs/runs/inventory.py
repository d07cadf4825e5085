"""The inventory of a finished run, by which damage is noticed: a copy of run.json, and size and digest of each file."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tempscale_jobs.errors import Damaged, UsageError
from tempscale_jobs.runs.folder import BEGUN, DONE, INVENTORY, load_tables, missing_table, names_of
from tempscale_jobs.runs.provenance import BELOW
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked

if TYPE_CHECKING:
    import polars as pl

PRUNED = "pruned.json"
"""The file that names folders that were removed on purpose."""
_COMPARED_BYTES = 256 << 20
"""The content of so many bytes is compared, smallest files first; of the other files only the size."""
_WORK = ("shards/", *(f"{below}/shards/" for below in BELOW), "cell_documents/")
"""Temporary folders of a run."""
_NOTES = tuple(
    f"{below}partials/{name}"
    for below in ("", *(f"{below}/" for below in BELOW))
    for name in ("exceptions/", "processors/", "takeovers/", "lost/", "budget/", "cache/", "computed_in.json")
)
"""Notes of a run that no step writes again: their content is in the inventory."""
_LEFT_OUT = ("status.json", PRUNED, DONE, ".lock", "inventory.json", "gate.parquet")
"""Files that every call of a command writes again, and the inventory itself."""


def write(storage: Storage, record: dict[str, Any]) -> None:
    """Write the inventory of a run whose run.json has this content; Damaged if a file is not what was written."""
    sizes = _sizes(storage, record)
    compared = _smallest(sizes)
    digests = dict(zip(compared, storage.digests(compared, check=True), strict=True))
    files = {name: [size, digests.get(name)] for name, size in sorted(sizes.items())}
    notes = {name: storage.read(name).decode() for name in files if name.startswith(_NOTES)}
    storage.write_json(INVENTORY, {"record": record, "files": files, "notes": notes})


def restore(storage: Storage, names: Iterable[str]) -> set[str]:
    """Write these notes of a finished run again, if the inventory has them; return their names."""
    notes = (_read(storage) or {"notes": {}})["notes"]
    restored = {name for name in names if name in notes}
    for name in restored:
        storage.write(name, notes[name].encode())
    return restored


def note(storage: Storage, names: Iterable[str]) -> None:
    """Note that files of a finished run were written again."""
    inventory = _read(storage)
    if inventory is not None:
        for name in names:
            if storage.exists(name):
                inventory["files"][name] = [storage.size(name), *storage.digests([name])]
        storage.write_json(INVENTORY, inventory)


def record(storage: Storage) -> dict[str, Any] | None:
    """The content of run.json of a finished run, or its copy if the file is damaged or missing; None if neither is known."""
    run = storage.read_object(BEGUN)["run"]
    damage = None
    if storage.exists(DONE):
        try:
            content = storage.read_object(DONE)
            if content.get("run") == run:
                return content
            damage = Damaged(f"'{DONE}' is of another run", f"{storage.root}/{DONE}")
        except Damaged as error:
            damage = error
    inventory = _read(storage)
    if inventory is not None and inventory["record"].get("run") == run:
        copy: dict[str, Any] = inventory["record"]
        return copy
    if damage is not None:
        raise damage
    return None


def expect(storage: Storage, name: str) -> None:
    """Add a missing file of a finished run to its inventory, if it is not there, so that it is made again."""
    inventory = _read(storage)
    if inventory is not None and name not in inventory["files"] and _is_kept(name):
        inventory["files"][name] = [-1, None]
        storage.write_json(INVENTORY, inventory)


def results(storage: Storage) -> tuple[dict[str, Any], dict[str, pl.DataFrame]]:
    """The content of run.json of a finished run, and its tables by name."""
    record = storage.read_object(DONE)
    check_tables(storage)
    tables = load_tables(storage)
    for part in ("config", "models") if tables else ():
        record[part]  # Raises Damaged if it is missing.
    return record, tables


def check_tables(storage: Storage) -> None:
    """Raise Damaged where a table of a finished run is missing that its inventory names."""
    inventory = _read(storage)
    listed = set(storage.list("tables", ".parquet"))
    for name in sorted(() if inventory is None else inventory["files"]):
        if name.startswith("tables/") and name not in listed:
            raise missing_table(storage, name.removeprefix("tables/").removesuffix(".parquet"))


def damaged(storage: Storage, record: dict[str, Any]) -> list[str]:
    """The files of a finished run that are missing or not what was written; a run without inventory gets one."""
    inventory = _read(storage)
    if inventory is None:
        write(storage, record)
        return []
    sizes, files = _sizes(storage, record), inventory["files"]
    pruned = _pruned(storage)
    expected = {name: entry for name, entry in files.items() if not (pruned and name.startswith(pruned))}
    same_size = [name for name, (size, digest) in expected.items() if sizes.get(name) == size and digest is not None]
    good = {name for name, current in zip(same_size, storage.digests(same_size), strict=True) if current == files[name][1]}
    good |= {name for name, (size, digest) in expected.items() if sizes.get(name) == size and digest is None}
    broken = [name for name in expected if name not in good]
    return broken if _is_whole(storage, record) else [*broken, DONE]


def _pruned(storage: Storage) -> tuple[str, ...]:
    """The folders that were removed on purpose."""
    if not storage.exists(PRUNED):
        return ()
    try:
        removed = storage.read_object(PRUNED)["removed"]
        if isinstance(removed, list):
            return tuple(f"{name}/" for name in removed)
        error = Damaged(f"'{masked(storage.root)}/{PRUNED}' is damaged")
    except Damaged as damage:
        error = damage
    raise UsageError(
        f"{error}; it says what was removed on purpose, so start over with --fresh or choose another --out"
    ) from None


def _is_whole(storage: Storage, record: dict[str, Any]) -> bool:
    """Whether run.json can be read."""
    try:
        return storage.exists(DONE) and storage.read_object(DONE).get("run") == record.get("run")
    except Damaged:
        return False


def _read(storage: Storage) -> dict[str, Any] | None:
    """The inventory; None if it is missing or damaged."""
    try:
        inventory = storage.read_json(INVENTORY)
    except Damaged:
        return None
    is_inventory = isinstance(inventory, dict) and inventory.keys() == {"record", "files", "notes"}
    return dict(inventory) if is_inventory and all(isinstance(part, dict) for part in inventory.values()) else None


def _sizes(storage: Storage, record: dict[str, Any]) -> dict[str, int]:
    """The sizes of the files of a run that no later call changes."""
    sizes = dict[str, int]()
    for top in names_of(record.get("command", "audit")):
        sizes |= storage.sizes(top)
    return {name: size for name, size in sizes.items() if _is_kept(name)}


def _is_kept(name: str) -> bool:
    """Whether no later call changes a file of a finished run."""
    return name.rsplit("/", 1)[-1] not in _LEFT_OUT and not name.startswith(_WORK)


def _smallest(sizes: dict[str, int]) -> list[str]:
    """The smallest files, whose content is compared."""
    names, bytes_left = list[str](), _COMPARED_BYTES
    for name in sorted(sizes, key=lambda name: (sizes[name], name)):
        bytes_left -= sizes[name]
        if bytes_left < 0:
            break
        names.append(name)
    return names
