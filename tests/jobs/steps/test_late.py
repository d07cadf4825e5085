"""`--what-if chunk:N:late`: the figures of an audit of vectors that are pooled by hand from what is read together."""

import json

import polars as pl
import pytest
import torch
from command_line import in_process
from semantic_text_splitter import TextSplitter
from tokenizers import Tokenizer as Library
from transformers import AutoModel, AutoTokenizer
from whole_run import as_lines, documented, read_tables

from tempscale.correction.errors import CorrectionError
from tempscale.correction.variant_names import Chunks, canonical, chunks_of
from tempscale.model.encoder import Encoder
from tempscale.model.tokens import Tokenizer
from tempscale_jobs.steps import late

K, EDGES, SIZE, WINDOW = 5, "0,16,26", 32, 100
TEXTS, QUERIES = 90, 60
AROUND = 2
"""Tokens that BERT puts around a text."""


def pooled_by_hand(texts, folder):
    """The chunks of texts, each with its vector and its tokens: consecutive ones are read together up to the window."""
    library = Library.from_file(f"{folder}/tokenizer.json")
    library.no_truncation()
    library.no_padding()
    splitter = TextSplitter.from_huggingface_tokenizer(library, SIZE - AROUND)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).double().eval()
    rows = []
    for text in texts:
        chunks, first = splitter.chunk_indices(text["text"]), 0
        while first < len(chunks):
            stop = first + 1
            while stop < len(chunks) and length(tokenizer, text, chunks, first, stop + 1) <= WINDOW:
                stop += 1
            begin, end = chunks[first][0], chunks[stop - 1][0] + len(chunks[stop - 1][1])
            read = tokenizer(text["text"][begin:end], return_offsets_mapping=True, return_tensors="pt")
            with torch.inference_mode():
                hidden = model(input_ids=read["input_ids"], attention_mask=read["attention_mask"]).last_hidden_state[0]
            offsets = read["offset_mapping"][0].tolist()
            for k in range(first, stop):
                start, chunk = chunks[k][0] - begin, chunks[k][1]
                inside = [at for at, (a, b) in enumerate(offsets) if a < b and start <= a < start + len(chunk)]
                inside = [0] * (k == first) + inside + [len(offsets) - 1] * (k == stop - 1)
                vector = hidden[inside].mean(0)
                rows.append(
                    {"id": f"{text['id']}#{k}", "text": chunk, "document": text["id"], "tokens": len(inside)}
                    | {"embedding": (vector / vector.norm()).tolist(), "together": stop - first}
                )
            first = stop
    return rows


def length(tokenizer, text, chunks, first, stop):
    """The tokens of these chunks together, as the sum of those of each."""
    return AROUND + sum(len(tokenizer(chunk)["input_ids"]) - AROUND for _, chunk in chunks[first:stop])


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session, small_model):
    """Predictions asked by texts and by queries, and ordinary audits of the vectors by hand."""
    folder = tmp_path_factory.mktemp("late")
    lines = documented("scipy")
    texts, queries = lines[:TEXTS], lines[TEXTS : TEXTS + QUERIES]
    (folder / "texts.jsonl").write_text(as_lines(texts))
    (folder / "queries.jsonl").write_text(as_lines(queries))
    rows = pooled_by_hand(texts, small_model)
    assert max(row["together"] for row in rows) > 2
    pl.DataFrame(rows).write_parquet(folder / "by-hand.parquet")
    encoder = Encoder.load(small_model, device="cpu", max_length=WINDOW)
    asked = encoder.encode([query["text"] for query in queries]).embeddings.tolist()
    vectors = [query | {"embedding": vector} for query, vector in zip(queries, asked, strict=True)]
    pl.DataFrame(vectors).write_parquet(folder / "queries.parquet")
    common = ["--intervals", EDGES, "--neighbours", str(K), "--exposure-sample", "100000", "--workers", "1"]
    for who in ("corpus", "queries"):
        queried = ["--queries", str(folder / "queries.jsonl")] if who == "queries" else []
        command = ["audit", "--corpus", str(folder / "texts.jsonl"), *common, *queried, "--quick", "--tau", "1.0"]
        command += ["--model", small_model, "--max-length", str(WINDOW), "--out", str(folder / f"late-{who}")]
        code, _, err = in_process(*command, "--what-if", f"chunk:{SIZE}:late")
        assert code == 0, err
        queried = ["--queries", str(folder / "queries.parquet"), "--queries-embedding-column", "embedding"]
        command = ["audit", "--corpus", str(folder / "by-hand.parquet"), *common, "--embedding-column", "embedding"]
        command += ["--length-column", "tokens", "--document-column", "document", "--out", str(folder / f"by-hand-{who}")]
        code, _, err = in_process(*command, *(queried if who == "queries" else []))
        assert code == 0, err
    return folder


