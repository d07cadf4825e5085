"""`tempscale correct`: the same vectors as by hand, for any number of workers and after a kill; bad input is a sentence."""

import json
import shlex

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from command_line import parsed
from golden_words import ending, masked, same
from whole_run import checked_json, corrected, digests, read_record

from tempscale.correction.fit import fit
from tempscale_jobs.config.fitted import load
from tempscale_jobs.config.strict import checked
from tempscale_jobs.correct import units
from tempscale_jobs.errors import UsageError

pytestmark = pytest.mark.usefixtures("ray_session")

ROWS, DIM = 700, 12
RECIPES = ["length", "centre", "centre(unit)", "whiten(0.5)", "csls(5, 0.5)"]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def table():
    random = np.random.default_rng(0)
    rows = random.standard_normal((ROWS, DIM)) + 2 * np.eye(DIM)[0]
    lengths = random.integers(1, 900, ROWS)
    rows[:, 1] += lengths / 300
    return (3 * rows).astype(np.float32), lengths  # Not of unit norm: they are compared by cosine.


@pytest.fixture(scope="module")
def asking():
    random = np.random.default_rng(1)
    return unit(random.standard_normal((150, DIM)) + np.eye(DIM)[2]).astype(np.float32), random.integers(3, 30, 150)


@pytest.fixture(scope="module")
def fitted(table, asking):
    (rows, lengths), (queries, query_lengths) = table, asking
    given = [torch.from_numpy(own) for own in (unit(rows).astype(np.float32), lengths, queries, query_lengths)]
    return {recipe: fit(recipe, *given) for recipe in RECIPES}


@pytest.fixture
def folder(tmp_path, table):
    """Two files of several row groups, with columns before and behind the embeddings."""
    (tmp_path / "vectors").mkdir()
    rows, lengths = table
    for k, own in enumerate((slice(0, 420), slice(420, ROWS))):
        columns = {"id": [f"t{n}" for n in range(ROWS)][own], "embedding": list(rows[own]), "tokens": lengths[own]}
        columns["more"] = [{"a": n} for n in range(ROWS)][own]
        pq.write_table(pa.table(columns), tmp_path / "vectors" / f"{k}.parquet", row_group_size=100)
    return tmp_path


def run(folder, correction, name="out", **more):
    file = folder / "c.json"
    file.write_text(json.dumps(correction if isinstance(correction, (dict, list)) else correction.as_data()))
    embeddings = {"source": str(folder / "vectors"), "length_column": "tokens", "unit_rows": 100}
    embeddings |= more.pop("embeddings", {})
    data = {"out": str(folder / name), "correction": str(file), "execution": {"workers": 1}, "embeddings": embeddings}
    corrected(data | more)
    return folder / name


def vectors(out):
    return pl.concat([pl.read_parquet(file) for file in sorted((out / "vectors").glob("*.parquet"))])


def matrix(out):
    """The corrected embeddings."""
    return np.stack(vectors(out)["embedding"].to_list())


def moved(correction, table, rows=slice(None)):
    """What a correction makes of rows of the table."""
    unmoved, lengths = (torch.from_numpy(own[rows]) for own in (unit(table[0].astype(np.float64)), table[1]))
    return correction.documents(unmoved, lengths).numpy()


def replaced(folder, rows, lengths, **how):
    """The folder with one file of these rows for its own."""
    for file in (folder / "vectors").iterdir():
        file.unlink()
    columns = {"embedding": pa.array(rows, pa.list_(pa.float32())), "tokens": pa.array(lengths, pa.int64())}
    pq.write_table(pa.table(columns), folder / "vectors" / "all.parquet", **how)


# --- the vectors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_are_corrected_in_their_order_and_keep_their_other_columns(folder, table, fitted, recipe):
    found = vectors(run(folder, fitted[recipe]))
    assert found["id"].to_list() == [f"t{k}" for k in range(ROWS)]
    assert found["tokens"].to_list() == table[1].tolist()
    assert found["more"].to_list() == [{"a": k} for k in range(ROWS)]
    assert found.columns == ["id", "embedding", "tokens", "more"]
    np.testing.assert_allclose(np.stack(found["embedding"].to_list()), moved(fitted[recipe], table), atol=2e-7)


