"""Tiles of all pairs without a run: SOCM beside d×d matrices, and sums that are not those of every pair."""

import itertools
from dataclasses import replace

import numpy as np
import oracles
import pyarrow as pa
import pytest
import torch

from tempscale.collapse.aggregates import Block, CosineCells
from tempscale.collapse.cosine import cosine_tile, rounded
from tempscale.collapse.length import CosineSums
from tempscale.collapse.tiles import upper_triangle
from tempscale.second_order.moments import covariance_factor
from tempscale.stats.errors import documents_error
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import all_means_by_text
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks, cosine, socm, socm_tables
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.factors import factor_table
from tempscale_jobs.tables import parts

LENGTHS, DIM = (2, 3, 9, 4, 15, 6), 8  # Two texts have more tokens than dimensions.
FILES = [[0, 1, 2], [3], [4, 5]]
"""Texts of each part; the first group of parts has two of them."""
NAMES = [f"factors/part-{number:05d}.parquet" for number in range(len(FILES))]
TRIANGLE = upper_triangle(2)


# --- SOCM -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def clouds():
    random = np.random.default_rng(0)
    return [torch.from_numpy((random.normal(size=(n, DIM)) + 0.8).astype(np.float32)) for n in LENGTHS]


@pytest.fixture
def storage(tmp_path, clouds):
    """Factors of the texts as a run leaves them."""
    found = Storage(str(tmp_path))
    for name, texts in zip(NAMES, FILES, strict=True):
        table = factor_table(
            [f"t{k}" for k in texts], [LENGTHS[k] for k in texts], [covariance_factor(clouds[k]) for k in texts]
        )
        found.write_table(name, table)
    return found


@pytest.fixture
def tiled(storage):
    """A function that leaves the three tiles of both groups, and where they lie."""

    def leave(regularization=0.0):
        tiling = socm.PairTiles(storage, "partials/socm", regularization)
        sides = [socm.TileSide(0, NAMES[:2], 0), socm.TileSide(1, NAMES[2:], 4)]
        for i, j in TRIANGLE:
            socm.factor_tile(tiling, sides[i], sides[j])
        return tiling

    return leave


def assembled(tiling, **analysis):
    ids, tokens = np.array([f"t{k}" for k in range(len(LENGTHS))], dtype=object), np.array(LENGTHS)
    asked = Analysis.model_validate(analysis)
    return socm.assemble(tiling, TRIANGLE, socm.PairedTexts(ids, tokens, np.zeros(len(ids), int)), asked)


def test_a_tile_of_two_groups_has_the_published_codes_epsilon(storage, tiled, clouds):
    rows = storage.read_table(tiled(regularization=0.01).tile(0, 1)).to_pylist()
    assert [(row["row"], row["column"]) for row in rows] == [(i, j) for i in range(4) for j in (4, 5)]
    for row in rows:
        one, other = (clouds[row[side]].numpy() for side in ("row", "column"))
        assert row["d_sigma"] == pytest.approx(oracles.published_d_sigma(one, other, 0.01), abs=1e-5)
        assert oracles.d_sigma(one, other) - row["d_sigma"] > 0.05


def test_the_tiles_together_are_all_pairs_of_the_sample(tiled, clouds):
    sample = assembled(tiled(), socm_alpha=2.0, socm_beta=0.5)
    for one, other in zip(*np.triu_indices(len(clouds), 1), strict=True):
        pair = clouds[one].numpy(), clouds[other].numpy()
        assert sample.d_mu[one, other] == pytest.approx(oracles.d_mu(*pair), abs=1e-6)
        assert sample.d_sigma[one, other] == pytest.approx(oracles.d_sigma(*pair), abs=1e-5)
        assert sample.value[one, other] == pytest.approx(oracles.socm(*pair, 2.0, 0.5), abs=5e-5)
        assert sample.d_sigma[one, other] > 0.05
    for found in (sample.d_mu, sample.d_sigma, sample.value):
        np.testing.assert_array_equal(found, found.T)
        assert np.isnan(np.diag(found)).all()


