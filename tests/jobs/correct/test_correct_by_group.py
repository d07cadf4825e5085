"""`tempscale correct` with `centre_by(column)`: the column of the table decides which mean is taken off each row."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from whole_run import corrected, digests, read_record

from tempscale.correction.fit import fit
from tempscale_jobs.errors import UsageError

pytestmark = pytest.mark.usefixtures("ray_session")

ROWS, DIM, UNIT = 700, 12, 100


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def table():
    """Vectors, and a column of years with gaps: 2024 is of few texts, and null is a group as for --by."""
    random = np.random.default_rng(0)
    years = random.choice([2021, 2022, 2023, None], ROWS, p=[0.5, 0.3, 0.1, 0.1]).tolist()
    years[:9] = [2024] * 9
    rows = random.standard_normal((ROWS, DIM)) + np.array([[float((year or 0) % 5)] for year in years])
    return (3 * rows).astype(np.float32), years  # Not of unit norm: they are compared by cosine.


@pytest.fixture(scope="module")
def correction(table):
    rows, years = table
    asking = torch.tensor(unit(np.random.default_rng(1).standard_normal((150, DIM))), dtype=torch.float32)
    documents = torch.tensor(unit(rows.astype(np.float64)), dtype=torch.float32)
    return fit("centre_by(year)", documents, None, asking, groups=["(none)" if y is None else str(y) for y in years])


@pytest.fixture
def folder(tmp_path, table, correction):
    write(tmp_path, pa.table({"id": [f"t{k}" for k in range(ROWS)], "year": table[1], "embedding": list(table[0])}))
    (tmp_path / "c.json").write_text(json.dumps(correction.as_data()))
    return tmp_path


def write(folder, table):
    pq.write_table(table, folder / "vectors.parquet", row_group_size=UNIT)


def run(folder, name="out", workers=1, **more):
    embeddings = {"source": str(folder / "vectors.parquet"), "unit_rows": UNIT}
    data = {"out": str(folder / name), "correction": str(folder / "c.json"), "execution": {"workers": workers}}
    corrected(data | {"embeddings": embeddings} | more)
    return folder / name


def vectors(out):
    return pl.concat([pl.read_parquet(file) for file in sorted((out / "vectors").glob("*.parquet"))])


def test_each_row_is_moved_by_the_mean_of_its_group(folder, table):
    """By the equation: the nine of 2024 are too few, so that the mean of all is taken off them."""
    found = vectors(run(folder))
    rows, years = table
    assert found["id"].to_list() == [f"t{k}" for k in range(ROWS)]
    assert found["year"].to_list() == years
    documents = unit(rows.astype(np.float64))
    means = {year: documents[[y == year for y in years]].mean(0) for year in (2021, 2022, 2023, None)}
    means[2024] = documents.mean(0)
    expected = unit(documents - np.array([means[year] for year in years]))
    np.testing.assert_allclose(np.stack(found["embedding"].to_list()), expected, atol=1e-6)
    assert read_record(folder / "out")["correction"]["name"] == "centre_by(year)"


def test_rows_that_are_rejected_leave_the_groups_of_the_others_as_they_are(folder, table):
    expected = np.stack(vectors(run(folder))["embedding"].to_list())
    rows = [None if k % 7 == 3 else row for k, row in enumerate(table[0])]
    write(folder, pa.table({"year": table[1], "embedding": pa.array(rows, pa.list_(pa.float32()))}))
    found = np.stack(vectors(run(folder, "fewer"))["embedding"].to_list())
    np.testing.assert_array_equal(found, expected[[k for k in range(ROWS) if k % 7 != 3]])


def test_two_workers_write_the_same_bytes_as_one(folder):
    expected = digests(run(folder), "vectors")
    assert len(expected) == ROWS // UNIT
    assert digests(run(folder, "two", workers=2), "vectors") == expected


def test_queries_need_no_such_column(folder, table, correction):
    write(folder, pa.table({"embedding": list(table[0])}))
    found = np.stack(vectors(run(folder, side="queries"))["embedding"].to_list())
    rows = torch.tensor(unit(table[0].astype(np.float64)))
    np.testing.assert_allclose(found, correction.queries(rows).numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("column", "named"),
    [
        ({"language": ["de"] * 9}, "no column 'year'; it has 'language', 'embedding': rename one to 'year'"),
        ({"year": [None, *[[1, 2]] * 8]}, "the value of 'year', named by the correction, is no text or number"),
    ],
)
def test_a_column_that_cannot_be_read_as_groups_is_refused_by_name(folder, table, column, named):
    write(folder, pa.table(column | {"embedding": list(table[0][:9])}))
    with pytest.raises(UsageError, match=named) as caught:
        run(folder)
    assert caught.value.exit_code == 2
    assert not (folder / "out" / "vectors").exists()


def test_texts_that_stand_for_numbers_and_columns_of_categories_are_the_same_groups(folder, table):
    expected = np.stack(vectors(run(folder))["embedding"].to_list())
    texts = pa.array([None if year is None else str(year) for year in table[1]])
    for name, column in (("texts", texts), ("categories", texts.dictionary_encode())):
        write(folder, pa.table({"year": column, "embedding": list(table[0])}))
        np.testing.assert_array_equal(np.stack(vectors(run(folder, name))["embedding"].to_list()), expected)
