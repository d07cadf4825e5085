"""Read a source: at once in this process where it is one unit, otherwise by tasks of Ray Data, while earlier units are used.

This process knows units and counts, never rows. Units are handed on in the source's order, in rounds: first what is read
first, then each time at least as many units as before, because the ids of a round are compared with those of all units
before it. What comes out does not depend on how many rounds there are.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import pyarrow as pa

from tempscale_jobs.corpus import distinct, reading, sources, units
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.reading import Contents, UnitRead
from tempscale_jobs.corpus.rows import Counts, check_rejected, nothing_usable
from tempscale_jobs.corpus.units import Unit
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.folder import PLANNED, of_unit
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.engine import Cluster, done, readable_failures
from tempscale_jobs.workers.nodes import that_sees
from tempscale_jobs.workers.slow import PIECE, Kind, Pieces

SAMPLE_GROUP = 32_768
"""Rows of a sample that are grouped into parts together."""
_STOP_SECONDS = 5


class Expected(NamedTuple):
    """About how much a source holds, from the units that are read so far."""

    texts: int
    characters: int


class Stream:
    """The usable rows of a source, as parts that become known round by round, and at the end its index."""

    def __init__(
        self,
        storage: Storage,
        contents: Contents,
        seed: int,
        without: str,
        on_rows: Callable[[int], None] = lambda rows: None,
    ) -> None:
        """Plan the source, unless an earlier session has read it, and read it at once if it is one unit.

        Raises:
            UsageError: the source cannot be read, has no usable row, or changed since the run in `without` began.
        """
        self._storage, self._contents, self._seed, self._without = storage, contents, seed, without
        self._given = contents.corpus
        self._found: Index | None = Index.earlier(storage, self._given, without, contents.folder)
        self._reports: _Reports | None = None
        self._read: dict[int, UnitRead] = {}
        self._merged: set[str] | None = None
        self.units: tuple[Unit, ...] = ()
        self._left_out = ""
        if self._found is not None:
            rejected = self._found.rejected, self._found.read
            check_rejected(self._given, rejected, self._found.rejected_reasons, storage.root)
            return
        self._state = sources.identity(self._given, without)
        self._width: int | None = None
        if storage.exists(PLANNED):
            planned = storage.read_json(PLANNED)
            sources.check_unchanged(self._given, without, planned["source_state"])
            self._width = planned.get("width")
        self.units = units.plan(self._given, contents.columns, self._given, without)
        self._left_out = sources.left_out(self._given, without)
        if len(self.units) == 1:
            whole = replace(self.units[0], limit=self._given.limit)
            found, kept = self._read_whole(whole, on_rows)
            if not contents.agrees(found.widths):
                sources.check_not_a_pipe(self._given, without)
                self._forget()
                found, kept = self._read_whole(whole, on_rows)
            self._read[found.number] = found
            self._check_rejected()
            self._found = self._index([found], kept)

    @property
    def index(self) -> Index:
        """The index of the source, once all of it has been read."""
        assert self._found is not None, "all rounds have been taken"
        return self._found

    @property
    def complete(self) -> bool:
        """Whether all of the source has been read."""
        return self._found is not None

    def described(self) -> str:
        """What is known of it, as the note of a stage."""
        if not self.complete:
            return f"{len(self.units):,} units, which Ray reads{self._left_out}"
        texts = f"{self.index.analysed:,} of {self.index.usable:,} texts"
        return f"{texts}, {self.index.rejected:,} rows rejected{self._left_out}"

    def expected(self) -> Expected:
        """About how many texts and characters the source holds."""
        if self._found is not None:
            return Expected(self._found.analysed, sum(shard.characters for shard in self._found.shards))
        sizes = {unit.number: max(1, unit.bytes) for unit in self.units}
        grown = sum(sizes.values()) / max(1, sum(sizes[number] for number in self._read))
        parts = [part for unit in self._read.values() for part in unit.parts]
        return Expected(*(int(grown * sum(part[k] for part in parts)) for k in (0, 1)))

    def rounds(
        self, cluster: Cluster, on_unit: Callable[[UnitRead], None] = lambda unit: None
    ) -> Iterator[tuple[Shard, ...]]:
        """Read what is not read yet, and yield the shards of each round; there may be no new ones in a round.

        Raises:
            UsageError: a unit cannot be read, or the source has no usable row.
            IncompleteRun: a task failed.
        """
        if self._found is not None:
            yield self._found.shards
            return
        try:
            yield from self._rounds(cluster, on_unit)
        except UsageError:
            if self._contents.folder != "shards" or not self._storage.exists("texts"):
                self._storage.remove(PLANNED)  # Nothing has been embedded, so a mistake does not block the folder.
            raise

    def finish(self, cluster: Cluster, on_unit: Callable[[UnitRead], None] = lambda unit: None) -> Index:
        """Read all that is not read yet; return the index."""
        for _ in self.rounds(cluster, on_unit):
            pass
        return self.index

    def read_all(self, cluster: Cluster, journal: Journal, what: str) -> None:
        """Read all that is not read yet as a stage, «read WHAT»; there is no such stage if that is nothing."""
        if self.complete:
            return
        with journal.stage(f"read {what}") as stage:

            def on_unit(unit: UnitRead) -> None:
                stage.resize(max(1, self.expected().texts))
                stage.advance(unit.usable)

            self.finish(cluster, on_unit)
            stage.note = self.described()

    def close(self) -> None:
        """Stop reading."""
        if self._reports is not None:
            self._reports.stop()

    def _read_whole(self, whole: Unit, on_rows: Callable[[int], None]) -> tuple[UnitRead, int]:
        """Read a source of one unit; returns also how many rows are kept."""
        with sources.unchanged(self._given, self._state, self._without):
            return reading.read_whole(self._storage, self._contents, whole, self._seed, on_rows)

    def _rounds(self, cluster: Cluster, on_unit: Callable[[UnitRead], None]) -> Iterator[tuple[Shard, ...]]:
        self._width = self._contents.begin(self._width)
        where = that_sees(units.local_files(self._given, self.units))
        self.units = self._limited(cluster, self._numbered(cluster, where), where)
        # A session that goes on reads by the same dimensions.
        plan = {"source_state": self._state, "units": len(self.units)}
        self._storage.write_json(PLANNED, plan if self._width is None else plan | {"width": self._width})
        missing = self._begin(cluster, where, on_unit)
        sample, released, shards, kept = self._given.sample, 0, list[Shard](), list[UnitRead]()
        while released < len(self.units):
            while missing and self._reports is not None and self._reports.ready:
                missing = self._next(missing, on_unit)
            ahead = self._ahead(released)
            whole = released + ahead == len(self.units)
            if not whole and (sample is not None or ahead < max(1, released)):
                missing = self._next(missing, on_unit)
                continue
            if whole and not self._contents.agrees(width for unit in self.units for width in self._read[unit.number].widths):
                self._forget()
                yield from self._rounds(cluster, on_unit)
                return
            names = self._distinct(cluster, released, ahead)
            if whole:
                self._check_rejected()
            own = [self._read[unit.number] for unit in self.units[released : released + ahead]]
            released, kept = released + ahead, kept + own
            if sample is not None:
                kept = own = self._sampled(cluster, sample, names, where)
            new = self._shards(own)
            shards += new
            if released == len(self.units):
                self._found = self._index(kept, sum(n for unit in kept for n, _ in unit.parts), shards)
            yield tuple(new)

    def _forget(self) -> None:
        """Remove what was read by the dimensions of the first embedding, where most have others."""
        self.close()
        for folder in ("shards", self._contents.folder, "rejected"):
            self._storage.remove(folder)
        self._read, self._merged, self._reports, self._width = {}, None, None, self._contents.width

    def _begin(self, cluster: Cluster, where: dict[str, Any], on_unit: Callable[[UnitRead], None]) -> int:
        """Take what an earlier session read, and start reading the other units; return how many there are."""
        there = set(self._storage.list("shards", ".json"))
        for unit in self.units:
            if reading.unit_name(unit.number) in there:
                self._read[unit.number] = reading.as_read(self._storage, reading.unit_name(unit.number))
                reading.sweep(self._storage, self._contents, self._read[unit.number])
                on_unit(self._read[unit.number])
        left = [unit.number for unit in self.units if unit.number not in self._read]
        if left:
            arguments = {"storage": self._storage, "contents": self._contents, "units": self.units, "seed": self._seed}
            arguments |= {"state": self._state}
            work = {number: pa.table({"unit": [number]}) for number in left}
            tasks = min(cluster.tasks, len(left))
            data = actor.prepared(work, _read_units, arguments, cluster, tasks, **where)
            # Ray Data does not say when a task begins, but it starts so many at once, in their order.
            by_number = {unit.number: unit for unit in self.units}
            kind = Kind(lambda number: units.named(self._given, by_number[number]))
            pieces = cluster.watch.step(kind, tasks, finished=lambda numbers: [])
            for number in cluster.ordered(left):
                pieces.begin(number, number)
            self._reports = _Reports(data, pieces)
        return len(left)

    def _ahead(self, released: int) -> int:
        """How many units behind the released ones have been read, one after the other."""
        count = released
        while count < len(self.units) and self.units[count].number in self._read:
            count += 1
        return count - released

    def _next(self, missing: int, on_unit: Callable[[UnitRead], None]) -> int:
        """Wait for the next unit that has been read; return how many are missing then."""
        assert self._reports is not None, "units are missing, so they are being read"
        found = self._reports.next()
        if found is None:
            raise IncompleteRun(f"{missing} units of the {self._given.kind} were not read; start the same command again")
        self._read[found.number] = found
        on_unit(found)
        return missing - 1

    def _numbered(self, cluster: Cluster, where: dict[str, Any]) -> tuple[Unit, ...]:
        """The units, with their lines counted."""
        pieces = [piece for unit in self.units for piece in unit.pieces if piece.kind == "lines"]
        return units.numbered(self.units, self._counted(cluster, units.lines_in, pieces, where))

    def _counted(
        self, cluster: Cluster, count: Callable[..., int], pieces: Sequence[units.Piece], where: dict[str, Any]
    ) -> list[int]:
        """What tasks count in each piece."""
        work, kind = [(self._given, piece, self._contents.columns) for piece in pieces], Kind("count of rows")
        return done(cluster, count, work, where, kind)

    def _limited(self, cluster: Cluster, planned: tuple[Unit, ...], where: dict[str, Any]) -> tuple[Unit, ...]:
        """The units that hold the first rows, if only these are asked for; rows that are not known are counted."""
        limit, found = self._given.limit, list[Unit]()
        if limit is None:
            return planned
        for unit in planned:
            if limit <= 0:
                break
            rows = unit.rows if unit.rows is not None else sum(self._counted(cluster, units.rows_in, unit.pieces, where))
            found.append(replace(unit, limit=min(rows, limit)))
            limit -= rows
        return tuple(found)

    def _distinct(self, cluster: Cluster, released: int, new: int) -> list[str]:
        """Remove the rows of new units whose ids an earlier unit has; return the tables that name these rows."""
        numbers = [unit.number for unit in self.units[: released + new]]
        if all(self._read[number].repeated for number in numbers[released:]) or len(numbers) < 2:
            return []
        rows = [self._read[number].read for number in numbers]
        self._merge_ids(cluster, rows)
        parts = self._partitions([self._read[number] for number in numbers])
        names = [f"{of_unit('repeated', released)}-{k:08d}.parquet" for k in range(parts)]
        every = distinct.lists(rows)
        work: list[tuple[Any, ...]] = [(every, released, (k, parts), names[k]) for k in range(parts)]
        counts = self._done(cluster, distinct.repeated, work, kind=Kind("range of ids"))
        names = [name for name, own in zip(names, counts, strict=True) if own]
        gone = distinct.rows_by_unit(self._storage, names)
        work = [(self._contents, self._read[n], rows) for n, rows in gone.items() if not self._read[n].repeated]
        for unit in self._done(cluster, reading.without_repeated, work, kind=Kind("repeated rows")):
            self._read[unit.number] = unit
        return names

    def _merge_ids(self, cluster: Cluster, rows: Sequence[int]) -> None:
        """Merge the ids of units with so many rows, as far as they have not been merged."""
        if self._merged is None and len(rows) >= distinct.TOGETHER:
            self._merged = set(self._storage.list("shards", ".parquet"))  # By an earlier session, too.
        for level in distinct.merges(rows):
            assert self._merged is not None, "there are many units"
            work = [(*own, k) for own in level for k in range(own[0].files) if own[0].names[k] not in self._merged]
            self._done(cluster, distinct.merge, work)
            self._merged.update(ids.names[k] for ids, _, k in work)

    def _sampled(self, cluster: Cluster, size: int, gone: list[str], where: dict[str, Any]) -> list[UnitRead]:
        """Draw the sample, read the units that hold rows of it once more, and group these rows; return the groups."""
        name, numbers = f"{of_unit('drawn', 0)}.parquet", [unit.number for unit in self.units]
        copied = self._copies(cluster, size)
        (counts,) = self._done(cluster, distinct.sampled, [(numbers, size, (gone, copied), name)])
        groups, own, rows = list[list[int]](), list[int](), 0
        for number in sorted(counts):
            own.append(number)
            rows += counts[number]
            if rows >= SAMPLE_GROUP:
                groups, own, rows = [*groups, own], [], 0
        groups = [*groups, own] if own else groups
        there = set(self._storage.list("shards"))
        chosen = distinct.rows_by_unit(self._storage, [name]) if counts else {}
        waiting = [number for number in chosen if reading.chosen_of(number) not in there]
        by_number = {unit.number: unit for unit in self.units}
        kind = Kind(lambda k: units.named(self._given, by_number[waiting[k]]))
        self._done(
            cluster, reading.choose, [(self._contents, by_number[n], chosen[n], self._state) for n in waiting], where, kind
        )
        work = [(self._contents, k, own) for k, own in enumerate(groups)]
        return self._done(cluster, reading.regroup, work, kind=Kind("group of the sample"))

    def _copies(self, cluster: Cluster, size: int) -> list[str]:
        """Find the rows without ids that a sample may take though an earlier row has their content; return their tables."""
        read = [self._read[unit.number] for unit in self.units]
        if len(read) < 2 or not any(unit.unnamed for unit in read):
            return []
        parts, every = self._partitions(read), distinct.lists([unit.read for unit in read])
        names = [f"{of_unit('copies', 0)}-{k:08d}.parquet" for k in range(parts)]
        draw = distinct.Draw(size, self._seed)
        self._done(cluster, distinct.copies, [(every, draw, (k, parts), names[k]) for k in range(parts)])
        return names

    def _partitions(self, read: Sequence[UnitRead]) -> int:
        """In how many parts the ids of units are compared."""
        return max(1, -(-sum(unit.usable for unit in read) // distinct.PARTITION_IDS))

    def _done(
        self,
        cluster: Cluster,
        function: Callable[..., Any],
        work: Sequence[tuple[Any, ...]],
        where: dict[str, Any] | None = None,
        kind: Kind = PIECE,
    ) -> list[Any]:
        """The results of a function of the storage and of each of these arguments, run as tasks."""
        return done(cluster, function, [(self._storage, *own) for own in work], where, kind)

    def _shards(self, own: Sequence[UnitRead]) -> list[Shard]:
        if self._contents.folder != "shards":
            return []
        return [Shard(unit.part(self._contents, k), *part) for unit in own for k, part in enumerate(unit.parts)]

    def _counts(self) -> Counts:
        """The counts of all rows that have been read."""
        read = self._read.values()
        reasons = sum((Counter(unit.reasons) for unit in read), Counter[str]())
        return Counts(sum(unit.read for unit in read), sum(unit.usable for unit in read), reasons=reasons)

    def _check_rejected(self) -> None:
        """Raise a UsageError if no row of the source is usable, or too many are rejected."""
        counts = self._counts()
        if not counts.usable:
            raise nothing_usable(self._given, self._contents.what, counts.read, counts.reasons)
        check_rejected(self._given, (counts.rejected, counts.read), counts.reasons, self._storage.root)

    def _index(self, kept: Sequence[UnitRead], analysed: int, shards: Sequence[Shard] | None = None) -> Index:
        """Write the index."""
        counts = self._counts()
        return Index(
            masked(self._given.source), self._state, reading.fingerprint_of(kept), counts.read, counts.rejected,
            counts.usable, analysed, dict(sorted(counts.reasons.items())),
            tuple(self._shards(kept) if shards is None else shards),
        ).kept(self._storage)  # fmt: skip


class _Reports:
    """The reports of units that tasks read, in a thread: Ray Data goes on while this process does something else."""

    def __init__(self, data: Any, pieces: Pieces) -> None:
        self._queue: queue.Queue[Any] = queue.Queue()
        self._pieces = pieces
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(data,), name="reading", daemon=True)
        self._thread.start()

    def _run(self, data: Any) -> None:
        import ray

        try:
            for bundle in data.iter_internal_ref_bundles():  # Ray Data stops when nothing refers to its iterator.
                for block in bundle.block_refs:
                    for row in ray.get(block).to_pylist():
                        self._pieces.end(row["number"], done=row["failure"] is None)
                        self._queue.put(row)
                if self._stopped.is_set():
                    break
        except BaseException as error:
            self._queue.put(error)
        finally:
            self._pieces.close()
            self._queue.put(None)

    @property
    def ready(self) -> bool:
        """Whether `next` need not wait."""
        return not self._queue.empty()

    def next(self) -> UnitRead | None:
        """Wait for the next unit; None after the last.

        Raises:
            UsageError: a unit cannot be read.
            IncompleteRun: a task failed.
        """
        found = self._queue.get()
        if isinstance(found, BaseException):
            with readable_failures():
                raise found
        if found is None:
            return None
        if found["failure"] is not None:
            raise actor.ended(found) from RuntimeError(found["traceback"])
        return UnitRead(**json.loads(actor.unpack(found["payload"]).column("unit")[0].as_py()))

    def stop(self) -> None:
        """End the stream as soon as the next unit is read, before Ray itself ends; a long one is not waited for.

        Nothing public ends a stream of Ray Data from outside. The thread then ends with Ray.
        """
        self._stopped.set()
        self._pieces.close()
        self._thread.join(_STOP_SECONDS)


def _read_units(
    batch: pa.Table, storage: Storage, contents: Contents, units: Sequence[Unit], seed: int, state: dict[str, Any]
) -> pa.Table:  # fmt: skip
    """Read the units that a batch names."""
    reports: dict[int, pa.Table] = {}
    by_number = {unit.number: unit for unit in units}
    for number in batch.column("number").to_pylist():
        found = reading.read_unit(storage, contents, by_number[number], seed, state)
        reports[number] = pa.table({"unit": [json.dumps(asdict(found))]})
    return actor.rows(reports)
