"""The main job, end to end, against the whole computed once more, plainly."""

import json
from contextlib import closing
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from audit_ways import PLAIN
from plain_audit import PlainBert, effective_rank, pair_means, socm_figures, standard_error, text_figures, top_component
from prepared import laid_out
from rich.console import Console
from whole_run import audited, read_parts, read_record, read_report, read_tables

from tempscale_jobs.audit import run as analysis
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.scope import Scope
from tempscale_jobs.tables.audit import (
    GROUP_COSINE,
    GROUP_EXPOSURE,
    POSITIONS,
    QUERY_COSINES,
    SERVED_MISSED,
    SERVED_RECALL,
    TABLES,
    WHAT_IF,
    WHAT_IF_THRESHOLDS,
)

EDGES = list(PLAIN.edges)
TAUS = [1.0, 0.8]
TEXTS, SOCM_TEXTS, PROBE_TEXTS = PLAIN.texts, PLAIN.socm, PLAIN.probed


@pytest.fixture(scope="module", params=["small_audit", pytest.param("real_audit", marks=pytest.mark.soak)])
def finished(request):
    """A run on a small random model, and one on the real model."""
    return request.getfixturevalue(request.param) / "run"


@pytest.fixture(scope="module")
def asked(finished):
    return json.loads((finished.parent / "asked.json").read_text())


@pytest.fixture(scope="module")
def tables(finished):
    return read_tables(finished)


@pytest.fixture(scope="module")
def texts(finished, asked):
    """text_id -> (text, parts of texts/ by τ), in the order of texts/."""
    wanted = read_parts(finished, "texts", 1.0)["text_id"].to_list()
    every = {str(row.id): row.text for row in sources.rows(Corpus.model_validate({"source": asked["corpus"]["source"]}))}
    return {i: every[i].decode() if isinstance(every[i], bytes) else every[i] for i in wanted}


@pytest.fixture(scope="module")
def plain(texts, asked):
    """Per τ: token embeddings of each text in float64, one at a time."""
    model = PlainBert(asked["embedding"]["models"][0])
    window = asked["embedding"]["max_length"]
    ids = {i: model.ids(text, 512 if window == "limit" else window) for i, text in texts.items()}
    return model, ids, {tau: {i: model.tokens(ids[i], tau) for i in texts} for tau in TAUS}


@pytest.fixture(scope="module")
def cosines(plain):
    """Per τ: unit embeddings and all cosines."""
    _, _, tokens = plain
    found = {}
    for tau in TAUS:
        units = np.array([text_figures(x)[0] for x in tokens[tau].values()])
        found[tau] = units, units @ units.T
    return found


def intervals(ids):
    return np.array([max(e for e in EDGES if e <= len(row)) for row in ids.values()])


def close(value, expected, tolerance):
    assert (value is None) == (expected is None)
    assert expected is None or value == pytest.approx(expected, abs=tolerance)


@pytest.mark.parametrize("tau", TAUS)
def test_embeddings_and_token_statistics_of_every_text(finished, plain, tau):
    _, ids, tokens = plain
    parts = read_parts(finished, "texts", tau)
    assert parts["text_id"].to_list() == list(ids)
    for row in parts.iter_rows(named=True):
        unit, norm, spread, within = text_figures(tokens[tau][row["text_id"]])
        assert row["tokens"] == len(ids[row["text_id"]])
        assert np.abs(np.array(row["embedding"]) - unit).max() < 2e-5
        assert row["mean_norm"] == pytest.approx(norm, rel=2e-5)
        assert row["spread"] == pytest.approx(spread, rel=1e-4)
        assert row["within_cosine"] == pytest.approx(within, abs=2e-5)


