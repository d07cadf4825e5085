"""`--what-if model:NAME`: the same figures as an ordinary audit by the other model, which reads other tokens."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from tiny import save_bert
from whole_run import as_lines, as_toml, audited, documented, read_parts, read_tables

from tempscale.correction.variant_names import canonical
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.runs.folder import Model, find_models
from tempscale_jobs.steps import cut_texts, other_models

K, EDGES = 5, "0,64,100"
TEXTS, QUERIES, ASKERS = 220, 60, 150


@pytest.fixture(scope="module")
def other(tmp_path_factory, minilm):
    """A model of another size whose tokens have at most three letters."""
    folder = tmp_path_factory.mktemp("models") / "other"
    save_bert(folder, minilm, seed=1, num_hidden_layers=2, hidden_size=48, initializer_range=0.3)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {
        word: number for word, number in vocabulary.items() if len(word.removeprefix("##")) <= 3 or word.startswith("[")
    }
    file.write_text(json.dumps(tokenizer))
    return str(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session, small_model, other):
    """Predictions asked by texts and by queries, and ordinary audits by both models."""
    folder = tmp_path_factory.mktemp("other-models")
    lines = documented("scipy")
    (folder / "texts.jsonl").write_text(as_lines(lines[:TEXTS]))
    (folder / "queries.jsonl").write_text(as_lines(lines[TEXTS : TEXTS + QUERIES]))
    common = [
        "--corpus", str(folder / "texts.jsonl"), "--intervals", EDGES, "--neighbours", str(K),
        "--exposure-sample", str(ASKERS), "--workers", "1", "--quick", "--tau", "0.9",
    ]  # fmt: skip
    for who, more in (("corpus", []), ("queries", ["--queries", str(folder / "queries.jsonl")])):
        for name, model, asked in (("swap", small_model, ["--what-if", f"model:{other}"]), ("other", other, [])):
            command = ["audit", *common, *more, "--model", model, *asked, "--out", str(folder / f"{name}-{who}")]
            code, _, err = in_process(*command)
            assert code == 0, err
    return folder


def overall(runs, who):
    """The row of all askers by the other model, after that of the vectors as they are."""
    table = read_tables(runs / f"swap-{who}")["what_if"].filter(pl.col("by").is_null())
    assert table["what"].to_list() == ["", "model:other"]
    return table.row(1, named=True)


def nearest(folder, who):
    """The ids of the nearest texts of each asker."""
    place = folder / ("queries/neighbours" if who == "queries" else "neighbours")
    table = pl.concat([pl.read_parquet(file) for file in sorted(place.rglob("*.parquet"))])
    return dict(zip(table["text_id"].to_list(), table["neighbours"].to_list(), strict=True))


@pytest.mark.proof
@pytest.mark.parametrize("who", ["corpus", "queries"])
def test_the_figures_are_those_of_an_audit_by_the_other_model(runs, who):
    reality, row = read_tables(runs / f"other-{who}"), overall(runs, who)
    summary = reality["collapse_summary"].row(0, named=True)
    assert row["vectors"] == summary["texts"] == TEXTS
    assert row["truncated_share"] == summary["truncated_share"]
    assert row["vector_bytes"] == 4 * 48
    before, after = (nearest(runs / f"{name}-{who}", who) for name in ("swap", "other"))
    kept = {asker: len(set(before[asker]) & set(after[asker])) / K for asker in before}
    assert 0.01 < np.mean(list(kept.values())) < 0.9
    if who == "queries":
        assert row["neighbours_kept"] == pytest.approx(np.mean(list(kept.values())), abs=1e-9)
        exposed = read_tables(runs / "swap-queries")["what_if"].filter(what="model:other", by="length").to_dicts()
        real = {str(one["interval"]): one for one in reality["exposure"].filter(asked_by=who, k=K).to_dicts()}
        assert [one["group"] for one in exposed] == [*real]
        for one in exposed:
            for name in ("exposure", "exposure_se", "exposure_se_superpopulation"):
                assert one[name] == pytest.approx(real[one["group"]][name], abs=1e-9)
            assert one["exposure_change"] is None
    else:
        assert row["askers"] == ASKERS
        assert row["collapse_gap"] == pytest.approx(summary["collapse_gap"], abs=3 * row["collapse_gap_se_superpopulation"])


def cosines(folder):
    """The cosines of all pairs of texts in the order of their ids, a row a text, and the ids; not of a text with itself."""
    table = read_parts(folder, "texts").sort("text_id")
    vectors = table["embedding"].to_numpy().astype(float)
    return vectors @ vectors.T - 3 * np.eye(len(vectors)), table["text_id"].to_list()


@pytest.mark.proof
def test_thresholds_are_carried_over_to_what_as_many_pairs_of_the_other_audit_reach(runs):
    rows = read_tables(runs / "swap-corpus")["what_if_thresholds"].filter(pl.col("by").is_null()).to_dicts()
    (old, ids), (new, same) = (cosines(runs / f"{name}-corpus") for name in ("swap", "other"))
    assert ids == same
    assert [row["what"] for row in rows] == ["model:other"] * 2
    for row, share in zip(rows, (0.01, 0.001), strict=True):
        above, stay = old >= row["threshold"], new >= row["new_threshold"]
        pairs = TEXTS * (TEXTS - 1)
        assert row["pairs"] == pairs // 2
        assert row["passes"] == pytest.approx(above.sum() / pairs, abs=3e-4)  # Of bins of cosines.
        assert row["passes"] == pytest.approx(share, rel=0.3)
        assert stay.sum() == pytest.approx(above.sum(), rel=0.1)
        assert row["accepted"] == above.sum() // 2
        assert row["stay"] == pytest.approx((above & stay).sum() / above.sum(), abs=1e-12)
        assert 0 < row["stay"] < 1
    page = (runs / "swap-corpus" / "report.html").read_text()
    assert f"Your {rows[0]['threshold']:g} passes" in page
    assert "of model:other passes as many" in page
    assert "Thresholds carried over, by length" in page


@pytest.mark.proof
def test_the_lengths_are_those_of_the_other_models_tokens(runs):
    """Its tokens are shorter, so more of its texts are long."""
    rows = read_tables(runs / "swap-corpus")["what_if"].filter(by="length")
    askers = {what: rows.filter(what=what)["askers"].to_list() for what in ("", "model:other")}
    assert askers["model:other"][-1] > askers[""][-1]
    assert sum(askers["model:other"]) == sum(askers[""]) == ASKERS


@pytest.mark.proof
def test_the_page_says_what_the_other_model_keeps_and_nothing_of_lengths(runs):
    page = (runs / "swap-corpus" / "report.html").read_text()
    assert "model:other keeps" in page
    assert "instead of 256 bytes" in page
    sentence = page[page.index("model:other keeps") :][:400]
    assert "no length" not in sentence.partition(".</")[0]
    assert "the collapse gap, each by its own tokens, is" in sentence


@pytest.mark.proof
def test_nothing_of_the_other_model_stays_in_the_folder(runs):
    left = [file for file in (runs / "swap-queries").rglob("*") if "model=other" in str(file) and file.is_file()]
    assert {file.parent.name for file in left} == {"budget"}, "only how many tokens ran at once"
    record = json.loads((runs / "swap-queries" / "run.json").read_text())
    assert [*record["models"]] == ["tiny-bert"]
    assert record["other_models"]["other"]["fingerprint"]
    assert record["other_models"]["other"]["rejected"] == {}


@pytest.mark.proof
def test_workers_and_shards_do_not_change_the_bytes(runs, small_model, other, tmp_path):
    command = [
        "audit", "--corpus", str(runs / "texts.jsonl"), "--queries", str(runs / "queries.jsonl"), "--intervals", EDGES,
        "--neighbours", str(K), "--exposure-sample", str(ASKERS), "--workers", "2", "--quick", "--tau", "0.9",
        "--model", small_model, "--what-if", f"model:{other}", "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    code, _, err = in_process(*command)
    assert code == 0, err
    first = (runs / "swap-queries" / "tables" / "what_if.parquet").read_bytes()
    assert (tmp_path / "run" / "tables" / "what_if.parquet").read_bytes() == first


@pytest.mark.proof
@pytest.mark.parametrize(
    ("what", "parts"),
    [
        ("model:OTHER", "texts/model=other/*/*.parquet"),
        pytest.param("chunk:32:late", "partials/chunks/*/*/texts/*/*/*.parquet", marks=pytest.mark.soak),
    ],
)
def test_a_run_killed_while_it_embeds_the_texts_again_goes_on_to_the_same_bytes(
    runs, small_model, other, ray_address, tmp_path, monkeypatch, what, parts
):  # fmt: skip
    """What the killed run had embedded is not embedded again."""
    asked = {
        "corpus": {"source": str(runs / "texts.jsonl")}, "quick": True,
        "embedding": {"models": [small_model], "temperatures": [1.0], "max_length": 100, "shard_texts": 20},
        "analysis": {"neighbours": K, "exposure_sample": ASKERS, "what_if": [what.replace("OTHER", other)]},
    }  # fmt: skip
    audited(asked | {"out": str(tmp_path / "whole"), "execution": {"workers": 1}})
    out, command = tmp_path / "killed", [sys.executable, "-m", "tempscale_jobs", "audit", str(tmp_path / "audit.toml")]
    (tmp_path / "audit.toml").write_text(as_toml(asked))
    command += ["--workers", "1", "--address", ray_address, "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            while len(list(out.glob(parts))) < 3:
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "run.json").exists()
    kept = {file: file.stat().st_mtime_ns for file in out.glob(parts)}
    for module in (cut_texts, other_models):
        monkeypatch.setattr(module, "forget", lambda *arguments: None)
    audited(asked | {"out": str(out), "execution": {"workers": 2, "shuffle_seed": 5}})
    for name in ("what_if", "what_if_thresholds"):
        tables = [folder / "tables" / f"{name}.parquet" for folder in (out, tmp_path / "whole")]
        assert len({file.read_bytes() if file.exists() else None for file in tables}) == 1
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    assert len(list(out.glob(parts))) > len(kept)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("model:", "needs the name of a model"), ("model:no/such/folder-of-a-model", "no/such/folder-of-a-model"),
        ("model:SAME", "same files as another model"), ("model:x+int8", "cannot be joined"),
        ("int8+model:x", "cannot be joined"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_compared_is_refused_before_ray(small_model, tmp_path, what, said):
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("scipy")[:3]))
    command = "audit", "--corpus", str(tmp_path / "texts.jsonl"), "--model", small_model, "--out", str(tmp_path / "run")
    code, _, err = in_process(*command, "--what-if", what.replace("SAME", small_model))
    assert code == 2
    assert said in err
    assert "Ray" not in err


def test_a_window_and_prompts_of_the_runs_model_are_taken_as_far_as_the_other_has_them(small_model, other, tmp_path):
    """The other one has 512 positions and no prompts."""
    config = resolve({"embedding": {"models": [small_model], "max_length": 600, "prompts": "model"}})
    (model,) = find_models(config.model_copy(update={"embedding": config.embedding.model_copy(update={"models": [other]})}),
                           beside=[Model("first", small_model, "0", 600)])  # fmt: skip
    assert model.max_length == 512
    assert model.document_prompt == model.query_prompt == ""


def test_vectors_alone_have_no_other_model(tmp_path):
    pl.DataFrame({"embedding": [[0.5, 0.5]] * 3}).write_parquet(tmp_path / "vectors.parquet")
    command = ["audit", "--corpus", str(tmp_path / "vectors.parquet"), "--embedding-column", "embedding"]
    code, _, err = in_process(*command, "--what-if", "model:other", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "embeds the texts again" in err


def test_a_models_name_may_have_any_character_and_counts_by_its_files(tmp_path):
    assert canonical(" model: a+b/c:d ") == "model:a+b/c:d"
    here, there = (
        resolve({"analysis": {"what_if": [f"model:{Path(folder) / 'same'}"]}}).identity() for folder in ("/a", tmp_path)
    )
    assert here == there