@pytest.mark.proof
@pytest.mark.parametrize("who", ["corpus", "queries"])
def test_the_figures_are_those_of_vectors_pooled_by_hand(runs, who):
    reality = read_tables(runs / f"by-hand-{who}")
    rows = read_tables(runs / f"late-{who}")["what_if"].filter(what=f"chunk:{SIZE}:late")
    summary, overall = reality["collapse_summary"].row(0, named=True), rows.filter(pl.col("by").is_null()).row(0, named=True)
    assert overall["vectors"] == summary["texts"] > 2 * TEXTS
    for row in reality["exposure"].filter(asked_by=who, k=K).to_dicts():
        found = rows.filter(group=str(row["interval"])).row(0, named=True)
        assert found["exposure"] == pytest.approx(row["exposure"], abs=0.01), "rounding may exchange two neighbours"
    if who == "corpus":
        assert overall["collapse_gap"] == pytest.approx(summary["collapse_gap"], abs=1e-5)


@pytest.mark.proof
def test_a_cache_of_whole_chunks_is_not_taken_for_late_ones(runs, small_model, tmp_path):
    command = ["audit", "--corpus", str(runs / "texts.jsonl"), "--intervals", EDGES, "--neighbours", str(K)]
    command += ["--exposure-sample", "100000", "--workers", "2", "--quick", "--tau", "1.0", "--model", small_model]
    command += ["--max-length", str(WINDOW), "--cache", str(tmp_path / "cache"), "--what-if", f"chunk:{SIZE}"]
    code, _, err = in_process(*command, "--what-if", f"chunk:{SIZE}:late", "--out", str(tmp_path / "run"))
    assert code == 0, err
    folders = tmp_path / "run", runs / "late-corpus"
    again, first = (pl.read_parquet(f / "tables" / "what_if.parquet").filter(what=f"chunk:{SIZE}:late") for f in folders)
    assert again.equals(first)
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["byte_identity_exceptions"] == []


def test_each_chunk_is_pooled_over_its_own_tokens(small_model):
    """By the rows that the encoder gives of the whole text."""
    encoder = Encoder.load(small_model, device="cpu")
    text, other = "One sentence. Another one, which is longer. A third.", "A text that is one part."
    starts = [text.index(word) for word in ("One", "Another", "A third")]
    tokens = encoder.tokenizer.parts([text, other], [starts, [0]])
    out = encoder.encode_tokens(tokens)
    words = encoder.tokenizer.words(tokens.ids[0])
    cut = [words.index("another"), len(words) - 1 - words[::-1].index("third") - 1]
    rows = encoder.token_embeddings(tokens.ids[0]).double()
    for k, (start, stop) in enumerate(zip([0, *cut], [*cut, len(words)], strict=True)):
        mean = rows[start:stop].mean(0)
        assert torch.allclose(out.embeddings[k].double(), mean / mean.norm(), atol=1e-6)
        spread = (rows[start:stop] - mean).square().sum(1).mean() / mean.square().sum()
        assert out.moments.spread[k].item() == pytest.approx(spread.item(), rel=1e-4)
        assert out.tokens[k] == stop - start
    alone = encoder.encode([other])
    assert torch.allclose(out.embeddings[3], alone.embeddings[0], atol=1e-6), "a part that is the whole text"
    assert out.moments.spread[3].item() == pytest.approx(alone.moments.spread.item(), rel=1e-4)