@pytest.mark.parametrize("tau", TAUS)
def test_every_cell_of_length_collapse(tables, plain, cosines, tau):
    interval = intervals(plain[1])
    table = tables["length_collapse"].filter(pl.col("tau") == tau)
    fpc = np.sqrt(1 - TEXTS / tables["collapse_summary"]["corpus_texts"][0])
    assert 0 < fpc < 1
    seen = 0
    for row in table.iter_rows(named=True):
        a, b = row["interval_a"], row["interval_b"]
        rows, columns = np.flatnonzero(interval == a), np.flatnonzero(interval == b)
        values, row_means, column_means = pair_means(cosines[tau][1], rows, columns)
        assert (row["texts_a"], row["texts_b"], row["pairs"]) == (len(rows), len(columns), len(values))
        close(row["cosine_mean"], values.mean(), 1e-6)
        close(row["cosine_std"], values.std(), 1e-6)
        error = standard_error(row_means, column_means, a == b)
        close(row["cosine_se_superpopulation"], error, 1e-6)
        close(row["cosine_se"], None if error is None else error * fpc, 1e-6)
        for share in (5, 50, 95):
            low, high = (np.percentile(values, share, method=end) for end in ("lower", "higher"))
            assert low - 1 / 1024 <= row[f"cosine_p{share:02d}"] <= high + 1 / 1024
        seen += len(values)
    assert seen == TEXTS * (TEXTS - 1) // 2
    assert table.height == len(EDGES) * (len(EDGES) + 1) // 2


def ends(interval):
    enough = [e for e in EDGES if (interval == e).sum() >= 30]
    return enough[0], enough[-1]


@pytest.mark.parametrize("tau", TAUS)
def test_the_summary(tables, plain, cosines, tau):
    _, ids, tokens = plain
    row = tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    units, cosine = cosines[tau]
    everyone = np.arange(TEXTS)
    values, means, _ = pair_means(cosine, everyone, everyone)
    assert (row["texts"], row["tokens"]) == (TEXTS, sum(len(i) for i in ids.values()))
    close(row["cosine_mean"], values.mean(), 1e-6)
    close(row["cosine_se_superpopulation"], standard_error(means, means, True), 1e-6)
    interval = intervals(ids)
    short, long = (np.flatnonzero(interval == e) for e in ends(interval))
    inside = [pair_means(cosine, group, group) for group in (short, long)]
    assert (row["gap_shortest"], row["gap_longest"]) == ends(interval)
    close(row["collapse_gap"], inside[1][0].mean() - inside[0][0].mean(), 1e-6)
    close(row["collapse_gap_se_superpopulation"], np.hypot(*(standard_error(m, m, True) for _, m, _ in inside)), 1e-6)
    close(row["effective_rank"], effective_rank(units), 1e-3)
    close(row["top_component"], top_component(units), 1e-6)
    spread, within = np.array([text_figures(x)[2:] for x in tokens[tau].values()]).T
    n = np.array([len(i) for i in ids.values()])
    close(row["spread_mean"], spread.mean(), 1e-5)
    close(row["spread_over_2_share"], (spread > 2).mean(), 1e-9)
    close(row["within_cosine_over_third_share"], ((n * within - 1) / (n - 1) >= 1 / 3).mean(), 1e-9)
    for name in ("spread_over_2_share", "within_cosine_over_third_share", "truncated_share"):
        p = row[name]
        close(row[f"{name}_se_superpopulation"], np.sqrt(p * (1 - p) / (TEXTS - 1)), 1e-9)
        close(row[f"{name}_se"], row[f"{name}_se_superpopulation"] * np.sqrt(1 - TEXTS / row["corpus_texts"]), 1e-9)


@pytest.fixture(scope="module")
def second_order(finished, plain):
    """Per τ: ids of the SOCM sample and the dense matrices of d_μ, d_Σ and SOCM."""
    _, _, tokens = plain
    sample = read_parts(finished, "factors", 1.0)["text_id"].to_list()
    found = {}
    for tau in TAUS:
        values = np.full((3, len(sample), len(sample)), np.nan)
        for i in range(len(sample)):
            for j in range(i + 1, len(sample)):
                values[:, i, j] = values[:, j, i] = socm_figures(tokens[tau][sample[i]], tokens[tau][sample[j]])
        found[tau] = sample, values
    return found


