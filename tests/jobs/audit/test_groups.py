"""SOCM in groups, by whole runs: how many groups a wanted error takes, the worst pairs of the texts of largest tr Σ."""

import itertools
import json

import numpy as np
import oracles
import polars as pl
import pytest
from plain_audit import all_pairs, run_alone
from prepared import laid_out
from whole_run import as_lines, audited, digests, documented, read_parts, read_record, read_tables

from tempscale import Encoder
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.steps.dealing import deal, enough
from tempscale_jobs.tables.columns import finite

pytestmark = pytest.mark.proof

TEXTS, RANKED = 180, 10


def settings(out, corpus, small_model, **analysis):
    return {
        "out": str(out), "corpus": {"source": str(corpus)},
        "embedding": {"models": [small_model], "temperatures": [1.0], "max_length": 64},
        "analysis": {"intervals": [0, 40], "probe_sample": 0, "neighbours": 0, "worst_pairs": RANKED} | analysis,
        "execution": {"cache": str(out.parent / "cache")},
    }  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    place.write_text(as_lines(documented("pyarrow")[:TEXTS]), "utf-8")
    return place


@pytest.fixture(scope="module")
def few(ray_session, tmp_path_factory, corpus, small_model):
    out = tmp_path_factory.mktemp("grouped") / "few"
    audited(settings(out, corpus, small_model, socm_groups=28))
    return out


def groups_of(out):
    return read_parts(out, "partials/groups", "1.0")["text_id"].to_list()


def test_the_worst_pairs_are_those_of_all_pairs_of_the_texts_of_largest_trace(few, corpus, small_model):
    """Brute force in float64: the 128 texts of largest tr Σ of those that were dealt, and all of their pairs."""
    texts = {row["id"]: row["text"] for row in map(json.loads, corpus.read_text("utf-8").splitlines())}
    dealt = [text_id for group in groups_of(few) for text_id in group]
    assert 128 < len(dealt) <= TEXTS
    encoder = Encoder.load(small_model, max_length=64, device="cpu")
    tokens = {text_id: run_alone(encoder, texts[text_id]) for text_id in dealt}
    largest = sorted(sorted(dealt, key=lambda text_id: -oracles.spread(tokens[text_id]))[:128])
    d_mu, d_sigma = all_pairs([tokens[text_id] for text_id in largest])
    socm = (1 - d_mu) * d_sigma
    found = {(largest[i], largest[j]): socm[i, j] for i, j in itertools.combinations(range(128), 2)}
    best = sorted(found.values(), reverse=True)[:RANKED]
    table = read_tables(few)["socm_pairs"]
    assert table["over"].unique().to_list() == ["largest_trace"]
    ranked = table.filter(pl.col("ranking") == "socm")
    np.testing.assert_allclose(ranked["socm"].to_numpy(), best, atol=5e-5)
    for row in ranked.iter_rows(named=True):
        assert row["socm"] == pytest.approx(found[row["text_id_a"], row["text_id_b"]], abs=5e-5)
    # Of groups nothing stays but small rows.
    assert not (few / "factors").exists()
    assert not list(few.glob("partials/largest*/**/*.parquet"))
    assert sum(file.stat().st_size for file in few.rglob("partials/groups/**/*.parquet")) < 200_000
    assert read_record(few)["models"]["tiny-bert"]["socm"] == "groups"


def test_a_wanted_error_takes_more_groups_that_begin_with_the_same(few, corpus, small_model):
    """All texts are dealt at last, where no fewer reach the error; the first groups are those of the other run."""
    reached = read_tables(few)["collapse_summary"]["socm_se"][0]
    more = few.parent / "more"
    audited(settings(more, corpus, small_model, socm_groups=28, socm_se=1e-9))
    first, second = groups_of(few), groups_of(more)
    assert second[: len(first)] == first
    assert len(second) > len(first)
    row = read_tables(more)["collapse_summary"].row(0, named=True)
    assert row["socm_groups"] == len(second)
    assert row["socm_se"] < reached
    every = few.parent / "every"  # All are in the first groups: there are no texts for more.
    audited(settings(every, corpus, small_model, socm_groups=1000, socm_se=1e-9))
    assert groups_of(every) == second
    loose = few.parent / "loose"
    audited(settings(loose, corpus, small_model, socm_groups=28, socm_se=10.0))
    assert groups_of(loose) == first
    assert digests(loose, "tables") == digests(few, "tables")


def test_a_corpus_too_small_for_ten_groups_is_measured_whole(ray_session, tmp_path, small_model):
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("pyarrow")[:17]), "utf-8")
    audited(settings(tmp_path / "run", tmp_path / "texts.jsonl", small_model))
    row = read_tables(tmp_path / "run")["collapse_summary"].row(0, named=True)
    assert (row["socm_texts"], row["socm_pairs"], row["socm_groups"]) == (17, 17 * 16 // 2, None)
    assert row["socm_se"] == 0  # Every pair of the corpus was measured.
    assert row["socm_se_superpopulation"] > 0


def layout(*texts, seed=0):
    """So many texts in each interval."""
    interval = np.repeat(np.arange(len(texts)), texts)
    ids = np.array([f"t{k:04d}" for k in range(len(interval))], dtype=object)
    return laid_out(ids, interval, interval, range(len(texts)), seed)


@pytest.mark.parametrize(
    ("texts", "sizes"),
    [
        ((2000,), [[20]] * 32), ((400, 400), [[10, 10]] * 32), ((400, 30), [[12, 2]] * 15 + [[12, 0]] * 17),
        ((300,) * 8, [[3] * 4 + [2] * 4] * 32), ((90,), [[2]] * 32), ((21, 0), [[2, 0]] * 10),
    ],
)  # fmt: skip
def test_each_interval_deals_its_texts_in_order_until_they_end(texts, sizes):
    own, analysis = layout(*texts), Analysis.model_validate({})
    dealt = deal(own, analysis, 32)
    interval = dict(zip(own.ids.tolist(), own.interval.tolist(), strict=True))
    found = [[sum(interval[i] == a for i in group.ids) for a in range(len(texts))] for group in dealt]
    assert found == sizes
    every = [i for group in dealt for i in group.ids]
    assert len(set(every)) == len(every)
    assert [group.drawn for group in dealt] == list(range(len(dealt)))
    assert deal(own, analysis, 100)[: len(dealt) - 1] == dealt[:-1]
    assert [group.ids for group in deal(layout(*texts, seed=1), analysis, 32)] != [group.ids for group in dealt]


def test_ten_groups_are_enough_for_an_error():
    analysis = Analysis.model_validate({})
    assert enough(layout(20), analysis)
    assert not enough(layout(19), analysis)
    assert not enough(layout(1, 1, 1), analysis)
    assert finite(float("nan")) is None