@pytest.mark.parametrize("lost", ["a row", "a number"])
def test_a_pair_that_did_not_come_is_told(storage, tiled, lost):
    tiling = tiled()
    table = storage.read_table(tiling.tile(0, 1))
    values = {name: table.column(name).to_numpy().copy() for name in table.column_names}
    if lost == "a row":
        values = {name: column[1:] for name, column in values.items()}
    else:
        values["d_sigma"][3] = np.nan
    storage.write_table(tiling.tile(0, 1), parts.SOCM_TILE.build(values))
    with pytest.raises(IncompleteRun, match=r"d_Σ of 1 pair.*--fresh"):
        assembled(tiling)


def test_errors_of_cells_are_those_of_documents_where_texts_come_in_some():
    values = np.random.default_rng(0).uniform(0.1, 1.3, (60, 60))
    values = (values + values.T) / 2
    np.fill_diagonal(values, np.nan)
    interval, documents = np.repeat([0, 1], 30), np.repeat(np.arange(30), 2)
    sample = socm_tables.Sample(np.arange(60).astype(str), np.full(60, 9), interval, values, values, values)
    first, second = interval == 0, interval == 1
    means, block = np.nanmean(values[np.ix_(first, first)], axis=1), values[np.ix_(first, second)]
    rows = socm_tables.cells((0, 32), sample, np.ones(2), True, documents)
    assert [(row["interval_a"], row["interval_b"]) for row in rows] == [(0, 0), (0, 32), (32, 32)]
    assert rows[0]["socm_se_superpopulation"] == pytest.approx(documents_error([means], [2.0], [documents[first]]))
    assert rows[1]["socm_se_superpopulation"] == pytest.approx(
        documents_error([block.mean(1), block.mean(0)], [1.0, 1.0], [documents[first], documents[second]])
    )
    alone = socm_tables.cells((0, 32), sample, np.ones(2), True)
    assert alone[0]["socm_se_superpopulation"] == pytest.approx(oracles.within_error(means))
    assert rows[0]["socm_mean"] == alone[0]["socm_mean"]


# --- cosine -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cells_and_sums():
    """Seven texts in two length intervals: what their one tile adds up to, and their closed form."""
    rows = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    interval = np.array([0, 0, 0, 1, 1, 1, 1])
    block = Block(rows, interval, np.arange(7, dtype=np.int32))
    return cosine_tile(block, block, 2, diagonal=True).cells, CosineSums.of(rows, interval, 2)


def test_tiles_that_hold_a_pair_twice_or_not_at_all_or_other_sums_are_refused(cells_and_sums):
    cells, sums = cells_and_sums
    cosine.check_closed_form(cells, sums, "float32", 5)

    def refused(named, wrong):
        with pytest.raises(IncompleteRun, match=f"{named}.*--fresh"):
            cosine.check_closed_form(wrong, sums, "float32", 5)

    fewer, moved = cells.pairs.copy(), cells.histogram.copy()
    fewer[0, 1] -= 1
    moved[1, 1, 7] += 1
    for wrong in (cells.merged(cells), replace(cells, pairs=fewer), replace(cells, histogram=moved)):
        refused("every pair exactly once", wrong)
    for name, away in itertools.product(("first", "second"), (1e-3, -1e-3, np.nan)):
        total = getattr(cells, name).copy()
        total[0, 1] += away
        refused("closed form", replace(cells, **{name: total}))


def cut_off(values):
    """Float64 values as float32, rounded towards 0 as tensor cores do when they accumulate."""
    found = values.astype(np.float32)
    return np.where(np.abs(found.astype(np.float64)) > np.abs(values), np.nextafter(found, np.float32(0)), found)


def on_tensor_cores(left, right, together):
    """Products of rounded factors: `together` of them exactly, each group then added to a float32 that is cut off."""
    total = np.zeros((len(left), len(right)), dtype=np.float32)
    for start in range(0, left.shape[1], together):
        part = left[:, start : start + together].astype(np.float64) @ right[:, start : start + together].T.astype(np.float64)
        total = cut_off(total.astype(np.float64) + part)
    return total


