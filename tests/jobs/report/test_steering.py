"""Characters that steer a terminal, in ids and texts: every way out shows them as escapes, and only data keeps them."""

import json
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pages import EVIL, STEERS
from whole_run import as_lines

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def ended(tmp_path_factory, small_model, ray_address):
    """A command whose ids, texts and paths steer terminals, and what it printed."""
    folder = tmp_path_factory.mktemp("evil")
    rows = [{"id": f"{k} {EVIL}", "text": f"{EVIL} a river and a bridge {k // 2} times {EVIL}"} for k in range(40)]
    rows += [{"id": f"bad {EVIL}", "text": 3}]
    name = "texts \x1b[31m.jsonl"
    (folder / name).write_text(as_lines(rows))
    command = [sys.executable, "-m", "tempscale_jobs", "audit", "--corpus", str(folder / name), "--model", small_model]
    command += ["--tau", "1.0", "--workers", "1", "--address", ray_address, "--out", str(folder / "run")]
    found = subprocess.run(command, capture_output=True, check=False)
    logged = subprocess.run([*command, "--log-format", "json"], capture_output=True, check=False)
    return folder / "run", found, logged


def test_nothing_that_is_printed_steers(ended):
    _, found, logged = ended
    assert (found.returncode, logged.returncode) == (0, 0)
    for printed in (found.stdout, found.stderr, logged.stdout, logged.stderr):
        assert not STEERS.search(printed.decode())
    assert "\\x1b[31m" in found.stderr.decode()
    assert all(json.loads(line) for line in logged.stderr.decode().splitlines())


def test_no_page_and_no_json_steers(ended):
    out, _, _ = ended
    page = (out / "report.html").read_text()
    assert not STEERS.search(page[page.index("</script>") :].replace("\r", ""))
    assert "\\x1b]0;owned\\x07" in page
    for file in (*out.rglob("*.json"), *out.rglob("*.svg")):
        assert not STEERS.search(file.read_text()), file


def test_the_tables_have_what_the_corpus_has(ended):
    out, _, _ = ended
    parts = [pq.read_table(file, columns=["text_id"], partitioning=None) for file in out.glob("texts/**/*.parquet")]
    assert f"7 {EVIL}" in pa.concat_tables(parts).column("text_id").to_pylist()
