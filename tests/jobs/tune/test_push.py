"""tempscale export --push and --measured: a model card with measured figures, on a stand-in of the hub."""

import json
import os
import subprocess
import sys

import fake_hub
import pytest
import torch
from huggingface_hub import ModelCard
from reports_by_hand import filled

from tempscale import Temperature
from tempscale.correction.fit import fit
from tempscale.model import checkpoint
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY
from tempscale_jobs.tables.evaluate import EVALUATION
from tempscale_jobs.tables.tune import SCORES
from tempscale_jobs.tune.measured import measured

pytestmark = pytest.mark.proof

HALF = Temperature(0.5)


@pytest.fixture
def hub():
    made = fake_hub.FakeHub()
    yield made
    made.close()


def export(hub, folder, model, *arguments, tau="0.5", token=fake_hub.TOKEN):
    """The command in a process of its own, with the stand-in as its hub."""
    environment = os.environ | {
        "HF_ENDPOINT": hub.address, "HF_TOKEN": token, "HF_HOME": str(folder.parent / "hf"), "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_OFFLINE": "0",
    }  # fmt: skip
    own = ["--model", model, "--tau", tau, "--out", str(folder)]
    command = [sys.executable, "-m", "tempscale_jobs", "export", *own, *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def run_of(folder, model, tables):
    """A finished run with some tables."""
    storage = Storage(str(folder))
    for name, table in tables.items():
        storage.write_table(f"tables/{name}.parquet", table.to_arrow())
    known = {"m": {"fingerprint": checkpoint.fingerprint(checkpoint.resolve(model))}}
    corpus = {"source": "/srv/secret|place/law_2026.parquet"}
    storage.write_json("run.json", {"run": "r", "config": {}, "models": known, "corpus": corpus})
    return str(folder)


def collapse(temperature, gap):
    nothing = dict.fromkeys(("prefix_gap", "socm_mean", "prefix_gap_se_superpopulation", "socm_se_superpopulation"))
    errors = dict.fromkeys(("collapse_gap_se_superpopulation", "truncated_share_se_superpopulation"), 0.01)
    figures = {"texts": 1200, "collapse_gap": gap, "truncated_share": 0.125} | errors | nothing
    return {"model": "m", "temperature": temperature} | figures


def scored(temperature, score, change):
    place = {"model": "m", "task": "a|task", "split": "test", "subset": "default", "metric": "ndcg_at_10", "problem": None}
    return place | {"temperature": temperature, "score": score, "score_se": 0.02, "change": change, "change_se": 0.005}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, small_model):
    """An audit, an evaluation and a tune that are finished."""
    folder = tmp_path_factory.mktemp("runs")
    tuned = {"held_items": 300, "held_score": 0.75, "held_change": 0.03125, "held_change_se": 0.01}
    rows = [{"model": "m", "correction": own} | tuned for own in (None, "centre")]
    return (
        run_of(folder / "audit", small_model, filled(COLLAPSE_SUMMARY, collapse("1.0", 0.25), collapse("0.5", 0.125))),
        run_of(folder / "scores", small_model, filled(EVALUATION, scored("1.0", 0.5, 0.0), scored("0.5", 0.625, 0.125))),
        run_of(folder / "tune", small_model, filled(SCORES, *rows)),
    )


def test_a_card_tells_what_runs_have_measured(hub, tmp_path, small_model, runs):
    out = tmp_path / "m"
    options = [word for run in runs[:2] for word in ("--measured", run)]
    done = export(hub, out, small_model, *options, "--push", "somebody/m")
    assert done.returncode == 0, done.stderr
    text = ModelCard.load(out / "README.md").text
    assert "| 1,200 texts of law\\_2026.parquet | τ 1.0 | τ 0.5 |" in text
    assert "| mean cosine of the longest texts less that of the shortest | 0.250 ± 0.020 | 0.125 ± 0.020 |" in text
    assert "| texts cut at the window | 12.5 ± 2.0 % | 12.5 ± 2.0 % |" in text
    assert "| a\\|task (test) | ndcg_at_10 | 0.625 ± 0.039 | 0.1250 ± 0.0098 |" in text
    assert "second-order" not in text  # No run measured it.
    assert "secret" not in text
    held = hub.files["somebody/m"]
    assert hub.private["somebody/m"] is True
    assert {name: held[name] for name in held if name != ".gitattributes"} == {
        str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()
    }
    assert hub.messages == ["tempscale export: 0.5"]
    assert f"pushed to {hub.address}/somebody/m" in done.stderr
    assert fake_hub.TOKEN not in done.stdout + done.stderr


