"""The pieces of a sample of texts that workers embed again, and of askers that are compared with all texts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.shards import texts_of
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers.dispatch import Piece


def of_sample(run: Run, model: Model, sample: Sequence[str], size: int, kinds: Sequence[str]) -> list[Piece]:
    """Pieces of `size` texts with their ids; each piece writes a part of every kind under every temperature."""
    pieces = []
    for number, start in enumerate(range(0, len(sample), size)):
        ids = list(sample[start : start + size])
        files = tuple(run.part(kind, model, t, number) for kind in kinds for t in run.temperatures)
        name = f"piece {number} of {kinds[0].rpartition('/')[2]}"
        pieces.append(Piece(number, (ids,), name, files, len(ids)))
    return pieces


def of_askers(place: str, askers: int, size: int, panels: int) -> list[list[Piece]]:
    """For each group of `size` askers a piece for every panel, which writes a file below `place`."""
    return [
        [
            Piece(
                (g, panel), name=f"askers {g}, panel {panel}", files=(f"{place}/askers-{g:06d}-panel-{panel:06d}.parquet",)
            )
            for panel in range(panels)
        ]
        for g in range(-(-askers // size))
    ]


def ids_of(pieces: Iterable[Piece]) -> set[str]:
    """The ids of the texts of some pieces."""
    return {text_id for piece in pieces for text_id in piece.arguments[0]}


def with_texts(storage: Storage, index: Index, pieces: Sequence[Piece], *further: Any) -> list[Piece]:
    """The same pieces for workers: a number, a table of ids and texts, which are read from the index, and `further`."""
    texts = texts_of(storage, index, ids_of(pieces)) if pieces else {}
    tables = [
        pa.table({"text_id": ids, "text": [texts[i] for i in ids]}) for ids in (piece.arguments[0] for piece in pieces)
    ]
    return [piece._replace(arguments=(piece.number, table, *further)) for piece, table in zip(pieces, tables, strict=True)]
