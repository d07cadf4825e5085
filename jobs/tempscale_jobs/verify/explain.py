"""Why rows are wrong: each is embedded again in the ways of `variants` until one brings its vector within tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.folder import Model, Run, of_unit
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.tables.verify import EXPLAINED
from tempscale_jobs.verify.compare import Judged, Rules
from tempscale_jobs.verify.variants import Made, Row, Ways, of_candidate
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece, advance_by_finished, missing

PARTIALS = "partials/explained"
AT_ONCE = 128
"""Wrong rows of one piece of work."""
MOST = 20_000
"""Rows that are explained; of more wrong ones these are the first by id."""
_COLUMNS = ["text_id", "text", "vector", "title", "above", "below"]


def gather(run: Run, index: Index, judged: Judged) -> list[tuple[str, int]]:
    """Write the wrong rows that are to be explained in pieces of their own; return each piece's file and rows."""
    wrong = judged.table.filter(judged.table.column("wrong")).column("text_id").to_pylist()
    if not wrong:
        return []
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


def pieces(run: Run, model: Model, files: Sequence[tuple[str, int]], rules: Rules) -> list[Piece]:
    """A piece for each file of wrong rows."""
    temperature = run.temperatures[0]
    first = [run.part(PARTIALS, run.models[0], temperature, k) for k in range(len(files))]
    return [
        Piece(k, (k, name, first[k], rules), f"wrong rows {k}", (run.part(PARTIALS, model, temperature, k),), rows, rows)
        for k, (name, rows) in enumerate(files)
    ]  # fmt: skip


def explain_all(run: Run, crew: Crew, every: list[Piece], stage: Stage, *, by_candidate: bool) -> None:
    """Explain the wrong rows by the model, or those that it does not explain by a candidate."""
    left = missing(run.storage, every)
    advance_by_finished(stage, every, left)
    for piece, _ in crew.run(explain_by_candidate if by_candidate else explain_piece, left):
        stage.advance(piece.size)


def explain_piece(worker: actor.ModelActor, number: int, name: str, _: str, rules: Rules) -> None:
    """Write what explains each row of a piece, by the model alone."""
    rows = _read(worker, name)
    _write(worker, number, rows, causes(Ways(worker.encoder, rows, worker.temperatures[0], rules.prompts), rows, rules))


def explain_by_candidate(worker: actor.ModelActor, number: int, name: str, first: str, rules: Rules) -> None:
    """Write which of the rows that the model does not explain are of this candidate."""
    known = dict(zip(*(column.to_pylist() for column in worker.storage.read_table(first).columns), strict=True))
    rows = [row for row in _read(worker, name) if known[row.text_id] is None]
    found = dict[int, str]()
    if rows:
        made = of_candidate(worker.encoder, worker.model.label, rows)
        found = {k: made.cause for k in made.rows if rules.allows(rows[k].vector, made.vectors[k], rules.how.error)}
    _write(worker, number, rows, found)


def _read(worker: actor.ModelActor, name: str) -> list[Row]:
    return [
        Row(**row | {"vector": np.array(row["vector"], dtype=np.float64)})
        for row in worker.storage.read_table(name, _COLUMNS).to_pylist()
    ]


def _write(worker: actor.ModelActor, number: int, rows: Sequence[Row], found: dict[int, str]) -> None:
    table = EXPLAINED.build_rows([{"text_id": row.text_id, "cause": found.get(k)} for k, row in enumerate(rows)])
    worker.storage.write_table(worker.part(PARTIALS, worker.temperatures[0], number), table)


def causes(ways: Ways, rows: Sequence[Row], rules: Rules) -> dict[int, str]:
    """What explains each row, by its number; rows that nothing explains are left out."""
    found = dict[int, str]()

    def note(pairs: Iterator[tuple[int, str]]) -> None:
        found.update(pairs)
        ways.left = [k for k in ways.left if k not in found]

    note(_of_numbers(rows, ways.right, ways.before_norm, rules))
    for made in ways:
        note(_explained(made, rows, ways.right, rules))
        if not ways.left:
            break
    return found


def _explained(made: Made, rows: Sequence[Row], right: np.ndarray, rules: Rules) -> Iterator[tuple[int, str]]:
    for place, (k, vector) in enumerate(zip(made.rows, made.vectors, strict=True)):
        stored = rows[k].vector
        if made.errors is not None and rules.allows(stored, vector, made.errors[place]):
            yield k, made.cause
        if made.errors is None and rules.explains(stored, vector, right[k]):
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
    vector, error = row.vector, rules.how.error
    if not np.isfinite(vector).all():
        return "not finite"
    if not vector.any():
        return "zero"
    if not np.isfinite(right).all():
        return None
    filled = int(np.flatnonzero(vector)[-1]) + 1
    if 1 < filled < rules.width and rules.allows(vector[:filled], right, error):
        return f"cut to the first {filled} of {rules.width} dimensions"
    model, storage = right[: rules.how.dims][: len(vector)], rules.how.storage
    if len(vector) > len(model) or not storage.fits(len(vector)):
        return None
    compared = storage.compare(vector, model, error)
    if rules.allows(vector, right, error):
        norm = float(np.linalg.norm(storage.numbers(vector)))
        return _of_norm(norm, float(np.linalg.norm(model)), before_norm, compared.distance)
    kind = storage.format_of(vector)
    return f"stored as {kind}" if kind != rules.format and compared.is_within else None


def _of_norm(norm: float, model_norm: float, before_norm: float, distance: float) -> str:
    """The cause of a vector whose direction is right."""
    known = {"scaled to norm 1": 1.0, "with the model's own norm": model_norm, "without the last normalisation": before_norm}
    for cause, value in known.items():
        if abs(norm / value - 1) <= distance:
            return cause
    return f"{norm / model_norm:.4g} times as long"