@pytest.mark.parametrize("tau", TAUS)
def test_second_order_collapse(tables, plain, second_order, tau):
    ids = plain[1]
    sample, (d_mu, d_sigma, socm) = second_order[tau]
    assert len(sample) == SOCM_TEXTS
    every = dict(zip(ids, intervals(ids), strict=True))
    interval = np.array([every[i] for i in sample])
    table = tables["socm"].filter(pl.col("tau") == tau)
    for row in table.iter_rows(named=True):
        a, b = np.flatnonzero(interval == row["interval_a"]), np.flatnonzero(interval == row["interval_b"])
        same = row["interval_a"] == row["interval_b"]
        values, row_means, column_means = pair_means(socm, a, b)
        assert row["pairs"] == len(values)
        assert row["exact"]
        close(row["socm_mean"], values.mean(), 1e-5)
        close(row["d_mu_mean"], pair_means(d_mu, a, b)[0].mean(), 1e-5)
        close(row["d_sigma_mean"], pair_means(d_sigma, a, b)[0].mean(), 1e-5)
        close(row["socm_p50"], np.median(values), 1e-5)
        close(row["socm_p95"], np.quantile(values, 0.95), 1e-5)
        close(row["socm_se_superpopulation"], standard_error(row_means, column_means, same), 1e-5)
    assert table["pairs"].sum() == SOCM_TEXTS * (SOCM_TEXTS - 1) // 2
    worst = tables["socm_pairs"].filter(pl.col("tau") == tau, ranking="socm")
    place = {i: k for k, i in enumerate(sample)}
    best = np.sort(socm[np.triu_indices(len(sample), 1)])[::-1]
    for rank, row in enumerate(worst.iter_rows(named=True)):
        i, j = place[row["text_id_a"]], place[row["text_id_b"]]
        assert row["text_id_a"] < row["text_id_b"]
        close(row["socm"], socm[i, j], 1e-5)
        close(row["d_sigma"], d_sigma[i, j], 1e-5)
        close(row["socm"], best[rank], 1e-5)
    summary = tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    close(summary["socm_mean"], best.mean(), 1e-5)
    scatter = tables["socm_scatter"].filter(pl.col("tau") == tau)
    assert scatter.filter(kind="bin")["pairs"].sum() == scatter.filter(kind="pair").height == len(best)


@pytest.mark.parametrize("tau", TAUS)
def test_the_prefix_probe(finished, tables, texts, plain, tau):
    model, ids, _ = plain
    table = tables["prefix_probe"].filter(pl.col("tau") == tau)
    prefixes = table["prefix_tokens"].to_list()
    assert prefixes[0] == 32
    assert len(prefixes) >= 2
    longest = prefixes[-1]
    assert sum(len(i) >= longest for i in ids.values()) >= 30 > sum(len(i) >= 2 * longest for i in ids.values())
    place = finished / "partials" / "probe" / "*" / f"temperature={tau}" / "text_means.parquet"
    sample = pl.read_parquet(place, hive_partitioning=False).filter(group=32)["text_id"].to_list()
    assert len(sample) == PROBE_TEXTS
    assert all(len(ids[i]) >= longest for i in sample)
    own = {}
    for row in table.iter_rows(named=True):
        cut = [model.ids(texts[i], row["prefix_tokens"]) for i in sample]
        assert {len(i) for i in cut} == {row["prefix_tokens"]}
        units = np.array([text_figures(model.tokens(i, tau))[0] for i in cut])
        values, own[row["prefix_tokens"]], _ = pair_means(units @ units.T, np.arange(len(sample)), np.arange(len(sample)))
        close(row["cosine_mean"], values.mean(), 1e-6)
        close(row["cosine_se_superpopulation"], standard_error(own[row["prefix_tokens"]], None, True), 1e-6)
    gap = own[longest] - own[32]
    summary = tables["collapse_summary"].filter(pl.col("tau") == tau).row(0, named=True)
    close(summary["prefix_gap"], gap.mean(), 1e-6)
    close(summary["prefix_gap_se_superpopulation"], 2 * gap.std(ddof=1) / np.sqrt(len(gap)), 1e-6)


