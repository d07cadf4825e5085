"""Read a source into shards and an index: a source of one unit in this process, a larger one by tasks of Ray Data.

A task writes the rows of its unit itself: they never come to this process, which knows units and counts only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tempscale_jobs.corpus import distinct, reading, sources, stores, units
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.reading import Contents, UnitRead
from tempscale_jobs.corpus.rows import Counts, check_rejected, nothing_usable
from tempscale_jobs.corpus.units import Unit
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.folder import PLANNED, of_unit
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.urls import masked
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Piece, results, run_with_ray_data
from tempscale_jobs.workers.nodes import that_sees

SAMPLE_GROUP = 32_768
"""Rows of a sample that one task writes as parts."""


class SourceReader:
    """The usable rows of a source, as parts and an index."""

    def __init__(
        self,
        storage: Storage,
        contents: Contents,
        seed: int,
        run_folder: str,
        stage: Stage | None = None,
    ) -> None:
        """Plan the source, unless an earlier session has read it, and read it at once if it is one unit."""
        self._storage, self._contents, self._seed, self._run_folder = storage, contents, seed, run_folder
        self._section = contents.corpus
        self._index_read: Index | None = Index.earlier(storage, self._section, run_folder, contents.folder)
        self._read: dict[int, UnitRead] = {}
        self.units: tuple[Unit, ...] = ()
        self._left_out = ""
        if self._index_read is not None:
            rejected = self._index_read.rejected, self._index_read.read
            check_rejected(self._section, rejected, self._index_read.rejected_reasons, storage.root)
            sources.release(self._section)
            return
        self._state = sources.identity(self._section, run_folder)
        self._width: int | None = None
        if storage.exists(PLANNED):
            planned = storage.read_json(PLANNED)
            sources.check_unchanged(self._section, run_folder, planned["source_state"])
            self._width = planned.get("width")
        self.units = units.plan(self._section, contents.columns, self._section, run_folder)
        self._left_out = sources.left_out(self._section, run_folder)
        if len(self.units) == 1:
            whole = replace(self.units[0], limit=self._section.limit)
            unit_read, kept_rows = self._read_whole(whole, stage)
            if not contents.agrees(unit_read.widths):
                sources.check_not_a_pipe(self._section, run_folder)
                self._forget()
                unit_read, kept_rows = self._read_whole(whole, stage)
            self._read[unit_read.number] = unit_read
            self._check_rejected()
            self._index_read = self._index([unit_read], kept_rows)
            sources.release(self._section)

    @property
    def index(self) -> Index:
        """The index of the source, once all of it has been read."""
        assert self._index_read is not None, "it has been read"
        return self._index_read

    @property
    def complete(self) -> bool:
        """Whether all of the source has been read."""
        return self._index_read is not None

    def described(self) -> str:
        """Its texts and rejected rows, or its units, as the note of a stage."""
        if not self.complete:
            return f"{len(self.units):,} units, which Ray reads{self._left_out}"
        texts = f"{self.index.analysed:,} of {self.index.usable:,} texts"
        return f"{texts}, {self.index.rejected:,} rows rejected{self._left_out}"

    def finish(self, cluster: Cluster, stage: Stage | None = None) -> Index:
        """Read the remaining units, as the progress of a stage, and return the index."""
        if self._index_read is None:
            try:
                self._index_read = self._read_units(cluster, stage)
            except UsageError:
                # A mistake must not block the folder, except where a source with embedded texts is read again after damage.
                if self._contents.folder != "shards" or not self._storage.exists("texts"):
                    self._storage.remove(PLANNED)
                raise
        return self._index_read

    def read_all(self, cluster: Cluster, journal: Journal, what: str) -> None:
        """Read the remaining units in a stage, «read WHAT», if there are any."""
        if self.complete:
            return
        with journal.stage(f"read {what}", len(self.units)) as stage:
            self.finish(cluster, stage)
            stage.note = self.described()

    def _read_whole(self, whole: Unit, stage: Stage | None) -> tuple[UnitRead, int]:
        """Read a source of one unit; return also how many rows are kept."""
        with sources.unchanged(self._section, self._state, self._run_folder):
            return reading.read_whole(self._storage, self._contents, whole, self._seed, stage)

    def _read_units(self, cluster: Cluster, stage: Stage | None) -> Index:
        """Read the units that no earlier session has read, then remove repeated ids and draw the sample."""
        self._width = self._contents.begin(self._width)
        where = that_sees(units.local_files(self._section, self.units))
        self.units = self._limited(cluster, self._numbered(cluster, where), where)
        # A resumed session reads by the same dimensions.
        plan = {"source_state": self._state, "units": len(self.units)}
        self._storage.write_json(PLANNED, plan if self._width is None else plan | {"width": self._width})
        existing = set(self._storage.list("shards", ".json"))
        for unit in self.units:
            if reading.unit_name(unit.number) in existing:
                self._read[unit.number] = reading.as_read(self._storage, unit.number)
                reading.sweep(self._storage, self._contents, self._read[unit.number])
        if stage is not None:
            stage.resize(len(self.units))  # A limit may leave some out.
            stage.advance(len(self._read))
        remaining = {unit.number: unit for unit in self.units if unit.number not in self._read}
        context = Reading(self._storage, self._contents, remaining, self._seed, self._state)
        pieces = [Piece(number, (number,), units.named(self._section, unit)) for number, unit in remaining.items()]
        for piece in run_with_ray_data(cluster, read_unit, pieces, {"how": context}, where):
            self._read[piece.number] = reading.as_read(self._storage, piece.number)
            if stage is not None:
                stage.advance(1)
        if missing := len(self.units) - len(self._read):
            raise IncompleteRun(f"{missing} units of the {self._section.kind} were not read; start the same command again")
        if not self._contents.agrees(width for unit in self.units for width in self._read[unit.number].widths):
            self._forget()
            return self._read_units(cluster, stage)
        repeated = self._without_repeated(cluster)
        self._check_rejected()
        kept_units = [self._read[unit.number] for unit in self.units]
        if self._section.sample is not None:
            kept_units = self._sampled(cluster, self._section.sample, repeated, where)
        if stores.of(self._section.source) is not None and not sources.is_fixed(self._section):
            sources.check_state(self._section, self._state, self._run_folder)
        sources.release(self._section)
        return self._index(kept_units, sum(rows for unit in kept_units for rows, _ in unit.parts))

    def _forget(self) -> None:
        """Remove all that was read by the dimensions of the first embedding, because most have others."""
        for folder in ("shards", self._contents.folder, "rejected"):
            self._storage.remove(folder)
        self._read, self._width = {}, self._contents.width

    def _numbered(self, cluster: Cluster, where: dict[str, Any]) -> tuple[Unit, ...]:
        """The units, with their lines counted."""
        pieces = [piece for unit in self.units for piece in unit.pieces if piece.kind == "lines"]
        return units.numbered(self.units, self._counted(cluster, units.lines_in, pieces, where))

    def _counted(
        self, cluster: Cluster, count: Callable[..., int], pieces: Sequence[units.SourcePart], where: dict[str, Any]
    ) -> list[int]:
        """The count of each piece, by tasks."""
        work = [(self._section, piece, self._contents.columns) for piece in pieces]
        return results(cluster, count, work, "count of rows", where)

    def _limited(self, cluster: Cluster, planned: tuple[Unit, ...], where: dict[str, Any]) -> tuple[Unit, ...]:
        """The units of the first `limit` rows, if there is a limit; rows that are not known are counted."""
        limit, limited_units = self._section.limit, list[Unit]()
        if limit is None:
            return planned
        for unit in planned:
            if limit <= 0:
                break
            rows = unit.rows if unit.rows is not None else sum(self._counted(cluster, units.rows_in, unit.pieces, where))
            limited_units.append(replace(unit, limit=min(rows, limit)))
            limit -= rows
        return tuple(limited_units)

    def _without_repeated(self, cluster: Cluster) -> list[str]:
        """Remove the rows whose ids an earlier unit has; return the tables that name these rows."""
        read = [self._read[unit.number] for unit in self.units]
        if len(read) < 2 or all(unit.repeated for unit in read):
            return []
        parts, numbers = self._partitions(read), [unit.number for unit in read]
        names = [f"{of_unit('repeated', 0)}-{k:08d}.parquet" for k in range(parts)]
        work: list[tuple[Any, ...]] = [(numbers, (k, parts), names[k]) for k in range(parts)]
        counts = self._results(cluster, distinct.repeated, work, "range of ids")
        names = [name for name, rows in zip(names, counts, strict=True) if rows]
        repeated_rows = distinct.rows_by_unit(self._storage, names)
        work = [(self._contents, self._read[n], rows) for n, rows in repeated_rows.items() if not self._read[n].repeated]
        for unit in self._results(cluster, reading.without_repeated, work, "repeated rows"):
            self._read[unit.number] = unit
        return names

    def _sampled(self, cluster: Cluster, size: int, repeated: list[str], where: dict[str, Any]) -> list[UnitRead]:
        """Draw the sample, read the units with its rows again, and write these rows in groups; return the groups."""
        name, numbers = f"{of_unit('drawn', 0)}.parquet", [unit.number for unit in self.units]
        copies = self._copies(cluster, size)
        (counts,) = self._results(cluster, distinct.sampled, [(numbers, size, (repeated, copies), name)], "sample")
        groups, group, rows = list[list[int]](), list[int](), 0
        for number in sorted(counts):
            group.append(number)
            rows += counts[number]
            if rows >= SAMPLE_GROUP:
                groups, group, rows = [*groups, group], [], 0
        groups = [*groups, group] if group else groups
        existing = set(self._storage.list("shards"))
        chosen = distinct.rows_by_unit(self._storage, [name]) if counts else {}
        unread = [number for number in chosen if reading.chosen_of(number) not in existing]
        by_number = {unit.number: unit for unit in self.units}
        rows_of = [(self._contents, by_number[n], chosen[n], self._state) for n in unread]
        self._results(cluster, reading.choose, rows_of, "rows of the sample", where)
        work = [(self._contents, k, group) for k, group in enumerate(groups)]
        return self._results(cluster, reading.regroup, work, "group of the sample")

    def _copies(self, cluster: Cluster, size: int) -> list[str]:
        """Write the tables of rows without ids whose content an earlier row has; return the tables' names."""
        read = [self._read[unit.number] for unit in self.units]
        if len(read) < 2 or not any(unit.unnamed for unit in read):
            return []
        parts, numbers = self._partitions(read), [unit.number for unit in read]
        names = [f"{of_unit('copies', 0)}-{k:08d}.parquet" for k in range(parts)]
        draw = distinct.Draw(size, self._seed)
        work = [(numbers, draw, (k, parts), names[k]) for k in range(parts)]
        self._results(cluster, distinct.copies, work, "range of contents")
        return names

    def _partitions(self, read: Sequence[UnitRead]) -> int:
        """The number of partitions in which ids are compared."""
        return max(1, -(-sum(unit.usable for unit in read) // distinct.PARTITION_IDS))

    def _results(
        self, cluster: Cluster, function: Callable[..., Any], work: Sequence[tuple[Any, ...]], name: str,
        where: dict[str, Any] | None = None,
    ) -> list[Any]:  # fmt: skip
        """The results of tasks that call a function with the storage and each of these arguments."""
        return results(cluster, function, [(self._storage, *arguments) for arguments in work], name, where)

    def _shards(self, kept_units: Sequence[UnitRead]) -> list[Shard]:
        if self._contents.folder != "shards":
            return []
        return [Shard(unit.part(self._contents, k), *part) for unit in kept_units for k, part in enumerate(unit.parts)]

    def _counts(self) -> Counts:
        """The counts of all rows that have been read."""
        read = self._read.values()
        reasons = sum((Counter(unit.reasons) for unit in read), Counter[str]())
        return Counts(sum(unit.read for unit in read), sum(unit.usable for unit in read), reasons=reasons)

    def _check_rejected(self) -> None:
        """Raise a UsageError if no row of the source is usable, or too many are rejected."""
        counts = self._counts()
        if not counts.usable:
            raise nothing_usable(self._section, self._contents.what, counts.read, counts.reasons)
        check_rejected(self._section, (counts.rejected, counts.read), counts.reasons, self._storage.root)

    def _index(self, kept_units: Sequence[UnitRead], analysed: int) -> Index:
        """Write the index."""
        counts = self._counts()
        return Index(
            masked(self._section.source), self._state, reading.fingerprint_of(kept_units), counts.read, counts.rejected,
            counts.usable, analysed, dict(sorted(counts.reasons.items())), tuple(self._shards(kept_units)),
        ).kept(self._storage)  # fmt: skip


class Reading(NamedTuple):
    """The context of every task that reads units."""

    storage: Storage
    contents: Contents
    units: dict[int, Unit]
    seed: int
    state: dict[str, Any]
    """The state of the source in which it was planned."""


def read_unit(number: int, how: Reading) -> None:
    """Read a unit into durable parts."""
    reading.read_unit(how.storage, how.contents, how.units[number], how.seed, how.state)
