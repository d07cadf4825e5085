"""`tempscale diagnose` on a small model: its tables against plain float64 passes through transformers, and their bytes."""

import json
import shutil
from pathlib import Path

import numpy as np
import oracles
import polars as pl
import pytest
import torch
from by_hand_attention import by_hand
from golden_words import ending, masked, same
from pages import specs_of
from places_by_hand import seen
from plain_audit import run_alone
from whole_run import as_lines, checked_json, diagnosed, documented, read_record, read_report, read_tables

from tempscale import Encoder, attach
from tempscale.model.tokens import Tokenizer
from tempscale_jobs.diagnose import repeated, report, sampling
from tempscale_jobs.report.findings import changed
from tempscale_jobs.runs.folder import load_tables
from tempscale_jobs.runs.storage import Storage

EDGES, TAUS, TEXTS = [0, 32, 64], [1.0, 0.7], 19


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    file.write_text(as_lines(documented("pyarrow")[:120]))
    return file


def settings(out, corpus, small_model, **execution):
    return {
        "out": str(out), "corpus": {"source": str(corpus)}, "seed": 3,
        "embedding": {"models": [small_model], "temperatures": TAUS, "max_length": 96},
        "diagnosis": {"texts": TEXTS, "intervals": EDGES, "repeated_pairs": 4, "piece_texts": 3},
        "execution": {"workers": 1} | execution,
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_session, corpus, small_model):
    out = tmp_path_factory.mktemp("diagnose") / "run"
    diagnosed(settings(out, corpus, small_model))
    return out


@pytest.fixture(scope="module")
def tables(finished):
    return read_tables(finished)


@pytest.fixture(scope="module")
def texts(corpus):
    return {row["id"]: row["text"] for row in map(json.loads, corpus.read_text().splitlines())}


def plain(small_model, ids, tau):
    """Hidden states before each layer and behind the last, logits and weights of each layer, in float64."""
    from transformers import AutoModel

    model, seen = AutoModel.from_pretrained(small_model).eval().double(), []
    with torch.no_grad(), by_hand(model, tau, seen):
        states = model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states
    return [state[0].numpy() for state in states], seen, model


def cloud(encoder, text):
    """The token embeddings of a text that is run alone, over the norm of their mean."""
    own = run_alone(encoder, text)
    return own / np.linalg.norm(own.mean(0))


def inside(interval):
    """Whether a row is of a text in an interval of lengths."""
    following = next(edge for edge in [*EDGES[1:], 10**9] if edge > interval)
    return pl.col("tokens").is_between(interval, following - 1)


@pytest.mark.parametrize("tau", TAUS)
def test_every_figure_of_a_text_is_in_its_column(tables, texts, small_model, tau):
    """Against the places of a plain float64 pass; tests/tempscale/layers compares the figures for every family."""
    layers, heads = (tables[name].filter(pl.col("tau") == tau) for name in ("layers", "heads"))
    tokenizer, exact = Tokenizer(Path(small_model), 96), plain(small_model, [101, 102], 1.0)[2]
    for text_id in layers["text_id"].unique().sort().to_list()[::4]:
        (ids,) = tokenizer([texts[text_id]]).ids
        embedded, *own = layers.filter(pl.col("text_id") == text_id).sort("layer").to_dicts()
        assert [embedded["layer"], *(row["layer"] for row in own)] == [-1, 0, 1]
        by_hand, n = seen(exact, exact.encoder.layer, "bert", ids, tau), len(ids)
        before = by_hand[0]["h"]
        # The embedding layer has a spread and a within-text cosine and nothing else.
        assert embedded["spread"] == pytest.approx(oracles.spread(before), rel=1e-4)
        assert embedded["within_cosine"] == pytest.approx(oracles.within_cosine(before), rel=1e-4)
        assert {name for name in own[0] if embedded[name] is None} == set(own[0]) - {
            "model", "temperature", "tau", "schema_version", "text_id", "tokens", "layer", "spread", "within_cosine",
        }  # fmt: skip
        for row, place in zip(own, by_hand, strict=True):
            scatter = {name: np.square(place[name] - place[name].mean(0)).sum() / n for name in "hzyx"}
            means = {name: np.square(place[name].mean(0)).sum() for name in "yx"}
            spread = scatter["x"] / means["x"]
            expected = {
                "tokens": n, "hc_ratio": np.sqrt(scatter["x"] / scatter["h"]), "rho": scatter["z"] / scatter["h"],
                "hc_attention": np.sqrt(scatter["z"] / scatter["h"]), "r": scatter["h"] / means["y"], "spread": spread,
                "C": spread / (scatter["y"] / means["y"]), "within_cosine": oracles.within_cosine(place["x"]),
            }  # fmt: skip
            assert {name: row[name] for name in expected} == pytest.approx(expected, rel=1e-4)
            assert (row["hc_attention"] <= row["hc_attention_bound"], row["spread"] <= row["spread_bound"]) == (True, True)
            mine = heads.filter((pl.col("text_id") == text_id) & (pl.col("layer") == row["layer"])).sort("head")
            assert mine["head"].to_list() == [0, 1, 2, 3]
            np.testing.assert_allclose(mine["sigma_a"], list(map(oracles.sigma_a, place["attention"])), rtol=1e-4)
            np.testing.assert_allclose(mine["sigma_s"], [logits.std() for logits in place["logits"]], rtol=1e-4)
            np.testing.assert_allclose(mine["tau_s"], 1 / mine["sigma_s"].to_numpy(), rtol=1e-9)
            assert 0 < mine["thm2_ratio"].max() <= 1
            assert row["lambda"] == pytest.approx(mine["lambda"].mean(), rel=1e-9)
            assert row["sigma_a_mean"] == pytest.approx(mine["sigma_a"].mean(), rel=1e-9)


