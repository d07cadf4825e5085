"""SOCM of a sample by length interval, and the most collapsed pairs of a whole corpus: against all pairs."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
from audit_ways import CELL_ERROR, EDGES, MOST_TEXTS, RANKED, TAUS
from whole_run import read_parts

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def brute(asked, asked_corpus, small_model):
    """Per τ: ids, tokens, and of all pairs the float64 d_μ and d_Σ by singular values, from each text run alone."""
    import torch

    from tempscale import Encoder

    texts = {row["id"]: row["text"] for row in map(json.loads, asked_corpus.read_text("utf-8").splitlines())}
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
        tokens = dict(read_parts(asked, "texts", tau).sort("text_id").select("text_id", "tokens").iter_rows())
        lengths = np.array([tokens[i] for i in ids])
        found[tau] = ids, lengths, d_mu, (trace[:, None] + trace[None] - 2 * cross) / 4
    return found


@pytest.mark.parametrize("tau", TAUS)
def test_the_most_collapsed_pairs_of_the_corpus_are_those_of_all_pairs(asked_tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    upper = np.triu_indices(len(ids), 1)
    value = ((1 - d_mu) * d_sigma)[upper]
    found = asked_tables["socm_pairs"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "socm"))
    assert found["over"].unique().to_list() == ["corpus"]
    assert found["rank"].to_list() == list(range(1, RANKED + 1))
    best = np.sort(value)[::-1][:RANKED]
    np.testing.assert_allclose(found["socm"].to_numpy(), best, atol=5e-5)
    place = {text_id: k for k, text_id in enumerate(ids)}
    for row in found.iter_rows(named=True):
        i, j = place[row["text_id_a"]], place[row["text_id_b"]]
        assert row["text_id_a"] < row["text_id_b"]
        assert row["socm"] == pytest.approx((1 - d_mu[i, j]) * d_sigma[i, j], abs=5e-5)


@pytest.mark.parametrize("tau", TAUS)
def test_the_pairs_of_the_same_mean_are_those_of_highest_cosine(asked_tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    upper = np.triu_indices(len(ids), 1)
    cosine, spread = 1 - 2 * d_mu[upper], d_sigma[upper]
    limit = np.quantile(cosine, 0.99)
    found = asked_tables["socm_pairs"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "same_mean"))
    # The limit is known to a bin of 1/2048: pairs inside it by more are all there, pairs outside by more are not.
    sure = np.sort(spread[cosine >= limit + 1e-3])[::-1][:RANKED]
    loose = np.sort(spread[cosine >= limit - 1e-3])[::-1][:RANKED]
    assert (found["d_sigma"].to_numpy() >= sure - 5e-5).all()
    assert (found["d_sigma"].to_numpy() <= loose + 5e-5).all()
    assert ((1 - 2 * found["d_mu"].to_numpy()) >= limit - 1e-3).all()


@pytest.mark.parametrize("tau", TAUS)
def test_the_bounds_leave_as_many_pairs_as_the_search_says(asked_tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    row = asked_tables["socm_search"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "socm")).row(0, named=True)
    assert row["pairs"] == len(ids) * (len(ids) - 1) // 2
    reached = int((((1 - d_mu) * d_sigma)[np.triu_indices(len(ids), 1)] >= row["threshold"] + 5e-5).sum())
    assert RANKED - 1 <= reached <= row["kept_by_frobenius"] <= row["kept_by_traces"] < row["pairs"]
    assert row["texts"] <= len(ids)


def test_more_pairs_than_can_be_held_are_said_with_the_mend(stopped_and_finished):
    said = stopped_and_finished[1]
    assert said.startswith(f"the bounds leave more than {RANKED - 2} pairs of this corpus under τ 1.0;")
    assert said.endswith("rank those of a sample: --sample N, or --socm-top-over sample")


def test_no_factor_of_the_search_is_kept(asked):
    assert not list(asked.glob("partials/top-*/**/*.parquet"))
    assert not list(asked.glob("partials/**/blocks"))
    assert not (asked / "queries" / "shards").exists()


@pytest.mark.parametrize("tau", TAUS)
def test_a_sample_by_length_interval_is_weighted_back(asked, asked_tables, brute, tau):
    ids, lengths, d_mu, d_sigma = brute[tau]
    value = (1 - d_mu) * d_sigma
    interval = np.array([max(e for e in EDGES if e <= n) for n in lengths])
    drawn = read_parts(asked, "factors", tau)
    sampled = np.isin(ids, drawn["text_id"].to_list())
    assert 0 < sampled.sum() <= MOST_TEXTS
    total, mean = 0, 0.0
    for a, b in itertools.combinations_with_replacement(EDGES, 2):
        rows, columns = np.flatnonzero(sampled & (interval == a)), np.flatnonzero(sampled & (interval == b))
        of_a, of_b = int((interval == a).sum()), int((interval == b).sum())
        block = value[np.ix_(rows, columns)]
        cell = block[np.triu_indices(len(rows), 1)] if a == b else block.ravel()
        pairs = of_a * (of_a - 1) // 2 if a == b else of_a * of_b
        row = asked_tables["socm"].filter(
            (pl.col("tau") == tau) & (pl.col("interval_a") == a) & (pl.col("interval_b") == b)
        ).row(0, named=True)  # fmt: skip
        assert row["socm_mean"] == pytest.approx(cell.mean(), abs=2e-5)
        assert row["pairs"] == len(cell)
        total, mean = total + pairs, mean + pairs * cell.mean()
        # Every text of the interval was taken, or enough of them; a pilot's variances are estimates.
        assert row["socm_se"] <= 1.5 * CELL_ERROR
    summary = asked_tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    assert summary["socm_mean"] == pytest.approx(mean / total, abs=2e-5)
    truth = value[np.triu_indices(len(ids), 1)].mean()
    assert abs(summary["socm_mean"] - truth) <= 4 * summary["socm_se"] + 2e-5
    assert 0 < summary["socm_se"] < summary["socm_se_superpopulation"]
