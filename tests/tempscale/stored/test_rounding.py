"""How far storage may move a vector: each bound holds for every vector, is reached, and a vector beyond it is noticed."""

import math

import numpy as np
import pytest
import torch

from tempscale.stored.rounding import (
    Storage,
    compare_bits,
    compare_codes,
    cosine,
    float_error,
    float_format,
    is_whole,
    largest_gap,
    step_error,
)

DIM = 384
CASTS = {
    "float32": lambda x: x.astype(np.float32).astype(np.float64),
    "float16": lambda x: x.astype(np.float16).astype(np.float64),
    "bfloat16": lambda x: torch.from_numpy(x).to(torch.bfloat16).double().numpy(),
}


def drawn(seed, rows=200, dim=DIM):
    vectors = np.random.default_rng(seed).normal(size=(rows, dim))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("kind", CASTS)
@pytest.mark.parametrize("norm", [1.0, 30.0, 1e-3])
def test_no_vector_moves_further_than_its_format_explains(kind, norm):
    for u in drawn(1) * norm:
        v = CASTS[kind](u)
        distance = np.linalg.norm(v - u) / np.linalg.norm(u)
        assert distance <= float_error(kind, DIM, norm)
        assert 1 - v @ u / np.linalg.norm(v) / np.linalg.norm(u) <= largest_gap(float_error(kind, DIM, norm)) + 1e-15
        found = Storage().compare(v, u, 0.0)
        assert found.is_within
        assert found.has_its_norm
        assert found.norm_ratio == pytest.approx(np.linalg.norm(v) / norm)


@pytest.mark.parametrize(("kind", "digits"), [("float16", 11), ("bfloat16", 8), ("float32", 24)])
def test_the_bound_is_reached_by_a_number_half_way_between_two(kind, digits):
    u = np.array([1 + 2.0**-digits, 0.0])  # Rounded to 1: the error is 2⁻ᵈ of 1 + 2⁻ᵈ.
    moved = abs(CASTS[kind](u) - u).max() / u[0]
    assert moved == pytest.approx(2.0**-digits, rel=2.0 ** (1 - digits))
    assert moved <= float_error(kind, 2, u[0])


@pytest.mark.parametrize("finer", ["float32", "float16"])
def test_a_coarser_format_is_further_away_than_a_finer_one_explains(finer):
    coarser = {"float32": "float16", "float16": "bfloat16"}[finer]
    beyond = [1 - cosine(CASTS[coarser](u), u) > largest_gap(float_error(finer, DIM, 1.0)) for u in drawn(2)]
    assert np.mean(beyond) > 0.99


def test_the_format_of_a_vector_is_the_coarsest_that_holds_its_numbers():
    for u in drawn(3, rows=5):
        assert float_format(u) == "float64"
        assert {float_format(cast(u)): name for name, cast in CASTS.items()} == {name: name for name in CASTS}
    assert float_format(np.array([0.5, 0.25])) == "bfloat16"
    assert float_format(np.array([2.0**100, 1 + 2.0**-12])) == "float32"  # Beyond what float16 holds.


@pytest.mark.parametrize("places", [4, 6])
def test_numbers_that_were_rounded_in_text_are_within_half_a_decimal(places):
    for u in drawn(9, rows=20):
        v = np.round(u, places)
        assert float_format(v) == f"{places} decimals"
        assert (
            np.linalg.norm(v - u)
            <= float_error(f"{places} decimals", DIM, 1.0)
            == pytest.approx(0.5 * 10.0**-places * DIM**0.5)
        )
        assert Storage().compare(v, u, 0.0).is_within
        assert not Storage().compare(np.round(u, places - 1), np.roll(u, 1), 0.0).is_within


def test_a_scale_has_a_number_for_each_dimension_or_is_one_number():
    codes = np.array([10.0, -20.0, 30.0])
    assert Storage(scale=0.5).numbers(codes).tolist() == [5.0, -10.0, 15.0]
    assert Storage(scale=(0.1, 0.2, 0.3)).numbers(codes[:2]) == pytest.approx([1.0, -4.0])
    assert [Storage(scale=(0.1, 0.2)).fits(dim) for dim in (1, 2, 3)] == [True, True, False]
    unit = np.array([0.6, 0.8, 0.0])
    of_unit = Storage(scale=0.01).compare(np.array([60.0, 80.0, 0.0]), 7.3 * unit, 1e-6)
    assert of_unit.is_within  # The database normalised before it took codes.
    assert of_unit.norm_ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("row", "whole"), [([3, -128], True), ([255, 0], True), ([1, 0], False), ([1.5, 3], False), ([300, 2], False)]
)
def test_whole_numbers_of_eight_bits_are_codes(row, whole):
    assert is_whole(np.array(row, dtype=np.float64)) is whole


