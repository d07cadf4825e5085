"""Stored vectors against the model's: shards -> model actors -> parts below partials/compared, then which rows are wrong."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.stored.rounding import Storage, float_error, is_float, largest_gap
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run, place
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.verify import compared
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import FOR_EVER, Crew, Piece
from tempscale_jobs.workers.marks import DEADLY, MARKS, Marks, forget

PARTIALS = "partials/compared"
_LOOSER = 8.0
"""A cause explains a vector within so many times the error of the computation."""
_NEARER = 0.25
"""And only if the vector is nearer than to the model's own: 1 − cosine is at most this share, half the distance."""


class Tolerance(NamedTuple):
    """How vectors are stored, and how far computation may move them."""

    storage: Storage
    dims: int | None
    """The model's leading dimensions that are stored; None for all, or as many as a vector has."""
    error: float
    """The relative distance that computation explains."""


def pieces(run: Run, model: Model, index: Index, rows: Mapping[int, Sequence[int]], tolerance: Tolerance) -> list[Piece]:
    """A piece for each shard, of the rows that were chosen of it."""
    temperature = run.temperatures[0]
    return [
        Piece(
            k, (k, index.shards[k].name, chosen, tolerance), f"shard {k}", (run.part(PARTIALS, model, temperature, k),),
            len(chosen), index.shards[k].characters * len(chosen),
        )
        for k, chosen in rows.items()
    ]  # fmt: skip


def compare_all(run: Run, crew: Crew, model: Model, every: list[Piece], stage: Stage) -> None:
    """Write the missing parts of all shards."""
    forget(run.storage, run.place(MARKS, model))
    crew.finish(compare_shard, every, stage, FOR_EVER)


def compare_shard(worker: actor.ModelActor, number: int, name: str, chosen: Sequence[int], tolerance: Tolerance) -> None:
    """Embed the chosen texts of a shard and write how far their stored vectors are from the model's, and rejected rows."""
    worker.note_processor()
    shard = worker.storage.read_table(name).take(pa.array(chosen, pa.int64()))
    tokens = worker.encoder.tokenizer(shard.column("text").to_pylist(), isolate=True)
    marks = Marks(worker.storage, f"{place(MARKS, worker.model)}/shard-{number:08d}.json")
    worker.encoder.set_temperature(worker.temperatures[0])
    batches = marks.begin(worker.encoder.batches(tokens))
    with worker.noting(f"shard {number}", marks.halved):
        out = worker.encode(tokens, moments=False, role=actor.ROLE, batches=batches, before=marks.before)
    reasons = {**out.failed, **{tokens.owner[i]: DEADLY for i in marks.deadly}}
    ids = shard.column("text_id").to_pylist()
    kept = [k for k in range(len(ids)) if k not in reasons and bool(np.isfinite(out.embeddings[k].numpy()).all())]
    worker.reject(
        number,
        [
            {"text_id": ids[k], "place": f"shard {number}", "reason": f"{worker.model.label}: {reasons.get(k, 'no vector')}"}
            for k in sorted(set(range(len(ids))) - set(kept))
        ],
    )
    unit, norms = out.embeddings.numpy(), out.norms.double().numpy()
    rows = {k: _compared(tolerance, vector, unit[k].astype(np.float64) * norms[k]) for k, vector in _vectors(shard, kept)}
    columns = {name: [row[name] for row in rows.values()] for name in next(iter(rows.values()), {})}
    taken = shard.take(pa.array(kept, pa.int64()))
    columns |= {"text_id": taken.column("text_id"), "groups": taken.column("groups")}
    columns |= {"text_sha": [hashlib.sha256(text.encode()).hexdigest() for text in taken.column("text").to_pylist()]}
    columns |= {"tokens": [tokens.lengths[k] for k in kept], "embedding": parts.fixed_lists(unit[kept])}
    schema = compared(unit.shape[1])
    table = schema.build(columns) if kept else schema.schema().empty_table()
    worker.storage.write_table(worker.part(PARTIALS, worker.temperatures[0], number), table)
    marks.done()


def _vectors(shard: pa.Table, rows: list[int]) -> list[tuple[int, np.ndarray]]:
    column = shard.column("vector").combine_chunks()
    return [(k, np.asarray(column[k].values.to_numpy(zero_copy_only=False), dtype=np.float64)) for k in rows]


def _compared(tolerance: Tolerance, stored: np.ndarray, model: np.ndarray) -> dict[str, Any]:
    """The figures of one row."""
    norm, width, model = float(np.linalg.norm(tolerance.storage.numbers(stored))), len(stored), model[: tolerance.dims]
    usable = bool(np.isfinite(norm) and norm > 0 and tolerance.storage.fits(width))
    row: dict[str, Any] = {
        "dimensions": width,
        "usable": usable and width <= len(model),
        "norm": norm if np.isfinite(norm) else None,
    }
    model = model[:width]
    row |= {"format": tolerance.storage.format_of(stored) if usable else None, "model_norm": float(np.linalg.norm(model))}
    if not row["usable"]:
        return row | {"cosine": None, "norm_ratio": None, "distance": None}
    return row | tolerance.storage.compare(stored, model, tolerance.error)._asdict()


