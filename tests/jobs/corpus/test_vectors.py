"""Embeddings of one's own: the same figures as by hand, in every type they come in, and a sentence for what is not one."""

import json
import re
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from random_inputs import read
from whole_run import as_lines, audited, read_tables

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Queries
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.vectors import Reader, Vectors
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import GIVEN

pytestmark = pytest.mark.proof

TEXTS, DIM, EDGES = 300, 12, [0, 20, 60]
KINDS = {"fixed": pa.list_(pa.float32(), DIM), "list": pa.list_(pa.float64()), "large": pa.large_list(pa.float32())}


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


def test_length_collapse_and_exposure_are_those_by_hand_and_queries_are_embeddings_too(tmp_path, vectors):
    rows, lengths = vectors
    asked = pa.table({"vector": rows[:20, ::-1].tolist(), "size": lengths[:20]})
    narrow = pa.table({"vector": rows[:20, 1:].tolist(), "size": lengths[:20]})
    for name, table in (("asked", asked), ("narrow", narrow)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    for name, kind in KINDS.items():
        table = pa.table({"id": [f"t{i}" for i in range(TEXTS)], "vector": pa.array(rows.tolist(), kind), "size": lengths})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    found = [read(tmp_path / f"{name}.parquet", embedding_column="vector", length_column="size") for name in KINDS]
    assert len(found[0][0]) == TEXTS
    for ids, rejected in found:
        assert rejected == []
        assert [(i, row.tobytes(), n) for i, (row, n) in ids] == [(i, row.tobytes(), n) for i, (row, n) in found[0][0]]
    settings = {"analysis": {"intervals": EDGES, "neighbours": 3}, "execution": {"workers": 2}}
    for own, file in (("corpus", "fixed"), ("queries", "asked")):
        settings[own] = {"source": f"{tmp_path}/{file}.parquet", "embedding_column": "vector", "length_column": "size"}
    audited(settings | {"out": str(tmp_path / "run")})
    tables = read_tables(tmp_path / "run")
    cells, exposures = by_hand(rows, lengths)
    found = {(r["interval_a"], r["interval_b"]): r for r in tables["length_collapse"].to_dicts()}
    assert set(found) == set(cells)
    for cell, (pairs, mean) in cells.items():
        assert found[cell]["pairs"] == pairs
        assert found[cell]["cosine_mean"] == pytest.approx(mean, abs=1e-6)
        assert found[cell]["cosine_se_superpopulation"] > 0
    assert cells[60, 60][1] > cells[0, 0][1] + 0.2
    widest = tables["exposure"].filter(pl.col("k") == 3).sort("interval")
    np.testing.assert_allclose(widest.filter(asked_by="corpus")["exposure"], exposures, rtol=1e-9)
    by_queries = widest.filter(asked_by="queries")
    assert by_queries["queries"].unique().to_list() == [20]
    assert by_queries["slots_share"].sum() == pytest.approx(1)
    row = tables["collapse_summary"].row(0, named=True)
    assert (row["model"], row["tau"], row["texts"]) == ("given", 1.0, TEXTS)
    assert row["collapse_gap"] == pytest.approx(cells[60, 60][1] - cells[0, 0][1], abs=1e-6)
    assert row["socm_mean"] is None
    assert row["spread_mean"] is None
    told = json.loads((tmp_path / "run" / "run.json").read_text())["models"]["given"]
    assert told["dimensions"] == DIM  # By which nights tell vectors of other widths apart.
    report = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert not re.search(r"\bnan\b", report.split("<script>")[0].lower())
    assert len(tables.get("excerpts", [])) == 0
    settings["queries"]["source"] = f"{tmp_path}/narrow.parquet"
    with pytest.raises(UsageError, match=f"{DIM - 1} dimensions, .* {DIM}"):
        audited(settings | {"out": str(tmp_path / "narrow")})


def test_a_text_tells_the_length_in_words_and_a_prefix_of_the_dimensions_is_kept(tmp_path, vectors):
    rows, lengths = vectors
    both = enumerate(zip(rows, lengths, strict=True))
    lines = as_lines({"id": i, "vector": row.tolist(), "text": "word " * n} for i, (row, n) in both)
    (tmp_path / "texts.jsonl").write_text(lines)
    found, rejected = read(tmp_path / "texts.jsonl", embedding_column="vector", dims=5)
    assert rejected == []
    assert [length for _, (_, length) in found] == lengths.tolist()
    first = rows[:, :5].astype(np.float64)
    np.testing.assert_allclose([row for _, (row, _) in found], first / np.linalg.norm(first, axis=1)[:, None], atol=1e-7)


def taken(tmp_path, told, **corpus):
    """The index of a run's embeddings, as an audit reads them."""
    given = {"source": str(tmp_path / "v.jsonl"), "embedding_column": "v", "length_column": "n"} | corpus
    config = resolve({"out": str(tmp_path / "run"), "corpus": given})
    run = folder.begin(config)
    contents = Vectors(run.place("texts", GIVEN, run.temperatures[0]), config.corpus, config.out)
    return SourceReader(run.storage, contents, config.seed, config.out, SimpleNamespace(advance=told.append)).index


def test_embeddings_are_read_once_and_a_source_that_changed_since_is_refused(tmp_path):
    file, told = tmp_path / "v.jsonl", []
    file.write_text(as_lines({"id": k, "v": [3, 4 + k], "n": 5} for k in range(3)))
    for settings, named in (({"length_column": None}, "--length-column"), ({"length_column": "tokens"}, "'tokens'")):
        with pytest.raises(UsageError, match=named):
            taken(tmp_path, told, **settings)
    assert told == []
    first = taken(tmp_path, told)
    assert (first.read, first.analysed, first.shards) == (3, 3, ())
    assert taken(tmp_path, told) == first
    assert sum(told) == 3
    file.write_text('{"id": "a", "v": [1, 2], "n": 5}\n')
    with pytest.raises(UsageError, match=r"v\.jsonl' changed"):
        taken(tmp_path, told)


@pytest.mark.parametrize(
    ("rows", "settings", "told"), [([None], {}, None), ([[1.0, 2.0]], {"dims": 3}, "--dims 3"), ([], {}, None)]
)
def test_without_a_usable_vector_there_is_no_width_and_a_wrong_setting_is_named(tmp_path, rows, settings, told):
    vectors = pa.array(rows, pa.list_(pa.float64()))
    pq.write_table(pa.table({"vector": vectors, "text": ["a b"] * len(rows)}), tmp_path / "v.parquet")
    corpus = {"source": str(tmp_path / "v.parquet"), "embedding_column": "vector"} | settings
    contents = Vectors("texts", resolve({"corpus": corpus}).corpus, "")
    if told is None:
        assert contents.begin(None) is None
    else:
        with pytest.raises(UsageError, match=told):
            contents.begin(None)


def test_a_query_needs_no_length():
    settings = Queries.model_validate({"source": "q.parquet", "embedding_column": "vector"})
    (vector, length), problem = Reader(settings)(([3.0, 4.0], None, None))
    assert (vector.tolist(), length, problem) == (pytest.approx([0.6, 0.8]), 1, None)
