"""The page on vectors: every supported pooling and every setting of a model is in it, and nothing beyond its limit."""

import json
from pathlib import Path

import vectors

from tempscale.model.known_settings import FILES, SETTINGS, STAGES
from tempscale.model.pooling import POOLINGS


def test_every_head_and_window_was_measured_and_is_within_the_limit():
    rows = json.loads(vectors.RESULT.read_text("utf-8"))["rows"]
    random = {(row["pooling"], row["stages"], row["normalised"], row["asked"]) for row in rows if "random" in row["model"]}
    assert random == {(p, s, n, w) for p in POOLINGS for s in vectors.STAGES for n in (False, True) for w in vectors.WINDOWS}
    real = [row for row in rows if row["model"] == "all-MiniLM-L6-v2"]
    assert [row["window"] for row in real] == [256, 64, 512]
    assert all(0 < row["away"] < 1e-5 for row in rows)
    assert {row["cut"] > 0 for row in rows if row["asked"] == 64} == {True}


def test_every_setting_is_on_the_page_with_its_treatment():
    page = (Path(vectors.HERE) / "vectors.md").read_text("utf-8")
    assert page == vectors.page()
    rows = [line for line in page.splitlines() if line.startswith("| ") and line.count("|") == 5]
    for keys in (*SETTINGS.values(), STAGES, FILES):
        for key, setting in keys.items():
            assert any(f"| `{key}` | {setting.treatment}" in row and setting.reason in row for row in rows)
