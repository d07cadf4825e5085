"""What a correction by length would do: exposure, hubs and kept neighbours, against a plain search by corrected cosine."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import audited, digests, read_tables

from tempscale.correction.values import Correction

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]

TEXTS, QUERIES, DIM, K = 400, 130, 16, 5
EDGES = [0, 32, 128]


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Embeddings of texts and of queries: the shorter a text, the nearer it is to what asks."""
    folder, random = tmp_path_factory.mktemp("vectors"), np.random.default_rng(3)
    tokens = np.exp(random.uniform(np.log(4), np.log(400), TEXTS)).astype(np.int64)
    texts = random.standard_normal((TEXTS, DIM)) + np.outer(3 - np.log(tokens) / 2, np.eye(DIM)[0])
    asking = random.standard_normal((QUERIES, DIM)) + np.eye(DIM)[0]
    for name, rows, length in (("texts", texts, tokens), ("queries", asking, np.full(QUERIES, 9))):
        table = {"id": [f"{name[0]}{k:03d}" for k in range(len(rows))], "vector": list(unit(rows)), "tokens": length}
        pq.write_table(pa.table(table), folder / f"{name}.parquet")
    return folder, unit(texts), tokens, unit(asking)


@pytest.fixture
def run(corpus, tmp_path):
    def run(name="out", analysis=(), texts="texts", **more):
        folder = corpus[0]
        own = {"embedding_column": "vector", "length_column": "tokens"}
        data = {
            "out": str(tmp_path / name), "corpus": {"source": str(folder / f"{texts}.parquet")} | own,
            "queries": {"source": str(folder / "queries.parquet")} | own, "execution": {"workers": 1},
            "analysis": {"neighbours": K, "intervals": EDGES} | dict(analysis),
        }  # fmt: skip
        audited(data | more)
        return tmp_path / name, read_tables(tmp_path / name)["exposure_corrected"]

    return run


def searched(asking, texts, tokens, own):
    """(nearest by cosine, nearest by corrected cosine): typed from the equations, in float64."""
    asking, texts = asking.astype(np.float64), texts.astype(np.float64)
    cosine, mean = asking @ texts.T, texts @ asking.mean(0)
    slope, level = np.polyfit(np.log(tokens), mean - mean.mean(), 1)
    found = []
    for scores in (cosine, cosine - (slope * np.log(tokens) + level)):
        scores = scores.copy()
        if own:
            np.fill_diagonal(scores, -np.inf)
        found.append(np.argsort(-scores, axis=1)[:, :K])
    return found


def expected(plain, near, tokens, interval_of_asker):
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    rows = []
    for k in (1, K):
        times = np.bincount(near[:, :k].ravel(), minlength=TEXTS)
        skew = ((times - times.mean()) ** 3).mean() / times.std() ** 3
        for b, edge in enumerate(EDGES):
            share = times[interval == b].sum() / times.sum()
            kept = [
                len(set(a) & set(c)) / K
                for a, c in zip(plain[interval_of_asker == b], near[interval_of_asker == b], strict=True)
            ]
            rows.append((k, edge, share / (interval == b).mean(), skew, np.mean(kept) if kept and k == K else None))
    return rows


def close(rows, wanted):
    assert len(rows) == len(wanted)
    for row, (k, edge, exposure, skew, kept) in zip(rows, wanted, strict=True):
        assert (row["k"], row["interval"], row["correction"]) == (k, edge, "length")
        assert row["exposure"] == pytest.approx(exposure, abs=1e-12)
        assert row["k_occurrence_skewness"] == pytest.approx(skew, rel=1e-9)
        assert (row["neighbours_kept"] is None) == (kept is None)
        assert kept is None or row["neighbours_kept"] == pytest.approx(kept, abs=1e-12)
        assert row["exposure_se_superpopulation"] > 0


def test_exposure_hubs_and_kept_neighbours_are_those_of_a_plain_search(corpus, run):
    _, texts, tokens, asking = corpus
    out, table = run()
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    plain, near = searched(texts, texts, tokens, own=True)
    close(table.filter(asked_by="corpus").to_dicts(), expected(plain, near, tokens, interval))
    plain, near = searched(asking, texts, tokens, own=False)
    close(table.filter(asked_by="queries").to_dicts(), expected(plain, near, tokens, np.zeros(QUERIES, int)))
    before = read_tables(out)["exposure"].filter(asked_by="queries", k=K)["exposure"].to_numpy()
    after = table.filter(asked_by="queries", k=K)["exposure"].to_numpy()
    assert before[0] > 1.05 > after[0]  # What it is for: short texts no longer win.
    # The fitted curve is there for `tempscale correct`.
    for who, asked in (("corpus", texts), ("queries", asking)):
        (file,) = (out / "corrections").rglob(f"length-asked-by-{who}.json")
        correction = Correction.of(json.loads(file.read_text())["corrections"][0])
        mean = texts.astype(np.float64) @ asked.astype(np.float64).mean(0)
        slope, level = np.polyfit(np.log(tokens), mean - mean.mean(), 1)
        np.testing.assert_allclose(correction.curve(tokens), slope * np.log(tokens) + level, atol=1e-7)


def test_a_sample_asks_in_closed_form_and_of_a_large_corpus(corpus, run, monkeypatch):
    _, texts, tokens, _ = corpus
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    plain, near = searched(texts, texts, tokens, own=True)
    found = {}
    monkeypatch.setattr("tempscale_jobs.collapse.by_length.ALL_ASK", 100)
    for name, cosine in (("closed", "moments"), ("full", "full")):
        out, table = run(name, {"cosine": cosine, "exposure_sample": 200})
        rows = table.filter(asked_by="corpus", k=K)
        assert rows["queries"].to_list() == [200] * 3
        assert rows["k_occurrence_skewness"].null_count() == 3  # Thinning would bias it.
        found[name] = rows.select("interval", "exposure", "neighbours_kept").rows()
    assert found["closed"] == found["full"]
    asked = [int(i[1:]) for file in (out / "partials" / "neighbours_corrected").rglob("*.parquet")
             for i in pq.read_table(file)["text_id"].to_pylist()]  # fmt: skip
    assert len(set(asked)) == 200
    places = np.array(sorted(asked))
    times = np.bincount(near[places].ravel(), minlength=TEXTS)
    for edge, exposure, kept in found["full"]:
        here = interval == EDGES.index(edge)
        assert exposure == pytest.approx(times[here].sum() / times.sum() / here.mean(), abs=1e-12)
        own = places[here[places]]
        assert kept == pytest.approx(np.mean([len(set(plain[i]) & set(near[i])) / K for i in own]), abs=1e-12)


def test_it_does_not_depend_on_the_order_of_the_source(corpus, run, tmp_path):
    folder = corpus[0]
    table = pq.read_table(folder / "texts.parquet")
    pq.write_table(table.take(np.random.default_rng(0).permutation(TEXTS)), folder / "shuffled.parquet")
    rows = [run(name, texts=name)[1].sort("asked_by", "k", "interval") for name in ("texts", "shuffled")]
    figures = [table.select(pl.exclude("schema_version")).to_dicts() for table in rows]
    for one, other in zip(*figures, strict=True):
        assert one == pytest.approx(other, nan_ok=True)
    assert digests(tmp_path / "texts", "neighbours") != {}


@pytest.mark.parametrize(
    "analysis", [{"length_correction": False}, {"neighbours": 0}, {"cosine": "moments", "exposure_sample": 0}]
)
def test_it_can_be_left_out(run, analysis):
    out, table = run("without", analysis)
    assert table.is_empty()
    assert not (out / "corrections").exists()