def test_the_sample_has_as_many_of_each_interval_as_there_are(tables, texts, small_model):
    seen = tables["layers"].filter((pl.col("layer") == 0) & (pl.col("tau") == 1.0))
    assert seen["text_id"].n_unique() == len(seen) == TEXTS
    lengths = dict(zip(texts, Tokenizer(Path(small_model), 96)(list(texts.values())).lengths, strict=True))
    assert all(lengths[row["text_id"]] == row["tokens"] for row in seen.to_dicts())
    available = np.histogram(list(lengths.values()), [*EDGES, np.inf])[0]
    found = np.histogram(seen["tokens"], [*EDGES, np.inf])[0]
    assert found.tolist() == sampling.even_sizes(available.tolist(), TEXTS)
    assert found.max() - min(f for f, a in zip(found, available, strict=True) if f < a) <= 1


@pytest.mark.parametrize(
    ("available", "wanted", "expected"),
    [
        ([10, 10, 10], 9, [3, 3, 3]), ([1, 10, 10], 9, [1, 4, 4]), ([10, 0, 10], 9, [4, 0, 5]), ([2, 1], 9, [2, 1]),
        ([5], 0, [0]),
    ],
)  # fmt: skip
def test_even_sizes_by_hand(available, wanted, expected):
    assert sampling.even_sizes(available, wanted) == expected


@pytest.mark.parametrize("tau", TAUS)
def test_the_spectrum_by_length_is_that_of_the_heads(tables, texts, small_model, tau):
    heads = tables["heads"].filter(pl.col("tau") == tau)
    for row in tables["spectrum_by_length"].filter(pl.col("tau") == tau).to_dicts():
        mine = heads.filter(inside(row["interval"])).to_dicts()
        ids = sorted({head["text_id"] for head in mine})
        assert row["texts"] == len(ids)
        for end, heard in (("", mine), ("_last", [head for head in mine if head["layer"] == 1])):
            each = [np.mean([head["sigma_a"] for head in heard if head["text_id"] == i]) for i in ids]
            assert row[f"sigma_a{end}_mean"] == pytest.approx(np.mean(each), rel=1e-9)
            assert row[f"sigma_a{end}_se"] == pytest.approx(np.std(each, ddof=1) / np.sqrt(len(ids)), rel=1e-9)
            for name in ("sigma_s", "sigma_a_bound"):
                assert row[f"{name}{end}_mean"] == pytest.approx(np.mean([head[name] for head in heard]), rel=1e-9)
        assert abs(row["sigma_a_mean"] - row["sigma_a_last_mean"]) > 1e-3
        assert row["over_bound_share"] == pytest.approx(np.mean([h["sigma_a"] > h["sigma_a_bound"] for h in mine]))
        encoder = Encoder.load(small_model, temperature=tau, device="cpu", max_length=96)
        own = encoder.encode([texts[i] for i in ids]).embeddings.double().numpy()
        table = encoder.model.get_input_embeddings().weight.detach().double()
        # Without [CLS] and [SEP], which every text has (S1 Fig 3).
        words = np.stack([table[i[1:-1]].mean(0).numpy() for i in encoder.tokenizer([texts[i] for i in ids]).ids])
        words /= np.linalg.norm(words, axis=1, keepdims=True)
        upper = np.triu_indices(len(ids), 1)
        assert row["cosine_mean"] == pytest.approx((own @ own.T)[upper].mean(), abs=1e-5)
        assert row["words_cosine_mean"] == pytest.approx((words @ words.T)[upper].mean(), abs=1e-5)


