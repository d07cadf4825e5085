"""The embedded texts of a model in canonical order, (length interval, id), with the place of each in texts/."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tempscale.collapse.length import interval_of
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model, Run


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

    def __len__(self) -> int:
        return len(self.ids)

    def are_distinct(self) -> bool:
        """Whether no text occurs twice; copies have the same length and id, so they would be neighbours in this order."""
        return not (self.ids[1:] == self.ids[:-1]).any()

    def labels(self) -> np.ndarray:
        """Each text's rank by id, int32, which breaks ties between texts."""
        rank = np.empty(len(self.ids), dtype=np.int32)
        rank[np.argsort(self.ids, kind="stable")] = np.arange(len(self.ids), dtype=np.int32)
        return rank

    def texts(self) -> np.ndarray:
        """Texts in each interval."""
        return np.bincount(self.interval, minlength=len(self.edges))

    def population(self, texts: float) -> float:
        """The number of texts of the corpus that `texts` of these represent, in proportion."""
        return texts * max(1.0, self.corpus_texts / max(1, len(self)))


def column(run: Run, model: Model, temperature: Temperature, layout: Layout, name: str) -> np.ndarray:
    """A column of texts/ in canonical order."""
    parts = run.storage.list(run.place("texts", model, temperature))
    values = [run.storage.read_table(part, [name]).column(name).to_numpy() for part in parts]
    starts = np.concatenate([[0], np.cumsum([len(own) for own in values])])
    return np.asarray(np.concatenate(values)[starts[layout.part] + layout.row])


def layout(run: Run, model: Model, corpus_texts: int, edges: tuple[int, ...]) -> Layout:
    """Read and sort the ids and lengths in every part of the first temperature."""
    names = run.storage.list(run.place("texts", model, run.temperatures[0]))
    ids: list[str] = []
    tokens, part, row = [], [], []
    for number, name in enumerate(names):
        table = run.storage.read_table(name, ["text_id", "tokens"])
        ids += table.column("text_id").to_pylist()
        tokens.append(table.column("tokens").to_numpy())
        part.append(np.full(table.num_rows, number))
        row.append(np.arange(table.num_rows))
    lengths = np.concatenate(tokens).astype(np.int64)
    interval = interval_of(lengths, edges)
    names_array = np.array(ids, dtype=object)
    order = np.array(sorted(range(len(ids)), key=lambda i: (interval[i], ids[i])), dtype=np.int64)
    return Layout(
        names_array[order], lengths[order], interval[order], np.concatenate(part)[order], np.concatenate(row)[order], edges,
        corpus_texts,
    )  # fmt: skip
