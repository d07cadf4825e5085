"""Embeddings of one's own: the same figures as by hand, in every type they come in, and a sentence for what is not one."""

import json
import re
from decimal import Decimal

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import as_lines, audited, read_tables

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus.stream import Stream
from tempscale_jobs.corpus.vectors import Reader, Vectors
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

TEXTS, DIM, EDGES = 300, 12, [0, 20, 60]


def run(out, source, analysis=None, **corpus):
    data = {
        "out": str(out), "corpus": {"source": str(source), "embedding_column": "vector"} | corpus,
        "analysis": {"intervals": EDGES, "neighbours": 3} | (analysis or {}), "execution": {"workers": 2},
    }  # fmt: skip
    audited(data)
    return read_tables(out)


@pytest.fixture(scope="module")
def vectors(ray_session):
    random = np.random.default_rng(0)
    lengths = random.integers(1, 120, TEXTS)
    rows = random.normal(size=(TEXTS, DIM)) + 0.02 * lengths[:, None]  # Longer texts point the same way.
    return rows.astype(np.float32) * random.uniform(0.1, 9, (TEXTS, 1)).astype(np.float32), lengths


def by_hand(rows, lengths):
    """Mean cosine of each cell over all pairs, and how often each interval's texts are among another's three nearest."""
    units = rows.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    cosines, interval = units @ units.T, np.searchsorted(EDGES, lengths, side="right") - 1
    cells = {}
    for a in range(len(EDGES)):
        for b in range(a, len(EDGES)):
            pairs = [cosines[i, j] for i in range(TEXTS) for j in range(i) if sorted((interval[i], interval[j])) == [a, b]]
            cells[EDGES[a], EDGES[b]] = (len(pairs), float(np.mean(pairs)))
    np.fill_diagonal(cosines, -2)
    slots = np.bincount(interval[np.argsort(-cosines, axis=1)[:, :3].ravel()], minlength=len(EDGES)) / (3 * TEXTS)
    return cells, slots / (np.bincount(interval, minlength=len(EDGES)) / TEXTS)


@pytest.mark.parametrize("kind", [pa.list_(pa.float32(), DIM), pa.list_(pa.float64()), pa.large_list(pa.float32())])
def test_length_collapse_and_exposure_are_those_by_hand(tmp_path, vectors, kind):
    rows, lengths = vectors
    table = pa.table({"id": [f"t{i}" for i in range(TEXTS)], "vector": pa.array(rows.tolist(), kind), "size": lengths})
    pq.write_table(table, tmp_path / "texts.parquet")
    tables = run(tmp_path / "run", tmp_path / "texts.parquet", length_column="size")
    cells, exposures = by_hand(rows, lengths)
    found = {(r["interval_a"], r["interval_b"]): r for r in tables["length_collapse"].to_dicts()}
    assert set(found) == set(cells)
    for cell, (pairs, mean) in cells.items():
        assert found[cell]["pairs"] == pairs
        assert found[cell]["cosine_mean"] == pytest.approx(mean, abs=1e-6)
        assert found[cell]["cosine_se_superpopulation"] > 0
    assert cells[60, 60][1] > cells[0, 0][1] + 0.2
    widest = tables["exposure"].filter(pl.col("k") == 3).sort("interval")
    np.testing.assert_allclose(widest["exposure"], exposures, rtol=1e-9)
    row = tables["collapse_summary"].row(0, named=True)
    assert (row["model"], row["tau"], row["texts"]) == ("given", 1.0, TEXTS)
    assert row["collapse_gap"] == pytest.approx(cells[60, 60][1] - cells[0, 0][1], abs=1e-6)
    assert row["socm_mean"] is None
    assert row["spread_mean"] is None
    report = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert not re.search(r"\bnan\b", report.split("<script>")[0].lower())
    assert len(tables.get("excerpts", [])) == 0


