"""How near queries are to texts: counts of all pairs in float64 from the stored embeddings, and what is said of them."""

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from whole_run import as_lines, documented, read_tables

from tempscale.collapse.aggregates import BINS
from tempscale_jobs.audit.words import query_thresholds
from tempscale_jobs.steps import calibration, query_cosines

EDGES, TEXTS, QUERIES = (0, 64, 100), 260, 120
SCHEMA = {"interval": pl.Int32, "cosine_from": pl.Float64, "cosine_to": pl.Float64, "pairs": pl.Int64}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder, lines = tmp_path_factory.mktemp("asked"), documented("scipy")
    (folder / "texts.jsonl").write_text(as_lines(lines[:TEXTS]))
    (folder / "queries.jsonl").write_text(as_lines(lines[TEXTS : TEXTS + QUERIES]))
    return folder


def audited(sources, model, out, *more):
    command = [
        "audit", "--corpus", str(sources / "texts.jsonl"), "--queries", str(sources / "queries.jsonl"), "--model", model,
        "--intervals", ",".join(map(str, EDGES)), "--quick", "--tau", "1.0", "--out", str(out), *more,
    ]  # fmt: skip
    code, _, err = in_process(*command)
    assert code == 0, err
    return out


@pytest.fixture(scope="module")
def run(sources, ray_session, small_model, tmp_path_factory):
    return audited(sources, small_model, tmp_path_factory.mktemp("run") / "run", "--workers", "1")


def stored(folder):
    (place,) = folder.glob("texts/*/temperature=1.0")
    table = pl.concat([pl.read_parquet(file) for file in sorted(place.glob("*.parquet"))])
    return np.stack(table["embedding"].to_list()).astype(np.float64), table["tokens"].to_numpy()


def binned(cosines):
    """Counts by bin, from the definition."""
    edges = np.linspace(-1, 1, BINS + 1)
    return np.histogram(np.clip(cosines, -1, 1), edges)[0]


def nearly(counted, expected):
    """Float32 may move a cosine at the edge of a bin into the next."""
    assert counted.sum() == expected.sum()
    assert np.abs(np.cumsum(counted) - np.cumsum(expected)).max() <= 2


@pytest.mark.proof
def test_every_pair_is_counted_by_the_length_of_its_text(run):
    texts, tokens = stored(run)
    queries, _ = stored(run / "queries")
    interval, cosines = np.searchsorted(EDGES, tokens, side="right") - 1, queries @ texts.T
    table = read_tables(run)["query_cosines"]
    assert table["pairs"].sum() == TEXTS * QUERIES + QUERIES
    for b, edge in enumerate(EDGES):
        nearly(calibration.histogram(table.filter(interval=edge)), binned(cosines[:, interval == b].ravel()))
    nearly(calibration.histogram(table.filter(pl.col("interval").is_null())), binned(cosines.max(1)))


@pytest.mark.proof
def test_what_is_said_of_them_is_what_the_cosines_are(run):
    texts, _ = stored(run)
    cosines = stored(run / "queries")[0] @ texts.T
    table = read_tables(run)["query_cosines"]
    every = calibration.query_card(table)[0]
    most = every["percentiles"]["99"]
    assert every["pairs"] == TEXTS * QUERIES
    assert most == pytest.approx(np.quantile(cosines, 0.99), abs=2 / BINS + 1e-3)
    threshold = float(np.median(cosines.max(1)))  # Where the share is neither 0 nor 1.
    below, queries = calibration.queries_below(table, threshold)
    assert queries == QUERIES
    assert below == pytest.approx((cosines.max(1) < threshold).mean(), abs=2 / QUERIES)
    said = query_thresholds(table, EDGES)
    assert f"Of the {TEXTS * QUERIES:,} pairs of a query and a text" in said
    assert f"of {QUERIES} queries have no text that reaches" in said


@pytest.mark.proof
def test_other_workers_and_a_stop_give_the_same_bytes_and_no_piece_is_counted_twice(
    run, sources, small_model, tmp_path, monkeypatch
):
    first = (run / "tables" / "query_cosines.parquet").read_bytes()
    monkeypatch.setattr(query_cosines, "_nearest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises((AssertionError, KeyboardInterrupt)):
        audited(sources, small_model, tmp_path / "run", "--workers", "2")
    monkeypatch.undo()
    started = []
    plain = query_cosines.run_tasks

    def noted(cluster, function, pieces):
        started.extend(pieces := list(pieces))
        yield from plain(cluster, function, iter(pieces))

    monkeypatch.setattr(query_cosines, "run_tasks", noted)
    audited(sources, small_model, tmp_path / "run", "--workers", "2")
    assert (tmp_path / "run" / "tables" / "query_cosines.parquet").read_bytes() == first
    assert not started


def test_without_pairs_nothing_is_said():
    empty = pl.DataFrame(
        schema={"interval": pl.Int32, "cosine_from": pl.Float64, "cosine_to": pl.Float64, "pairs": pl.Int64}
    )
    assert query_thresholds(empty, EDGES) == ""


def test_by_hand():
    """Two thousand pairs, a fifth of them at .5: one in a hundred reaches the upper part of that bin."""
    rows = [(0, 0.0, 1600), (0, 0.5, 400), (None, 0.0, 3), (None, 0.5, 1)]
    table = pl.DataFrame(
        [{"interval": i, "cosine_from": c, "cosine_to": c + 2 / BINS, "pairs": n} for i, c, n in rows],
        schema=SCHEMA,
    )
    assert calibration.query_card(table)[0]["percentiles"]["99"] == pytest.approx(0.5 + 2 / BINS * (380 / 400))
    assert calibration.queries_below(table, 0.5) == (0.75, 4)
    assert query_thresholds(table, (0,)).endswith(" of 4 queries have no text that reaches 0.5.")