@pytest.mark.parametrize("together", [4, 8, 16])
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
@pytest.mark.parametrize("mean", [0.1, 0.75])
def test_tiles_of_tensor_cores_are_accepted_and_lost_and_doubled_ones_are_not(precision, mean, together):
    rows = np.random.default_rng(3).normal(size=(96, 768)).astype(np.float32)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    rows[:, 0] += np.sqrt(mean / (1 - mean))
    rows = rounded((rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32), precision)
    interval = np.zeros(96, dtype=np.int64)
    sums = CosineSums.of(rows, interval, 1)
    own = on_tensor_cores(rows, rows, together)[np.triu_indices(96, 1)].astype(np.float64)
    cells = CosineCells.empty(1)
    cells.pairs[0, 0], cells.histogram[0, 0, 0] = len(own), len(own)
    cells.first[0, 0], cells.second[0, 0] = own.sum(), (own**2).sum()
    assert own.mean() == pytest.approx(mean, abs=0.02)
    cosine.check_closed_form(cells, sums, precision, 768)
    if mean > 0.5 and together == 4:
        with pytest.raises(IncompleteRun, match="closed form"):  # As they were before.
            cosine.check_closed_form(cells, sums, "float32", 768)
    half = {name: getattr(cells, name) * 0.5 for name in ("first", "second")}
    for wrong in (cells.merged(cells), replace(cells, **half)):
        with pytest.raises(IncompleteRun):
            cosine.check_closed_form(wrong, sums, precision, 768)


@pytest.mark.parametrize("some", [True, False])
def test_means_by_text_name_the_document_of_each_text(tmp_path, some):
    """A text without a document among others is a document of its own; where no text has one, none is named."""
    grid = Tiling(Storage(str(tmp_path)), "partials/cosine", 2, 0, 1.0, 0, 1)
    rows = np.eye(3, 4, dtype=np.float32)
    columns = {"embedding": parts.row_bytes(rows), "interval": [0, 0, 1], "label": [0, 0, 0], "text_id": ["a", "b", "c"]}
    columns["document"] = [7, None, 7] if some else [None] * 3
    grid.storage.write_table(grid.block(0), parts.blocks(4).build(columns), "none")
    sums = CosineSums.of(rows, np.array([0, 0, 1]), 2)
    found = cosine.block_means(grid, 0, sums, (0, 20), some)
    (name,) = all_means_by_text(grid.storage, grid.place)
    table = grid.storage.read_table(name).to_pydict()
    assert table["document"] == ([7, own_document("b"), 7] if some else [None] * 3)
    assert (table["text_id"], table["group"]) == (["a", "b", "c"], [0, 0, 20])
    np.testing.assert_allclose(table["inside"], [0, 0, np.nan])
    np.testing.assert_allclose(table["overall"], [0, 0, 0])
    assert (found.documents is not None) == some
    if some:
        first, second = found.documents
        assert first.documents.tolist() == sorted([7, own_document("b")])
        assert (first.texts.tolist(), second.documents.tolist(), second.texts.tolist()) == ([1, 1], [7], [1])
    assert [own.values.tolist() for own in found.moments] == [[2, 2], [1, 0]]
    both = found.merged(found)
    assert [own.values.tolist() for own in both.moments] == [[4, 4], [2, 0]]
    assert [own.texts.tolist() for own in both.documents or ()] == ([[2, 2], [2]] if some else [])
    assert found.merged(found._replace(documents=None)).documents is None


def test_a_part_without_rows_is_a_matrix_of_its_width():
    empty = parts.near_tile(3).build({"cosine": pa.array([], pa.list_(pa.float32(), 3)), "label": []})
    assert parts.matrix(empty, "cosine").shape == (0, 3)


def test_cells_without_pairs_are_read_as_zeros(tmp_path):
    grid = Tiling(Storage(str(tmp_path)), "partials/cosine", 2, 3, 0.99, 10, 1)
    grid.storage.write_table(grid.cells(0, 0), parts.COSINE_TILE.build_rows([]))
    found = blocks.read_cells(grid, 0, 0)
    assert found.pairs.shape == (2, 2)
    assert found.pairs.sum() == found.histogram.sum() == 0
