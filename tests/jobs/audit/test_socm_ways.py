"""SOCM in groups of texts, and the most collapsed pairs of a whole corpus: against all pairs."""

import itertools
import json

import numpy as np
import polars as pl
import pytest
from audit_ways import EDGES, RANKED, TAUS, settings
from plain_audit import all_pairs, run_alone
from polars.testing import assert_frame_equal
from whole_run import audited, read_parts, read_tables

from tempscale import Encoder
from tempscale.collapse import tiles

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def brute(asked, asked_corpus, small_model):
    """Per τ: ids, tokens, and of all pairs the float64 d_μ and d_Σ by singular values, from each text run alone."""
    texts = {row["id"]: row["text"] for row in map(json.loads, asked_corpus.read_text("utf-8").splitlines())}
    ids, found = sorted(texts), {}
    for tau in TAUS:
        encoder = Encoder.load(small_model, temperature=tau, max_length=128, device="cpu")
        d_mu, d_sigma = all_pairs([run_alone(encoder, texts[text_id]) for text_id in ids])
        tokens = dict(read_parts(asked, "texts", tau).sort("text_id").select("text_id", "tokens").iter_rows())
        found[tau] = ids, np.array([tokens[i] for i in ids]), d_mu, d_sigma
    return found


@pytest.mark.parametrize("tau", TAUS)
def test_the_most_collapsed_pairs_of_the_corpus_are_those_of_all_pairs(asked_tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    upper = np.triu_indices(len(ids), 1)
    value = ((1 - d_mu) * d_sigma)[upper]
    found = asked_tables["socm_pairs"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "socm"))
    assert found["over"].unique().to_list() == ["corpus"]
    assert found["rank"].to_list() == list(range(1, RANKED + 1))
    np.testing.assert_allclose(found["socm"].to_numpy(), np.sort(value)[::-1][:RANKED], atol=5e-5)
    place = {text_id: k for k, text_id in enumerate(ids)}
    for row in found.iter_rows(named=True):
        i, j = place[row["text_id_a"]], place[row["text_id_b"]]
        assert row["text_id_a"] < row["text_id_b"]
        assert row["socm"] == pytest.approx((1 - d_mu[i, j]) * d_sigma[i, j], abs=5e-5)
    # Those of the same mean are those of highest cosine.
    cosine, spread = 1 - 2 * d_mu[upper], d_sigma[upper]
    limit = np.quantile(cosine, 0.99)
    found = asked_tables["socm_pairs"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "same_mean"))
    # The limit is known to a bin of 1/2048: pairs inside it by more are all there, pairs outside by more are not.
    sure, loose = (np.sort(spread[cosine >= limit + slack])[::-1][:RANKED] for slack in (1e-3, -1e-3))
    assert (found["d_sigma"].to_numpy() >= sure - 5e-5).all()
    assert (found["d_sigma"].to_numpy() <= loose + 5e-5).all()
    assert ((1 - 2 * found["d_mu"].to_numpy()) >= limit - 1e-3).all()


@pytest.mark.soak
def test_panels_of_blocks_are_searched_as_single_blocks_are(asked_tables, tmp_path, asked_corpus, small_model, monkeypatch):
    how = {"socm_top_over": "corpus", "worst_pairs": RANKED}
    for name, together in (("blocks", 1), ("panels", 3)):
        monkeypatch.setattr(tiles, "SMALLEST_BLOCK", 16)  # Seven blocks, of 16 texts and less.
        monkeypatch.setattr(tiles, "panel_size", lambda count, most=0, together=together: min(together, count))
        asked = settings(tmp_path / name, asked_corpus, small_model, **how)
        asked["embedding"]["temperatures"] = TAUS[:1]
        audited(asked)
    one, other = (read_tables(tmp_path / name) for name in ("blocks", "panels"))
    assert len(one["socm_pairs"]) == 2 * RANKED
    for name in ("socm_search", "exposure", "near_duplicates"):
        assert_frame_equal(one[name], other[name], check_exact=True)
    # Copies of a text have pairs of one value to the last digit, which stand in any order.
    figures = one["socm_pairs"].select("temperature", "ranking", "rank", "socm", "d_sigma", "cosine")
    assert_frame_equal(figures, other["socm_pairs"].select(figures.columns), abs_tol=2e-9, rel_tol=0)
    for column in ("pairs", "near_duplicates", "cosine_p50"):
        assert one["length_collapse"][column].equals(other["length_collapse"][column])
    found, expected = one["socm_pairs"], asked_tables["socm_pairs"].filter(tau=TAUS[0])
    np.testing.assert_allclose(found["socm"].to_numpy(), expected["socm"].to_numpy(), atol=1e-6)


