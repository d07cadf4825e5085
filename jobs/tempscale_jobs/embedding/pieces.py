"""The pieces of a sample that are not written yet, with their texts."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.shards import texts_of
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.runs.folder import Model, Run


def missing(
    run: Run, model: Model, index: Index, sample: list[str], size: int, kinds: Sequence[str], layout: Layout | None = None
) -> dict[int, pa.Table]:
    """The ids and texts of each piece of `size` texts that lacks a part of one of the kinds at one of the temperatures.

    All shards are searched for the texts where no layout tells theirs.
    """
    pieces = {number: sample[start : start + size] for number, start in enumerate(range(0, len(sample), size))}
    every = [(kind, t) for kind in kinds for t in run.temperatures]
    there = {name for kind, t in every for name in run.storage.list(run.place(kind, model, t))}
    pieces = {
        number: piece
        for number, piece in pieces.items()
        if not all(run.part(kind, model, t, number) in there for kind, t in every)
    }
    ids = {text_id for piece in pieces.values() for text_id in piece}
    texts = texts_of(run.storage, index if layout is None else layout.within(index, ids), ids) if ids else {}
    return {number: pa.table({"text_id": piece, "text": [texts[i] for i in piece]}) for number, piece in pieces.items()}