def test_findings_are_printed_as_json(folder, table, fitted):
    rows, lengths = table
    replaced(folder, [*rows.tolist()[:29], [1.0]], lengths[:30])
    data = checked_json("correct", run(folder, fitted["centre"]))
    values = {row["figure"]: (row["state"], row["value"]) for row in data["findings"]}
    assert values == {"corrected": ("measured", 29.0), "rejected_share": ("measured", 1 / 30)}
    assert data["answers"] == {"given": "29 documents corrected, 1 row rejected"}


def test_inner_products_are_the_corrected_similarities_by_hand(folder, table, asking, fitted):
    """A line in the log of the length, taken off the cosine; typed from its equation."""
    (rows, lengths), (queries, _) = table, asking
    documents = matrix(run(folder, fitted["length"]))
    pq.write_table(pa.table({"embedding": list(5 * queries)}), folder / "asking.parquet")
    source = {"source": str(folder / "asking.parquet"), "length_column": None}
    asked = matrix(run(folder, fitted["length"], name="asked", side="queries", embeddings=source))
    mean = unit(rows.astype(np.float64)) @ queries.astype(np.float64).mean(0)
    slope, level = np.polyfit(np.log(lengths), mean - mean.mean(), 1)
    expected = queries.astype(np.float64) @ unit(rows.astype(np.float64)).T - (slope * np.log(lengths) + level)
    np.testing.assert_allclose(asked @ documents.T, expected, atol=2e-6)
    equal = matrix(run(folder, fitted["length"], name="equal", equal_norms=True))
    norms = np.linalg.norm(equal, axis=1)
    assert equal.shape[1] == DIM + 2
    np.testing.assert_allclose(norms, norms[0], rtol=1e-6)


@pytest.mark.proof
def test_the_bytes_do_not_depend_on_workers_or_order(folder, fitted):
    """That a killed run goes on to the same bytes is in runs/test_resuming.py."""
    expected = digests(run(folder, fitted["whiten(0.5)"]), "vectors")
    assert len(expected) == 8  # Units of 100 rows: five row groups of one file and three of the other.
    ordered = run(folder, fitted["whiten(0.5)"], name="ordered", execution={"workers": 3, "shuffle_seed": 7})
    assert digests(ordered, "vectors") == expected


def test_a_large_row_group_is_several_parts_of_the_same_rows(folder, table, fitted, monkeypatch):
    monkeypatch.setattr(units, "AT_ONCE", 64)
    monkeypatch.setattr(units, "ROWS_OF_A_PART", 128)
    rows, lengths = table
    pq.write_table(pa.table({"embedding": list(rows), "tokens": lengths}), folder / "one.parquet")
    given = checked(units.Embeddings, {"source": str(folder / "one.parquet"), "length_column": "tokens"})
    written = {}

    class Noting:
        def write_table(self, name, table, **_):
            written[name] = table

    task = units.Task(Noting(), given, fitted["length"], "documents", False)
    (own,) = units.plan(given, units.columns_of(given), str(folder / "none"))
    assert units.correct_unit(task, own) == {"rows": ROWS, "corrected": ROWS, "reasons": {}}
    assert [t.num_rows for t in written.values()] == [128, 128, 128, 128, 128, 60]
    together = np.stack(pa.concat_tables(written.values()).column("embedding").to_pylist())
    np.testing.assert_allclose(together, moved(fitted["length"], table), atol=2e-7)


