"""Files, tables of lakes and model folders with random damage: each is read, or refused in one sentence."""

import os
import random
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import random_inputs
from hypothesis import given
from hypothesis import strategies as st
from random_inputs import COMPRESS, CSV, LAKES, LINES, MORE, SECONDS, TABLE, damaged, drawn, read, sentence

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import find_models

pytestmark = [pytest.mark.proof, pytest.mark.timeout(SECONDS)]


def parquet(table, **how):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **how)
    return sink.getvalue().to_pybytes()


WHOLE = {
    "plain.parquet": parquet(TABLE, compression="none", use_dictionary=False),
    "snappy.parquet": parquet(TABLE, compression="snappy", data_page_size=512, row_group_size=64),
    "zstd.parquet": parquet(TABLE, compression="zstd", data_page_version="2.0", write_page_checksum=True),
    "delta.parquet": parquet(TABLE, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="gzip"),
    "a.jsonl": LINES, "a.csv": CSV, "a.tsv": CSV.replace(b",", b"\t"), "a.txt": LINES,
    **{f"a.jsonl.{ending}": compress(LINES) for ending, compress in COMPRESS.items()},
    "a.csv.gz": COMPRESS["gz"](CSV), "a.txt.zst": COMPRESS["zst"](LINES),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_file_is_read_or_refused(tmp_path, name):
    file, noticed = tmp_path / name, 0
    file.write_bytes(WHOLE[name])
    whole, blank = read(file)
    assert len(whole) + len(blank) == 300
    assert len(whole) > 200

    @drawn(100)
    @given(st.integers(0, 2**63))
    def check(seed):
        nonlocal noticed
        file.write_bytes(damaged(WHOLE[name], seed))
        texts, told = read(file)
        assert texts is not None or name in told
        noticed += (texts, told) != (whole, blank)

    check()
    assert noticed > 10 * MORE


@pytest.mark.parametrize("kind", LAKES)
def test_a_table_of_a_lake_with_a_damaged_file_is_read_or_refused(tmp_path, kind):
    """In a process of its own: the libraries' compiled parts now and then end the one that opens a damaged table."""
    pytest.importorskip(LAKES[kind])
    first, wanted, answers, deaths = random.randrange(2**32) if MORE > 1 else 0, 40 * MORE, [], []
    while len(answers) + len(deaths) < wanted:
        place = first + len(answers) + len(deaths)
        script = [sys.executable, "-X", "faulthandler", random_inputs.__file__]
        given = [kind, str(tmp_path), str(place), str(first + wanted)]
        path = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([*script, *given], env=path, capture_output=True, text=True, check=False)
        answers += run.stdout.split()
        assert run.returncode <= 0, run.stderr[-2000:]
        if run.returncode < 0:
            deaths.append((place, run.returncode, run.stderr[-2000:]))
    assert set(answers) == {"read", "refused"}
    assert len(deaths) <= wanted / 20, deaths  # Seen: one Lance table in forty, one Delta table in some thousands.


def test_a_model_folder_with_a_damaged_file_is_fingerprinted_or_refused(tmp_path, tiny_folder):
    whole, broken, answers = tiny_folder("bert"), tmp_path / "model", set()
    files = ["config.json", "tokenizer.json", "tokenizer.json", "tokenizer_config.json"]
    settled = resolve({"embedding": {"models": [str(broken)]}})

    @drawn(80)
    @given(st.integers(0, 2**63))
    def check(seed):
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(whole, broken)
        victim = broken / random.Random(seed).choice(files)
        victim.write_bytes(damaged(victim.read_bytes(), seed))
        try:
            assert len(find_models(settled)[0].fingerprint) == 64
        except UsageError as error:
            answers.add("refused")
            sentence(error)
        else:
            answers.add("read")

    check()
    assert answers == {"read", "refused"}