def test_a_prompt_belongs_to_the_first_part_of_a_text(small_model):
    encoder = Encoder.load(small_model, device="cpu", prompt="passage: ")
    tokens = encoder.tokenizer.parts(["one two. three four."], [[0, 9]])
    words = encoder.tokenizer.words(tokens.ids[0])
    assert words[: tokens.spans.stop[0]] == ["[CLS]", "passage", ":", "one", "two", "."]
    assert words[tokens.spans.start[1] :] == ["three", "four", ".", "[SEP]"]


def test_what_the_model_fails_on_costs_the_parts_of_its_text_alone(small_model, monkeypatch):
    encoder = Encoder.load(small_model, device="cpu")
    tokens = encoder.tokenizer.parts(["one. two.", "three. four."], [[0, 5], [0, 7]])
    before = encoder.hidden_states

    def hidden_states(ids, mask, count):
        if (ids == tokens.ids[1][1]).any():
            raise ValueError("no")
        return before(ids, mask, count)

    monkeypatch.setattr(encoder, "hidden_states", hidden_states)
    out = encoder.encode_tokens(tokens, isolate=True)
    assert set(out.failed) == {2, 3}
    assert torch.isfinite(out.embeddings[:2]).all()
    assert out.embeddings[2:].isnan().all()


def test_windows_have_as_many_whole_chunks_as_the_model_reads(small_model):
    from pathlib import Path

    tokenizer = Tokenizer(Path(small_model), 12)
    chunks = [(0, "one two three."), (15, "four five."), (26, "six seven eight nine ten."), (52, "eleven.")]
    text = "one two three. four five. six seven eight nine ten. eleven."
    rows = late.windows(tokenizer, text, chunks)
    assert [window for window, _ in rows] == ["one two three. four five.", None, "six seven eight nine ten. eleven.", None]
    assert [begin for _, begin in rows] == [0, 15, 0, 26]
    assert [len(ids) for ids in tokenizer([window for window, _ in rows if window]).ids] == [9, 10]
    alone = late.windows(Tokenizer(Path(small_model), 8), text, chunks)
    assert [window for window, _ in alone] == [chunk for _, chunk in chunks]


@pytest.mark.parametrize(
    ("asked", "said"), [("chunk:64:8:late", "no overlap"), ("chunk:late", "no variant"), ("chunk:64:early", "no variant")]
)
def test_late_chunks_that_make_no_sense_are_refused(asked, said):
    with pytest.raises(CorrectionError, match=said):
        canonical(asked)
    assert chunks_of(canonical("chunk: 064:late")) == Chunks(64, 0, True)


def test_late_chunks_of_which_no_two_are_read_together_are_refused_before_ray(small_model, tmp_path):
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("scipy")[:3]))
    command = ["audit", "--corpus", str(tmp_path / "texts.jsonl"), "--model", small_model, "--max-length", "100"]
    code, _, err = in_process(*command, "--what-if", "chunk:52:late", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "name at most 51 tokens" in err
    assert "Ray" not in err


def test_late_chunks_of_a_model_that_pools_otherwise_are_refused_before_ray(small_model, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    modules = [Transformer(small_model), Pooling(64, pooling_mode="cls")]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "model"))
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("scipy")[:3]))
    command = ["audit", "--corpus", str(tmp_path / "texts.jsonl"), "--model", str(tmp_path / "model")]
    code, _, err = in_process(*command, "--what-if", "chunk:32:late", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "pools by cls" in err
    assert "Ray" not in err
