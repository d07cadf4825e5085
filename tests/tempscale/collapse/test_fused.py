"""The kernel that reads a block of cosines, interpreted on the CPU, against the sums and comparisons of the whole block.

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
from tempscale.collapse.aggregates import Block, Tile
from tempscale.collapse.cosine import cosine_tile, cosine_tiles
from tempscale.collapse.tiles import blocks, upper_triangle

if torch.cuda.is_available() and os.environ["TRITON_INTERPRET"] != "1":
    pytest.skip("on a GPU the kernel is tested in test_gpu.py", allow_module_level=True)


def cosines_of(rows, columns, seed=0, lattice=True):
    """A block of cosines, some of which are no pair."""
    random = np.random.default_rng(seed)
    own = random.integers(-64, 65, (rows, columns)) / 64 if lattice else random.uniform(-1, 1, (rows, columns))
    own[random.random((rows, columns)) < 0.1] = -np.inf
    return torch.tensor(own, dtype=torch.float32)


def expected(cosines, row_floor, column_floor, duplicate):
    """Both sums in float64, and where a pair reaches a floor."""
    pair = cosines > -torch.inf
    there = cosines.double()[pair]
    floors = torch.minimum(torch.minimum(row_floor[:, None], column_floor[None]), torch.tensor(duplicate))
    places = ((cosines >= floors) & pair).flatten().nonzero()[:, 0]
    return float(there.sum()), float(there.square().sum()), places


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (8, 512), (64, 64), (70, 1300), (9, 513)])
@pytest.mark.parametrize("duplicate", [0.9, 2.0])
def test_on_exact_numbers_sums_and_places_are_those_of_the_block(rows, columns, duplicate):
    cosines, random = cosines_of(rows, columns), np.random.default_rng(1)
    some = [0.5, 0.75, np.inf, -np.inf]  # A list that is not full takes every pair: −∞.
    floors = [torch.tensor(random.choice(some, n), dtype=torch.float32) for n in (rows, columns)]
    found = fused.scan(cosines, *floors, duplicate, rows * columns)
    first, second, places = expected(cosines, *floors, duplicate)
    assert (float(found.first), float(found.second)) == (first, second)
    assert torch.equal(found.places[: int(found.number)].sort().values.long(), places)
    if rows > 1:
        assert 0 < len(places) < rows * columns


def test_on_real_numbers_sums_are_those_of_float64():
    cosines = cosines_of(33, 700, lattice=False)
    floors = [torch.full((n,), torch.inf) for n in cosines.shape]
    found = fused.scan(cosines, *floors, 2.0, 1)
    first, second, places = expected(cosines, *floors, 2.0)
    assert float(found.first) == pytest.approx(first, rel=1e-12, abs=1e-9)
    assert float(found.second) == pytest.approx(second, rel=1e-12)
    assert len(places) == int(found.number) == 0


def test_pairs_beyond_what_is_listed_are_counted():
    cosines = cosines_of(40, 1100)
    floors = [torch.full((n,), 0.0) for n in cosines.shape]
    found, whole = (fused.scan(cosines, *floors, 2.0, most) for most in (100, cosines.numel()))
    assert int(found.number) == int(whole.number) > 1000
    listed = found.places.tolist()
    assert len(set(listed)) == 100
    assert set(listed) <= set(whole.places[: int(whole.number)].tolist())


# --- whole tiles -------------------------------------------------------------------------------------------------------


@pytest.fixture
def switched_on(monkeypatch):
    monkeypatch.setenv(gpu.FUSED, "1")
    monkeypatch.setattr(fused, "TILE_ROWS", 16)  # The interpreter takes its time for every program.
    monkeypatch.setattr(fused, "TILE_COLUMNS", 128)
    gpu.serves.cache_clear()
    assert gpu.serves("cpu:0")
    yield
    gpu.serves.cache_clear()


@pytest.mark.parametrize("looked", [1 << 22, 40, 0])
@pytest.mark.parametrize("diagonal", [True, False])
def test_a_tile_by_the_kernel_is_the_tile_of_the_cpu(switched_on, monkeypatch, diagonal, looked):
    """Also where more pairs reach a floor than are looked at at once."""
    monkeypatch.setattr(gpu, "LOOKED", looked)
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


def test_few_pairs_are_looked_at_once_lists_are_full(switched_on, monkeypatch):
    """The first block fills the lists from one in eight of its pairs; of the others few reach a floor."""
    monkeypatch.setattr(gpu, "COLUMNS", 64)
    random = np.random.default_rng(3)
    rows = random.normal(size=(512, 24)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    texts = Block(rows, np.zeros(512, int), random.permutation(512).astype(np.int32))
    looked = []
    own = fused.scan

    def scan(*given):
        found = own(*given)
        looked.append(int(found.number))
        return found

    monkeypatch.setattr(fused, "scan", scan)
    settings = {"diagonal": True, "neighbours": 1, "duplicate": 2.0, "listed": 0}
    found, expected = (cosine_tile(texts, texts, 1, **settings, device=device) for device in ("cpu:0", "cpu"))
    np.testing.assert_allclose(found.rows.cosine, expected.rows.cosine, atol=1e-6)
    assert len(looked) == 8
    assert 512 < sum(looked) < 512 * 511 // 2 // 8


def test_the_kernel_is_used_where_it_gives_what_torch_gives(monkeypatch):
    for value, device, expected in (("0", "cuda", False), ("", "cpu:0", False), ("1", "cpu:0", True)):
        monkeypatch.setenv(gpu.FUSED, value)
        gpu.serves.cache_clear()
        assert gpu.serves(device) is expected
    own = fused.scan
    for wrong in (
        lambda *given: own(*given)._replace(first=torch.tensor(0.0, dtype=torch.float64)),
        lambda *given: own(*given)._replace(number=torch.tensor([1])),
        lambda *given: 1 / 0,
    ):
        monkeypatch.setattr(fused, "scan", wrong)
        gpu.serves.cache_clear()
        assert gpu.serves("cpu:0") is False
    gpu.serves.cache_clear()
