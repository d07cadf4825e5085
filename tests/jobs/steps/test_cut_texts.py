"""`--what-if chunk:N`: the same figures as an ordinary audit of a corpus that was really cut."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from prepared import scoped
from semantic_text_splitter import TextSplitter
from tokenizers import Tokenizer
from whole_run import as_lines, documented, read_tables

from tempscale.correction.variant_names import Chunks, canonical
from tempscale.model.checkpoint import ModelError
from tempscale.model.tokens import Tokenizer as Model
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.runs.folder import BEGUN, SHARDED, Run
from tempscale_jobs.runs.folder import Model as RunModel
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import cut_texts
from tempscale_jobs.tables.audit import SHARDS
from tempscale_jobs.workers.dispatch import BESIDE_ACTORS

K, EDGES = 5, "0,16,26"
SIZES = {"chunk:32": (32, 0), "chunk:40:12": (40, 12)}
TEXTS, QUERIES = 90, 60
AROUND = 2
"""Tokens that BERT puts around a text."""


def cut(texts, tokenizer, size, overlap):
    """The chunks of texts as records with the id of their text as document, by the library itself."""
    splitter = TextSplitter.from_huggingface_tokenizer(tokenizer, size - AROUND, overlap)
    return [
        {"id": f"{text['id']}#{k}", "text": chunk, "document": text["id"]}
        for text in texts
        for k, chunk in enumerate(splitter.chunks(text["text"]))
    ]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session, small_model):
    """Predictions asked by texts and by queries, and ordinary audits of the whole texts and of cut ones."""
    folder = tmp_path_factory.mktemp("chunks")
    lines = documented("scipy")
    texts = [line | {"id": f"{line['id']}#9"} for line in lines[:TEXTS]]
    queries = lines[TEXTS : TEXTS + QUERIES]
    tokenizer = Tokenizer.from_file(f"{small_model}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    (folder / "queries.jsonl").write_text(as_lines(queries))
    corpora = {"texts": texts} | {what: cut(texts, tokenizer, *size) for what, size in SIZES.items()}
    common = [
        "--model", small_model, "--intervals", EDGES, "--neighbours", str(K), "--exposure-sample", "100000",
        "--workers", "1", "--quick", "--tau", "1.0",
    ]  # fmt: skip
    asked = [word for what in SIZES for word in ("--what-if", what)]
    for name, records in corpora.items():
        source = folder / f"{name.replace(':', '-')}.jsonl"
        source.write_text(as_lines(records))
        more = [] if name == "texts" else ["--document-column", "document"]
        for who in ("corpus", "queries"):
            queried = ["--queries", str(folder / "queries.jsonl")] if who == "queries" else []
            out = folder / f"{name.replace(':', '-')}-{who}"
            command = ["audit", "--corpus", str(source), *common, *more, *queried, "--out", str(out)]
            code, _, err = in_process(*command, *(asked if name == "texts" else []))
            assert code == 0, err
    return folder


def audited(runs, what, who):
    return read_tables(runs / f"{what.replace(':', '-')}-{who}")


def predicted(runs, what, who):
    return audited(runs, "texts", who)["what_if"].filter(what=what)


def nearest(runs, what, who):
    """The ids of the nearest texts of each asker."""
    place = runs / f"{what.replace(':', '-')}-{who}" / ("queries/neighbours" if who == "queries" else "neighbours")
    table = pl.concat([pl.read_parquet(file) for file in sorted(place.rglob("*.parquet"))])
    return dict(zip(table["text_id"].to_list(), table["neighbours"].to_list(), strict=True))


@pytest.mark.proof
@pytest.mark.parametrize("who", ["corpus", "queries"])
@pytest.mark.parametrize("what", SIZES)
def test_the_figures_are_those_of_an_audit_of_a_cut_corpus(runs, what, who):
    reality, rows = audited(runs, what, who), predicted(runs, what, who)
    summary, overall = reality["collapse_summary"].row(0, named=True), rows.filter(pl.col("by").is_null()).row(0, named=True)
    assert overall["vectors"] == summary["texts"] > 2 * TEXTS
    assert overall["truncated_share"] == summary["truncated_share"] == 0
    exposure = reality["exposure"].filter(asked_by=who, k=K)
    assert len(exposure) == 3
    for row in exposure.to_dicts():
        found = rows.filter(group=str(row["interval"])).row(0, named=True)
        for name in ("exposure", "exposure_se", "exposure_se_superpopulation"):
            assert found[name] == pytest.approx(row[name], abs=1e-9), (name, row)
    if who == "corpus":
        assert overall["collapse_gap"] == pytest.approx(summary["collapse_gap"], abs=1e-6)
        assert overall["collapse_gap_se_superpopulation"] == pytest.approx(
            summary["collapse_gap_se_superpopulation"], rel=0.25
        )
        assert overall["neighbours_kept"] is None


@pytest.mark.proof
@pytest.mark.parametrize("what", SIZES)
def test_what_queries_keep_is_counted_in_the_texts_of_the_chunks(runs, what):
    whole, chunks = (nearest(runs, name, "queries") for name in ("texts", what))
    owners = {query: [chunk.rpartition("#")[0] for chunk in found] for query, found in chunks.items()}
    kept = [len(set(whole[query]) & set(owners[query])) / K for query in whole]
    overall = predicted(runs, what, "queries").filter(pl.col("by").is_null()).row(0, named=True)
    assert overall["askers"] == len(kept) == QUERIES
    assert overall["neighbours_kept"] == pytest.approx(np.mean(kept), abs=1e-9)
    assert overall["neighbours_kept_se"] == pytest.approx(np.std(kept, ddof=1) / QUERIES**0.5, abs=1e-9)
    assert overall["texts_found"] == pytest.approx(np.mean([len(set(found)) for found in owners.values()]), abs=1e-9)
    assert 0 < overall["neighbours_kept"] < 1
    assert overall["texts_found"] < K


@pytest.mark.proof
def test_whole_texts_are_cut_by_the_window_and_chunks_are_not(runs):
    rows = audited(runs, "texts", "corpus")["what_if"].filter(pl.col("by").is_null())
    by_name = {row["what"]: row for row in rows.to_dicts()}
    summary = audited(runs, "texts", "corpus")["collapse_summary"].row(0, named=True)
    assert by_name[""]["truncated_share"] == summary["truncated_share"]
    assert by_name[""]["vectors"] == TEXTS
    assert by_name[""]["texts_found"] is None


@pytest.mark.proof
def test_the_chunks_do_not_stay_in_the_folder(runs):
    assert not [*(runs / "texts-queries" / cut_texts.PLACE).rglob("*.parquet")]


@pytest.mark.parametrize(
    ("asked", "told"), [("chunk:8", "at least 16"), ("chunk:64:33", "at most half"), ("chunk:64+int8", "chunk embeds")]
)  # fmt: skip
def test_chunks_that_make_no_sense_are_refused(asked, told):
    with pytest.raises(ValueError, match=told):
        canonical(asked)


def test_equal_chunks_have_one_name():
    asked = ("chunk: 064", "chunk:64:0", "chunk:64:08")
    assert [canonical(what) for what in asked] == ["chunk:64", "chunk:64", "chunk:64:8"]


def test_a_prompt_takes_of_a_chunks_tokens(small_model):
    prompt = "one two three four: "
    tokenizer = Model(Path(small_model), prompt=prompt)
    pieces = tokenizer.splitter(16).chunks("word " * 100)
    assert max(tokenizer(pieces).lengths) == 16
    assert len(pieces) == 12  # 7 tokens are around each: nine words remain.
    with pytest.raises(ModelError, match="no room"):
        Model(Path(small_model), prompt=5 * prompt).splitter(16)


def test_chunks_that_a_model_cannot_read_are_refused_before_ray(small_model, tmp_path):
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("scipy")[:3]))
    command = ["audit", "--corpus", str(tmp_path / "texts.jsonl"), "--model", small_model, "--out", str(tmp_path / "run")]
    code, _, err = in_process(*command, "--what-if", "chunk:513")
    assert code == 2
    assert "reads 512 tokens" in err
    assert "Ray" not in err


def test_vectors_alone_cannot_be_cut(tmp_path):
    (tmp_path / "v.jsonl").write_text(json.dumps({"id": "a", "v": [1.0, 0.0]}))
    command = ["audit", "--corpus", str(tmp_path / "v.jsonl"), "--embedding-column", "v", "--what-if", "chunk:64"]
    code, _, err = in_process(*command)
    assert code == 2
    assert "embeds the texts again" in err


class Broken:
    """A splitter that fails."""

    def __init__(self, error):
        self.error = error

    def chunk_indices(self, text):
        raise self.error


def test_a_text_on_which_the_tokenizer_fails_stays_whole():
    assert cut_texts._chunks(Broken(BaseException("panic")), "a text") == [(0, "a text")]
    with pytest.raises(KeyboardInterrupt):
        cut_texts._chunks(Broken(KeyboardInterrupt()), "a text")


def test_shards_are_cut_once_and_the_end_of_a_text_stays_cut(small_model, tmp_path, monkeypatch):
    storage = Storage(str(tmp_path))
    storage.write_json(BEGUN, {"run": "r"})
    for number in range(3):
        columns = {"text_id": [f"a{number}", f"b{number}"], "text": ["One two. " * 20, "Three."], "content_sha": ["0", "1"]}
        columns |= {"cut": [True, False], "document": [None, 7], "source_row": [None, None]}
        storage.write_table(f"shards/{number}.parquet", SHARDS.build(columns))
    shards = tuple(Shard(f"shards/{number}.parquet", 2, 186) for number in range(3))
    index = Index("s", {}, "f", 8, 2, 6, 6, {"null": 2}, shards)
    model = RunModel("tiny", small_model, "", 64)
    run = Run(storage, [model], [Temperature(1.0)], "2026-11-29")
    done = []

    def one_after_another(cluster, function, pieces, how):
        assert how == BESIDE_ACTORS, "actors may hold all processors"
        for piece in pieces:
            done.append(piece.number)
            yield piece, function(*piece.arguments)

    monkeypatch.setattr(cut_texts, "run_tasks", one_after_another)
    monkeypatch.setattr(cut_texts, "results", lambda cluster, function, work, name: [function(*one) for one in work])
    scope, below = scoped(run, model, index=index), run.below("below")
    first = cut_texts._cut(scope, below, "chunk:16", Chunks(16, 0))
    assert done == [0, 1, 2]
    table = below.storage.read_table(first.shards[0].name)
    ids, cut, documents = (table.column(name).to_pylist() for name in ("text_id", "cut", "document"))
    assert ids == [f"a0#{k}" for k in range(len(ids) - 1)] + ["b0#0"]
    assert cut == [False] * (len(ids) - 2) + [True, False]
    assert documents == [own_document("a0")] * (len(ids) - 1) + [7]
    assert (first.analysed, first.usable, first.rejected) == (3 * len(ids), 3 * len(ids), 0)
    assert first.shards[0].characters == sum(map(len, table.column("text").to_pylist()))
    below.storage.remove(SHARDED)
    below.storage.remove(first.shards[1].name)
    assert cut_texts._cut(scope, below, "chunk:16", Chunks(16, 0)) == first
    assert done == [0, 1, 2, 1]
    assert cut_texts._cut(scope, below, "chunk:16", Chunks(16, 0)) == first
    assert done == [0, 1, 2, 1]
