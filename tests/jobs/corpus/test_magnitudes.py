"""Vectors of any magnitude and type: v and c·v are one direction; ordinary ones keep their bytes; what is no vector."""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus.vectors import Reader, unit_rows
from tempscale_jobs.corpus.vectors import rows as vectors_of


def reader(**settings):
    given = {"source": "x", "embedding_column": "v", "length_column": "n"} | settings
    return Reader(Corpus.model_validate(given))


def unit(*values):
    return np.float32(values) / np.linalg.norm(values)


SCALES = [1e-300, 1e-200, 1e-60, 1e-43, 1e-30, 1e30, 1e39, 1e200, 1e300]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("kind", [np.asarray, list, lambda row: [Decimal(float(value)) for value in row]])
def test_a_vector_and_any_multiple_of_it_are_the_same(scale, kind):
    row = np.random.default_rng(3).normal(size=96)
    (found, _), _ = reader()((kind(scale * row), 7, None))
    np.testing.assert_allclose(found, row / np.linalg.norm(row), rtol=1.2e-7)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([3e-320, 4e-320], unit(3, 4)),
        ([5e-324, 5e-324], unit(1, 1)),
        (np.float64([1.5e308, 1.5e308]), unit(1, 1)),
        (np.float32([3e-44, 4e-44]), unit(21, 29)),  # Subnormal: multiples of 2⁻¹⁴⁹.
        (np.float32([3e38, 3e38]), unit(1, 1)),
        (np.float16([6e4, 6e4]), unit(1, 1)),
        ([2**62, -(2**62)], unit(1, -1)),
        ([10**300, 10**300], unit(1, 1)),
        ([Decimal("3e-200"), Decimal("4e-200")], unit(3, 4)),
        ([1e308, 1e-308], unit(1, 0)),
    ],
)
def test_the_smallest_and_the_largest_numbers_have_a_direction(value, expected):
    (found, _), _ = reader()((value, 7, None))
    np.testing.assert_allclose(found, expected, rtol=1.2e-7)


@pytest.mark.parametrize(
    ("settings", "value", "expected"),
    [
        ({}, [3, 4], unit(3, 4)),
        ({}, np.float64([0.5, -0.5]), unit(1, -1)),
        ({}, np.float16([3, 4]), unit(3, 4)),
        ({"scale": [1.0, 0.5]}, np.int8([3, 8]), unit(3, 4)),
        ({"scale": 2.0}, np.int8([-3, 4]), unit(-3, 4)),
        ({"dims": 2}, [3.0, 4.0, 100.0], unit(3, 4)),
        ({"bits": True}, bytes([0b10100000]), unit(1, -1, 1, -1, -1, -1, -1, -1)),
        ({"bits": True}, np.int8([-128]), unit(1, -1, -1, -1, -1, -1, -1, -1)),
        ({"bits": True, "dims": 3}, [0b11000000], unit(1, 1, -1)),
    ],
)
def test_a_value_becomes_a_unit_vector(settings, value, expected):
    (row, length), problem = reader(**settings)((value, 7, None))
    assert (problem, length, row.dtype) == (None, 7, np.float32)
    np.testing.assert_allclose(row, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "length", "named"),
    [
        (None, 3, "null"), ("abc", 3, "no list of numbers"), ([], 3, "two numbers"), ([1.0], 3, "two numbers"),
        ([[1.0, 2.0]], 3, "two numbers"), ([1.0, float("nan")], 3, "not finite"), ([1.0, float("inf")], 3, "not finite"),
        ([0.0, 0.0], 3, "no direction"), ([10**400, 1], 3, "not finite"), ([Decimal("1e400"), 1], 3, "not finite"),
        ([1.0, None], 3, "not finite"), ([1.0, "x"], 3, "no list of numbers"), ([1.0, 2.0, 3.0], 3, "3 dimensions"),
        *((text, 3, "no list of") for text in ("", "[1", "{}", "[[1, 2]]", "3", "[" * 100_000)),
        ([1.0, 2.0], None, "length"), ([1.0, 2.0], 0, "length"), ([1.0, 2.0], 2.5, "length"), ([1.0, 2.0], "nine", "length"),
    ],
)  # fmt: skip
def test_what_is_no_embedding_is_refused_with_a_reason(value, length, named):
    read = reader()
    assert read(([1.0, 0.0], 3, None))[1] is None
    found, problem = read((value, length, None))
    assert found is None
    assert named in problem


def test_ordinary_vectors_keep_their_bytes():
    rows = np.random.default_rng(4).normal(size=(300, 48)).astype(np.float32) * np.float32(7)
    read = reader()
    for row in rows:
        expected = (row / np.linalg.norm(row.astype(np.float64))).astype(np.float32)
        assert read((row, 7, None))[0][0].tobytes() == expected.tobytes()


def test_a_matrix_of_vectors_has_those_of_its_rows_and_a_reason_for_each_other_one():
    rows = np.array([[3e-250, 4e-250], [0, 0], [np.nan, 1], [6e300, 8e300], [np.inf, 0], [-3, 4]])
    found, wrong = unit_rows(rows)
    assert sorted(wrong) == [1, 2, 4]
    assert wrong[2] == wrong[4] != wrong[1]
    np.testing.assert_allclose(found[[0, 3, 5]], [[0.6, 0.8], [0.6, 0.8], [-0.6, 0.8]], rtol=1e-15)


def test_a_scale_is_no_less_precise_than_the_numbers_that_it_multiplies():
    row, scale = np.arange(-20, 20, dtype=np.int8), np.random.default_rng(5).uniform(1e-45, 1e-44, 40)
    found = reader(scale=scale.tolist())((row, 7, None))[0][0]
    np.testing.assert_allclose(found, row * scale / np.linalg.norm(row * scale * 1e44) * 1e44, rtol=1.2e-7)


@pytest.mark.parametrize("kind", [pa.float64(), pa.decimal256(76, 60)])
def test_columns_of_tiny_numbers_are_read_from_a_file_as_they_are(tmp_path, kind):
    rows = [[3e-43, 4e-43], [8e-43, 6e-43]]
    pq.write_table(pa.table({"v": pa.array([list(map(Decimal, map(str, r))) if kind != pa.float64() else r for r in rows],
                             pa.list_(kind)), "n": [5, 6]}), tmp_path / "v.parquet")  # fmt: skip
    given = Corpus.model_validate({"source": str(tmp_path / "v.parquet"), "embedding_column": "v", "length_column": "n"})
    read = Reader(given)
    found = [read(row.text)[0][0] for row in vectors_of(given)]
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.8, 0.6]], rtol=1.2e-7)
