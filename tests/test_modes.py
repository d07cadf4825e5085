"""Queries, samples by length interval, the most collapsed pairs of a whole corpus: against everything computed plainly."""

import itertools
import json

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from whole_run import as_lines, audited, documented

from jobs import actor, config, socm_sample, socm_tables, socm_top
from jobs.errors import UsageError
from jobs.factor_pairs import exact_pairs
from jobs.layout import Layout
from jobs.runs import Model, RunOf
from jobs.socm_tables import Sample
from jobs.storage import Storage
from tempscale import Temperature
from tempscale.cosine import rounding_error

EDGES, TAUS, TEXTS, QUERIES, K = [0, 32, 64, 100], [1.0, 0.8], 230, 20, 4
CELL_ERROR, MOST_TEXTS, RANKED, DUPLICATE = 0.02, 150, 12, 0.9


def settings(out, corpus, small_model, **analysis):
    return {
        "out": str(out), "corpus": {"source": str(corpus)}, "queries": {"source": str(corpus.with_name("queries.jsonl"))},
        "embedding": {"models": [small_model], "temperatures": TAUS, "max_length": 128},
        "analysis": {"intervals": EDGES, "probe_sample": 0, "neighbours": K, "near_duplicate": DUPLICATE} | analysis,
    }  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Docstrings, every tenth of them twice under two ids, and some of others as queries."""
    found = documented("pyarrow")
    texts = found[: 2 * TEXTS : 2]
    texts += [{"id": f"copy of {text['id']}", "text": text["text"]} for text in texts[::10]]
    file = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    file.write_text(as_lines(texts))
    file.with_name("queries.jsonl").write_text(as_lines(found[1 : 2 * QUERIES : 2]))
    return file


@pytest.fixture(scope="module")
def stopped_and_finished(tmp_path_factory, ray_session, corpus, small_model):
    """A run that its bounds left too many pairs of, gone on with where that number may be held; and what it said first."""
    out = tmp_path_factory.mktemp("modes") / "run"
    own = {"socm_cell_se": CELL_ERROR, "socm_sample": MOST_TEXTS, "socm_top_over": "corpus", "worst_pairs": RANKED}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socm_top, "_SEEDS", 40)  # Fewer than there are texts: the bounds must do their part.
        patch.setattr(socm_top, "_MOST_PAIRS", RANKED - 2)
        with pytest.raises(UsageError) as said:
            audited(settings(out, corpus, small_model, **own))
        patch.undo()
        patch.setattr(socm_top, "_SEEDS", 40)
        audited(settings(out, corpus, small_model, **own))
    return out, str(said.value)


@pytest.fixture(scope="module")
def finished(stopped_and_finished):
    return stopped_and_finished[0]


@pytest.fixture(scope="module")
def tables(finished):
    return {file.stem: pl.read_parquet(file) for file in (finished / "tables").iterdir()}


def embedded(folder, tau):
    parts = pl.read_parquet(folder / "texts" / "*" / f"temperature={tau}" / "*.parquet", hive_partitioning=False)
    return parts.sort("text_id")


@pytest.fixture(scope="module")
def brute(finished, corpus, small_model):
    """Per τ: ids, tokens, and of all pairs the float64 d_μ and d_Σ by singular values, from each text run alone."""
    import torch

    from tempscale import Encoder

    texts = {row["id"]: row["text"] for row in map(json.loads, corpus.read_text("utf-8").splitlines())}
    found = {}
    for tau in TAUS:
        encoder = Encoder.load(small_model, temperature=tau, max_length=128, device="cpu")
        ids, means, factors = sorted(texts), [], []
        for text_id in ids:
            row = torch.tensor(encoder.tokenizer([texts[text_id]]).ids)
            with torch.inference_mode():
                x = encoder.model(input_ids=row).last_hidden_state[0].double().numpy()
            x = x / np.linalg.norm(x.mean(0))
            means.append(x.mean(0))
            factors.append((x - x.mean(0)) / np.sqrt(len(x)))
        trace = np.array([(f**2).sum() for f in factors])
        d_mu = ((np.array(means)[:, None] - np.array(means)[None]) ** 2).sum(-1) / 4
        cross = np.zeros_like(d_mu)
        for i, j in itertools.combinations(range(len(ids)), 2):
            cross[i, j] = cross[j, i] = np.linalg.svd(factors[i] @ factors[j].T, compute_uv=False).sum()
        tokens = dict(embedded(finished, tau).select("text_id", "tokens").iter_rows())
        lengths = np.array([tokens[i] for i in ids])
        found[tau] = ids, lengths, d_mu, (trace[:, None] + trace[None] - 2 * cross) / 4
    return found


@pytest.mark.soak
@pytest.mark.parametrize("tau", TAUS)
def test_the_most_collapsed_pairs_of_the_corpus_are_those_of_all_pairs(tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    upper = np.triu_indices(len(ids), 1)
    value = ((1 - d_mu) * d_sigma)[upper]
    found = tables["socm_pairs"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "socm"))
    assert found["over"].unique().to_list() == ["corpus"]
    assert found["rank"].to_list() == list(range(1, RANKED + 1))
    best = np.sort(value)[::-1][:RANKED]
    np.testing.assert_allclose(found["socm"].to_numpy(), best, atol=5e-5)
    place = {text_id: k for k, text_id in enumerate(ids)}
    for row in found.iter_rows(named=True):
        i, j = place[row["text_id_a"]], place[row["text_id_b"]]
        assert row["text_id_a"] < row["text_id_b"]
        assert row["socm"] == pytest.approx((1 - d_mu[i, j]) * d_sigma[i, j], abs=5e-5)


@pytest.mark.soak
@pytest.mark.parametrize("tau", TAUS)
def test_the_pairs_of_the_same_mean_are_those_of_highest_cosine(tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    upper = np.triu_indices(len(ids), 1)
    cosine, spread = 1 - 2 * d_mu[upper], d_sigma[upper]
    limit = np.quantile(cosine, 0.99)
    found = tables["socm_pairs"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "same_mean"))
    # The limit is known to a bin of 1/2048: pairs inside it by more are all there, pairs outside by more are not.
    sure = np.sort(spread[cosine >= limit + 1e-3])[::-1][:RANKED]
    loose = np.sort(spread[cosine >= limit - 1e-3])[::-1][:RANKED]
    assert (found["d_sigma"].to_numpy() >= sure - 5e-5).all()
    assert (found["d_sigma"].to_numpy() <= loose + 5e-5).all()
    assert ((1 - 2 * found["d_mu"].to_numpy()) >= limit - 1e-3).all()


@pytest.mark.soak
@pytest.mark.parametrize("tau", TAUS)
def test_the_bounds_leave_as_many_pairs_as_the_search_says(tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    row = tables["socm_search"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "socm")).row(0, named=True)
    assert row["pairs"] == len(ids) * (len(ids) - 1) // 2
    reached = int((((1 - d_mu) * d_sigma)[np.triu_indices(len(ids), 1)] >= row["threshold"] + 5e-5).sum())
    assert RANKED - 1 <= reached <= row["kept_by_frobenius"] <= row["kept_by_traces"] < row["pairs"]
    assert row["texts"] <= len(ids)


@pytest.mark.soak
def test_more_pairs_than_can_be_held_are_said_with_the_mend(stopped_and_finished):
    said = stopped_and_finished[1]
    assert said.startswith(f"the bounds leave more than {RANKED - 2} pairs of this corpus under τ 1.0;")
    assert said.endswith("rank those of a sample: --sample N, or --socm-top-over sample")


@pytest.mark.soak
def test_no_factor_of_the_search_is_kept(finished):
    assert not list(finished.glob("partials/top-*/**/*.parquet"))
    assert not list(finished.glob("partials/**/blocks"))
    assert not (finished / "queries" / "shards").exists()


def nearest(asking, ids, embeddings, own):
    """The K nearest by (−cosine, id), plainly."""
    found = []
    for k, row in enumerate(asking):
        order = sorted((-float(np.float32(c)), ids[j]) for j, c in enumerate(embeddings @ row) if not (own and j == k))
        found.append(order[:K])
    return found


@pytest.mark.soak
@pytest.mark.parametrize("asked_by", ["corpus", "queries"])
@pytest.mark.parametrize("tau", TAUS)
def test_neighbours_and_exposure(finished, tables, tau, asked_by):
    texts = embedded(finished, tau)
    ids, vectors = texts["text_id"].to_list(), np.array(texts["embedding"].to_list(), dtype=np.float64)
    folder = finished if asked_by == "corpus" else finished / "queries"
    asking = embedded(folder, tau)
    graph = pl.read_parquet(folder / "neighbours" / "*" / f"temperature={tau}" / "*.parquet", hive_partitioning=False)
    graph = graph.sort("text_id")
    assert graph["text_id"].to_list() == asking["text_id"].to_list()
    expected = nearest(np.array(asking["embedding"].to_list(), dtype=np.float64), ids, vectors, asked_by == "corpus")
    place, same = {text_id: k for k, text_id in enumerate(ids)}, 0
    own = np.array(asking["embedding"].to_list(), dtype=np.float64)
    for vector, row, best in zip(own, graph.iter_rows(named=True), expected, strict=True):
        np.testing.assert_allclose(row["cosines"], [-c for c, _ in best], atol=2e-6)
        # Another text may stand where one as near to the last digit does, and nowhere else.
        named = vectors[[place[text_id] for text_id in row["neighbours"]]] @ vector
        np.testing.assert_allclose(named, [-c for c, _ in best], atol=2e-6)
        assert len(set(row["neighbours"])) == len(best)
        assert asked_by == "queries" or row["text_id"] not in row["neighbours"]
        same += row["neighbours"] == [text_id for _, text_id in best]
    assert same >= 0.9 * len(expected)
    interval = dict(zip(ids, (max(e for e in EDGES if e <= n) for n in texts["tokens"]), strict=True))
    slots = [interval[i] for row in graph["neighbours"] for i in row]
    table = tables["exposure"].filter((pl.col("tau") == tau) & (pl.col("asked_by") == asked_by) & (pl.col("k") == K))
    assert table["interval"].to_list() == sorted(set(interval.values()))
    for row in table.iter_rows(named=True):
        of_texts = sum(e == row["interval"] for e in interval.values())
        assert row["texts"] == of_texts
        assert row["slots_share"] == pytest.approx(slots.count(row["interval"]) / len(slots))
        assert row["exposure"] == pytest.approx(slots.count(row["interval"]) / len(slots) / (of_texts / len(ids)))
        assert row["queries"] == len(asking)
        assert row["exposure_se_superpopulation"] > 0


@pytest.mark.soak
@pytest.mark.parametrize("tau", TAUS)
def test_near_duplicates_are_counted_and_listed(finished, tables, tau):
    texts = embedded(finished, tau)
    ids, vectors = texts["text_id"].to_list(), np.array(texts["embedding"].to_list(), dtype=np.float64)
    cosine = (vectors @ vectors.T)[np.triu_indices(len(ids), 1)]
    assert (np.abs(cosine - DUPLICATE) > 1e-6).all()
    summary = tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    assert summary["near_duplicate_pairs"] == (cosine >= DUPLICATE).sum() >= TEXTS // 10
    table = tables["near_duplicates"].filter(pl.col("tau") == tau)
    np.testing.assert_allclose(table["cosine"].to_numpy(), np.sort(cosine)[::-1][: len(table)], atol=2e-6)
    assert len(table) == min(100, summary["near_duplicate_pairs"])
    assert (table["text_id_a"] < table["text_id_b"]).all()


@pytest.mark.soak
@pytest.mark.parametrize("tau", TAUS)
def test_a_sample_by_length_interval_is_weighted_back(finished, tables, brute, tau):
    ids, lengths, d_mu, d_sigma = brute[tau]
    value = (1 - d_mu) * d_sigma
    interval = np.array([max(e for e in EDGES if e <= n) for n in lengths])
    drawn = pl.read_parquet(finished / "factors" / "*" / f"temperature={tau}" / "*.parquet", hive_partitioning=False)
    sampled = np.isin(ids, drawn["text_id"].to_list())
    assert 0 < sampled.sum() <= MOST_TEXTS
    total, mean = 0, 0.0
    for a, b in itertools.combinations_with_replacement(EDGES, 2):
        rows, columns = np.flatnonzero(sampled & (interval == a)), np.flatnonzero(sampled & (interval == b))
        of_a, of_b = int((interval == a).sum()), int((interval == b).sum())
        block = value[np.ix_(rows, columns)]
        cell = block[np.triu_indices(len(rows), 1)] if a == b else block.ravel()
        pairs = of_a * (of_a - 1) // 2 if a == b else of_a * of_b
        row = tables["socm"].filter(
            (pl.col("tau") == tau) & (pl.col("interval_a") == a) & (pl.col("interval_b") == b)
        ).row(0, named=True)  # fmt: skip
        assert row["socm_mean"] == pytest.approx(cell.mean(), abs=2e-5)
        assert row["pairs"] == len(cell)
        total, mean = total + pairs, mean + pairs * cell.mean()
        # Every text of the interval was taken, or enough of them; a pilot's variances are estimates.
        assert row["socm_se"] <= 1.5 * CELL_ERROR
    summary = tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    assert summary["socm_mean"] == pytest.approx(mean / total, abs=2e-5)
    truth = value[np.triu_indices(len(ids), 1)].mean()
    assert abs(summary["socm_mean"] - truth) <= 4 * summary["socm_se"] + 2e-5
    assert 0 < summary["socm_se"] < summary["socm_se_superpopulation"]


@pytest.mark.soak
def test_moments_alone_give_the_same_means_at_once(finished, tables, tmp_path, corpus, small_model):
    data = settings(tmp_path / "run", corpus, small_model, cosine="moments", socm_sample=0)
    audited(data)
    found = pl.read_parquet(tmp_path / "run" / "tables" / "length_collapse.parquet")
    full = tables["length_collapse"]
    for column in ("pairs", "texts_a", "cosine_mean", "cosine_se", "cosine_std"):
        np.testing.assert_allclose(
            found[column].to_numpy().astype(float), full[column].to_numpy().astype(float), rtol=1e-5, atol=1e-6
        )
    assert found["cosine_p50"].null_count() == found["near_duplicates"].null_count() == len(found)
    assert full["cosine_p50"].null_count() == 0
    assert pl.read_parquet(tmp_path / "run" / "tables" / "exposure.parquet").is_empty()
    assert not list((tmp_path / "run").glob("partials/cosine/**/tile-*"))


@pytest.mark.soak
def test_bfloat16_moves_no_mean_and_other_cosines_within_their_bound(finished, tables, tmp_path, corpus, small_model):
    out = tmp_path / "run"
    audited(settings(out, corpus, small_model, cosine_precision="bfloat16", socm_sample=0))
    found = pl.read_parquet(out / "tables" / "length_collapse.parquet")
    full, bound = tables["length_collapse"], rounding_error("bfloat16")
    for column in ("pairs", "cosine_mean", "cosine_se", "cosine_std"):
        np.testing.assert_allclose(found[column].to_numpy(), full[column].to_numpy(), rtol=1e-5, atol=1e-6)
    for column in ("cosine_p05", "cosine_p50", "cosine_p95"):
        moved = np.abs(found[column].to_numpy() - full[column].to_numpy())
        assert 0 < moved.max() < bound + 1 / 2048
    for tau in TAUS:
        ours, exact = (
            pl.read_parquet(folder / "neighbours" / "*" / f"temperature={tau}" / "*.parquet", hive_partitioning=False)
            for folder in (out, finished)
        )
        ours, exact = (table.sort("text_id")["cosines"].list.explode().to_numpy() for table in (ours, exact))
        assert 0 < np.abs(ours - exact).max() <= bound
    record = json.loads((out / "run.json").read_text())
    (model,) = record["models"].values()
    assert set(model["cosine_rounding"]) == {str(tau) for tau in TAUS}
    for moved in model["cosine_rounding"].values():
        assert moved["precision"] == "bfloat16"
        assert moved["largest_cosine_error"] == bound
        assert 0 < moved["largest_mean_error"] < bound / 2
    assert "rounded to bfloat16" in (out / "report.html").read_text("utf-8")
    assert "cosine_rounding" not in next(iter(json.loads((finished / "run.json").read_text())["models"].values()))


# --- steps by hand, without a run -------------------------------------------------------------------------------------


def laid_out(*sizes):
    """A layout of so many texts in each length interval, all of the corpus."""
    interval = np.repeat(np.arange(len(sizes)), sizes)
    count = np.arange(len(interval))
    ids = np.array([f"t{k}" for k in count], dtype=object)
    return Layout(ids, 10 + 32 * interval, interval, count * 0, count, (0, 32, 64)[: len(sizes)], len(interval))


def test_a_sample_by_length_interval_is_as_large_as_the_error_asks_or_in_proportion():
    """Four long texts are 0.5 from one another and 0, 0.2, 0.4, 0.6 from two short ones, of which too few are known.

    v = 0.2/3 between, so 2v/0.03² = 148.15 texts, 148.15/(1 + 148.15/100) = 59.7 of a hundred.
    """
    value = np.full((6, 6), 0.5)
    value[:4, 4:] = np.array([0, 0.2, 0.4, 0.6])[:, None]
    value[4:, :4] = value[:4, 4:].T
    np.fill_diagonal(value, np.nan)
    interval, ids = np.array([0, 0, 0, 0, 1, 1]), np.array([f"t{k}" for k in range(6)], dtype=object)
    pilot = Sample(ids, interval, interval, value, value, value, None)
    texts = laid_out(100, 2)
    assert socm_sample.wanted_sizes([pilot], texts, 0.03, 62).tolist() == [60, 2]
    assert socm_sample.wanted_sizes([pilot], texts, 0.03, 31).tolist() == [30, 2]  # Two of each are needed for a pair.
    assert socm_sample.wanted_sizes([pilot], texts, 0.3, 62).tolist() == [40, 2]  # No fewer than in the pilot.


def test_of_no_pairs_none_is_ranked_and_no_task_begins():
    none = np.empty(0, dtype=np.int64)
    found = exact_pairs(None, None, np.empty(0, object), none, none, config.Analysis.model_validate({}))
    assert [len(column) for column in found] == [0] * 5
    assert socm_tables.best(found, found.value, np.empty(0, object), none, 5) == []


@pytest.fixture
def shard(tmp_path):
    """A run of two temperatures whose one shard has four texts, its model a small one of single letters."""
    storage = Storage(str(tmp_path / "run"))
    texts = ["some letters", "other letters", "more of them", "a few"]
    storage.write_table("shards/part-00000.parquet", pa.table({"text_id": [f"t{k}" for k in range(4)], "text": texts}))
    temperatures = [Temperature(1.0), Temperature(0.8)]
    return RunOf(None, storage, [], temperatures, False), {"shards": [{"name": "shards/part-00000.parquet", "texts": 4}]}


def test_factors_are_asked_for_under_the_temperatures_that_are_searched(shard, monkeypatch):
    run, index = shard
    asked = []

    class Noting:
        def __init__(self, *_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def work(self, process, pieces):
            asked.append((process, pieces))
            return []

    monkeypatch.setattr(socm_top, "Crew", Noting)
    model = Model("tiny", "tiny", "", 64)
    socm_top._factors(run, None, model, laid_out(4), index, {"0.8": np.array([0, 2])}, "partials/top-seeds")
    ((process, pieces),) = asked
    assert process is socm_top.leave_survivors
    assert pieces[0].to_pylist() == [{"temperature": "0.8", "text_id": text} for text in ("t0", "t2")]
    assert pieces[0].schema.metadata == {b"kind": b"partials/top-seeds", b"shard": b"shards/part-00000.parquet"}


def test_factors_are_left_under_the_temperatures_that_want_some(shard, tiny_folder):
    run, _ = shard
    model = Model("tiny", str(tiny_folder("bert")), "", 64)
    worker = actor.ModelActor(run.storage, model, [1.0, 0.8], {"token_budget": 90}, 0)
    work = pa.table({"temperature": ["0.8"] * 2, "text_id": ["t2", "t0"]})
    work = work.replace_schema_metadata({"kind": "partials/top-seeds", "shard": "shards/part-00000.parquet"})
    assert socm_top.leave_survivors(worker, 0, work) == {"number": 0, "texts": 2}
    (name,) = run.storage.list("partials/top-seeds")
    assert name == run.part("partials/top-seeds", model, Temperature(0.8), 0)
    found = run.storage.read_table(name)
    assert found.column("text_id").to_pylist() == ["t2", "t0"]
    texts = run.storage.read_table("shards/part-00000.parquet").column("text").to_pylist()
    expected = worker.encoder.encode(texts, factors=True).factors  # Still under 0.8, the temperature of its last work.
    for row, k in zip(found.to_pylist(), (2, 0), strict=True):
        np.testing.assert_array_equal(np.float32(row["factor"]).reshape(row["rank"], -1), expected[k][1].numpy())