class Rules(NamedTuple):
    """When a vector is a model's: the index is what most of its vectors are."""

    tolerance: Tolerance
    norms: str
    """The `model`'s, `unit`, or `unknown` where the format keeps none or no direction is right."""
    format: str
    width: int

    def distance(self, error: float, norm: float, by_codes: float) -> float:
        """The relative distance that an error and the format of the index explain; `by_codes` is that of codes and bits."""
        return error + float_error(self.format, self.width, norm) if is_float(self.format) else by_codes

    def gap(self, stored: np.ndarray, model: np.ndarray) -> float:
        """1 − cosine of a stored vector and a model's; 2 where they cannot be compared."""
        model = model[: self.tolerance.dims][: len(stored)]
        return 1 - self.tolerance.storage.compare(stored, model, 0.0).cosine if self._comparable(stored, model) else 2.0

    def allows(self, stored: np.ndarray, model: np.ndarray, error: float) -> bool:
        """Whether a stored vector has the direction of a model's, up to an error of the computation and the format."""
        model = model[: self.tolerance.dims][: len(stored)]
        if not self._comparable(stored, model):
            return False
        compared = self.tolerance.storage.compare(stored, model, error)
        distance = self.distance(error, float(np.linalg.norm(model)), compared.distance)
        return 1 - compared.cosine <= largest_gap(distance)

    def explains(self, stored: np.ndarray, made: np.ndarray, right: np.ndarray) -> bool:
        """Whether a vector that was made in another way explains a stored one: within tolerance, and nearer than `right`.

        Another way may round more than the model's: without a mean over tokens nothing averages out.
        """
        is_nearer = self.gap(stored, made) < _NEARER * self.gap(stored, right)
        return is_nearer and self.allows(stored, made, _LOOSER * self.tolerance.error)

    def _comparable(self, stored: np.ndarray, model: np.ndarray) -> bool:
        finite = bool(np.isfinite(model).all() and np.isfinite(stored).all() and model.any() and stored.any())
        return finite and len(model) == len(stored) and self.tolerance.storage.fits(len(stored))


class Judged(NamedTuple):
    """All rows of the sample, and which are wrong."""

    table: pa.Table
    """The parts together, without embeddings, with the columns norm_ratio and wrong as they are reported."""
    rules: Rules
    of_all: bool = False
    """Whether these are all rows of the source that can be compared."""


_COLUMNS = (
    "text_id", "text_sha", "tokens", "groups", "dimensions", "format", "usable", "cosine", "norm_ratio", "distance", "norm",
    "model_norm",
)  # fmt: skip


def judge(run: Run, model: Model, every: list[Piece], tolerance: Tolerance) -> Judged:
    """Which rows are wrong: their direction, norm or width is not that of the model and of the index."""
    names = [piece.files[0] for piece in every]
    table = pa.concat_tables([run.storage.read_table(name, list(_COLUMNS)) for name in names]).combine_chunks()
    model_width = run.storage.read_table(names[0], ["embedding"]).schema.field("embedding").type.list_size
    if not table.num_rows:
        raise UsageError("no row of the sample has both a vector and a text that the model embeds: nothing can be compared")
    width = Counter(table.column("dimensions").to_pylist()).most_common(1)[0][0]
    if width > model_width or (tolerance.dims is not None and width != min(tolerance.dims, model_width)):
        wanted = f"the leading {tolerance.dims}" if tolerance.dims is not None else f"the {model_width}"
        raise UsageError(
            f"most vectors have {width} dimensions, which are not {wanted} of model {model.label}: nothing can be compared; "
            "name the model that made the vectors, or its leading dimensions by --dims"
        )
    kind = Counter(filter(None, table.column("format").to_pylist())).most_common(1)
    for name in ("scale", "offset"):
        each = getattr(tolerance.storage, name)
        if isinstance(each, tuple) and len(each) != width:
            raise UsageError(
                f"{name} of [embeddings] has {len(each)} numbers, and most vectors have {width} dimensions; give one "
                "number, or one for each dimension"
            )
    rules = Rules(tolerance, "unknown", kind[0][0] if kind else "float32", width)
    cosine, ratio, distance = (_numbers(table, name) for name in ("cosine", "norm_ratio", "distance"))
    norm, model_norm = (_numbers(table, name) for name in ("norm", "model_norm"))
    allowed = np.array([rules.distance(tolerance.error, n, d) for n, d in zip(model_norm, distance, strict=True)])
    with np.errstate(invalid="ignore"):
        in_direction = 1 - cosine <= [largest_gap(d) for d in allowed]
        fits = {"model": np.abs(ratio - 1) <= allowed, "unit": np.abs(norm - 1) <= allowed}
    counts = {name: int((good & in_direction).sum()) for name, good in fits.items()}
    kept = np.isfinite(ratio)
    if (kept & in_direction).any():  # Unit vectors are a way to store an index only where most are.
        is_unit = counts["unit"] > max(counts["model"], int((kept & in_direction).sum()) // 2)
        rules = rules._replace(norms="unit" if is_unit else "model")
    has_norm = fits.get(rules.norms, np.ones(len(kept), dtype=bool)) | ~kept
    ratio = np.where(kept & (rules.norms == "unit"), norm, ratio)
    usable = table.column("usable").to_numpy() & (table.column("dimensions").to_numpy() == width)
    wrong = ~(usable & in_direction & has_norm)
    ratios = pa.array(ratio, mask=~kept)
    table = table.set_column(table.column_names.index("norm_ratio"), "norm_ratio", ratios)
    return Judged(table.append_column("wrong", pa.array(wrong)), rules)


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """A column of figures, with NaN for null."""
    values: np.ndarray = table.column(name).to_numpy().astype(np.float64)
    return values