def test_a_text_tells_the_length_in_words_and_a_prefix_of_the_dimensions_is_kept(tmp_path, vectors):
    rows, lengths = vectors
    file = tmp_path / "texts.jsonl"
    records = [
        {"id": i, "vector": row.tolist(), "text": "word " * n} for i, (row, n) in enumerate(zip(rows, lengths, strict=True))
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    tables = run(tmp_path / "run", file, dims=5)
    cells, _ = by_hand(rows[:, :5], lengths)
    found = {(r["interval_a"], r["interval_b"]): r["cosine_mean"] for r in tables["length_collapse"].to_dicts()}
    assert found == pytest.approx({cell: mean for cell, (_, mean) in cells.items()}, abs=1e-6)


def test_queries_are_embeddings_too(tmp_path, vectors):
    rows, lengths = vectors
    for name, own in (("texts", slice(20, None)), ("queries", slice(0, 20))):
        table = pa.table({"vector": pa.array(rows[own].tolist()), "size": lengths[own]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    data = {
        "out": str(tmp_path / "run"), "analysis": {"intervals": EDGES, "neighbours": 3}, "execution": {"workers": 2},
        **{name: {"source": str(tmp_path / f"{file}.parquet"), "embedding_column": "vector", "length_column": "size"}
           for name, file in (("corpus", "texts"), ("queries", "queries"))},
    }  # fmt: skip
    audited(data)
    exposure = pl.read_parquet(tmp_path / "run" / "tables" / "exposure.parquet").filter(pl.col("asked_by") == "queries")
    assert exposure["queries"].unique().to_list() == [20]
    assert exposure.filter(pl.col("k") == 3)["slots_share"].sum() == pytest.approx(1)
    pq.write_table(pa.table({"vector": rows[:20, 1:].tolist(), "size": lengths[:20]}), tmp_path / "queries.parquet")
    with pytest.raises(UsageError, match=f"the queries have {DIM - 1} dimensions, and the corpus {DIM}"):
        audited(data | {"out": str(tmp_path / "narrow")})


# --- one value --------------------------------------------------------------------------------------------------------


def reader(**settings):
    given = {"source": "x", "embedding_column": "v", "length_column": "n"} | settings
    return Reader(Corpus.model_validate(given))


def unit(*values):
    return np.float32(values) / np.linalg.norm(values)


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
    assert problem is None
    assert length == 7
    assert row.dtype == np.float32
    np.testing.assert_allclose(row, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("value", "length", "words"),
    [
        (None, 3, "null"), ("abc", 3, "no list of numbers"), ([], 3, "two numbers"), ([1.0], 3, "two numbers"),
        ([[1.0, 2.0]], 3, "two numbers"), ([1.0, float("nan")], 3, "not finite"), ([1.0, float("inf")], 3, "not finite"),
        ([0.0, 0.0], 3, "no direction"), ([10**400, 1], 3, "not finite"), ([Decimal("1e400"), 1], 3, "not finite"),
        ([1.0, None], 3, "not finite"), ([1.0, "x"], 3, "no list of numbers"),
        ([1.0, 2.0, 3.0], 3, "3 dimensions where most have 2"),
        ([1.0, 2.0], None, "length"), ([1.0, 2.0], 0, "length"), ([1.0, 2.0], 2.5, "length"), ([1.0, 2.0], "nine", "length"),
    ],
)  # fmt: skip
def test_what_is_no_embedding_is_refused_with_a_reason(value, length, words):
    read = reader()
    assert read(([1.0, 0.0], 3, None))[1] is None
    found, problem = read((value, length, None))
    assert found is None
    assert words in problem


def test_rows_that_are_no_embeddings_are_recorded_and_counted(tmp_path, vectors):
    rows, lengths = vectors
    values = [row.tolist() for row in rows[:60]]
    values[5], values[9] = None, [1.0]
    table = pa.table({"id": [f"t{i // 2 * 2 if i == 31 else i}" for i in range(60)], "vector": values, "size": lengths[:60]})
    pq.write_table(table, tmp_path / "texts.parquet")
    run(tmp_path / "run", tmp_path / "texts.parquet", length_column="size")
    done = json.loads((tmp_path / "run" / "run.json").read_text())
    record = done["corpus"]
    assert done["models"]["given"]["dimensions"] == DIM  # By which nights tell vectors of other widths apart.
    assert (record["read"], record["rejected"], record["analysed"]) == (60, 3, 57)
    rejected = pl.read_parquet(tmp_path / "run" / "rejected" / "*.parquet")
    assert sorted(rejected["text_id"]) == ["t30", "t5", "t9"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"corpus": {"dims": 3}}, "belongs to embedding_column"),
        ({"corpus": {"embedding_column": "v"}, "embedding": {"temperatures": [0.8]}}, "neither model nor temperature"),
        ({"corpus": {"embedding_column": "v"}, "embedding": {"models": ["m"]}}, "neither model nor temperature"),
        ({"corpus": {"embedding_column": "v"}, "queries": {"source": "q"}}, "--queries-embedding-column"),
        ({"corpus": {"embedding_column": "v"}, "analysis": {"socm_top_over": "corpus"}}, "token embeddings"),
    ],
)
def test_options_that_do_not_go_with_them_are_named(data, words):
    with pytest.raises(UsageError, match=words):
        resolve(data)