@pytest.mark.parametrize("kind", [pa.string(), pa.decimal128(25, 2), pa.float64(), pa.int16(), "dictionary"], ids=str)
def test_lengths_of_any_type_that_holds_whole_numbers_are_lengths(tmp_path, table, fitted, kind):
    rows, lengths = table
    column = pa.array(lengths[:9]).cast(pa.string() if kind == "dictionary" else kind)
    column = column.dictionary_encode() if kind == "dictionary" else column
    pq.write_table(pa.table({"embedding": list(rows[:9]), "tokens": column}), tmp_path / "one.parquet")
    given = checked(units.Embeddings, {"source": str(tmp_path / "one.parquet"), "length_column": "tokens"})
    (own,) = units.plan(given, units.columns_of(given), str(tmp_path / "none"))
    units.check_lengths(given, (own,))
    assert units.other_dimensions(given, (own,), rows.shape[1]) is None
    assert units.other_dimensions(given, (own,), rows.shape[1] + 1) == rows.shape[1]
    (batch,) = units.batches(given, own)
    found, wrong = units.moved_rows(units.Task(None, given, fitted["length"], "documents", False), batch)
    assert wrong == {}
    expected = moved(fitted["length"], table, slice(9))
    np.testing.assert_allclose(np.stack(found.column("embedding").to_pylist()), expected, atol=2e-7)


# --- bad input ----------------------------------------------------------------------------------------------------------


def test_rows_without_a_usable_embedding_or_length_are_recorded_and_counted(folder, table, fitted):
    rows, lengths = (list(own) for own in table)
    rows[3], rows[5], rows[8], rows[9] = None, rows[5][:-1], rows[8] * np.nan, rows[9] * 0
    lengths[11], lengths[12] = None, 0
    replaced(folder, rows, lengths)
    out = run(folder, fitted["length"])
    reasons = dict(pl.read_parquet(out / "rejected" / "*.parquet").select("place", "reason").iter_rows())
    told = {3: "is null", 5: "11 dimensions", 8: "not finite", 9: "is zero", 11: "length is null", 12: "length is 0"}
    assert list(reasons) == [f"all.parquet:{row}" for row in told]
    assert all(words in reasons[f"all.parquet:{row}"] for row, words in told.items())
    counts = read_record(out)["embeddings"]
    assert (counts["rows"], counts["corrected"], counts["rejected"]) == (ROWS, ROWS - 6, 6)
    assert counts["rejected_reasons"] == dict.fromkeys(reasons.values(), 1)
    assert len(vectors(out)) == ROWS - 6


@pytest.mark.proof
def test_half_of_the_rows_may_be_short_and_no_more(folder, table, fitted):
    def shorten(short):
        rows = [row[:5] if k in short else row for k, row in enumerate(table[0])]
        replaced(folder, rows, table[1], row_group_size=100)

    shorten(range(ROWS // 2))  # None of the first units has a usable row.
    out = run(folder, fitted["centre"])
    assert len(vectors(out)) == ROWS - ROWS // 2
    assert read_record(out)["embeddings"]["rejected"] == ROWS // 2
    shorten(range(1, ROWS // 2 + 2))
    for _ in range(2):
        with pytest.raises(UsageError, match=f"{ROWS // 2 + 1} of {ROWS} rows") as error:
            run(folder, fitted["centre"], name="more")
        assert error.value.exit_code == 2
        assert not (folder / "more" / "run.json").exists()
    out = run(folder, fitted["centre"], name="more", embeddings={"max_rejected": 0.6})
    assert read_record(out)["embeddings"]["corrected"] == ROWS // 2 - 1


@pytest.mark.proof
def test_what_cannot_be_used_is_named_and_leaves_the_folder_free(folder, fitted):
    for given, named in (
        ({"embeddings": {"length_column": None}}, "--length-column"),
        ({"embeddings": {"length_column": "words"}}, "words"),
        ({"embeddings": {"column": "id", "length_column": "tokens"}}, "'id'.* string"),
        ({"embeddings": {"length_column": "id"}}, "'id'.*'t0'"),
        ({"fitted_on": "task"}, "'task'"),
        ({"model": "no/such"}, "no/such"),
        ({"side": "rows"}, "side"),
    ):
        with pytest.raises(UsageError, match=named):
            run(folder, fitted["length"], **given)
        assert not (folder / "out" / "vectors").exists()
    run(folder, fitted["length"])


def test_a_correction_of_another_dimension_or_of_no_known_model_is_refused(folder, fitted, table, small_model):
    narrow = fit("whiten(1)", torch.from_numpy(unit(table[0][:, :8]).astype(np.float32)))
    with pytest.raises(UsageError, match=r"8 dimensions.* 12"):
        run(folder, narrow)
    with pytest.raises(UsageError, match="--model"):
        run(folder, fitted["centre"], model=small_model)
    with pytest.raises(UsageError, match="--equal-norms: centre"):
        run(folder, fitted["centre"], equal_norms=True)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"correction": "length"}, "format None"),
        ({"format": 1, "correction": "longer"}, "'longer'"),
        ({"format": 1, "correction": "length", "dimensions": 12, "f": {"tokens": [2, 1], "values": [0, 0]}}, "damaged"),
        ({"corrections": []}, "no correction"),
        ([1], "no correction"),
        ({"corrections": [{"task": "a", "correction": "x"}, {"task": "b", "correction": "x"}]}, "--fitted-on: a, b"),
    ],
)
def test_a_file_that_holds_no_correction_is_refused(tmp_path, data, named):
    (tmp_path / "c.json").write_text(json.dumps(data))
    with pytest.raises(UsageError, match=f"c.json'.*{named}"):
        load(str(tmp_path / "c.json"))


