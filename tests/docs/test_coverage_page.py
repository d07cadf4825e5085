"""The page on coverage: every gap of what decides numbers, or what is kept, is explained, and nothing else is."""

import json
from pathlib import Path

import coverage_page

ROOT = Path(__file__).resolve().parents[2]


def test_each_gap_has_its_reason_and_no_reason_is_left_over():
    files = json.loads(coverage_page.RESULT.read_text("utf-8"))["files"]
    gaps = {name for name, own in files.items() if coverage_page.group(name) is not None and coverage_page.gaps(own)}
    assert gaps == set(coverage_page.WHY)


def test_what_is_named_is_there():
    for name in (*coverage_page.NUMBERS, *coverage_page.KEPT):
        assert (ROOT / name).exists() or (ROOT / "jobs" / "tempscale_jobs" / name).exists(), name
    assert not set(coverage_page.NUMBERS) & set(coverage_page.KEPT)
