"""The index of a source that a run has read: shards/index.json, written last."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.sources import Source
from tempscale_jobs.runs.folder import PLANNED, SHARDED
from tempscale_jobs.runs.storage import Storage


@dataclass(frozen=True)
class Shard:
    """A file of texts below shards/, which one task embeds."""

    name: str
    texts: int
    characters: int = 0
    """The sum over its texts, about the cost of embedding them."""


@dataclass(frozen=True)
class SourceIndex:
    """The fields of shards/index.json for every kind of source; a subclass adds its counts and, last, its shards."""

    unit: ClassVar[type]
    """The class of an entry of `shards`."""
    source: str
    source_state: dict[str, Any]
    """Sizes and times, or a version: they change when the source changes."""
    fingerprint: str
    """Digest of the ids and contents of the analysed rows."""
    read: int
    rejected: int

    @classmethod
    def earlier(cls, storage: Storage, section: Source, run_folder: str, folder: str = "shards") -> Self | None:
        """The index of an earlier session that read all of the source, else None; a UsageError if the source changed."""
        if not storage.exists(SHARDED):
            for leftover in () if storage.exists(PLANNED) else (folder, "shards", "rejected"):
                storage.remove(leftover)
            return None
        index = cls.read_from(storage)
        sources.check_unchanged(section, run_folder, index.source_state)
        return index

    @classmethod
    def read_from(cls, storage: Storage) -> Self:
        """The index that `kept` has written."""
        data = storage.read_json(SHARDED)
        return cls(**data | {"shards": tuple(cls.unit(**shard) for shard in data["shards"])})

    def kept(self, storage: Storage) -> Self:
        """Write and return this index, so that a resumed run does not read the source again."""
        storage.write_json(SHARDED, asdict(self))
        if not storage.exists(PLANNED):  # If the index is damaged, the source can be read again: its state is known.
            storage.write_json(PLANNED, {"source_state": self.source_state, "units": 1})
        return self

    def facts(self) -> dict[str, Any]:
        """The part of the index that run.json repeats."""
        return {name: value for name, value in asdict(self).items() if name != "shards"}


@dataclass(frozen=True)
class Index(SourceIndex):
    """The index of a corpus; of a user's embeddings it has no shards."""

    unit: ClassVar[type] = Shard
    usable: int
    """Rows that can be analysed, of which perhaps only a sample is."""
    analysed: int
    rejected_reasons: dict[str, int]
    shards: tuple[Shard, ...]
