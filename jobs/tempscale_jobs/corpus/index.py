"""What a run keeps of a source that it has read: shards/index.json, written last."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.sources import Source
from tempscale_jobs.runs.folder import PLANNED, SHARDED
from tempscale_jobs.runs.storage import Storage


@dataclass(frozen=True)
class Shard:
    """A file of texts below shards/: the unit of work and of resuming of the model."""

    name: str
    texts: int
    characters: int = 0
    """All of its texts together: what embedding them costs, about."""


@dataclass(frozen=True)
class SourceIndex:
    """The part of shards/index.json that every kind of source has; a subclass adds its counts and, last, its shards."""

    unit: ClassVar[type]
    """The class of an entry of `shards`."""
    source: str
    source_state: dict[str, Any]
    """Sizes and times, or a version, which change when the source changes."""
    fingerprint: str
    """Digest of the ids and contents of the analysed rows."""
    read: int
    rejected: int

    @classmethod
    def earlier(cls, storage: Storage, section: Source, run_folder: str, folder: str = "shards") -> Self | None:
        """The index of an earlier session that read all of the source; otherwise None.

        The leftovers of a session that neither read the source nor planned its reading are removed.

        Raises:
            UsageError: the source changed since then.
        """
        if not storage.exists(SHARDED):
            for leftover in () if storage.exists(PLANNED) else (folder, "shards", "rejected"):
                storage.remove(leftover)
            return None
        data = storage.read_json(SHARDED)
        index = cls(**data | {"shards": tuple(cls.unit(**shard) for shard in data["shards"])})
        sources.check_unchanged(section, run_folder, index.source_state)
        return index

    def kept(self, storage: Storage) -> Self:
        """This index, written: a resumed run does not read the source again."""
        storage.write_json(SHARDED, asdict(self))
        if not storage.exists(PLANNED):  # If the index is damaged, the source can be read again: its state is known.
            storage.write_json(PLANNED, {"source_state": self.source_state, "units": 1})
        return self

    def facts(self) -> dict[str, Any]:
        """The part of the index that run.json repeats."""
        return {name: value for name, value in asdict(self).items() if name != "shards"}


@dataclass(frozen=True)
class Index(SourceIndex):
    """The result of reading a corpus: shards/index.json. Embeddings of your own have no shards."""

    unit: ClassVar[type] = Shard
    usable: int
    """Rows that can be analysed; perhaps only a sample of them is."""
    analysed: int
    rejected_reasons: dict[str, int]
    shards: tuple[Shard, ...]