@pytest.mark.parametrize(("layers", "end"), [("last", "_last"), ("all", "")])
def test_findings_are_differences_of_the_texts_own_means(tables, layers, end):
    heads, findings = tables["heads"], tables["diagnose_findings"].filter(pl.col("layers") == layers)
    if layers == "last":
        heads = heads.filter(pl.col("layer") == 1)
    first, other = (
        heads.filter(pl.col("tau") == tau).group_by("text_id").agg(pl.col("sigma_a").mean()).sort("text_id")["sigma_a"]
        for tau in TAUS
    )
    moved = (other - first).to_numpy()
    (row,) = findings.filter((pl.col("finding") == "temperature") & (pl.col("tau") == 0.7)).to_dicts()
    assert row["texts"] == TEXTS
    assert row["change"] == pytest.approx(moved.mean(), rel=1e-9)
    assert row["change_se"] == pytest.approx(moved.std(ddof=1) / np.sqrt(TEXTS), rel=1e-9)
    assert row["change"] > 2 * row["change_se"] > 0  # A sharper attention is a weaker filter.
    enough = (pl.col("tau") == 1.0) & (pl.col("texts") >= 5)
    spectrum = tables["spectrum_by_length"].filter(enough).sort("interval").to_dicts()
    (row,) = findings.filter((pl.col("finding") == "length") & (pl.col("tau") == 1.0)).to_dicts()
    (low, low_error), *_, (high, high_error) = ((own[f"sigma_a{end}_mean"], own[f"sigma_a{end}_se"]) for own in spectrum)
    assert row["change"] == pytest.approx(high - low, rel=1e-9)
    assert row["change_se"] == pytest.approx(np.hypot(high_error, low_error), rel=1e-9)


@pytest.mark.parametrize("tau", TAUS)
def test_equal_norms_are_counted_on_the_tokens_that_are_pooled(tables, texts, small_model, tau):
    tokenizer, seen = Tokenizer(Path(small_model), 96), []
    for text_id in tables["map"]["text_id"].unique().sort():
        (ids,) = tokenizer([texts[text_id]]).ids
        x, n = plain(small_model, ids, tau)[0][-1], len(ids)
        norms, w = np.linalg.norm(x, axis=1), oracles.within_cosine(x)
        trace = np.square(x - x.mean(0)).sum() / n / np.square(x.mean(0)).sum()
        seen.append((norms.std() / norms.mean(), (n * w - 1) / (n - 1) >= 1 / 3, trace <= 2))
    variation, condition, within = np.array(seen, dtype=float).T
    (row,) = tables["equal_norms"].filter(pl.col("tau") == tau).to_dicts()
    assert row["texts"] == TEXTS
    # A random BERT is what Appendix J assumes: its last norm has γ = 1 and β = 0. MiniLM is not: tests/tempscale/layers.
    assert row["norm_variation_mean"] == pytest.approx(variation.mean(), abs=1e-6)
    assert row["norm_variation_se"] < 1e-6
    shares = (row["condition_share"], row["spread_within_2_share"], row["agree_share"])
    assert shares == pytest.approx((condition.mean(), within.mean(), (condition == within).mean()))


def test_a_run_of_a_version_without_the_newer_columns_is_still_rendered(finished, tables, tmp_path):
    """Last month's run: one σ_a, over all layers, and neither the embedding layer nor the check of norms."""
    newer = [f"{name}_last_{kind}" for name in ("sigma_a", "sigma_s", "sigma_a_bound") for kind in ("mean", "se")]
    (tmp_path / "tables").mkdir()
    for name in set(tables) - {"equal_norms", "findings"}:
        table = tables[name]
        if "layers" in table.columns:
            table = table.filter(pl.col("layers") != "last").drop("layers")
        if "layer" in table.columns:
            table = table.filter(pl.col("layer") >= 0)
        table.drop(newer, strict=False).write_parquet(tmp_path / "tables" / f"{name}.parquet")
    (part,) = report.parts_of(load_tables(Storage(str(tmp_path))), read_record(finished))
    said = [part.answer, *part.sections[0].sentences]
    assert any("σ_a rises by" in sentence for sentence in said)
    assert not any("the last layer" in sentence for sentence in said)