def test_it_ends_with_the_place_of_the_vectors_and_the_command_for_the_queries(folder, fitted, capsys):
    text = ending("correct", run(folder, fitted["length"], "run"), capsys)
    (line,) = (line for line in text.splitlines() if line.startswith("  tempscale correct"))
    ((name, given),) = parsed(shlex.split(line))
    assert (name, given["side"], given["correction"]) == ("correct", "queries", str(folder / "c.json"))
    same("correct-ending.txt", masked(text, folder))
    again = ending("correct", run(folder, fitted["centre"], "asked", side="queries"), capsys)
    assert "tempscale correct" not in again


def test_of_several_corrections_the_named_one_is_taken(folder, table, asking, fitted):
    every = [{"task": "a", "split": "test", "subset": "default"} | fitted["centre"].as_data(),
             {"task": "b", "split": "test", "subset": "default"} | fitted["centre(unit)"].as_data()]  # fmt: skip
    out = run(folder, {"corrections": every}, fitted_on="b/test")
    model = {"model": "given", "temperature": "1.0"}  # The file says nothing of one.
    assert read_record(out)["correction"] == {"name": "centre(unit)", "sha256": fitted["centre(unit)"].digest} | model
    with pytest.raises(UsageError, match="correction"):
        run(folder, {"corrections": every}, fitted_on="a/test")


@pytest.mark.proof
def test_a_table_that_changes_while_it_is_read_ends_the_run_and_nothing_is_kept(folder, fitted, monkeypatch):
    real = units.plan

    def plan(*given):
        found = real(*given)
        other = folder / "vectors" / "1.parquet"
        pq.write_table(pq.read_table(other).slice(1), other, row_group_size=100)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(units, "plan", plan)
        with pytest.raises(UsageError, match="changed while they were read"):
            run(folder, fitted["centre"])
    assert len(vectors(run(folder, fitted["centre"]))) == ROWS - 1


@pytest.mark.parametrize("kind", ["delta", "lance"])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_table_of_another_kind_is_read_in_units_unless_it_has_no_numbers(tmp_path, kind, prefix):
    """That its corrected vectors are those of Parquet is in corpus/test_stores.py."""
    rows, place = pa.table({"embedding": [[1.0, 2.0]] * 5, "text": ["no vector"] * 5}), str(tmp_path / f"vectors.{kind}")
    if kind == "lance":
        pytest.importorskip("lance").write_dataset(rows, place)
    else:
        pytest.importorskip("deltalake").write_deltalake(place, rows)
    source = f"{kind}:{place}" if prefix else place
    given = checked(units.Embeddings, {"source": source, "unit_rows": 2})
    planned = units.plan(given, units.columns_of(given), str(tmp_path / "run"))
    assert [(unit.first, unit.rows) for unit in planned] == [(0, 2), (2, 2), (4, 1)]
    assert [batch.num_rows for unit in planned for batch in units.batches(given, unit)] == [2, 2, 1]
    given = checked(units.Embeddings, {"source": source, "column": "text"})
    with pytest.raises(UsageError, match="lists of numbers") as caught:
        units.plan(given, units.columns_of(given), str(tmp_path / "run"))
    assert caught.value.exit_code == 2
