"""Which pairs a file of pairs holds, in which chunks, and what gives none."""

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from reports_by_hand import filled
from whole_run import as_lines

from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus import sources
from tempscale_jobs.errors import UsageError
from tempscale_jobs.pairs import chunks, terminal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.pairs import PAIRS_SUMMARY


def chunked(tmp_path, source, **options):
    """Index, pairs and rejected rows of a source."""
    storage = Storage(str(tmp_path / "run"))
    storage.remove("")
    config = checked(PairsConfig, {"out": storage.root, "pairs": {"source": str(source), "max_rejected": 1} | options})
    index = chunks.chunk(storage, config.pairs, config.out)
    found = pa.concat_tables([storage.read_table(chunk.name) for chunk in index.shards]).to_pylist()
    rejected = [storage.read_table(name) for name in storage.list("rejected")]
    return index, found, pa.concat_tables(rejected).to_pylist() if rejected else []


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_row_of_two_texts_is_a_pair_and_every_element_of_a_list_makes_one(tmp_path):
    lines = [
        {"text_a": "a", "text_b": "b"},
        {"id": "q", "text_a": "a", "text_b": ["x", "y"], "id_a": 7, "id_b": "n"},
        {"id": "m", "text_a": ["a", "c"], "text_b": ["x", "a"], "id_b": ["X", None]},
    ]
    (tmp_path / "p.jsonl").write_text(as_lines(lines))
    index, found, rejected = chunked(tmp_path, tmp_path / "p.jsonl")
    own = {text: sha(text)[:24] for text in "abcxy"}
    columns = ("pair", "pair_id", "place", "text_id_a", "text_a", "text_id_b", "text_b")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (0, "p.jsonl:0", "p.jsonl:0", own["a"], "a", own["b"], "b"),
        (1, "q[0]", "p.jsonl:1[0]", "7", "a", "n[0]", "x"),
        (2, "q[1]", "p.jsonl:1[1]", "7", "a", "n[1]", "y"),
        (3, "m[0][0]", "p.jsonl:2[0][0]", own["a"], "a", "X", "x"),
        (4, "m[0][1]", "p.jsonl:2[0][1]", own["a"], "a", own["a"], "a"),
        (5, "m[1][0]", "p.jsonl:2[1][0]", own["c"], "c", "X", "x"),
        (6, "m[1][1]", "p.jsonl:2[1][1]", own["c"], "c", own["a"], "a"),
    ]
    assert all(row["content_a"] == sha(row["text_a"]) and row["content_b"] == sha(row["text_b"]) for row in found)
    assert (index.read, index.pairs, index.rejected, rejected) == (3, 7, 0, [])


def test_every_kind_of_file_gives_the_same_pairs(tmp_path):
    lists = [["x", "y"], ["z"]]
    pq.write_table(pa.table({"id": [1, 2], "query": ["a", "b"], "negatives": lists}), tmp_path / "a.parquet")
    large = pa.table({"id": [1, 2], "query": pa.array(["a", "b"]).dictionary_encode(),
                      "negatives": pa.array(lists, pa.large_list(pa.large_string()))})  # fmt: skip
    pq.write_table(large, tmp_path / "large.parquet")
    rows = zip((1, 2), "ab", lists, strict=True)
    lines = [json.dumps({"id": i, "query": query, "negatives": texts}) for i, query, texts in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "flat.csv").write_text("id,query,negatives\n1[0],a,x\n1[1],a,y\n2[0],b,z\n")
    found = {}
    for name in ("a.parquet", "large.parquet", "a.jsonl", "flat.csv"):
        index, pairs, _ = chunked(tmp_path, tmp_path / name, column_a="query", column_b="negatives")
        found[name] = index.fingerprint
        assert [(p["pair_id"], p["text_a"], p["text_b"]) for p in pairs] == [
            ("1[0]", "a", "x"), ("1[1]", "a", "y"), ("2[0]", "b", "z")
        ]  # fmt: skip
    assert len(set(found.values())) == 1


