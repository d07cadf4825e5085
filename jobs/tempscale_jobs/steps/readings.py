"""Some of the probe's texts, read in other ways than as they are: pieces of a few texts each, the same in every run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.shards import texts_of
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece, missing

AT_ONCE = 8
"""Texts of a piece."""


class Way(NamedTuple):
    """How texts are read."""

    folder: str
    """Where the parts are, one for each piece and temperature."""
    write: Callable[[actor.ModelActor, int, pa.Table, tuple[int, ...]], None]
    """Writes the parts of a piece, from the texts of all pieces and these lengths."""
    lengths: tuple[int, ...]
    temperatures: int
    """Under how many of the run's temperatures, the first ones."""


def mine(number: int) -> slice:
    """The places of a piece's own texts."""
    return slice(number * AT_ONCE, (number + 1) * AT_ONCE)


def embed(scope: Embedded, ids: Sequence[str], way: Way, stage: Stage) -> list[str]:
    """Embed what is missing; return the ids in the order of the pieces, those of a document together."""
    layout = scope.texts
    places = layout.places(list(ids))
    order = np.arange(len(ids)) if layout.documents is None else np.argsort(layout.documents[places], kind="stable")
    ordered = [ids[k] for k in order.tolist()]
    every = [
        Piece(number, (), f"{way.folder} {number}", tuple(scope.run.part(way.folder, scope.model, t, number) for t in
              scope.run.temperatures[: way.temperatures]), len(ordered[mine(number)]))
        for number in range(-(-len(ids) // AT_ONCE))
    ]  # fmt: skip
    left = missing(scope.run.storage, every)
    if left:
        content = texts_of(scope.run.storage, layout.within(scope.index, ids), set(ids))
        table = pa.table({"text_id": ordered, "text": [content[text_id] for text_id in ordered]})
        with_texts = [piece._replace(arguments=(piece.number, table, way.lengths)) for piece in left]
        for piece, _ in scope.crew.run(way.write, with_texts):
            stage.advance(piece.size)
    return ordered


def read(scope: Embedded, temperature: Temperature, folder: str, texts: int) -> pa.Table:
    """The parts of so many texts under a temperature."""
    names = [scope.run.part(folder, scope.model, temperature, number) for number in range(-(-texts // AT_ONCE))]
    return pa.concat_tables([scope.run.storage.read_table(name) for name in names])


def documents_of(scope: Embedded, ids: Sequence[str]) -> np.ndarray | None:
    """The document of each text; None where texts come without documents."""
    documents = scope.texts.documents
    return None if documents is None else documents[scope.texts.places(list(ids))]