def test_what_the_temperature_changes_comes_from_paired_differences(tables, plain, cosines, second_order):
    interval = intervals(plain[1])
    table = tables["temperature_effect"]
    effects = {row["figure"]: row for row in table.filter(pl.col("interval").is_null()).to_dicts()}
    by_length = {row["interval"]: row for row in table.drop_nulls("interval").to_dicts()}
    everyone = np.arange(TEXTS)
    means = {tau: pair_means(cosines[tau][1], everyone, everyone)[1] for tau in TAUS}
    difference = means[0.8] - means[1.0]
    close(effects["cosine_mean"]["change"], difference.mean(), 1e-6)
    close(effects["cosine_mean"]["change_se_superpopulation"], 2 * difference.std(ddof=1) / np.sqrt(TEXTS), 1e-6)
    variance = 0.0
    for e in ends(interval):
        group = np.flatnonzero(interval == e)
        own = {tau: pair_means(cosines[tau][1], group, group)[1] for tau in TAUS}
        moved = own[0.8] - own[1.0]
        close(by_length[e]["change"], moved.mean(), 1e-6)
        close(by_length[e]["change_se_superpopulation"], 2 * moved.std(ddof=1) / np.sqrt(len(group)), 1e-6)
        variance += (2 * moved.std(ddof=1)) ** 2 / len(group)
    close(effects["collapse_gap"]["change_se_superpopulation"], np.sqrt(variance), 1e-6)
    socm = np.nanmean(second_order[0.8][1][2], axis=1) - np.nanmean(second_order[1.0][1][2], axis=1)
    close(effects["socm_mean"]["change"], socm.mean(), 1e-5)
    close(effects["socm_mean"]["change_se_superpopulation"], 2 * socm.std(ddof=1) / np.sqrt(SOCM_TEXTS), 1e-5)
    assert set(effects) == {"cosine_mean", "collapse_gap", "prefix_gap", "socm_mean", "spread_mean"}


def test_the_folder_is_whole_and_its_report_stands_alone(finished, tables):
    record = read_record(finished)
    assert record["corpus"]["analysed"] == TEXTS
    assert record["corpus"]["usable"] == tables["collapse_summary"]["corpus_texts"][0]
    assert record["peak_memory_bytes"] > 200e6
    (model,) = record["models"].values()
    assert len(model["fingerprint"]) == 64
    assert not (finished / "shards").exists()
    not_asked = (
        WHAT_IF, WHAT_IF_THRESHOLDS, GROUP_EXPOSURE, GROUP_COSINE, SERVED_RECALL, SERVED_MISSED, QUERY_COSINES, POSITIONS,
    )  # fmt: skip
    for table in (table for table in TABLES if table not in not_asked):
        assert tables[table.name].columns == [c.name for c in table.columns], table.name
    page, first = read_report(finished), tables["collapse_summary"].row(0, named=True)
    assert first["model"] in page
    assert f"{first['collapse_gap']:.3f}".lstrip("-")[:4] in page


def test_a_finished_run_is_not_run_again_and_another_is_refused(finished, asked):
    before = (finished / "run.json").stat().st_mtime_ns
    data = asked | {"out": str(finished)}
    assert audited(data).complete
    assert (finished / "run.json").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="seed was 0, now 5"):
        audited(data | {"seed": 5})


@pytest.mark.parametrize("ids", [["a", "b"], ["a", "b", "b"], ["a", "b", "c", "d"]])
def test_texts_that_are_lost_or_doubled_stop_the_run(monkeypatch, tmp_path, ids):
    count = np.arange(len(ids))
    found = laid_out(ids, count + 3, count * 0, [0])
    monkeypatch.setattr(analysis.embed, "embed", lambda *_, **how: 1)  # One of four is rejected: three are to be there.
    monkeypatch.setattr(analysis, "layout", lambda *_: found)
    model = Model("tiny", "tiny", "", 64)
    run, index = Run(Storage(str(tmp_path)), [model], [], "2026-11-27"), SimpleNamespace(analysed=4, usable=4, rejected=0)
    config = resolve({})
    with closing(Journal(Console(quiet=True))) as journal:
        scope = Scope(config, config.embedding, config.corpus, index, run, model, None, None, journal)
        with pytest.raises(IncompleteRun, match="--fresh"):
            analysis.embed_all(scope, None)
