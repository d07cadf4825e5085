"""What tells lengths apart, beside plain searches: a correction by length, and percentiles of pairs by their lengths."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import audited, digests, read_record, read_report, read_tables

from tempscale.correction.values import Correction
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.audit.report import report_of
from tempscale_jobs.audit.words import thresholds
from tempscale_jobs.report.page import page as page_of
from tempscale_jobs.runs.folder import load_tables
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import calibration

pytestmark = pytest.mark.proof

TEXTS, QUERIES, DIM, K = 400, 130, 16, 5
EDGES = [0, 32, 128]
BIN = 1 / 2048


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
    shuffled = pq.read_table(folder / "texts.parquet").take(random.permutation(TEXTS))
    pq.write_table(shuffled, folder / "shuffled.parquet")
    return folder, unit(texts), tokens, unit(asking)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory, ray_session):
    """A function that makes a run of a source, and gives its folder."""

    def run(texts="texts", **analysis):
        folder, out = corpus[0], tmp_path_factory.mktemp("run") / "out"
        own = {"embedding_column": "vector", "length_column": "tokens"}
        audited({
            "out": str(out), "corpus": {"source": str(folder / f"{texts}.parquet")} | own,
            "queries": {"source": str(folder / "queries.parquet")} | own, "execution": {"workers": 1},
            "analysis": {"neighbours": K, "intervals": EDGES} | analysis,
        })  # fmt: skip
        return out

    return run


@pytest.fixture(scope="module")
def whole(run):
    return run()


def corrected_of(out):
    return read_tables(out)["exposure_corrected"]


# --- a correction by length -------------------------------------------------------------------------------------------


def learns(prefix, count):
    """Whether a query is one that the correction is fitted to: those of even keyed hash."""
    return np.array([keyed_hash(f"{prefix}{k:03d}", 0) % 2 == 0 for k in range(count)])


def fitted(asking, texts, tokens):
    """The line of the mean cosine with what asks over ln(tokens), less its mean; in float64."""
    mean = texts.astype(np.float64) @ asking.astype(np.float64).mean(0)
    return np.polyfit(np.log(tokens), mean - mean.mean(), 1)


def searched(asking, texts, tokens, own):
    """(nearest by cosine, nearest by corrected cosine) of the queries that the correction did not see."""
    learnt = learns("t" if own else "q", len(asking))
    slope, level = fitted(asking[learnt], texts, tokens)
    cosine, found = asking[~learnt].astype(np.float64) @ texts.astype(np.float64).T, []
    for scores in (cosine, cosine - (slope * np.log(tokens) + level)):
        scores = scores.copy()
        if own:
            scores[np.arange(len(scores)), np.flatnonzero(~learnt)] = -np.inf
        found.append(np.argsort(-scores, axis=1)[:, :K])
    return found


def expected(plain, near, tokens, interval_of_asker):
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    rows = []
    for k in (1, K):
        times = np.bincount(near[:, :k].ravel(), minlength=TEXTS)
        for b, edge in enumerate(EDGES):
            share = times[interval == b].sum() / times.sum()
            kept = [
                len(set(a) & set(c)) / K
                for a, c in zip(plain[interval_of_asker == b], near[interval_of_asker == b], strict=True)
            ]
            exposure, kept = share / (interval == b).mean(), np.mean(kept) if kept and k == K else None
            rows.append((k, edge, exposure, kept))
    return rows


def close(rows, wanted, askers):
    assert len(rows) == len(wanted)
    for row, (k, edge, exposure, kept) in zip(rows, wanted, strict=True):
        assert (row["k"], row["interval"], row["correction"], row["queries"]) == (k, edge, "length", askers)
        assert row["exposure"] == pytest.approx(exposure, abs=1e-12)
        assert row["k_occurrence_skewness"] is row["reciprocity"] is None  # Thinning would bias them.
        assert (row["neighbours_kept"] is None) == (kept is None)
        assert kept is None or row["neighbours_kept"] == pytest.approx(kept, abs=1e-12)
        assert row["exposure_se_superpopulation"] > 0


def test_exposure_and_kept_neighbours_are_those_of_a_plain_search_by_queries_that_were_not_fitted_to(corpus, whole):
    _, texts, tokens, asking = corpus
    table = corrected_of(whole)
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    plain, near = searched(texts, texts, tokens, own=True)
    assert 0.4 * TEXTS < len(near) < 0.6 * TEXTS
    own = interval[~learns("t", TEXTS)]
    close(table.filter(asked_by="corpus").to_dicts(), expected(plain, near, tokens, own), len(near))
    plain, near = searched(asking, texts, tokens, own=False)
    close(table.filter(asked_by="queries").to_dicts(), expected(plain, near, tokens, np.zeros(len(near), int)), len(near))
    before = read_tables(whole)["exposure"].filter(asked_by="queries", k=K)["exposure"].to_numpy()
    after = table.filter(asked_by="queries", k=K)["exposure"].to_numpy()
    assert before[0] > 1.05 > after[0]  # What it is for: short texts no longer win.
    # The fitted curve is there for `tempscale correct`.
    for who, asked in (("corpus", texts[learns("t", TEXTS)]), ("queries", asking[learns("q", QUERIES)])):
        (file,) = (whole / "corrections").rglob(f"length-asked-by-{who}.json")
        correction = Correction.of(json.loads(file.read_text())["corrections"][0])
        slope, level = fitted(asked, texts, tokens)
        np.testing.assert_allclose(correction.curve(tokens), slope * np.log(tokens) + level, atol=1e-7)


def test_a_sample_asks_in_closed_form_and_of_a_large_corpus(corpus, run, monkeypatch):
    _, texts, tokens, _ = corpus
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    plain, near = searched(texts, texts, tokens, own=True)
    row_of = {place: k for k, place in enumerate(np.flatnonzero(~learns("t", TEXTS)).tolist())}
    found = {}
    monkeypatch.setattr("tempscale_jobs.steps.by_length.ALL_ASK", 100)
    for cosine in ("moments", "full"):
        out = run(cosine=cosine, exposure_sample=200)
        rows = corrected_of(out).filter(asked_by="corpus", k=K)
        assert rows["k_occurrence_skewness"].null_count() == rows["reciprocity"].null_count() == 3
        found[cosine] = rows.select("interval", "exposure", "neighbours_kept", "queries").rows()
        # Percentiles of pairs need all of them.
        assert (out / "calibration.json").exists() == (cosine == "full")
        assert read_tables(out)["cosine_histogram"].is_empty() == (cosine == "moments")
        assert ("--cosine full --sample" in read_report(out)) == (cosine == "moments")
    assert found["moments"] == found["full"]
    asked = sorted(int(i[1:]) for file in (out / "partials" / "neighbours_corrected").rglob("*.parquet")
                   for i in pq.read_table(file)["text_id"].to_pylist() if i[0] == "t")  # fmt: skip
    drawn = sorted(range(TEXTS), key=lambda k: keyed_hash(f"t{k:03d}", 0))[:200]
    assert asked == sorted(set(drawn) & row_of.keys())
    places, rows = np.array(asked), np.array([row_of[place] for place in asked])
    times = np.bincount(near[rows].ravel(), minlength=TEXTS)
    for edge, exposure, kept, queries in found["full"]:
        here = interval == EDGES.index(edge)
        assert queries == len(asked)
        assert exposure == pytest.approx(times[here].sum() / times.sum() / here.mean(), abs=1e-12)
        own = rows[here[places]]
        assert kept == pytest.approx(np.mean([len(set(plain[i]) & set(near[i])) / K for i in own]), abs=1e-12)


def test_nothing_depends_on_the_order_of_the_source(whole, run):
    shuffled = run("shuffled")
    figures = [
        corrected_of(out).sort("asked_by", "k", "interval").select(pl.exclude("schema_version")).to_dicts()
        for out in (whole, shuffled)
    ]
    for one, other in zip(*figures, strict=True):
        assert one == pytest.approx(other, nan_ok=True)
    assert digests(whole, "neighbours") != {}
    assert (whole / "calibration.json").read_bytes() == (shuffled / "calibration.json").read_bytes()


@pytest.mark.parametrize(
    "analysis", [{"length_correction": False}, {"neighbours": 0}, {"cosine": "moments", "exposure_sample": 0}]
)
def test_it_can_be_left_out(run, analysis):
    out = run(**analysis)
    assert corrected_of(out).is_empty()
    assert not (out / "corrections").exists()


# --- percentiles of pairs ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def every_pair(corpus):
    """(interval of the shorter, of the longer, cosine) of every pair."""
    _, rows, tokens, _ = corpus
    rows, (first, second) = rows.astype(np.float64), np.triu_indices(TEXTS, 1)
    interval = np.array(EDGES)[np.searchsorted(EDGES, tokens, side="right") - 1]
    ends = np.sort(np.stack([interval[first], interval[second]]), axis=0)
    return ends[0], ends[1], (rows @ rows.T)[first, second]


def test_percentiles_and_shares_are_those_of_all_pairs(every_pair, whole):
    (own,) = json.loads((whole / "calibration.json").read_text())["models"].values()
    (card,) = own.values()
    a, b, cosine = every_pair
    cells = {(int(x), int(y)) for x, y in zip(a, b, strict=True)}
    assert len(card) == 1 + len(cells) == 7
    for row in card:
        here = np.ones(len(a), bool) if row["interval_a"] is None else (a == row["interval_a"]) & (b == row["interval_b"])
        assert row["pairs"] == here.sum() > 0
        for p, value in row["percentiles"].items():
            assert (value is None) == (here.sum() * (1 - float(p) / 100) < 10)
            assert value is None or value == pytest.approx(np.percentile(cosine[here], float(p)), abs=0.03)
            # No more than one bin's pairs lie between the share below it and the share that is meant.
            inside = ((cosine[here] > value - BIN) & (cosine[here] < value + BIN)).mean() if value is not None else 0
            assert value is None or abs((cosine[here] < value).mean() - float(p) / 100) <= inside + 1e-9
        for threshold, share in row["share_that_reaches"].items():
            near = (np.abs(cosine[here] - float(threshold)) < BIN).mean()
            assert abs(share - (cosine[here] >= float(threshold)).mean()) <= near + 1e-12
    told = thresholds(card, EDGES)
    assert all(figure in told for figure in (f"{TEXTS * (TEXTS - 1) // 2:,}", "0–31", "128+"))
    assert told.split(". ")[0] in read_report(whole)


def test_the_table_counts_every_pair_in_its_bin(every_pair, whole):
    table = read_tables(whole)["cosine_histogram"]
    a, b, cosine = every_pair
    assert table["pairs"].sum() == len(cosine)
    assert (table["cosine_to"] - table["cosine_from"]).to_numpy() == pytest.approx(BIN)
    for row in table.sort("pairs").tail(20).to_dicts():
        here = (a == row["interval_a"]) & (b == row["interval_b"])
        sure = ((cosine[here] > row["cosine_from"] + 1e-6) & (cosine[here] < row["cosine_to"] - 1e-6)).sum()
        may = ((cosine[here] > row["cosine_from"] - 1e-6) & (cosine[here] < row["cosine_to"] + 1e-6)).sum()
        assert sure <= row["pairs"] <= may


def test_a_run_of_an_earlier_version_is_rendered_without_a_card(whole):
    tables = load_tables(Storage(str(whole)))
    del tables["cosine_histogram"], tables["exposure_corrected"]
    page = page_of(report_of(tables, read_record(whole)), {})
    assert "thresholds" not in page.figures
    assert "exposure" in page.figures


def test_a_percentile_by_hand():
    """Of 40 pairs, 10 in each of four bins: the median is the middle, and ten are above the 75th but not above the 99th."""
    bins = [-1.0, 0.0, 0.5, 0.5 + BIN]
    table = pl.DataFrame({"interval_a": 0, "interval_b": 0, "cosine_from": bins, "cosine_to": bins, "pairs": 10})
    every, own = calibration.card(table)
    assert every["percentiles"] == own["percentiles"]
    assert own["percentiles"]["50"] == pytest.approx(0.0 + BIN)
    assert [own["percentiles"][p] for p in ("90", "95", "99", "99.9")] == [None] * 4
    reached = dict.fromkeys(("0.3", "0.4", "0.5"), 0.5) | dict.fromkeys(("0.6", "0.7", "0.8", "0.9"), 0.0)
    assert own["share_that_reaches"] == reached
    assert calibration.card(table.clear()) == []
