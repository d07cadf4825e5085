"""The kernel of a block of cosines, interpreted on the CPU, against the sums, bins and comparisons of the whole product.

Needs Triton (TRITON_INTERPRET=1), which a CPU build of torch does not bring: pip install triton.
"""

import os

import numpy as np
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from blocks_of_texts import part, same, texts_of

from tempscale.collapse import fused, gpu
from tempscale.collapse.aggregates import BINS, Block, Tile
from tempscale.collapse.cosine import cosine_tile, cosine_tiles, rounded
from tempscale.collapse.grid import blocks, upper_triangle

if torch.cuda.is_available() and os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("on a GPU the kernel is tested in test_gpu.py", allow_module_level=True)


def texts(rows, dim, seed, lattice):
    random = np.random.default_rng(seed)
    if lattice:  # Multiples of 1/8 whose products are exact in float32.
        return torch.tensor(random.integers(-2, 3, (rows, dim)) / 8, dtype=torch.float32)
    own = random.normal(size=(rows, dim)) + 0.3
    return torch.tensor(own / np.linalg.norm(own, axis=1, keepdims=True), dtype=torch.float32)


def expected(left, right, below, row_floor, column_floor, duplicate):
    """Pairs that count, their cosines in float64, and which tiles hold one that reaches a floor."""
    cosines = left.double() @ right.double().T
    row, column = torch.arange(len(left))[:, None], torch.arange(len(right))
    counted = (column >= row + below) if below is not None else torch.ones_like(cosines, dtype=torch.bool)
    floors = torch.minimum(torch.minimum(row_floor[:, None], column_floor[None]), torch.tensor(duplicate)).double()
    return cosines, counted, counted & (cosines >= floors)


