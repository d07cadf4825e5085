"""Neighbours of texts and queries, near duplicates, moments alone, rounded cosines: against all cosines."""

import hashlib

import numpy as np
import polars as pl
import pytest
from audit_ways import DUPLICATE, EDGES, TAUS, TEXTS, K, settings
from oracles import reciprocity
from whole_run import audited, read_parts, read_record, read_tables

from tempscale.collapse.cosine import rounding_error

pytestmark = pytest.mark.proof


def keyed(text_id):
    """What decides between texts that are as near: a hash of the id under the run's seed, 0."""
    return hashlib.blake2b(text_id.encode(), digest_size=8, key=bytes(8)).digest()


def nearest(asking, ids, embeddings, own):
    """The K + 1 nearest by (−cosine, hash of the id), plainly."""
    found = []
    for k, row in enumerate(asking):
        cosines = [(-float(np.float32(c)), ids[j]) for j, c in enumerate(embeddings @ row) if not (own and j == k)]
        found.append(sorted(cosines, key=lambda pair: (pair[0], keyed(pair[1])))[: K + 1])
    return found


@pytest.mark.parametrize("asked_by", ["corpus", "queries"])
@pytest.mark.parametrize("tau", TAUS)
def test_neighbours_and_exposure(asked, asked_tables, tau, asked_by):
    texts = read_parts(asked, "texts", tau).sort("text_id")
    ids, vectors = texts["text_id"].to_list(), np.array(texts["embedding"].to_list(), dtype=np.float64)
    folder = asked if asked_by == "corpus" else asked / "queries"
    asking = read_parts(folder, "texts", tau).sort("text_id")
    graph = read_parts(folder, "neighbours", tau).sort("text_id")
    assert graph["text_id"].to_list() == asking["text_id"].to_list()
    own = np.array(asking["embedding"].to_list(), dtype=np.float64)
    expected = nearest(own, ids, vectors, asked_by == "corpus")
    place, apart = {text_id: k for k, text_id in enumerate(ids)}, 0
    for vector, row, candidates in zip(own, graph.iter_rows(named=True), expected, strict=True):
        best = candidates[:K]
        np.testing.assert_allclose(row["cosines"], [-c for c, _ in best], atol=2e-6)
        # Another text may stand where one as near to the last digit does, and nowhere else.
        named = vectors[[place[text_id] for text_id in row["neighbours"]]] @ vector
        np.testing.assert_allclose(named, [-c for c, _ in best], atol=2e-6)
        assert len(set(row["neighbours"])) == len(best)
        assert asked_by == "queries" or row["text_id"] not in row["neighbours"]
        if np.diff([c for c, _ in candidates]).min() > 4e-6:
            assert row["neighbours"] == [text_id for _, text_id in best]
            apart += 1
    assert apart > len(expected) / 2
    interval = dict(zip(ids, (max(e for e in EDGES if e <= n) for n in texts["tokens"]), strict=True))
    slots = [interval[i] for row in graph["neighbours"] for i in row]
    table = asked_tables["exposure"].filter((pl.col("tau") == tau) & (pl.col("asked_by") == asked_by) & (pl.col("k") == K))
    assert table["interval"].to_list() == sorted(set(interval.values()))
    both_ways = {None}
    if asked_by == "corpus":
        both_ways = {reciprocity([[place[text_id] for text_id in row] for row in graph["neighbours"]])}
        summary = asked_tables["collapse_summary"].filter(tau=tau).row(0, named=True)
        assert {summary["reciprocity"]} == both_ways
    assert set(table["reciprocity"]) == both_ways
    for row in table.iter_rows(named=True):
        of_texts = sum(e == row["interval"] for e in interval.values())
        assert row["texts"] == of_texts
        assert row["slots_share"] == pytest.approx(slots.count(row["interval"]) / len(slots))
        assert row["exposure"] == pytest.approx(slots.count(row["interval"]) / len(slots) / (of_texts / len(ids)))
        assert row["queries"] == len(asking)
        assert row["exposure_se_superpopulation"] > 0


@pytest.mark.parametrize("tau", TAUS)
def test_near_duplicates_are_counted_and_listed(asked, asked_tables, tau):
    texts = read_parts(asked, "texts", tau).sort("text_id")
    ids, vectors = texts["text_id"].to_list(), np.array(texts["embedding"].to_list(), dtype=np.float64)
    cosine = (vectors @ vectors.T)[np.triu_indices(len(ids), 1)]
    assert (np.abs(cosine - DUPLICATE) > 1e-6).all()
    summary = asked_tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    assert summary["near_duplicate_pairs"] == (cosine >= DUPLICATE).sum() >= TEXTS // 10
    table = asked_tables["near_duplicates"].filter(pl.col("tau") == tau)
    np.testing.assert_allclose(table["cosine"].to_numpy(), np.sort(cosine)[::-1][: len(table)], atol=2e-6)
    assert len(table) == min(100, summary["near_duplicate_pairs"])
    assert (table["text_id_a"] < table["text_id_b"]).all()