def codes_of(u, scale):
    return np.clip(np.rint(u / scale), -128, 127)


def test_codes_with_a_step_for_each_dimension_are_within_half_a_step():
    scale = np.linspace(0.002, 0.004, DIM)
    for u in drawn(4):
        codes = codes_of(u, scale)
        assert np.linalg.norm(codes * scale - u) <= step_error(scale, DIM, 1.0)
        known, unknown = compare_codes(codes, u, 0.0, scale), compare_codes(codes_of(u, 0.003), u, 0.0, None)
        assert known.is_within
        assert known.has_its_norm
        assert unknown.is_within
        assert unknown.norm_ratio is None
    assert step_error(0.002, DIM, 1.0) == pytest.approx(0.001 * math.sqrt(DIM))  # The same step for all.


def test_codes_are_compared_with_what_their_range_can_hold():
    u = np.array([1.0, 0.02, -0.01, 0.0])
    clipped = compare_codes(codes_of(u, 0.001), u, 0.0, 0.001)
    assert clipped.is_within  # 1.0 became 0.127.
    assert not compare_codes(codes_of(u[::-1], 0.001), u, 0.0, 0.001).is_within


def test_a_vector_of_another_text_is_no_rounding():
    u, other = drawn(5, rows=2)
    for storage, stored in (
        (Storage(), other), (Storage(), CASTS["bfloat16"](other)), (Storage(scale=0.002), codes_of(other, 0.002)),
        (Storage(bits=True), np.sign(other)),
    ):  # fmt: skip
        assert not storage.compare(stored, u, 1e-3).is_within


def test_bits_may_differ_only_where_a_number_is_near_zero():
    u = np.array([0.8, -0.6, 1e-7, 0.0])
    for signs, within in (([1, -1, 1, -1], True), ([1, -1, -1, 1], True), ([1, 1, 1, 1], False)):
        found = compare_bits(np.array(signs, dtype=np.float64), u, 1e-6)
        assert found.is_within is within
        assert found.norm_ratio is None
    assert compare_bits(np.array([1.0, 1.0, 1.0, 1.0]), u, 1e-6).cosine == pytest.approx(0.5)  # One of four differs.


def test_the_gap_of_a_distance_by_hand_and_at_its_ends():
    assert largest_gap(0.0) == 0.0
    assert largest_gap(0.6) == pytest.approx(0.2)  # A right triangle: sin = .6, cos = .8.
    assert largest_gap(1.0) == 2.0
    worst = max(
        1 - cosine(np.array([1 - 0.6 * math.sin(a), 0.6 * math.cos(a)]), np.array([1.0, 0.0]))
        for a in np.linspace(0, 6.3, 10_000)
    )
    assert worst == pytest.approx(largest_gap(0.6), abs=1e-6)


def test_the_cosine_keeps_small_angles_and_any_scale():
    u = drawn(6, rows=1)[0]
    assert cosine(u, 3e200 * u) == 1.0
    other = u + 1e-9 * drawn(7, rows=1)[0]
    assert 0 < 1 - cosine(u, u + 1e-6 * drawn(7, rows=1)[0]) < 1e-12
    assert cosine(u, other) == pytest.approx(1.0, abs=1e-15)
    assert cosine(u, np.zeros(DIM)) == 0.0


def test_the_norm_is_judged_apart_from_the_direction():
    u = drawn(8, rows=1)[0]
    longer = Storage().compare(1.01 * u, u, 1e-5)
    assert longer.is_within
    assert not longer.has_its_norm


def test_codes_of_sentence_transformers_are_within_the_step_that_it_cuts_off():
    from sentence_transformers.util.quantization import quantize_embeddings

    vectors = drawn(9)
    ranges = np.stack([vectors.min(0), vectors.max(0)])
    codes = quantize_embeddings(vectors, precision="int8", ranges=ranges).astype(np.float64)
    steps = (ranges[1] - ranges[0]) / 255
    storage = Storage(scale=tuple(steps), offset=tuple(ranges[0] + 128 * steps))
    for row, u, other in zip(codes, vectors, vectors[::-1], strict=True):
        assert np.abs(storage.numbers(row) - u).max() <= 1.001 * steps.max()
        found = storage.compare(row, u, 0.0)
        assert found.is_within
        assert found.has_its_norm
        assert not storage.compare(row, other, 0.0).is_within
    rounded = [compare_codes(row, u, 0.0, steps, None) for row, u in zip(codes, vectors, strict=True)]
    assert not any(found.is_within for found in rounded)  # Without the offset they are other vectors.