def by_tile(reach):
    side = fused.SIDE
    height, width = (-(-n // side) * side for n in reach.shape)
    padded = torch.zeros(height, width, dtype=torch.bool)
    padded[: reach.shape[0], : reach.shape[1]] = reach
    return padded.view(height // side, side, width // side, side).any(3).any(1)


@pytest.mark.parametrize("below", [None, 1, -20, 40])
@pytest.mark.parametrize(("rows", "columns", "dim"), [(1, 1, 3), (64, 64, 32), (70, 130, 24), (90, 33, 100)])
def test_on_exact_numbers_every_count_is_that_of_the_product(rows, columns, dim, below):
    left, right = texts(rows, dim, 0, True), texts(columns, dim, 1, True)
    floors = torch.full((rows,), 0.45), torch.full((columns,), 0.5)
    found = fused.block(left, right, "float32", *floors, 0.75, below)
    cosines, counted, reach = expected(left, right, below, *floors, 0.75)
    own = cosines[counted]
    bins = ((own + 1) * (BINS / 2)).long().clamp(0, BINS - 1)
    assert torch.equal(found.histogram, torch.bincount(bins, minlength=BINS))
    assert float(found.first) == float(own.sum())
    assert float(found.second) == float(own.square().sum())
    assert torch.equal(found.reached, by_tile(reach))
    assert found.histogram.sum() == counted.sum()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_on_real_numbers_it_is_within_rounding(precision):
    both = [torch.from_numpy(rounded(texts(n, 96, n, False).numpy(), precision)) for n in (150, 100)]
    given = both  # The interpreter has no products of bfloat16: on a GPU they are in test_gpu.py.
    floors = torch.full((150,), 0.3), torch.full((100,), 0.35)
    found = fused.block(*given, precision, *floors, 0.9)
    cosines, _, reach = expected(*both, None, *floors, 0.9)
    assert float(found.first) == pytest.approx(float(cosines.sum()), rel=1e-6)
    assert float(found.second) == pytest.approx(float(cosines.square().sum()), rel=1e-6)
    bins = torch.bincount(((cosines.flatten() + 1) * (BINS / 2)).long(), minlength=BINS)
    assert int((found.histogram.cumsum(0) - bins.cumsum(0)).abs().max()) <= 3
    assert not (by_tile(reach) & ~found.reached).any()  # No tile with a candidate is left out.
    assert found.histogram.sum() == 15_000


def test_a_floor_is_met_with_a_margin_for_another_order_of_sums():
    left = torch.tensor([[1.0, 0.0]])
    right = torch.tensor([[0.5, 0.0]])
    for away, reached in ((0.0, True), (fused.MARGIN / 2, True), (2 * fused.MARGIN, False)):
        found = fused.block(left, right, "float32", torch.tensor([0.5 + away]), torch.tensor([2.0]), 2.0)
        assert bool(found.reached) == reached


# --- whole tiles -------------------------------------------------------------------------------------------------------


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setenv(gpu.FUSED, "1")
    gpu.serves.cache_clear()
    assert gpu.serves("cpu:0", "float32")
    yield
    gpu.serves.cache_clear()


@pytest.mark.parametrize("share", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("diagonal", [True, False])
def test_a_tile_by_the_kernel_is_the_tile_of_the_cpu(switched_on, monkeypatch, diagonal, share):
    monkeypatch.setattr(gpu, "_PART", share)
    both = texts_of(330, seed=4)
    rows, columns = (both, both) if diagonal else (part(both, 0, 140), part(both, 140, 330))
    settings = {"diagonal": diagonal, "neighbours": 4, "duplicate": 0.5, "listed": 100}
    same(cosine_tile(rows, columns, 3, **settings, device="cpu:0"), cosine_tile(rows, columns, 3, **settings))


@pytest.mark.parametrize(("neighbours", "duplicate"), [(0, 2.0), (0, 0.5), (3, 2.0)])
def test_many_tiles_by_the_kernel_find_what_the_cpu_finds(switched_on, neighbours, duplicate):
    texts = texts_of(200, seed=9)
    parts = [part(texts, *bounds) for bounds in blocks(200, 70)]
    tiles = [Tile(i, parts[i], j, parts[j]) for i, j in upper_triangle(len(parts))]
    how = {"neighbours": neighbours, "duplicate": duplicate, "listed": 30}
    found, expected = (cosine_tiles(tiles, 3, **how, device=device) for device in ("cpu:0", "cpu"))
    for name in ("pairs", "histogram", "duplicates"):
        np.testing.assert_array_equal(getattr(found.cells, name), getattr(expected.cells, name))
    np.testing.assert_array_equal(found.duplicates.labels, expected.duplicates.labels)
    for number, own in expected.near.items():
        np.testing.assert_array_equal(found.near[number].label, own.label)
        np.testing.assert_array_equal(found.near[number].cosine, own.cosine)


def test_few_tiles_are_multiplied_again_once_lists_are_full(switched_on, monkeypatch):
    """Texts of a group are alike: the first block fills the lists, and of the others hardly a tile reaches a floor."""
    monkeypatch.setattr(gpu, "_COLUMNS", 64)
    random = np.random.default_rng(3)
    rows = random.normal(size=(512, 24)).astype(np.float32) * 0.1
    rows[:, 0] += 1.0
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    texts = Block(rows, np.zeros(512, int), random.permutation(512).astype(np.int32))
    looked = []
    own = gpu._Found._look_at

    def look_at(self, tiles, *given):
        looked.append(len(tiles))
        own(self, tiles, *given)

    monkeypatch.setattr(gpu._Found, "_look_at", look_at)
    monkeypatch.setattr(gpu, "_PART", 1.0)
    settings = {"diagonal": True, "neighbours": 1, "duplicate": 2.0, "listed": 0}
    found, expected = (cosine_tile(texts, texts, 1, **settings, device=device) for device in ("cpu:0", "cpu"))
    np.testing.assert_allclose(found.rows.cosine, expected.rows.cosine, atol=1e-6)
    assert 0 < sum(looked) <= 36  # Of 36 tiles on and above the diagonal.


def test_the_kernel_is_used_where_it_gives_what_the_product_gives(monkeypatch):
    for value, device, expected in (("0", "cuda", False), ("", "cpu:0", False), ("1", "cpu:0", True)):
        monkeypatch.setenv(gpu.FUSED, value)
        gpu.serves.cache_clear()
        assert gpu.serves(device, "float32") is expected
    for wrong in (
        lambda *given: fused.Fused(torch.tensor(0.0), torch.tensor(0.0), torch.zeros(BINS), torch.zeros(1, 1).bool()),
        lambda *given: 1 / 0,
    ):
        monkeypatch.setattr(fused, "block", wrong)
        gpu.serves.cache_clear()
        assert gpu.serves("cpu:0", "float32") is False
    gpu.serves.cache_clear()
