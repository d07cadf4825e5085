"""The table of the decomposition, from vectors that transformers alone makes of sequences put together by hand."""

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModel, AutoTokenizer
from whole_run import as_lines, audited, documented, read_tables

from tempscale_jobs.steps import decomposition

TEXTS, SHORT, LONG = 48, 32, 128
ROOM, SIZE = LONG - 2, SHORT - 2
"""Tokens of a text in a sequence, beside [CLS] and [SEP]."""


def settings(folder, model, **more):
    return {
        "out": str(folder / "run"), "corpus": {"source": str(folder / "texts.jsonl")},
        "embedding": {"models": [model], "temperatures": [1.0, 0.7], "max_length": LONG},
        "analysis": {"intervals": [0, 32], "socm_sample": 0, "neighbours": 0, "cosine": "moments", "probe_sample": TEXTS},
        "execution": {"workers": 1},
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def folder(ray_session, small_model, tmp_path_factory):
    place = tmp_path_factory.mktemp("decomposed")
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    texts = [text for text in documented("scipy") if len(tokenizer(text["text"])["input_ids"]) > LONG]
    (place / "texts.jsonl").write_text(as_lines(texts[:TEXTS]), "utf-8")
    audited(settings(place, small_model))
    return place


def vectors(model, sequences):
    """Unit vectors of each sequence, one at a time."""
    rows = []
    for ids in sequences:
        with torch.inference_mode():
            hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().mean(0)
        rows.append((hidden / hidden.norm()).numpy())
    return np.array(rows)


def mean_cosine(rows, pairs):
    return float(np.mean([rows[i] @ rows[j] for i, j in pairs]))


@pytest.mark.proof
def test_the_figures_are_those_of_sequences_by_hand(folder, small_model):
    tokenizer, model = AutoTokenizer.from_pretrained(small_model), AutoModel.from_pretrained(small_model).eval()
    names = pl.read_parquet(folder / "run" / "partials/readings/*/temperature=1.0/*.parquet", hive_partitioning=False)
    order = names.filter(way="apart")["text_id"].to_list()
    text = {row["id"]: row["text"] for row in pl.read_ndjson(folder / "texts.jsonl").to_dicts()}
    contents = [tokenizer(text[name], add_special_tokens=False)["input_ids"][:ROOM] for name in order]
    framed = lambda ids: [tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]  # noqa: E731
    segments = [[content[start : start + SIZE] for start in range(0, ROOM, SIZE)] for content in contents]
    each = len(segments[0])
    circles = TEXTS // each
    in_circles = circles * each
    mixed = [
        [token for at in range(each) for token in segments[(k + circles * at) % in_circles][at]] for k in range(in_circles)
    ]
    short, long = (vectors(model, [framed(content[: n - 2]) for content in contents]) for n in (SHORT, LONG))
    apart = []
    for own in segments:
        mean = np.average(vectors(model, map(framed, own)), axis=0, weights=[len(segment) for segment in own])
        apart.append(mean / np.linalg.norm(mean))
    repeated = vectors(model, [framed((content[:SIZE] * 9)[:ROOM]) for content in contents])
    others = vectors(model, map(framed, mixed))
    every = [(i, j) for j in range(TEXTS) for i in range(j)]
    across = [(i, j) for j in range(len(mixed)) for i in range(j) if i % circles != j % circles]
    j_short, j_long, a_long, r_long = (mean_cosine(np.array(rows), every) for rows in (short, long, apart, repeated))
    expected = {
        "prefix_gap": j_long - j_short, "pooling": a_long - j_short, "context": j_long - a_long,
        "fixed_content": r_long - j_short, "topic_change": mean_cosine(others, across) - mean_cosine(long, across),
    }  # fmt: skip
    table = read_tables(folder / "run")["decomposition"]
    assert table["temperature"].unique().to_list() == ["1.0"]  # τ 0.7 would cost as much again.
    found = table
    assert dict(found.select("figure", "value").iter_rows()) == pytest.approx(expected, abs=2e-6)
    assert found["texts"].to_list() == [TEXTS] * 4 + [len(mixed)]
    assert found.select("tokens_short", "tokens_long").unique().rows() == [(SHORT, LONG)]
    summary = read_tables(folder / "run")["collapse_summary"]
    (row,) = summary.filter(temperature="1.0").to_dicts()
    of_gap = table.filter(figure="prefix_gap").row(0, named=True)
    assert of_gap["value"] == pytest.approx(row["prefix_gap"], abs=1e-6)
    assert of_gap["se"] == pytest.approx(row["prefix_gap_se_superpopulation"], rel=1e-4)


@pytest.mark.proof
def test_other_workers_and_pieces_give_the_same_bytes(folder, small_model, tmp_path, monkeypatch):
    (tmp_path / "texts.jsonl").write_bytes((folder / "texts.jsonl").read_bytes())
    audited(settings(tmp_path, small_model, execution={"workers": 2, "shuffle_seed": 7}))
    tables = [place / "run" / "tables" / "decomposition.parquet" for place in (folder, tmp_path)]
    assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.mark.proof
def test_the_probe_alone_has_no_decomposition_and_the_same_gap(folder, small_model, tmp_path):
    (tmp_path / "texts.jsonl").write_bytes((folder / "texts.jsonl").read_bytes())
    asked = settings(tmp_path, small_model)
    audited(asked | {"analysis": asked["analysis"] | {"probe": "prefix"}})
    tables = read_tables(tmp_path / "run")
    assert "decomposition" not in tables
    assert tables["prefix_probe"].equals(read_tables(folder / "run")["prefix_probe"])
    assert "What the prefix gap is made of" not in (tmp_path / "run" / "report.html").read_text("utf-8")
    page = (folder / "run" / "report.html").read_text("utf-8")
    assert "What the prefix gap is made of" in page
    assert "The two add up to the first figure." in page


@pytest.mark.parametrize(
    ("lengths", "probed", "texts"),
    [
        ([32, 64, 128, 256], 1000, 96), ([32, 64, 128, 256], 40, 40), ([32, 64, 128, 256], 29, 0),
        ([32, 64, 128, 256, 512, 1024], 1000, 62), ([32, 64], 64, 64),
    ],
)  # fmt: skip
def test_the_price_is_less_than_a_tenth_of_ten_thousand_texts(lengths, probed, texts):
    assert decomposition.texts(lengths, probed) == texts
    assert 3 * texts * decomposition.ends(lengths)[1] <= 96_000