ASKING = 50


@pytest.fixture(scope="module")
def sampled(tmp_path_factory, asked_corpus, small_model):
    """The exposures of an audit in closed form, that of which texts asked for their nearest."""
    out = tmp_path_factory.mktemp("sampled") / "run"
    how = {"cosine": "moments", "socm_sample": 0, "exposure_sample": ASKING}
    audited(settings(out, asked_corpus, small_model, **how))
    return out


def test_moments_alone_give_the_same_means_at_once(sampled, asked_tables):
    found, full = read_tables(sampled)["length_collapse"], asked_tables["length_collapse"]
    for column in ("pairs", "texts_a", "cosine_mean", "cosine_se", "cosine_std"):
        ours, theirs = (table[column].to_numpy().astype(float) for table in (found, full))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert found["cosine_p50"].null_count() == found["near_duplicates"].null_count() == len(found)
    assert full["cosine_p50"].null_count() == 0
    assert not list(sampled.glob("partials/cosine/**/tile-*"))


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("asked_by", ["corpus", "queries"])
def test_a_sample_finds_what_all_texts_find(asked, sampled, tau, asked_by):
    below = "" if asked_by == "corpus" else "queries"
    found = read_parts(sampled / below, "neighbours", tau)
    every = read_parts(asked / below, "neighbours", tau)
    assert len(found) == min(ASKING, len(every)) == found["text_id"].n_unique()
    both = found.join(every, on="text_id", suffix="_every")
    assert len(both) == len(found)
    same = both["neighbours"].list.explode() == both["neighbours_every"].list.explode()
    assert same.mean() >= 0.98, "but for texts that are as near to the last digit"
    ours, theirs = (both[name].list.explode().to_numpy() for name in ("cosines", "cosines_every"))
    np.testing.assert_allclose(ours, theirs, atol=2e-6)


def test_tables_of_a_sample_have_its_exposures_and_nothing_of_all_pairs(sampled):
    """Exposures from a graph, of a sample too, are compared with plain counts in steps/test_exposure_counts.py."""
    tables, rows = read_tables(sampled), 2 * len(TAUS) * len(EDGES)
    own, queries = (tables["exposure"].filter(asked_by=asked_by) for asked_by in ("corpus", "queries"))
    assert len(own) == len(queries) == rows
    assert own["queries"].to_list() == [ASKING] * rows
    assert (own["exposure_se_superpopulation"] > own["exposure_se"]).all()
    assert (own["k_occurrence_skewness"].null_count(), queries["k_occurrence_skewness"].null_count()) == (rows, 0)
    assert own["reciprocity"].null_count() == queries["reciprocity"].null_count() == rows
    for row in tables["collapse_summary"].to_dicts():
        assert row["exposure_long"] in own.filter(tau=row["tau"])["exposure"].to_list()
        assert row["k_occurrence_skewness"] is row["reciprocity"] is None
    assert set(tables["collapsed_texts"]["ranking"]) == {"nearness"}
    assert tables["near_duplicates"].is_empty()
    assert not list(sampled.glob("partials/cosine/**/near"))


def test_bfloat16_moves_no_mean_and_other_cosines_within_their_bound(
    asked, asked_tables, tmp_path, asked_corpus, small_model
):
    out = tmp_path / "run"
    audited(settings(out, asked_corpus, small_model, cosine_precision="bfloat16", socm_sample=0))
    found = read_tables(out)["length_collapse"]
    full, bound = asked_tables["length_collapse"], rounding_error("bfloat16")
    for column in ("pairs", "cosine_mean", "cosine_se", "cosine_std"):
        np.testing.assert_allclose(found[column].to_numpy(), full[column].to_numpy(), rtol=1e-5, atol=1e-6)
    for column in ("cosine_p05", "cosine_p50", "cosine_p95"):
        moved = np.abs(found[column].to_numpy() - full[column].to_numpy())
        assert 0 < moved.max() < bound + 1 / 2048
    for tau in TAUS:
        ours, exact = (read_parts(folder, "neighbours", tau) for folder in (out, asked))
        ours, exact = (table.sort("text_id")["cosines"].list.explode().to_numpy() for table in (ours, exact))
        assert 0 < np.abs(ours - exact).max() <= bound
    (model,) = read_record(out)["models"].values()
    assert set(model["cosine_rounding"]) == {str(tau) for tau in TAUS}
    for moved in model["cosine_rounding"].values():
        assert moved["precision"] == "bfloat16"
        assert moved["largest_cosine_error"] == bound + 64 / 4 * 2.0**-23  # The model's dimensions.
        assert 0 < moved["largest_mean_error"] < bound / 2
    assert "bfloat16" in (out / "report.html").read_text("utf-8")
    assert "cosine_rounding" not in next(iter(read_record(asked)["models"].values()))