def test_layers_are_summarised_over_all_texts_and_by_interval(tables):
    layers = tables["layers"].filter(pl.col("tau") == 1.0)
    for row in tables["layer_summary"].filter(pl.col("tau") == 1.0).to_dicts():
        mine = layers.filter(pl.col("layer") == row["layer"])
        if row["interval"] is not None:
            mine = mine.filter(inside(row["interval"]))
        assert row["texts"] == len(mine)
        for name in ("spread",) if row["layer"] < 0 else ("spread", "rho"):
            assert row[f"{name}_mean"] == pytest.approx(mine[name].mean(), rel=1e-9)
            assert row[f"{name}_se"] == pytest.approx(mine[name].std() / np.sqrt(len(mine)), rel=1e-9)
    assert tables["layer_summary"].filter(pl.col("interval").is_null())["texts"].to_list() == [TEXTS] * 3 * len(TAUS)


@pytest.mark.parametrize("tau", TAUS)
def test_repeated_tokens_are_texts_of_one_token(tables, small_model, tau):
    tokenizer = Tokenizer(Path(small_model), 96)
    first, last = repeated.special_tokens(tokenizer)
    assert (first, last) == ([101], [102])
    words = repeated.ordinary(tokenizer, 8, 3)
    assert len(set(words)) == 8
    model = plain(small_model, [101, 102], 1.0)[2]
    attach(model, tau)
    rows = tables["repeated_tokens"].filter(pl.col("tau") == tau).to_dicts()
    assert [row["tokens"] for row in rows] == [8, 16, 32, 64]
    for row in rows[::3]:
        means = []
        for word in words:
            ids = [101, *[word] * (row["tokens"] - 2), 102]
            with torch.no_grad():
                mean = model(input_ids=torch.tensor([ids])).last_hidden_state[0].mean(0).numpy()
            means.append(mean / np.linalg.norm(mean))
        cosine = [a @ b for a, b in zip(means[::2], means[1::2], strict=True)]
        assert row["pairs"] == 4
        assert row["cosine_mean"] == pytest.approx(np.mean(cosine), abs=1e-5)


@pytest.mark.words
def test_it_ends_with_what_was_found(finished, capsys):
    same("diagnose-ending.txt", masked(ending("diagnose", finished, capsys), finished))


def test_the_report_stands_alone_and_is_rendered_again_alike(finished):
    page = read_report(finished)
    assert {
        f"m0-{key}" for key in ("filter", "parts", "resemblance", "repeated", "contraction", "concentration", "pair", "map")
    } == set(specs_of(page))


@pytest.mark.parametrize("tau", TAUS)
def test_the_two_texts_are_the_worst_pair_and_lie_where_a_plain_decomposition_puts_them(tables, texts, small_model, tau):
    rows = tables["two_texts"].filter(pl.col("tau") == tau)
    encoder = Encoder.load(small_model, temperature=tau, device="cpu", max_length=96)
    clouds = []
    for side in "ab":
        own = rows.filter(pl.col("side") == side)
        text = texts[own["text_id"][0]]
        assert own["token"].to_list() == [*encoder.tokenizer.words(encoder.tokenizer([text]).ids[0]), None]
        clouds.append(cloud(encoder, text))
    for name, value in (("d_mu", oracles.d_mu), ("d_sigma", oracles.d_sigma), ("socm", oracles.socm)):
        assert rows[name].unique().to_list() == [pytest.approx(value(*clouds), abs=1e-5)]
    together = np.concatenate(clouds)
    axes = np.linalg.svd(together, full_matrices=False)[2][:2]
    found = rows.filter(pl.col("token").is_not_null()).select("x", "y").to_numpy()
    np.testing.assert_allclose(np.abs(found), np.abs(together @ axes.T), atol=1e-4)
    assert (found[np.abs(found).argmax(0), [0, 1]] > 0).all()
    means = rows.filter(pl.col("token").is_null()).select("x", "y").to_numpy()
    split = [found[: len(clouds[0])], found[len(clouds[0]) :]]
    np.testing.assert_allclose(means, [own.mean(0) for own in split], atol=1e-6)