def taken(run, corpus, seed, without, *on_rows):
    contents = Vectors(run.place("texts", GIVEN, run.temperatures[0]), corpus, without)
    return Stream(run.storage, contents, seed, without, *on_rows).index


def begun(tmp_path, **corpus):
    given = {"source": str(tmp_path / "v.jsonl"), "embedding_column": "v", "length_column": "n"} | corpus
    config = resolve({"out": str(tmp_path / "run"), "corpus": given})
    return folder.begin(config), config.corpus, config.seed, config.out


def test_embeddings_are_read_once_and_a_source_that_changed_since_is_refused(tmp_path):
    file, told = tmp_path / "v.jsonl", []
    file.write_text(as_lines({"id": k, "v": [3, 4 + k], "n": 5} for k in range(3)))
    first = taken(*begun(tmp_path), told.append)
    assert (first.read, first.analysed, first.shards) == (3, 3, ())
    assert taken(*begun(tmp_path), told.append) == first
    assert sum(told) == 3
    file.write_text('{"id": "a", "v": [1, 2], "n": 5}\n')
    with pytest.raises(UsageError, match=r"v\.jsonl' changed since the run in"):
        taken(*begun(tmp_path), told.append)


def test_a_sample_of_embeddings_is_that_of_the_smallest_keyed_hashes(tmp_path):
    rows = [{"id": f"t{k}", "v": [3, k], "n": 5} for k in range(40)]
    (tmp_path / "v.jsonl").write_text(as_lines(rows))
    index = taken(*begun(tmp_path, sample=7))
    assert (index.usable, index.analysed) == (40, 7)
    storage = Storage(str(tmp_path / "run"))
    (name,) = storage.list("texts")
    chosen = set(sorted((row["id"] for row in rows), key=lambda text_id: keyed_hash(text_id, 0))[:7])
    assert storage.read_table(name)["text_id"].to_pylist() == [row["id"] for row in rows if row["id"] in chosen]


def test_columns_and_dimensions_that_are_not_there_are_named(tmp_path, vectors):
    rows, lengths = vectors
    pq.write_table(pa.table({"vector": rows.tolist(), "size": lengths}), tmp_path / "texts.parquet")
    for settings, words in (
        ({}, "--length-column"), ({"length_column": "tokens"}, "'tokens'"),
        ({"length_column": "size", "dims": 13}, "--dims 13"),
        ({"length_column": "size", "scale": [1.0, 2.0]}, "scale has 2 numbers"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            run(tmp_path / "run", tmp_path / "texts.parquet", **settings)
