"""An audit whose corpus is read in units while it is embedded gives the same tables, however it is disturbed."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from whole_run import as_lines, digests, documented, read_record, read_tables

pytestmark = pytest.mark.soak

SETTINGS = ["--max-length", "64", "--socm-groups", "10", "--tau", "1.0"]
EVERY = ("tables", "texts", "neighbours", "rejected", "partials")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    rows = documented("numpy")[:240]
    rows[200] = rows[200] | {"id": rows[2]["id"]}  # Another unit has this id.
    rows[50] = rows[50] | {"text": " "}
    (folder / "texts.jsonl").write_text(as_lines(rows))
    return folder / "texts.jsonl"


def run(*arguments):
    code, _, stderr = in_process(*arguments, "--workers", "1")
    assert code == 0, stderr


@pytest.fixture(scope="module")
def base(corpus, small_model, tmp_path_factory):
    units = tmp_path_factory.mktemp("units") / "units.toml"
    units.write_text(f"[corpus]\nunit_bytes = {corpus.stat().st_size // 7}\n")
    return ["audit", "--model", small_model, "--corpus", str(corpus), *SETTINGS], [str(units)]


@pytest.fixture(scope="module")
def in_units(tmp_path_factory, base, ray_session):
    out = tmp_path_factory.mktemp("many") / "run"
    run(*base[0], *base[1], "--out", str(out))
    return out


def test_units_give_the_figures_of_one_unit(in_units, base, tmp_path):
    run(*base[0], "--out", str(tmp_path / "one"))
    one, many = (read_record(folder)["corpus"] for folder in (tmp_path / "one", in_units))
    assert one | {"source_state": 0} == many | {"source_state": 0}
    assert one["rejected_reasons"] == {"the id appeared before": 1, "the text is empty": 1}
    tables, expected = read_tables(in_units), read_tables(tmp_path / "one")
    assert tables.keys() == expected.keys()
    for name in ("collapse_summary", "length_collapse", "socm", "exposure", "prefix_probe"):
        for column in expected[name].select(pl.col(pl.Float64, pl.Float32)).columns:
            ours, theirs = (t[name][column].cast(pl.Float64).fill_null(0).to_numpy() for t in (tables, expected))
            # Micro-batches end where units do, and the last bits of embeddings depend on them.
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5, err_msg=f"{name}.{column}")
    assert not (in_units / "shards").exists()


def test_a_run_that_is_killed_while_it_reads_goes_on_to_the_same_bytes(in_units, base, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "tempscale_jobs", *base[0], *base[1], "--out", str(out), "--workers", "1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    while len(list(out.glob("shards/unit-*.json"))) < 3:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    assert not (out / "run.json").exists()
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert digests(out, *EVERY) == digests(in_units, *EVERY)
