"""Why rows are wrong: each is embedded again in the ways of `variants` until one brings its vector within tolerance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.model import checkpoint
from tempscale.model.settings import Settings
from tempscale.stats.sample import seeded_sample
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.corpus.readers import of_rows
from tempscale_jobs.corpus.stored import KEPT, StoredRow, rows_of
from tempscale_jobs.runs.folder import Model, Run, of_unit
from tempscale_jobs.tables.verify import EXPLAINED
from tempscale_jobs.verify.compare import Judged, Rules
from tempscale_jobs.verify.variants import Made, Ways, of_candidate
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece

PARTIALS = "partials/explained"
AT_ONCE = 128
"""Wrong rows of one piece of work."""
IN_EVERY_WAY = 1000
"""Wrong rows, spread over the index, that are embedded in every way; the others only in the ways that explained one."""


class WrongFile(NamedTuple):
    """A file of wrong rows."""

    number: int
    name: str
    rows: int


class WrongRows(NamedTuple):
    """The files of the wrong rows."""

    first: list[WrongFile]
    """Of those that are embedded in every way."""
    rest: list[WrongFile]

    @property
    def total(self) -> int:
        """All wrong rows."""
        return sum(file.rows for file in [*self.first, *self.rest])


def gather(run: Run, index: Index, judged: Judged) -> WrongRows:
    """Write the wrong rows in files."""
    wrong = judged.table.filter(judged.table.column("wrong")).column("text_id").to_pylist()
    spread = seeded_sample(wrong, IN_EVERY_WAY, 0)
    first = _written(run, index, spread, 0)
    return WrongRows(first, _written(run, index, sorted({*wrong} - {*spread}), len(first)))


def _written(run: Run, index: Index, text_ids: list[str], number: int) -> list[WrongFile]:
    """Write these rows in files that are numbered from `number`."""
    if not text_ids:
        return []
    ids, files = pa.array(text_ids, pa.string()), list[WrongFile]()
    shards = (run.storage.read_table(shard.name, [*KEPT]) for shard in index.shards)
    for rows in of_rows((shard.filter(pc.is_in(shard.column("text_id"), ids)) for shard in shards), AT_ONCE):
        name = f"{of_unit('wrong', number + len(files))}.parquet"
        files.append(WrongFile(number + len(files), name, rows.num_rows))
        run.storage.write_table(name, rows)
    return files


class Known(NamedTuple):
    """What is known of the index and of its model when a vector is explained."""

    rules: Rules
    window: int
    prompt: str
    named_prompts: tuple[str, ...]
    """Those that its settings name."""
    causes: frozenset[str] | None = None
    """The causes that are tried; all if None."""

    @classmethod
    def of(cls, model: Model, rules: Rules) -> Known:
        """What is known of the run's model and the index that these rules judge."""
        named = Settings.of(checkpoint.resolve(model.name)).prompts
        return cls(rules, model.max_length, model.document_prompt, tuple(named.values()))


def pieces(run: Run, model: Model, files: Sequence[WrongFile], known: Known) -> list[Piece]:
    """A piece for each file of wrong rows."""
    return [
        Piece(
            file.number, (file.number, file.name, _explained_by(run, run.models[0], file), known),
            f"wrong rows {file.number}", (_explained_by(run, model, file),), file.rows, file.rows,
        )
        for file in files
    ]  # fmt: skip


def _explained_by(run: Run, model: Model, file: WrongFile) -> str:
    """The file of the causes that a model finds for these rows."""
    return run.part(PARTIALS, model, run.temperatures[0], file.number)


def causes_of(run: Run, files: Sequence[WrongFile]) -> frozenset[str]:
    """The causes that the run's model found for these rows."""
    names = [_explained_by(run, run.models[0], file) for file in files]
    found = (cause for (column,) in run.storage.columns(names, ["cause"]) for cause in column.to_pylist())
    return frozenset(cause for cause in found if cause is not None)


def explain_piece(worker: actor.ModelActor, number: int, name: str, _: str, known: Known) -> None:
    """Write what explains each row of a piece, by the model alone."""
    rows = rows_of(worker.storage.read_table(name))
    ways = Ways(worker.encoder, rows, worker.temperatures[0], known.named_prompts, known.causes)
    _write(worker, number, rows, causes(ways, rows, known.rules))


