"""The embedded texts of a model in canonical order, (length interval, id), with the place of each in texts/."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale.collapse.length import interval_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables import parts
from tempscale_jobs.workers.engine import BESIDE_ACTORS, Cluster, results

_PARTS_OF_A_TASK = 32
"""Parts of texts/ that one task reads."""


@dataclass(frozen=True)
class Layout:
    """One entry for each text, in canonical order; the same under every temperature."""

    ids: np.ndarray
    tokens: np.ndarray
    interval: np.ndarray
    part: np.ndarray
    row: np.ndarray
    edges: tuple[int, ...]
    corpus_texts: int
    """Usable texts of the corpus that these were drawn from."""
    documents: np.ndarray | None = None
    """A digest of the document of each text; None where no text has one."""

    def __len__(self) -> int:
        return len(self.ids)

    def are_distinct(self) -> bool:
        """Whether no text occurs twice; copies have the same length and id, so they would be neighbours in this order."""
        return not (self.ids[1:] == self.ids[:-1]).any()

    def places(self, ids: np.ndarray) -> np.ndarray:
        """The place of each of these texts in this order."""
        wanted = set(ids.tolist())
        place = {text_id: k for k, text_id in enumerate(self.ids.tolist()) if text_id in wanted}
        return np.array([place[text_id] for text_id in ids.tolist()], dtype=np.int64)

    def labels(self) -> np.ndarray:
        """Each text's rank by id, int32, which breaks ties between texts."""
        rank = np.empty(len(self.ids), dtype=np.int32)
        rank[np.argsort(self.ids, kind="stable")] = np.arange(len(self.ids), dtype=np.int32)
        return rank

    def texts(self) -> np.ndarray:
        """Texts in each interval."""
        return np.bincount(self.interval, minlength=len(self.edges))

    def documents_of(self, places: np.ndarray) -> pa.Array:
        """The documents of the texts at these places, as a column; null where texts come without documents."""
        return pa.nulls(len(places), pa.int64()) if self.documents is None else pa.array(self.documents[places])

    def population(self, texts: float) -> float:
        """The number of texts of the corpus that `texts` of these represent, in proportion."""
        return texts * max(1.0, self.corpus_texts / max(1, len(self)))


def column(run: Run, model: Model, temperature: Temperature, layout: Layout, name: str) -> np.ndarray:
    """A column of texts/ in canonical order."""
    names = run.storage.list(run.place("texts", model, temperature))
    values = [run.storage.read_table(part, [name]).column(name).to_numpy() for part in names]
    starts = np.concatenate([[0], np.cumsum([len(own) for own in values])])
    return np.asarray(np.concatenate(values)[starts[layout.part] + layout.row])


def embeddings(
    run: Run, cluster: Cluster, model: Model, temperature: Temperature, layout: Layout, places: np.ndarray
) -> np.ndarray:
    """Embeddings (places, d) of some texts, read by tasks from the parts that contain them."""
    import ray

    names = run.storage.list(run.place("texts", model, temperature))
    part, row = layout.part[places], layout.row[places]
    used = np.unique(part)
    cuts = np.array_split(used, max(1, len(used) // _PARTS_OF_A_TASK))
    task, rows = ray.remote(**BESIDE_ACTORS)(_rows), [np.flatnonzero(np.isin(part, cut)) for cut in cuts]

    def submit(number: int) -> Any:
        own = rows[number]
        return task.remote(run.storage, [names[k] for k in cuts[number]], np.searchsorted(cuts[number], part[own]), row[own])

    found = dict(results(cluster, submit, range(len(cuts)), ahead=1))
    gathered = np.concatenate([found[number] for number in range(len(cuts))])
    order = np.concatenate(rows)
    whole = np.empty_like(gathered)
    whole[order] = gathered
    return whole


def _rows(storage: Storage, names: list[str], part: np.ndarray, row: np.ndarray) -> np.ndarray:
    """The embeddings in these rows of these parts, in the order given."""
    found: np.ndarray | None = None
    for number, name in enumerate(names):
        matrix = parts.matrix(storage.read_table(name, ["embedding"]), "embedding")
        found = np.empty((len(part), matrix.shape[1]), dtype=np.float32) if found is None else found
        found[part == number] = matrix[row[part == number]]
    assert found is not None, "a task has at least one part"
    return found


def layout(run: Run, model: Model, corpus_texts: int, edges: tuple[int, ...]) -> Layout:
    """Read and sort the ids and lengths in every part of the first temperature."""
    names = run.storage.list(run.place("texts", model, run.temperatures[0]))
    ids: list[str] = []
    tokens, part, row, documents = [], [], [], []
    for number, name in enumerate(names):
        table = run.storage.read_table(name, ["text_id", "tokens", "document"])
        ids += table.column("text_id").to_pylist()
        tokens.append(table.column("tokens").to_numpy())
        documents.append(table.column("document"))
        part.append(np.full(table.num_rows, number))
        row.append(np.arange(table.num_rows))
    lengths = np.concatenate(tokens).astype(np.int64)
    interval = interval_of(lengths, edges)
    names_array = np.array(ids, dtype=object)
    order = np.array(sorted(range(len(ids)), key=lambda i: (interval[i], ids[i])), dtype=np.int64)
    place, within, named = np.concatenate(part)[order], np.concatenate(row)[order], documents_of(documents, ids)
    own = None if named is None else named[order]
    return Layout(names_array[order], lengths[order], interval[order], place, within, edges, corpus_texts, own)


def documents_of(columns: Sequence[pa.ChunkedArray], ids: Sequence[str]) -> np.ndarray | None:
    """The document of each text from the columns `document` of texts/; a text without one is its own.

    None where no text has one.
    """
    digests = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.int64())
    if digests.null_count == len(digests):
        return None
    missing = digests.is_null().to_numpy()
    found = np.zeros(len(digests), dtype=np.int64)
    found[~missing] = digests.drop_null().to_numpy()
    found[missing] = [own_document(ids[k]) for k in np.flatnonzero(missing).tolist()]
    return found
