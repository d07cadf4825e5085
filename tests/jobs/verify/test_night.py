"""A night whose vectors are verified: its gate, record, page and findings say which are not the model's."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
from command_line import in_process, said
from golden_words import ending
from planted_vectors import ROWS, WINDOW
from whole_run import as_toml, digests, read_record, read_tables

from tempscale_jobs.nights import record as history
from tempscale_jobs.runs.storage import Storage

WRONG = (40, 41, 42)
PROMPT = "embedded with the prompt 'query: '"


@pytest.fixture(scope="module")
def night(texts, embed, small_model, tmp_path_factory):
    """A function that writes the configuration of a night over an index, with or without three wrong rows."""
    folder, right = tmp_path_factory.mktemp("night"), embed(texts)
    wrong = right.copy()
    wrong[list(WRONG)] = embed([f"query: {texts[k]}" for k in WRONG])
    days = ["2026-11-24" if k in WRONG else f"2026-11-0{k % 9 + 1}" for k in range(ROWS)]
    for name, vectors in (("clean", right), ("wrong", wrong)):
        columns = {"id": [f"d{k}" for k in range(ROWS)], "text": texts, "ingest": days}
        embedding = vectors.astype(np.float32).tolist()
        pl.DataFrame(columns | {"embedding": embedding}).write_parquet(folder / f"{name}.parquet")

    def night(index, out, **verify):
        settings = {"model": small_model, "max_length": WINDOW, "sample": "all", "by": ["ingest"]} | verify
        data = {
            "out": str(out), "corpus": {"source": str(folder / f"{index}.parquet"), "embedding_column": "embedding"},
            "analysis": {"intervals": [0, 32]}, "gate": {"thresholds": ["wrong_share <= 0.5"]}, "verify": settings,
        }  # fmt: skip
        file = folder / f"{index}.toml"
        file.write_text(as_toml(data))
        return str(file)

    return night


@pytest.fixture(scope="module")
def failed(night, ray_session, tmp_path_factory):
    out = tmp_path_factory.mktemp("nights") / "2026-11-24"
    code, printed, err = in_process("audit", night("wrong", out), "--workers", "1", "--json")
    assert code == 1, err
    return out, json.loads(printed)


def test_three_wrong_rows_fail_the_night_and_are_named_first(failed, capsys):
    out, document = failed
    table = read_tables(out)["verified"]
    found = dict(table.filter(pl.col("wrong")).select("text_id", "cause").iter_rows())
    assert found == {f"d{k}": PROMPT for k in WRONG}
    reason = read_record(out)["gate"]["failed"][0]
    assert reason.startswith(f"3 of {ROWS} vectors")
    assert "ingest=2026-11-24" in reason
    assert PROMPT in reason
    assert reason in ending("audit", out, capsys).replace("\n", " ")
    page = (out / "report.html").read_text("utf-8")
    assert page.index("ingest=2026-11-24") < page.index('class="verdict"') < page.index("mean cosine")
    assert next(iter(document["answers"].values())).startswith(reason)
    assert document["gate"]["verdict"] == "failed"


def test_figures_are_in_the_summary_the_findings_and_the_record_of_nights(failed):
    out, document = failed
    tables = read_tables(out)
    row = tables["collapse_summary"].row(0, named=True)
    assert (row["model"], row["verified_texts"], row["wrong_share"]) == ("given", ROWS, 3 / ROWS)
    checks = {(row["figure"], row["limit"]): row["verdict"] for row in tables["gate"].to_dicts()}
    assert checks == {("wrong_share", "<= 0"): "failed", ("wrong_share", "<= 0.5"): "held"}
    states = {row["figure"]: row["state"] for row in document["findings"]}
    assert states["wrong_share"] == "up"
    assert states["cosine_mean"] == "measured"
    (recorded,) = history.load(Storage(str(out / "history"))).to_dicts()
    assert (recorded["verified_texts"], recorded["wrong_share"], recorded["gate"]) == (ROWS, 3 / ROWS, "failed")


@pytest.mark.proof
def test_its_plan_counts_the_texts_that_are_embedded_again(night, tmp_path):
    tokens = {}
    for sample in (30, 60):
        code, printed, err = in_process("audit", night("clean", tmp_path / "run", sample=sample), "--plan")
        assert code == 0, err
        (line,) = (line for line in printed.splitlines() if line.strip().startswith("tokens"))
        tokens[sample] = int(line.split()[2].replace(",", ""))
    assert 30 * 20 < tokens[30] < 30 * WINDOW
    assert tokens[60] == pytest.approx(2 * tokens[30], abs=1)
    assert not (tmp_path / "run").exists()


@pytest.mark.proof
def test_a_clean_night_passes_and_says_so(night, ray_session, tmp_path, capsys):
    code, _, err = in_process("audit", night("clean", tmp_path / "run", sample=60), "--workers", "1")
    assert code == 0, err
    assert "Yes: each of 60 vectors" in said(ending("audit", tmp_path / "run", capsys))
    assert read_tables(tmp_path / "run")["gate"]["verdict"].to_list() == ["held", "held"]
    # A finished night is judged again without being measured again.
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "verify").rglob("*.parquet")}
    assert in_process("audit", night("clean", tmp_path / "run", sample=60), "--workers", "1")[0] == 0
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "run" / "verify").rglob("*.parquet")} == before


@pytest.mark.proof
def test_wrong_rows_within_the_limit_pass_and_are_still_named(night, ray_session, tmp_path, capsys):
    code, _, err = in_process("audit", night("wrong", tmp_path / "run", max_wrong=0.1), "--workers", "1")
    assert code == 0, err
    assert f"3 of {ROWS} vectors are not the model's" in said(ending("audit", tmp_path / "run", capsys))


@pytest.mark.proof
def test_a_night_that_is_killed_while_it_verifies_goes_on_to_the_same_bytes(night, failed, ray_address, tmp_path):
    out, arguments = tmp_path / "run", ["audit", night("wrong", tmp_path / "run")]
    command = [sys.executable, "-m", "tempscale_jobs", *arguments, "--workers", "1", "--address", ray_address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            while not list(out.glob("verify/partials/compared/*/*/part-*.parquet")):
                assert process.poll() is None, process.stderr.read()
                time.sleep(0.01)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert not (out / "run.json").exists()
    code, _, err = in_process(*arguments, "--workers", "2")
    assert code == 1, err
    folders = ("tables", "texts", "rejected", "verify")
    assert digests(out, *folders) == digests(failed[0], *folders)


@pytest.mark.proof
@pytest.mark.parametrize("damaged", ["tables/verified.parquet", "verify/partials/compared", "verify/partials/explained"])
def test_what_is_damaged_of_a_finished_night_is_made_again(damaged, night, ray_session, tmp_path):
    arguments = ("audit", night("wrong", tmp_path / "run"), "--workers", "1")
    assert in_process(*arguments)[0] == 1
    before = digests(tmp_path / "run", "tables", "verify")
    place = tmp_path / "run" / damaged
    file = place if place.suffix else next(place.rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-9])
    code, _, err = in_process(*arguments)
    assert code == 1, err
    assert digests(tmp_path / "run", "tables", "verify") == before


@pytest.mark.parametrize(
    ("corpus", "verify", "named"),
    [
        ({"embedding_column": "embedding"}, {"sample": 5}, "model"),
        ({}, {"model": "m"}, "--embedding-column"),
        ({"embedding_column": "embedding", "length_column": "length"}, {"model": "MODEL"}, "--text-column"),
        ({"embedding_column": "embedding"}, {"model": "MODEL", "by": ["source"]}, "by in [verify]"),
        ({"embedding_column": "embedding"}, {"model": "/no/such/model"}, "/no/such/model"),
    ],
)  # fmt: skip
def test_what_cannot_be_verified_is_a_sentence_before_ray_starts(corpus, verify, named, small_model, tmp_path):
    table = {"id": ["a", "b"], "embedding": [[1.0, 2.0]] * 2, "length": [3, 4]}
    if "length_column" not in corpus:
        table["text"] = ["x", "y"]
    pl.DataFrame(table).write_parquet(tmp_path / "index.parquet")
    verify = {name: small_model if value == "MODEL" else value for name, value in verify.items()}
    data = {"out": str(tmp_path / "run"), "corpus": {"source": str(tmp_path / "index.parquet")} | corpus, "verify": verify}
    (tmp_path / "night.toml").write_text(as_toml(data))
    code, _, err = in_process("audit", str(tmp_path / "night.toml"))
    assert code == 2, err
    assert named in said(err)
