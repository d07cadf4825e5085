"""The page on vectors: every pooling that is supported stands in it, and nothing beyond its limit."""

import json

import vectors

from tempscale.model.pooling import POOLINGS


def test_every_head_and_window_was_measured_and_is_within_the_limit():
    rows = json.loads(vectors.RESULT.read_text("utf-8"))["rows"]
    random = {(row["pooling"], row["stages"], row["normalised"], row["asked"]) for row in rows if "random" in row["model"]}
    assert random == {(p, s, n, w) for p in POOLINGS for s in vectors.STAGES for n in (False, True) for w in vectors.WINDOWS}
    real = [row for row in rows if row["model"] == "all-MiniLM-L6-v2"]
    assert [row["window"] for row in real] == [256, 64, 512]
    assert all(0 < row["away"] < 1e-5 for row in rows)
    assert {row["cut"] > 0 for row in rows if row["asked"] == 64} == {True}
