"""Measure SOCM of explicit pairs: chunks -> model actors -> parts below partials/pairs.

A piece of work is one chunk under all temperatures of a model. Its distinct texts are embedded once per temperature, and
their factors stay in the actor. A pair is kept only if its figures are finite at every temperature, so that temperatures
are compared on the same pairs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.pairs import Value
from tempscale_jobs.pairs.chunks import PairIndex
from tempscale_jobs.runs.folder import Model, Run, place
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.tables.pairs import PART, PARTIALS
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import FOR_EVER, Crew, Piece
from tempscale_jobs.workers.marks import DEADLY, MARKS, Marks, forget

if TYPE_CHECKING:
    from tempscale.model.padded import Padded
    from tempscale.model.sequences import Tokens


_ROLES = ("query", "document")
"""The roles of the texts of columns a and b, for a temperature that depends on the role."""


def pieces(run: Run, model: Model, value: Value, index: PairIndex) -> list[Piece]:
    """A piece for each chunk."""
    return [
        Piece(
            k, (k, chunk.name, value.model_dump()), f"chunk {k}",
            tuple(run.part(PARTIALS, model, t, k) for t in run.temperatures), chunk.pairs, chunk.pairs,
        )
        for k, chunk in enumerate(index.shards)
    ]  # fmt: skip


def measure_pairs(run: Run, crew: Crew, model: Model, every: list[Piece], stage: Stage) -> int:
    """Write the missing parts of all chunks under all temperatures; return the number of pairs without finite figures."""
    forget(run.storage, run.place(MARKS, model))
    crew.finish(measure_chunk, every, stage, FOR_EVER)
    return sum(map(run.storage.rows, run.storage.list(run.place("rejected", model))))


def measure_chunk(worker: actor.ModelActor, number: int, name: str, mode: dict[str, float]) -> None:
    """Embed the texts of a chunk and write its pairs' parts, one per temperature, and its rejected pairs."""
    worker.note_processor()
    chunk = worker.storage.read_table(name)
    texts, first, second = _distinct(chunk)
    tokens = worker.encoder.tokenizer(texts, isolate=True)
    marks = Marks(worker.storage, f"{place(MARKS, worker.model)}/chunk-{number:08d}.json")
    sides = _sides(worker, tokens, first, second, marks)
    lost = {text: DEADLY for side in sides for text in side.deadly}
    with worker.noting(f"chunk {number}", marks.halved):
        to_measure = _Chunk(sides, first, second, marks, lost)
        figures = [_figures(worker, t, to_measure, mode) for t in worker.temperatures]
    finite = np.asarray(np.isfinite(np.stack(figures)).all(axis=(0, 1)))
    reasons = [lost.get(int(a)) or lost.get(int(b)) for a, b in zip(first, second, strict=True)]
    worker.reject(number, _lost(worker.model, chunk, finite, reasons))
    lengths, truncated = np.array(tokens.lengths, dtype=np.int32), np.array(tokens.truncated, dtype=bool)
    columns: dict[str, Any] = {"pair": chunk.column("pair").to_numpy()}
    for letter, side in (("a", first), ("b", second)):
        columns[f"tokens_{letter}"] = lengths[side]
        columns[f"truncated_{letter}"] = truncated[side] | chunk.column(f"cut_{letter}").to_numpy()
    for temperature, pair_figures in zip(worker.temperatures, figures, strict=True):
        values = columns | dict(zip(("d_mu", "d_sigma", "socm"), pair_figures, strict=True))
        name = worker.part(PARTIALS, temperature, number)
        worker.storage.write_table(name, PART.build({key: value[finite] for key, value in values.items()}))
    marks.done()