def test_what_gives_no_pair_is_recorded_with_its_place_and_reason(tmp_path):
    lines = [
        b'{"id": "ok", "text_a": "a", "text_b": "b"}', b'{"id": "n", "text_a": null, "text_b": "b"}',
        b'{"id": "e", "text_a": "a", "text_b": ["b", "  ", 3, "c"]}', b'{"text_a": "a", "text_b": []}',
        b'{"text_a": "a"}', b"{not json", b'{"id": 1.5, "text_a": "a", "text_b": "b"}',
        b'{"text_a": "a", "text_b": ["b", "c"], "id_b": ["only one"]}', b'{"text_a": "a", "text_b": "b", "id_b": ["x"]}',
        b'{"text_a": "a", "text_b": "b", "id_a": true}', b'{"text_a": "", "text_b": 3}',
        b'{"text_a": "\\ud800", "text_b": "b"}',
    ]  # fmt: skip
    (tmp_path / "p.jsonl").write_bytes(b"\n".join(lines))
    index, found, rejected = chunked(tmp_path, tmp_path / "p.jsonl")
    assert [row["pair_id"] for row in found] == ["ok", "e[0]", "e[3]"]
    assert [row["pair"] for row in found] == [0, 1, 2]
    named = [
        ("n", "1", "text_a", "null"), ("e", "2[1]", "text_b", "empty"), ("e", "2[2]", "text_b", "int"),
        (None, "3", "text_b", "list is empty"), (None, "4", "'text_b'", "no column"), (None, "5", "line", "JSON"),
        (None, "6", "the id", "float"), (None, "7", "id_b", "1 ids for 2 of text_b"), (None, "8", "id_b", "1 ids for one"),
        (None, "9", "id_a", "bool"), (None, "10", "text_a", "empty"), (None, "11", "text_a", "UTF-8"),
    ]  # fmt: skip
    for row, (text_id, line, what, why) in zip(rejected, named, strict=True):
        assert (row["text_id"], row["place"]) == (text_id, f"p.jsonl:{line}")
        assert what in row["reason"]
        assert why in row["reason"]
    assert index.read == 12
    assert index.rejected == len(rejected) == sum(index.rejected_reasons.values())


def test_invalid_utf8_inside_a_parquet_list_costs_one_pair(tmp_path):
    texts = pa.array([b"good", b"\xff", b"also good"], pa.binary()).view(pa.string())
    column = pa.ListArray.from_arrays(pa.array([0, 3]), texts)
    pq.write_table(pa.table({"text_a": ["a"], "text_b": column}), tmp_path / "p.parquet")
    _, found, rejected = chunked(tmp_path, tmp_path / "p.parquet")
    assert [row["text_b"] for row in found] == ["good", "also good"]
    assert [row["place"] for row in rejected] == ["p.parquet:0[1]"]


def test_long_texts_are_cut_and_chunks_end_by_pairs_or_characters_of_distinct_texts(tmp_path):
    rows = [("q" * 10, letter * 4) for letter in "abcdefg"] + [("r" * 30, "a")]
    (tmp_path / "p.csv").write_text("text_a,text_b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    index, found, _ = chunked(tmp_path, tmp_path / "p.csv", chunk_pairs=3, max_characters=20)
    assert [chunk.pairs for chunk in index.shards] == [3, 3, 2]
    assert found[7]["text_a"] == "r" * 20
    assert [row["cut_a"] for row in found] == [False] * 7 + [True]
    # q once, then a letter a pair: 10 + 4·4 = 26 characters after four pairs.
    index, same, _ = chunked(tmp_path, tmp_path / "p.csv", chunk_characters=26, max_characters=20)
    assert [chunk.pairs for chunk in index.shards] == [4, 4]
    assert same == found
    index, found, _ = chunked(tmp_path, tmp_path / "p.csv", limit=2)
    assert (index.read, len(found)) == (2, 2)


def test_a_source_that_was_read_is_not_read_again(tmp_path, monkeypatch):
    source = tmp_path / "pairs.jsonl"
    source.write_text(as_lines([{"text_a": f"a {k}", "text_b": f"b {k}"} for k in range(5)]))
    config = checked(PairsConfig, {"out": str(tmp_path / "run"), "pairs": {"source": str(source)}})
    first = chunks.chunk(Storage(config.out), config.pairs, config.out)
    monkeypatch.setattr(sources, "unchanged", None)  # Nothing is read.
    assert chunks.chunk(Storage(config.out), config.pairs, config.out) == first
    assert first.pairs == 5


def test_rejected_pairs_are_said_where_there_are_many():
    tables = filled(PAIRS_SUMMARY, {"reference": None, "pairs": 60})
    facts = {"pairs": 60, "pairs_rejected": 30, "rejected_reasons": {"empty": 30}}
    assert "33.3 %" in terminal.ending(tables, {"pairs": facts}, "runs/pairs").to_do
    facts |= {"pairs_rejected": 0, "rejected_reasons": {}}
    assert terminal.ending(tables, {"pairs": facts}, "runs/pairs").to_do == ""


def test_a_source_without_a_usable_pair_is_refused_with_its_reasons(tmp_path):
    (tmp_path / "p.jsonl").write_text(as_lines([{"text_a": "a", "text_b": None}, {"text_a": "", "text_b": "b"}]))
    with pytest.raises(UsageError, match="no usable pair"):
        chunked(tmp_path, tmp_path / "p.jsonl")