def test_the_worst_pair_is_that_of_largest_socm_among_the_most_alike(tables, texts, small_model):
    """With 19 texts there are 171 pairs, of which the hundred of highest cosine count."""
    encoder = Encoder.load(small_model, device="cpu", max_length=96)
    ids = tables["layers"]["text_id"].unique().sort().to_list()
    clouds = [cloud(encoder, texts[text_id]) for text_id in ids]
    means = np.stack([own.mean(0) for own in clouds])
    pairs = sorted(zip(*np.triu_indices(len(ids), 1), strict=True), key=lambda pair: -means[pair[0]] @ means[pair[1]])[:100]
    worst = max(pairs, key=lambda pair: oracles.socm(clouds[pair[0]], clouds[pair[1]]))
    assert set(tables["two_texts"]["text_id"]) == {ids[worst[0]], ids[worst[1]]}


def test_findings_are_printed_as_json(finished, tables):
    data = checked_json("diagnose", finished)
    assert len(data["answers"]) == 1
    (row,) = tables["diagnose_findings"].filter(finding="temperature", layers="last", tau=0.7).to_dicts()
    (moved,) = (one for one in data["findings"] if one["figure"] == changed("sigma_a_last"))
    assert (moved["temperature"], moved["value"], moved["error"]) == ("0.7", row["change"], row["change_se"])


def test_a_run_of_0_2_whose_table_had_the_name_of_what_all_commands_have_now_is_rendered(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    (run / "tables" / "diagnose_findings.parquet").rename(run / "tables" / "findings.parquet")
    (run / "partials" / "inventory.json").unlink()
    tables, whole = load_tables(Storage(str(run))), load_tables(Storage(str(finished)))
    assert set(tables) == {*whole} - {"findings"}
    assert tables["diagnose_findings"].equals(whole["diagnose_findings"])
    read_report(run)
    assert (run / "report.html").read_bytes() == (finished / "report.html").read_bytes()


@pytest.mark.proof
def test_a_pair_may_be_named_and_its_tokens_left_out(tmp_path, ray_session, corpus, small_model, texts):
    named = tuple(sorted(texts)[4:6])
    data = settings(tmp_path / "run", corpus, small_model)
    data["diagnosis"] = {"texts": 2, "repeated_pairs": 0, "pair": named}
    diagnosed(data)
    found = pl.read_parquet(tmp_path / "run" / "tables" / "two_texts.parquet")
    assert found["text_id"].unique(maintain_order=True).to_list() == list(named)
    assert len(pl.read_parquet(tmp_path / "run" / "tables" / "repeated_tokens.parquet")) == 0
    # Tokens may be kept out of tables and report.
    diagnosed(data | {"out": str(tmp_path / "other"), "keep_text": False})
    kept_out = pl.read_parquet(tmp_path / "other" / "tables" / "two_texts.parquet")
    assert kept_out["token"].drop_nulls().unique().to_list() == ["·"]
    assert kept_out.drop("token").equals(found.drop("token"))


@pytest.mark.parametrize("tau", TAUS)
def test_the_map_keeps_neighbours_and_its_origin_is_the_mean(tables, texts, small_model, tau):
    found = tables["map"].filter(pl.col("tau") == tau).sort("text_id")
    assert found["text_id"].to_list() == tables["layers"]["text_id"].unique().sort().to_list()
    places = found.select("x", "y").to_numpy()
    np.testing.assert_allclose(places.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(found["origin_distance"], np.linalg.norm(places, axis=1))
    encoder = Encoder.load(small_model, temperature=tau, device="cpu", max_length=96)
    vectors = encoder.encode([texts[i] for i in found["text_id"]]).embeddings.double().numpy()
    far, near = (np.linalg.norm(x[:, None] - x[None], axis=-1) for x in (vectors, places))
    # The nearest of a text in the map is among its nearest half by embedding, more often than chance has it.
    for matrix in (far, near):
        np.fill_diagonal(matrix, np.inf)
    assert (far < far[np.arange(len(far)), near.argmin(1)][:, None]).sum(1).mean() < 0.35 * len(far)