def explain_by_candidate(
    worker: actor.ModelActor, number: int, name: str, by_first_model: str, known: Known
) -> None:  # fmt: skip
    """Write which of the rows that the model does not explain are of this candidate."""
    rules = known.rules
    columns = worker.storage.read_table(by_first_model).columns
    explained = dict(zip(*(column.to_pylist() for column in columns), strict=True))
    rows = [row for row in rows_of(worker.storage.read_table(name)) if explained[row.text_id] is None]
    cause_of = dict[int, str]()
    for made in of_candidate(worker.encoder, worker.model.label, rows, {"max_length": known.window, "prompt": known.prompt}):
        within = [k for k in made.rows if rules.allows(rows[k].vector, made.vectors[k], rules.tolerance.error)]
        cause_of = dict.fromkeys(within, made.cause) | cause_of
    _write(worker, number, rows, cause_of)


def _write(worker: actor.ModelActor, number: int, rows: Sequence[StoredRow], cause_of: dict[int, str]) -> None:
    table = EXPLAINED.build_rows([{"text_id": row.text_id, "cause": cause_of.get(k)} for k, row in enumerate(rows)])
    worker.storage.write_table(worker.part(PARTIALS, worker.temperatures[0], number), table)


def causes(ways: Ways, rows: Sequence[StoredRow], rules: Rules) -> dict[int, str]:
    """What explains each row, by its number; rows that nothing explains are left out."""
    cause_of = dict[int, str]()

    def note(pairs: Iterator[tuple[int, str]]) -> None:
        cause_of.update(pairs)
        ways.left = [k for k in ways.left if k not in cause_of]

    note(_of_numbers(rows, ways, rules))
    for made in ways:
        note(_within(made, rows, ways.right, rules))
        if not ways.left:
            break
    return cause_of


def _within(made: Made, rows: Sequence[StoredRow], right: np.ndarray, rules: Rules) -> Iterator[tuple[int, str]]:
    for place, (k, vector) in enumerate(zip(made.rows, made.vectors, strict=True)):
        stored = rows[k].vector
        if made.errors is not None and rules.allows(stored, vector, made.errors[place]):
            yield k, made.cause
        if made.errors is None and rules.explains(stored, vector, right[k]):
            yield k, made.cause


def _of_numbers(rows: Sequence[StoredRow], ways: Ways, rules: Rules) -> Iterator[tuple[int, str]]:
    """The rows that their numbers alone explain: no direction, other dimensions, another norm, another format."""
    for k, row in enumerate(rows):
        cause = _of_row(row, k, ways, rules)
        if cause is not None:
            yield k, cause


def _of_row(row: StoredRow, k: int, ways: Ways, rules: Rules) -> str | None:
    vector, right, error = row.vector, ways.right[k], rules.tolerance.error
    if not np.isfinite(vector).all():
        return "not finite"
    if not vector.any():
        return "zero"
    if not np.isfinite(right).all():
        return None
    filled = int(np.flatnonzero(vector)[-1]) + 1
    if 1 < filled < rules.width and rules.allows(vector[:filled], right, error):
        return f"cut to the first {filled} of {rules.width} dimensions"
    model, storage = right[: rules.tolerance.dims][: len(vector)], rules.tolerance.storage
    if len(vector) > len(model) or not storage.fits(len(vector)):
        return None
    compared = storage.compare(vector, model, error)
    if rules.allows(vector, right, error):
        norm = float(np.linalg.norm(storage.numbers(vector)))
        model_norm = float(np.linalg.norm(model))
        for cause, value in (("scaled to norm 1", 1.0), ("with the model's own norm", model_norm)):
            if abs(norm / value - 1) <= compared.distance:
                return cause
        if abs(norm / float(ways.before_norm[k]) - 1) <= compared.distance:
            return "without the last normalisation"
        return f"{norm / model_norm:.4g} times as long"
    kind = storage.format_of(vector)
    return f"stored as {kind}" if kind != rules.format and compared.is_within else None
