"""Corpora that nobody wants and everybody has: each ends in figures that make sense or in one sentence."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import as_lines, audited, read_parts, read_record, read_tables, rejected

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]


def audit(folder, small_model, source, **corpus):
    """Audits a file or folder below another one; run.json and the tables."""
    data = {
        "out": str(folder / "run"), "corpus": {"source": str(source)} | corpus, "execution": {"workers": 1},
        "embedding": {"models": [small_model]}, "analysis": {"socm_sample": 20, "probe_sample": 10},
    }  # fmt: skip
    audited(data)
    assert ">nan<" not in (folder / "run" / "report.html").read_text().lower()
    return read_record(folder / "run"), read_tables(folder / "run")


@pytest.fixture
def run(tmp_path, small_model):
    return lambda source, **corpus: audit(tmp_path, small_model, source, **corpus)


def lines(file, records):
    file.write_text(as_lines(records))
    return file


@pytest.mark.soak
def test_texts_that_are_all_the_same_have_one_embedding_and_ids_may_be_integers(run, tmp_path):
    pq.write_table(pa.table({"key": range(-1, 39), "text": ["always the same words"] * 40}), tmp_path / "t.parquet")
    record, tables = run(tmp_path / "t.parquet", id_column="key")
    pairs = tables["socm_pairs"]
    assert {*pairs["text_id_a"], *pairs["text_id_b"]} <= {str(key) for key in range(-1, 39)}
    assert record["corpus"]["analysed"] == 40
    summary = tables["collapse_summary"]
    assert summary["cosine_mean"].to_list() == pytest.approx([1, 1], abs=1e-6)
    assert summary["effective_rank"].to_list() == pytest.approx([1, 1], abs=1e-3)
    assert summary["socm_mean"].to_list() == pytest.approx([0, 0], abs=1e-5)
    assert tables["length_collapse"]["near_duplicates"].sum() == 2 * 40 * 39 // 2


@pytest.mark.soak
def test_a_row_of_sixty_megabytes_is_cut_and_one_of_a_hundred_rejected(run, tmp_path):
    texts = ["a small text", "word " * (12 << 20), "another small text", "word " * (20 << 20)]
    pq.write_table(pa.table({"id": ["a", "b", "c", "d"], "text": texts}), tmp_path / "t.parquet")
    record, _ = run(tmp_path / "t.parquet")
    assert (record["corpus"]["analysed"], record["corpus"]["rejected"]) == (3, 1)
    embedded = read_parts(tmp_path / "run", "texts", 1.0)
    assert dict(zip(embedded["text_id"], embedded["truncated"], strict=True)) == {"a": False, "b": True, "c": False}
    assert record["peak_memory_bytes"] < 4 << 30


STRANGE = {
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 family", "rtl": "\u202eשלום עולם\u202c مرحبا", "nul": "before\u0000after",
    "control": "\u0001\u0002 \ufeff text", "combining": "e\u0301\u0301\u0301 a",
    "<script>alert(1)</script>": "markup as an id",
}  # fmt: skip
NO_TEXT = {"number": 3, "list": ["a"], "null": None, "true": True, "object": {"a": 1}, "blank": " \n"}


@pytest.fixture(scope="module")
def strange(tmp_path_factory, ray_session, small_model):
    """A folder of strange texts, of values that are none, and of an id that comes again; its run.json and tables."""
    place = tmp_path_factory.mktemp("strange")
    folder = place / "corpus"
    folder.mkdir()
    file = lines(folder / "a.jsonl", [{"id": name, "text": text} for name, text in (STRANGE | NO_TEXT).items()])
    with file.open("a") as more:
        more.write('{"id": "surrogate", "text": "half a \\ud83d character"}\n')
    lines(folder / "b.jsonl", [{"id": "y", "text": "another file"}, {"id": "emoji", "text": "an id that was there"}])
    return place, *audit(place, small_model, folder, max_rejected=0.6)


def test_emoji_right_to_left_and_nul_are_texts_like_others(strange):
    place, record, tables = strange
    assert set(read_parts(place / "run", "texts", 1.0)["text_id"]) == {*STRANGE, "y"}
    assert record["corpus"]["analysed"] == len(STRANGE) + 1
    assert set(tables["excerpts"]["text_id"]) <= {*STRANGE, "y"}
    assert "<script>alert(1)" not in (place / "run" / "report.html").read_text()


def test_values_that_are_no_text_and_ids_that_come_again_are_recorded_one_by_one(strange):
    place, record, _ = strange
    assert record["corpus"]["read"] == len(STRANGE) + len(NO_TEXT) + 3
    found = rejected(place / "run")
    assert set(found) == {*NO_TEXT, "surrogate", "emoji"}
    assert found["emoji"] == "the id appeared before"
    assert sum(record["corpus"]["rejected_reasons"].values()) == len(NO_TEXT) + 2