def test_a_second_push_replaces_the_first_and_nothing_that_is_anothers(hub, tmp_path, small_model):
    first = export(hub, tmp_path / "a", small_model, "--push", "me/m", "--public")
    assert first.returncode == 0, first.stderr
    assert hub.private["me/m"] is False
    hub.files["me/m"]["left.txt"] = b"of an earlier version"
    again = export(hub, tmp_path / "b", small_model, "--push", "me/m", tau="0.25")
    assert again.returncode == 0, again.stderr
    assert "left.txt" not in hub.files["me/m"]
    assert b"temperature 0.25" in hub.files["me/m"]["README.md"]
    hub.files["me/other"], hub.private["me/other"] = {"README.md": b"mine", "weights.bin": b"1"}, True
    refused = export(hub, tmp_path / "c", small_model, "--push", "me/other", tau="0.25")
    assert refused.returncode == 2
    assert "'README.md'" in refused.stderr
    assert not (tmp_path / "c").exists()
    assert hub.files["me/other"] == {"README.md": b"mine", "weights.bin": b"1"}


def test_sides_get_a_repository_each(hub, tmp_path, small_model):
    rows = torch.nn.functional.normalize(torch.randn(150, 64, generator=torch.Generator().manual_seed(0)), dim=1)
    correction = fit("centre", rows, torch.arange(1, 151), rows[:120], torch.arange(1, 121))
    (tmp_path / "c.json").write_text(json.dumps(correction.as_data()))
    done = export(hub, tmp_path / "m", small_model, "--correction", str(tmp_path / "c.json"), "--push", "me/m", tau="1.0")
    assert done.returncode == 0, done.stderr
    assert set(hub.files) == {"me/m-documents", "me/m-queries"}
    assert "modules.json" in hub.files["me/m-queries"]


def test_a_wrong_token_is_told_before_anything_is_computed(hub, tmp_path, small_model):
    done = export(hub, tmp_path / "m", small_model, "--push", "me/m", token="hf_x")
    assert done.returncode == 2
    assert "--push 'me/m'" in done.stderr
    assert "hf_x" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "m").exists()


def test_what_does_not_arrive_stays_on_the_disk_with_the_command_that_sends_it(hub, tmp_path, small_model):
    hub.refused = "/commit/"
    done = export(hub, tmp_path / "m", small_model, "--push", "me/m")
    assert done.returncode == 3
    assert f"`hf upload me/m '{tmp_path}/m'`" in done.stderr
    assert (tmp_path / "m" / "model.safetensors").exists()


def test_a_correction_has_the_figures_of_its_own_row(runs, small_model):
    fingerprint = checkpoint.fingerprint(checkpoint.resolve(small_model))
    text = measured([runs[2]], fingerprint, Temperature(1.0), "centre")
    assert "| 300 | 0.75 | 0.031 ± 0.020 |" in text
    assert measured([], fingerprint, HALF, None) == ""


@pytest.mark.parametrize(
    ("which", "temperature", "correction", "named"),
    [
        (0, Temperature(0.25), None, "τ 0.25"), (1, HALF, "centre", "correction centre"),
        (2, Temperature(1.0), "csls(5, 0.5)", "correction csls"),
    ],
)  # fmt: skip
def test_a_run_that_measured_something_else_is_refused(runs, tmp_path, small_model, which, temperature, correction, named):
    fingerprint = checkpoint.fingerprint(checkpoint.resolve(small_model))
    with pytest.raises(UsageError, match=f"'{runs[which]}' .*{named}"):
        measured([runs[which]], fingerprint, temperature, correction)
    with pytest.raises(UsageError, match=f"'{runs[which]}' .*another model"):
        measured([runs[which]], "another", HALF, None)
    with pytest.raises(UsageError, match=f"'{tmp_path}' .*no finished run"):
        measured([str(tmp_path)], "another", HALF, None)