def _sides(worker: actor.ModelActor, tokens: Tokens, first: np.ndarray, second: np.ndarray, marks: Marks) -> list[_Side]:
    """All texts as one side, or the texts of each column under its role, without texts that kill the process."""
    by_role: list[tuple[str, np.ndarray]] = [(actor.ROLE, np.arange(len(tokens)))]
    if any(temperature.roles for temperature in worker.temperatures):
        by_role = list(zip(_ROLES, (np.unique(first), np.unique(second)), strict=True))
    groups = [(role, texts, tokens.take(texts.tolist())) for role, texts in by_role]
    starts = np.cumsum([0, *(len(role_tokens.ids) for _, _, role_tokens in groups)])
    # The sequences of all sides are numbered together, so that one set of marks finds those that kill the process.
    batches = marks.begin(
        [
            [int(start) + i for i in batch]
            for start, (_, _, role_tokens) in zip(starts, groups, strict=False)
            for batch in worker.encoder.batches(role_tokens)
        ]
    )
    sides = []
    for k, (role, texts, role_tokens) in enumerate(groups):
        start, stop = int(starts[k]), int(starts[k + 1])
        role_batches = [[i - start for i in batch] for batch in batches if start <= batch[0] < stop]
        owner = role_tokens.owner
        deadly = [int(texts[owner[i - start]]) for i in marks.deadly if start <= i < stop]
        sides.append(_Side(role, texts, role_tokens, role_batches, start, deadly, worker.encoder.padded(role_tokens)))
    return sides


class _Chunk(NamedTuple):
    """A chunk that is measured."""

    sides: list[_Side]
    first: np.ndarray
    second: np.ndarray
    """The second text of each pair, as its number in the chunk; `first` likewise."""
    marks: Marks
    lost: dict[int, str]
    """Reasons why texts have no figures."""


def _figures(
    worker: actor.ModelActor, temperature: Temperature, chunk: _Chunk, mode: dict[str, float]
) -> np.ndarray:  # fmt: skip
    """d_μ, d_Σ and SOCM of every pair, (3, pairs); NaN where a mean has no direction or the model fails (see `lost`)."""
    import torch

    from tempscale.second_order.routing import moved, socm_device
    from tempscale.second_order.socm import socm_pairs

    sides, first, second, marks, lost = chunk
    if not len(first):
        return np.zeros((3, 0))
    worker.encoder.set_temperature(temperature)
    means: list[torch.Tensor] = []
    factors: list[torch.Tensor] = []
    places = []
    for side in sides:
        out = worker.encode(
            side.tokens, moments=False, factors=True, role=side.role, batches=side.batches,
            before=partial(_mark, marks, side.start), padded=side.padded,
        )  # fmt: skip
        marks.after()
        lost.update({int(side.texts[i]): reason for i, reason in out.failed.items()})
        if not out.factors:  # The model failed on every text.
            return np.full((3, len(first)), np.nan)
        place = np.full(int(max(first.max(), second.max())) + 1, -1)
        place[side.texts] = len(means) + np.arange(len(side.texts))
        places.append(place)
        means += [mean for mean, _ in out.factors]
        factors += [factor for _, factor in out.factors]
    device = socm_device(worker.device, mode.get("regularization", 0.0))
    mean, moved_factors = moved(torch.stack(means), factors, device)
    values = socm_pairs(mean, moved_factors, places[0][first], places[-1][second], **mode)
    return np.stack([value.numpy() for value in values])


def _lost(model: Model, chunk: pa.Table, finite: np.ndarray, reasons: list[str | None]) -> list[dict[str, Any]]:
    return [
        {"text_id": row["pair_id"], "place": row["place"]}
        | {"reason": f"{model.label}: {reason or 'it gives no finite figures'}"}
        for row, is_finite, reason in zip(chunk.select(["pair_id", "place"]).to_pylist(), finite, reasons, strict=True)
        if not is_finite
    ]


def _mark(marks: Marks, start: int, batch: list[int]) -> None:
    marks.before([start + i for i in batch])


class _Side(NamedTuple):
    """The texts of one role."""

    role: str
    texts: np.ndarray
    """Their numbers in the chunk."""
    tokens: Tokens
    batches: list[list[int]]
    start: int
    """Number of their first sequence among the sequences of all sides."""
    deadly: list[int]
    """Numbers of the texts that kill the process."""
    padded: Padded
    """Their padded micro-batches, for all temperatures."""


def _distinct(chunk: pa.Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct texts of a chunk in order of appearance, and the numbers of each pair's two texts."""
    place: dict[str, int] = {}
    texts: list[str] = []
    columns = (chunk.column(name).to_pylist() for name in ("content_a", "text_a", "content_b", "text_b"))
    places = []
    for content_a, text_a, content_b, text_b in zip(*columns, strict=True):
        for content, text in ((content_a, text_a), (content_b, text_b)):
            if content not in place:
                place[content] = len(texts)
                texts.append(text)
        places.append((place[content_a], place[content_b]))
    both = np.array(places, dtype=np.int64)
    return texts, both[:, 0], both[:, 1]
