"""The table of tenths, from vectors that transformers alone makes of copies put together by hand."""

import numpy as np
import polars as pl
import pytest
import torch
from transformers import AutoModel, AutoTokenizer
from whole_run import as_lines, audited, documented, read_tables

from tempscale_jobs.audit import decomposed

TEXTS, LONG = 36, 64
pytestmark = pytest.mark.proof


def settings(folder, model, **more):
    return {
        "out": str(folder / "run"), "corpus": {"source": str(folder / "texts.jsonl")},
        "embedding": {"models": [model], "temperatures": [1.0, 0.7], "max_length": LONG},
        "analysis": {
            "intervals": [0, 32], "socm_sample": 0, "neighbours": 0, "cosine": "moments", "probe_sample": TEXTS,
            "probe": "position",
        },
        "execution": {"workers": 1},
    } | more  # fmt: skip


@pytest.fixture(scope="module")
def folder(ray_session, small_model, tmp_path_factory):
    place = tmp_path_factory.mktemp("positions")
    tokenizer = AutoTokenizer.from_pretrained(small_model)
    texts = [text for text in documented("scipy") if len(tokenizer(text["text"])["input_ids"]) > LONG]
    (place / "texts.jsonl").write_text(as_lines(texts[:TEXTS]), "utf-8")
    audited(settings(place, small_model))
    return place


def test_the_cosines_are_those_of_copies_by_hand(folder, small_model):
    tokenizer, model = AutoTokenizer.from_pretrained(small_model), AutoModel.from_pretrained(small_model).eval()
    parts = sorted((folder / "run").glob("partials/tenths/*/temperature=1.0/*.parquet"))
    read = pl.concat([pl.read_parquet(part, hive_partitioning=False) for part in parts])
    order = read.unique("text_id", maintain_order=True)["text_id"].to_list()
    assert len(order) == TEXTS
    text = {row["id"]: row["text"] for row in pl.read_ndjson(folder / "texts.jsonl").to_dicts()}

    def vector(ids):
        with torch.inference_mode():
            framed = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])
            hidden = model(input_ids=framed).last_hidden_state[0].double().mean(0)
        return (hidden / hidden.norm()).numpy()

    for tokens in (32, LONG):
        room = tokens - 2
        contents = [tokenizer(text[name], add_special_tokens=False)["input_ids"][:room] for name in order]
        cosines = np.zeros((TEXTS, 10))
        for k, own in enumerate(contents):
            other = contents[(k + TEXTS // 2) % TEXTS]
            for t in range(10):
                start, end = room * t // 10, room * (t + 1) // 10
                cosines[k, t] = vector(own) @ vector([*own[:start], *other[start:end], *own[end:]])
        found = read_tables(folder / "run")["positions"].filter(temperature="1.0", tokens=tokens).sort("tenth")
        assert found["tenth"].to_list() == list(range(1, 11))
        np.testing.assert_allclose(found["cosine"], cosines.mean(0), atol=2e-6)
        np.testing.assert_allclose(found["se"], cosines.std(0, ddof=1) / TEXTS**0.5, rtol=1e-3)
        assert found["texts"].unique().to_list() == [TEXTS]


def test_other_workers_give_the_same_bytes_and_the_other_tables_stay(folder, small_model, tmp_path):
    (tmp_path / "texts.jsonl").write_bytes((folder / "texts.jsonl").read_bytes())
    audited(settings(tmp_path, small_model, execution={"workers": 2, "shuffle_seed": 7}))
    tables = [place / "run" / "tables" / "positions.parquet" for place in (folder, tmp_path)]
    assert tables[0].read_bytes() == tables[1].read_bytes()
    assert "decomposition" in read_tables(folder / "run")
    page = (folder / "run" / "report.html").read_text("utf-8")
    assert "Which tenth of a text its vector follows" in page
    assert f"Of {TEXTS} texts of {LONG} tokens, one tenth replaced by another text" in page


def test_the_sentence_names_a_tenth_only_beyond_noise():
    rows = [{"tokens": 64, "tenth": k + 1, "cosine": 0.9 + 0.005 * k, "se": 0.002, "texts": 40} for k in range(10)]
    said = decomposed.followed(rows)
    assert "most where it is tenth 1 (cosine 0.9000 ± 0.0039), least where it is tenth 10 (0.9450 ± 0.0039)" in said
    assert "no two tenths differ beyond noise" in decomposed.followed([row | {"se": 0.02} for row in rows])
    assert "too few documents to compare" in decomposed.followed([row | {"se": None} for row in rows])
