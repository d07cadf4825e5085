"""Why rows are wrong: each is embedded again in the ways of `variants` until one brings its vector within tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.stored.rounding import FLOATS, float_error, largest_gap
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.folder import Model, Run, of_unit
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.tables.verify import EXPLAINED
from tempscale_jobs.verify.compare import How, Judged
from tempscale_jobs.verify.variants import Made, Row, Ways, of_candidate
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece, advance_by_finished, missing

if TYPE_CHECKING:
    from tempscale.model.encoder import Encoder

PARTIALS = "partials/explained"
AT_ONCE = 128
"""Wrong rows of one piece of work."""
MOST = 20_000
"""Rows that are explained; of more wrong ones these are the first by id."""
_COLUMNS = ["text_id", "text", "vector", "title", "above", "below"]


class Rules(NamedTuple):
    """When a vector is explained."""

    how: How
    errors: dict[str, float]
    """The relative distance that each precision explains."""
    convention: str
    format: str
    width: int
    prompts: tuple[str, ...] = ()
    """The prompts that the model's settings name."""

    def allows(self, row: Row, model: np.ndarray, cause: str = "") -> bool:
        """Whether a row's vector is this one, up to computation and storage."""
        model = model[: self.how.dims][: len(row.vector)]
        if len(model) < len(row.vector) or not np.isfinite(model).all():
            return False
        error = self.errors.get(cause.rpartition("computed in ")[2], self.how.error)
        compared = self.how.storage.compare(row.vector, model, error)
        norm = float(np.linalg.norm(model))
        distance = error + float_error(self.format, self.width, norm) if self.format in FLOATS else compared.distance
        return 1 - compared.cosine <= largest_gap(distance)


def gather(run: Run, index: Index, judged: Judged) -> list[tuple[str, int]]:
    """Write the wrong rows that are to be explained in pieces of their own; return each piece's file and rows."""
    wrong = judged.table.filter(judged.table.column("wrong")).column("text_id").to_pylist()
    ids, pieces, waiting = pa.array(sorted(wrong)[:MOST], pa.string()), list[tuple[str, int]](), list[pa.Table]()

    def write(rows: pa.Table) -> None:
        name = f"{of_unit('wrong', len(pieces))}.parquet"
        run.storage.write_table(name, rows)
        pieces.append((name, rows.num_rows))

    for shard in index.shards:
        rows = run.storage.read_table(shard.name, _COLUMNS)
        rows = rows.filter(pc.is_in(rows.column("text_id"), ids))
        waiting += [rows] if rows.num_rows else []
        while sum(map(len, waiting)) >= AT_ONCE:
            together = pa.concat_tables(waiting)
            write(together.slice(0, AT_ONCE))
            waiting = [together.slice(AT_ONCE)]
    if sum(map(len, waiting)):
        write(pa.concat_tables(waiting))
    return pieces


def explain_all(run: Run, crew: Crew, model: Model, files: Sequence[tuple[str, int]], rules: Rules, stage: Stage) -> None:
    """Explain the wrong rows by the model, or those that it does not explain by a candidate."""
    temperature = run.temperatures[0]
    function = explain_piece if model == run.models[0] else explain_by_candidate
    first = [run.part(PARTIALS, run.models[0], temperature, k) for k in range(len(files))]
    every = [
        Piece(k, (k, name, first[k], rules), f"wrong rows {k}", (run.part(PARTIALS, model, temperature, k),), rows, rows)
        for k, (name, rows) in enumerate(files)
    ]
    left = missing(run.storage, every)
    advance_by_finished(stage, every, left)
    for piece, _ in crew.run(function, left):
        stage.advance(piece.size)


def explain_piece(worker: actor.ModelActor, number: int, name: str, _: str, rules: Rules) -> None:
    """Write what explains each row of a piece, as far as the model can."""
    rows = _read(worker, name)
    _write(worker, number, rows, causes(worker.encoder, rows, worker.temperatures[0], rules))


