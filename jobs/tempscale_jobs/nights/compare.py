"""The changes from one audit to another, and their causes: the model, the temperature, the corpus, its lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from tempscale.collapse.length import interval_of, mean_cosines
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error, within_error
from tempscale_jobs.config.nights import WITH_ERRORS
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights.findings import of_comparison, of_swap
from tempscale_jobs.nights.finished import Finished, Row, Side, documents_of_both
from tempscale_jobs.nights.gate import ENDS, standard_error
from tempscale_jobs.nights.swap import Swap, swap
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.columns import Table, finite
from tempscale_jobs.tables.nights import COMPARED_FIGURES, COMPARED_INTERVALS, COMPARED_TEXTS, SWAP
from tempscale_jobs.urls import masked

_KEY = ("model", "temperature", "tau", "schema_version")
_CELL = ("interval_a", "interval_b")
_LISTED = 50


@dataclass(frozen=True)
class Compared:
    """The result of `compare`: a pair of rows for each model and temperature, and the changes between them."""

    a: Finished
    b: Finished
    pairs: list[tuple[Row, Row]]
    figures: pl.DataFrame
    intervals: pl.DataFrame
    texts: pl.DataFrame
    findings: Findings
    changed: list[Row]
    """For each pair, the numbers of texts added, removed and edited; None where not known: the embeddings of a run are gone,
    or for `edited` one run is of a user's vectors.
    """
    swap: dict[str, pl.DataFrame]
    """The tables of what another model or temperature changes, by name; without rows where neither differs."""
    notes: list[list[str]]
    """For each pair, what these are of and what is not known."""

    def write(self, folder: str) -> None:
        """Write the tables and the findings to a folder; those of another model or temperature only where it differs."""
        storage = Storage(folder)
        tables = {"compared_figures": self.figures, "compared_intervals": self.intervals, "compared_texts": self.texts}
        for name, table in (tables | {key: rows for key, rows in self.swap.items() if len(rows)}).items():
            storage.write_table(f"{name}.parquet", table.to_arrow())
        storage.write_table("findings.parquet", self.findings.table())


def compare(folder_a: str, folder_b: str, thresholds: Sequence[float] = ()) -> Compared:
    """Compare two finished audits; `thresholds` of A are carried over to B, also under one model and temperature.

    Raises:
        UsageError: a folder has no finished audit, the audits have no model in common, or a threshold is no cosine.
    """
    for threshold in thresholds:
        if not -1 < threshold < 1:
            raise UsageError(f"--threshold {threshold:g} is no cosine that some pairs reach; give one between -1 and 1")
    a, b = Finished.read(folder_a), Finished.read(folder_b)
    pairs = _pairs(a.rows(), b.rows())
    if not pairs:
        raise UsageError(
            f"'{masked(folder_a)}' and '{masked(folder_b)}' have several models and none in common; audit one in both"
        )
    figures, intervals, texts, changed = list[Row](), list[Row](), list[Row](), list[Row]()
    keys, swaps = list[Row](), list[Swap]()
    for row_a, row_b in pairs:
        texts_a, texts_b = a.texts(row_a), b.texts(row_b)
        if a.has_texts != b.has_texts:  # A digest of a text and one of a vector tell nothing of each other.
            texts_a, texts_b = (None if one is None else one.with_columns(content_sha=None) for one in (texts_a, texts_b))
        edges = b.record["config"]["analysis"]["intervals"]
        shared, changes = Shared.of(texts_a, texts_b, edges), _changes(texts_a, texts_b)
        key = {name: row_b[name] for name in _KEY}
        figures += [key | _figure(row_a, row_b, figure, shared) for figure in WITH_ERRORS if _measured(row_a, row_b, figure)]
        cells = (_cells(run, row) for run, row in ((a, row_a), (b, row_b)))
        if a.record["config"]["analysis"]["intervals"] == edges:
            intervals += [key | cell for cell in _intervals(*cells)]
        texts += (
            [] if shared is None else [key | text for text in shared.moved(row_a["fingerprint"] == row_b["fingerprint"])]
        )
        changed.append(changes)
        differ = any(row_a[name] != row_b[name] for name in ("fingerprint", "temperature"))
        sides = Side(a, row_a, texts_a), Side(b, row_b, texts_b)
        swaps.append(swap(*sides, thresholds) if differ or thresholds else Swap({}, []))
        keys.append(key)
        del shared, sides, texts_a, texts_b  # Free the embeddings before the next ones are read.
    built = [_frame(COMPARED_FIGURES, figures), _frame(COMPARED_INTERVALS, intervals), _frame(COMPARED_TEXTS, texts)]
    swapped = dict[str, pl.DataFrame]()
    for table in SWAP:
        rows = [key | row for key, one in zip(keys, swaps, strict=True) for row in one.tables.get(table.name, ())]
        swapped[table.name] = _frame(table, rows)
    findings = Findings((*of_comparison(built[0]).rows, *of_swap(swapped).rows))
    return Compared(a, b, pairs, built[0], built[1], built[2], findings, changed, swapped, [one.notes for one in swaps])


def _frame(table: Table, rows: list[Row]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table.build_rows(rows)))


def _pairs(rows_a: list[Row], rows_b: list[Row]) -> list[tuple[Row, Row]]:
    """The pairs of rows to compare: by model (or the only models) and temperature, else at the first temperatures."""
    pairs = []
    several = len({row["model"] for row in rows_a}) > 1 or len({row["model"] for row in rows_b}) > 1
    for model in dict.fromkeys(row["model"] for row in rows_b):
        model_rows = [row for row in rows_b if row["model"] == model]
        other_rows = [
            row
            for row in rows_a
            if not several or row["model"] == model or row["fingerprint"] == model_rows[0]["fingerprint"]
        ]
        by_temperature = {row["temperature"]: row for row in other_rows}
        same = [(by_temperature[row["temperature"]], row) for row in model_rows if row["temperature"] in by_temperature]
        pairs += same or [*zip(other_rows[:1], model_rows[:1], strict=False)]
    return pairs


def _measured(a: Row, b: Row, figure: str) -> bool:
    return a[figure] is not None and b[figure] is not None


def _figure(a: Row, b: Row, figure: str, shared: Shared | None) -> Row:
    """The row of one figure: its values in both runs and, where the embeddings give it, on the same texts."""
    errors = [standard_error(row, figure) for row in (a, b)]
    ends = ENDS.get(figure, ())
    alike = all(a[end] == b[end] for end in ends)  # With other ends it is a different figure.
    change = b[figure] - a[figure] if alike else None
    same = {"value_a_same_texts": None, "value_b_same_texts": None, "change_same_texts": None, "change_same_texts_se": None}
    if shared is not None and alike:
        same |= shared.figure(figure, tuple(a[end] for end in ends))
    rest = None if change is None or same["change_same_texts"] is None else change - same["change_same_texts"]
    return {
        "figure": figure, "value_a": a[figure], "value_b": b[figure], "change": change,
        "change_se": None if change is None or None in errors else math.hypot(*errors),  # type: ignore[arg-type]
        "same_texts": 0 if shared is None else shared.same,
        "change_of_corpus": rest,
    } | same  # fmt: skip


def _cells(run: Finished, row: Row) -> dict[tuple[int, int], Row]:
    table = run.tables["length_collapse"].filter(
        (pl.col("model") == row["model"]) & (pl.col("temperature") == row["temperature"])
    )
    cells = table.filter(pl.col("pairs") > 0).to_dicts()
    total = sum(cell["pairs"] for cell in cells)
    return {(cell["interval_a"], cell["interval_b"]): cell | {"share": cell["pairs"] / total} for cell in cells}


def _intervals(a: dict[tuple[int, int], Row], b: dict[tuple[int, int], Row]) -> list[Row]:
    """The change of the mean over all pairs as a sum over cells.

    With shares w and means m of the cells, Σ w_b·m_b − Σ w_a·m_a = Σ (w̄·Δm + Δw·(m̄ − M)), exactly, where bars are means
    over both runs and M is any constant, here the mean of both runs' means. A cell that one run lacks gets the other's
    mean.
    """
    overall = 0.5 * sum(cell["share"] * cell["cosine_mean"] for cells in (a, b) for cell in cells.values())
    rows = []
    for cell_key in sorted({*a, *b}):
        cell_a, cell_b = a.get(cell_key), b.get(cell_key)
        shares = [0.0 if cell is None else cell["share"] for cell in (cell_a, cell_b)]
        means = [None if cell is None else cell["cosine_mean"] for cell in (cell_a, cell_b)]
        known = [mean for mean in means if mean is not None]
        errors = [None if cell is None else cell["cosine_se_superpopulation"] for cell in (cell_a, cell_b)]
        moved = known[1] - known[0] if len(known) == 2 else 0.0
        rows.append(
            dict(zip(_CELL, cell_key, strict=True))
            | {"pairs_share_a": shares[0], "pairs_share_b": shares[1], "cosine_mean_a": means[0], "cosine_mean_b": means[1]}
            | {"change": moved if len(known) == 2 else None}
            | {"change_se": None if None in errors else math.hypot(*errors)}  # type: ignore[arg-type]
            | {"by_cosine": 0.5 * sum(shares) * moved}
            | {"by_lengths": (shares[1] - shares[0]) * (sum(known) / len(known) - overall)}
        )
    return rows


class Shared:
    """The texts that both runs have, by id, with both embeddings of each."""

    def __init__(self, both: pl.DataFrame, edges: list[int]) -> None:
        self._both, self._edges = both, edges
        self._nearness = tuple(mean_cosines(both[name].to_numpy()) for name in ("embedding", "embedding_b"))
        same = both.filter(pl.col("content_sha").eq_missing(pl.col("content_sha_b")))
        self.same = len(same)
        # Figures on the same texts use unchanged texts alone; a text's nearness is to all texts that both runs have.
        self._same = tuple(
            mean_cosines(same[name].to_numpy()) if self.same >= VALUES_FOR_AN_ERROR else np.zeros(0)
            for name in ("embedding", "embedding_b")
        )
        self._documents = documents_of_both(same)
        self._intervals = interval_of(same["tokens"].to_numpy(), edges)
        self._vectors = tuple(same[name] for name in ("embedding", "embedding_b"))

    @classmethod
    def of(cls, a: pl.DataFrame | None, b: pl.DataFrame | None, edges: list[int]) -> Shared | None:
        """The shared texts, or None where embeddings are gone or the runs share too few texts."""
        if a is None or b is None:
            return None
        both = a.join(b, on="text_id", suffix="_b").sort("text_id")
        if len(both) < VALUES_FOR_AN_ERROR:
            return None
        return cls(both, edges)

    def figure(self, figure: str, ends: tuple[int, ...]) -> Row:
        """A figure on the same texts in both runs, a gap between `ends`; empty where the embeddings do not give it."""
        if self.same < VALUES_FOR_AN_ERROR:
            return {}
        if figure == "cosine_mean":
            sets = [np.ones(self.same, dtype=bool)]
            per_text = self._same
        elif figure == "collapse_gap":
            sets = [self._intervals == self._edges.index(end) for end in ends[::-1]]
            if min(int(chosen.sum()) for chosen in sets) < VALUES_FOR_AN_ERROR:
                return {}
            inside = [_means_inside(vectors.to_numpy(), sets) for vectors in self._vectors]
            per_text = (inside[0], inside[1])
        else:
            return {}
        sign = (1.0, -1.0)
        values = [sum(s * float(means[chosen].mean()) for s, chosen in zip(sign, sets, strict=False)) for means in per_text]
        moved = per_text[1] - per_text[0]
        error = self._error([moved[chosen] for chosen in sets], sets)
        return {
            "value_a_same_texts": values[0], "value_b_same_texts": values[1], "change_same_texts": values[1] - values[0],
            "change_same_texts_se": error,
        }  # fmt: skip

    def _error(self, moved: list[np.ndarray], sets: list[Any]) -> float | None:
        """The error of a mean over pairs, or of a gap between two; None for too few documents."""
        if self._documents is None:
            return math.hypot(*(within_error(float(changes.var(ddof=1)), len(changes)) for changes in moved))
        documents = [self._documents[chosen] for chosen in sets]
        return finite(documents_error(moved, [2.0, -2.0][: len(moved)], documents))

    def moved(self, one_model: bool) -> list[Row]:
        """The rows of the texts whose mean cosine with the other shared texts changed most."""
        before, after = self._nearness
        change = after - before
        order = np.lexsort((np.arange(len(change)), -np.abs(change)))[:_LISTED]
        rows = self._both[order.tolist()]
        widths = {len(rows[name][0]) for name in ("embedding", "embedding_b")}
        cosines = [None] * len(rows)
        if one_model and len(widths) == 1:
            pairs = (rows[name].to_numpy().astype(np.float64) for name in ("embedding", "embedding_b"))
            cosines = np.einsum("nd,nd->n", *pairs).tolist()
        return [
            {
                "rank": place + 1, "text_id": row["text_id"], "edited": row["content_sha"] != row["content_sha_b"],
                "tokens_a": row["tokens"], "tokens_b": row["tokens_b"], "nearness_a": float(before[where]),
                "nearness_b": float(after[where]), "change": float(change[where]), "cosine_to_itself": cosines[place],
            }
            for place, (where, row) in enumerate(zip(order.tolist(), rows.to_dicts(), strict=True))
        ]  # fmt: skip


def _changes(a: pl.DataFrame | None, b: pl.DataFrame | None) -> Row:
    """The numbers of texts added, removed and edited, matched by id."""
    if a is None or b is None:
        return dict.fromkeys(("added", "removed", "edited"))
    both = a.select("text_id", "content_sha").join(b.select("text_id", "content_sha"), on="text_id", suffix="_b")
    edited = None if both["content_sha"].has_nulls() else int((both["content_sha"] != both["content_sha_b"]).sum())
    return {"added": len(b) - len(both), "removed": len(a) - len(both), "edited": edited}


def _means_inside(vectors: np.ndarray, sets: list[Any]) -> np.ndarray:
    """Each text's mean cosine with the others of its set; NaN for texts in no set."""
    means = np.full(len(vectors), np.nan)
    for chosen in sets:
        means[chosen] = mean_cosines(vectors[chosen])
    return means