@pytest.mark.parametrize("tau", TAUS)
def test_the_bounds_leave_as_many_pairs_as_the_search_says(asked_tables, brute, tau):
    ids, _, d_mu, d_sigma = brute[tau]
    row = asked_tables["socm_search"].filter((pl.col("tau") == tau) & (pl.col("ranking") == "socm")).row(0, named=True)
    assert row["pairs"] == len(ids) * (len(ids) - 1) // 2
    reached = int((((1 - d_mu) * d_sigma)[np.triu_indices(len(ids), 1)] >= row["threshold"] + 5e-5).sum())
    assert RANKED - 1 <= reached <= row["kept_by_traces"] < row["pairs"]
    assert RANKED <= row["kept_by_factors"] < row["kept_by_traces"]
    assert row["texts"] <= len(ids)


def test_more_pairs_than_can_be_held_are_said_and_no_factor_of_the_search_is_kept(stopped_and_finished, asked):
    for named in (f"more than {RANKED - 2} pairs", "τ 1.0", "--sample", "--socm-top-over sample"):
        assert named in stopped_and_finished[1]
    assert not list(asked.glob("partials/top-*/**/*.parquet"))
    assert not list(asked.glob("partials/**/blocks"))
    assert not (asked / "queries" / "shards").exists()


def without(values, cells, weights, left_out=None):
    """The weighted mean over cells of the pairs of all groups but one, in plain loops; the cells' own means; by hand."""
    found = {}
    for (group, cell), own in values.items():
        if group != left_out:
            found.setdefault(cell, []).extend(own)
    means = {cell: sum(own) / len(own) for cell, own in found.items()}
    return sum(weights[c] * means[c] for c in means) / sum(weights[c] for c in means), means


@pytest.mark.parametrize("tau", TAUS)
def test_groups_are_weighted_back_and_their_errors_are_the_jackknifes(asked, asked_tables, brute, tau):
    ids, lengths, d_mu, d_sigma = brute[tau]
    value, place = (1 - d_mu) * d_sigma, {text_id: k for k, text_id in enumerate(ids)}
    interval = np.array([max(e for e in EDGES if e <= n) for n in lengths])
    groups = read_parts(asked, "partials/groups", tau)["text_id"].to_list()
    dealt = [text_id for group in groups for text_id in group]
    assert len(dealt) == len(set(dealt))
    assert len(groups) >= 20
    values = {}
    for number, group in enumerate(groups):
        for one, other in itertools.combinations(group, 2):
            i, j = place[one], place[other]
            values.setdefault((number, tuple(sorted((interval[i], interval[j])))), []).append(value[i, j])
    counts = {edge: int((interval == edge).sum()) for edge in EDGES}
    cells = list(itertools.combinations_with_replacement(EDGES, 2))
    weights = {(a, b): counts[a] * (counts[a] - 1) / 2 if a == b else counts[a] * counts[b] for a, b in cells}
    mean, means = without(values, cells, weights)
    left = [without(values, cells, weights, number) for number in range(len(groups))]
    rows = asked_tables["socm"].filter(pl.col("tau") == tau)
    assert rows.height == len(cells)
    for row in rows.iter_rows(named=True):
        cell = row["interval_a"], row["interval_b"]
        assert row["socm_mean"] == pytest.approx(means[cell], abs=2e-5)
        assert row["pairs"] == sum(len(own) for (_, c), own in values.items() if c == cell)
        has = [number for number in range(len(groups)) if (number, cell) in values]
        assert row["groups"] == len(has)
        own = np.array([left[number][1][cell] for number in has])
        expected = np.sqrt((len(has) - 1) / len(has) * np.square(own - own.mean()).sum()) if len(has) >= 10 else None
        assert row["socm_se"] == (None if expected is None else pytest.approx(expected, rel=1e-2))
    summary = asked_tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    assert summary["socm_mean"] == pytest.approx(mean, abs=2e-5)
    assert (summary["socm_texts"], summary["socm_groups"]) == (len(dealt), len(groups))
    assert summary["socm_freedom"] == len(groups) - 1
    each = np.array([mean_without for mean_without, _ in left])
    jackknife = np.sqrt((len(each) - 1) / len(each) * np.square(each - each.mean()).sum())
    assert summary["socm_se"] == pytest.approx(jackknife, rel=1e-2)
    assert summary["socm_se_superpopulation"] > summary["socm_se"]
    truth = value[np.triu_indices(len(ids), 1)].mean()
    assert abs(summary["socm_mean"] - truth) <= 4 * summary["socm_se"]