def explain_by_candidate(worker: actor.ModelActor, number: int, name: str, first: str, rules: Rules) -> None:
    """Write which of the rows that the model does not explain are of this candidate."""
    known = dict(zip(*(column.to_pylist() for column in worker.storage.read_table(first).columns), strict=True))
    rows = [row for row in _read(worker, name) if known[row.text_id] is None]
    found = dict[int, str]()
    if rows:
        made = of_candidate(worker.encoder, worker.model.label, rows)
        found = {k: made.cause for k in made.rows if rules.allows(rows[k], made.vectors[k])}
    _write(worker, number, rows, found)


def _read(worker: actor.ModelActor, name: str) -> list[Row]:
    return [
        Row(**row | {"vector": np.array(row["vector"], dtype=np.float64)})
        for row in worker.storage.read_table(name, _COLUMNS).to_pylist()
    ]


def _write(worker: actor.ModelActor, number: int, rows: Sequence[Row], found: dict[int, str]) -> None:
    table = EXPLAINED.build_rows([{"text_id": row.text_id, "cause": found.get(k)} for k, row in enumerate(rows)])
    worker.storage.write_table(worker.part(PARTIALS, worker.temperatures[0], number), table)


def causes(encoder: Encoder, rows: Sequence[Row], temperature: object, rules: Rules) -> dict[int, str]:
    """What explains each row, by its number; rows that nothing explains are left out."""
    ways, found = Ways(encoder, rows, temperature, rules.prompts), dict[int, str]()

    def note(pairs: Iterator[tuple[int, str]]) -> None:
        found.update(pairs)
        ways.left = [k for k in ways.left if k not in found]

    note(_of_numbers(rows, ways.right, ways.before_norm, rules))
    for made in ways:
        note(_explained(made, rows, rules))
        if not ways.left:
            break
    return found


def _explained(made: Made, rows: Sequence[Row], rules: Rules) -> Iterator[tuple[int, str]]:
    for k, vector in zip(made.rows, made.vectors, strict=True):
        if rules.allows(rows[k], vector, made.cause):
            yield k, made.cause


def _of_numbers(
    rows: Sequence[Row], right: np.ndarray, before_norm: np.ndarray, rules: Rules
) -> Iterator[tuple[int, str]]:  # fmt: skip
    """The rows that their numbers alone explain: no direction, other dimensions, another norm, another format."""
    for k, row in enumerate(rows):
        cause = _of_row(row, right[k], float(before_norm[k]), rules)
        if cause is not None:
            yield k, cause


def _of_row(row: Row, right: np.ndarray, before_norm: float, rules: Rules) -> str | None:
    vector = row.vector
    if not np.isfinite(vector).all():
        return "numbers that are not finite"
    if not vector.any():
        return "all numbers are zero"
    if not np.isfinite(right).all():
        return None
    filled = int(np.flatnonzero(vector)[-1]) + 1
    if 1 < filled < rules.width and rules.allows(row._replace(vector=vector[:filled]), right):
        return f"the first {filled} of {rules.width} dimensions"
    if len(vector) > len(right):
        return None
    model, storage = right[: rules.how.dims][: len(vector)], rules.how.storage
    compared = storage.compare(vector, model, rules.how.error)
    if rules.allows(row, right):
        return _of_norm(float(np.linalg.norm(vector)), float(np.linalg.norm(model)), before_norm, compared.distance)
    kind = storage.format_of(vector)
    return f"stored as {kind}" if kind != rules.format and compared.is_within else None


def _of_norm(norm: float, model_norm: float, before_norm: float, distance: float) -> str:
    """The cause of a vector whose direction is right."""
    for value, cause in (
        (1.0, "scaled to norm 1"), (model_norm, "with the model's own norm"), (before_norm, "without its last normalisation"),
    ):  # fmt: skip
        if abs(norm / value - 1) <= distance:
            return cause
    return f"{norm / model_norm:.4g} times as long"
