"""The calibration card: percentiles of random pairs by the length of both, against all pairs of a few texts."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import audited, read_record, read_report, read_tables

from tempscale_jobs.audit.report import render
from tempscale_jobs.audit.words import thresholds
from tempscale_jobs.collapse import calibration
from tempscale_jobs.runs.folder import load_tables
from tempscale_jobs.runs.storage import Storage

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]

TEXTS, DIM, EDGES = 500, 8, [0, 32, 128]
BIN = 1 / 2048


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The longer a text, the nearer it is to all others."""
    folder, random = tmp_path_factory.mktemp("vectors"), np.random.default_rng(5)
    tokens = np.exp(random.uniform(np.log(4), np.log(400), TEXTS)).astype(np.int64)
    rows = random.standard_normal((TEXTS, DIM)) + np.outer(np.log(tokens) / 2, np.eye(DIM)[0])
    rows = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    table = pa.table({"id": [f"t{k:03d}" for k in range(TEXTS)], "vector": list(rows), "tokens": tokens})
    pq.write_table(table, folder / "texts.parquet")
    pq.write_table(table.take(random.permutation(TEXTS)), folder / "shuffled.parquet")
    return folder, rows.astype(np.float64), tokens


@pytest.fixture
def run(corpus, tmp_path):
    def run(name="out", source="texts", **analysis):
        audited({
            "out": str(tmp_path / name), "execution": {"workers": 1}, "analysis": {"intervals": EDGES} | analysis,
            "corpus": {"source": str(corpus[0] / f"{source}.parquet"), "embedding_column": "vector",
                       "length_column": "tokens"},
        })  # fmt: skip
        return tmp_path / name

    return run


def pairs_of(corpus):
    """(interval of the shorter, of the longer, cosine) of every pair."""
    _, rows, tokens = corpus
    first, second = np.triu_indices(TEXTS, 1)
    interval = np.array(EDGES)[np.searchsorted(EDGES, tokens, side="right") - 1]
    ends = np.sort(np.stack([interval[first], interval[second]]), axis=0)
    return ends[0], ends[1], (rows @ rows.T)[first, second]


def test_percentiles_and_shares_are_those_of_all_pairs(corpus, run):
    out = run()
    (own,) = json.loads((out / "calibration.json").read_text())["models"].values()
    (card,) = own.values()
    a, b, cosine = pairs_of(corpus)
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
    text = thresholds(card, EDGES)
    assert f"Of {TEXTS * (TEXTS - 1) // 2:,} random pairs of texts one of a hundred reaches" in text
    assert "between two texts of 0–31 tokens that is" in text
    assert "between two of 128+" in text
    assert text.split(". A threshold")[0] in read_report(out)


def test_the_table_counts_every_pair_in_its_bin(corpus, run):
    table = read_tables(run())["cosine_histogram"]
    a, b, cosine = pairs_of(corpus)
    assert table["pairs"].sum() == len(cosine)
    assert (table["cosine_to"] - table["cosine_from"]).to_numpy() == pytest.approx(BIN)
    for row in table.sort("pairs").tail(20).to_dicts():
        here = (a == row["interval_a"]) & (b == row["interval_b"])
        sure = ((cosine[here] > row["cosine_from"] + 1e-6) & (cosine[here] < row["cosine_to"] - 1e-6)).sum()
        may = ((cosine[here] > row["cosine_from"] - 1e-6) & (cosine[here] < row["cosine_to"] + 1e-6)).sum()
        assert sure <= row["pairs"] <= may


def test_the_card_does_not_depend_on_the_order_of_the_source(run):
    one, other = (run(name, source=name) / "calibration.json" for name in ("texts", "shuffled"))
    assert one.read_bytes() == other.read_bytes()


def test_without_all_pairs_there_is_no_card_and_the_report_says_what_has_one(run):
    out = run(cosine="moments")
    assert not (out / "calibration.json").exists()
    assert read_tables(out)["cosine_histogram"].is_empty()
    assert "--cosine full --sample 20000" in read_report(out)


def test_a_run_of_an_earlier_version_is_rendered_without_a_card(run):
    out = run()
    tables = load_tables(Storage(str(out)))
    del tables["cosine_histogram"], tables["exposure_corrected"]
    page = render(tables, read_record(out))
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
    assert own["share_that_reaches"] == {"0.3": 0.5, "0.4": 0.5, "0.5": 0.5} | dict.fromkeys(
        ("0.6", "0.7", "0.8", "0.9"), 0.0
    )
    assert calibration.card(table.clear()) == []
