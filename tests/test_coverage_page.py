"""The page on coverage: every gap of what decides numbers, or what is kept, is explained, and nothing else is."""

import json
from pathlib import Path

import coverage_page
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def files():
    return json.loads(coverage_page.RESULT.read_text("utf-8"))["files"]


def test_each_gap_has_its_reason_and_no_reason_is_left_over(files):
    gaps = {name for name, own in files.items() if coverage_page.group(name) is not None and coverage_page.gaps(own)}
    assert gaps == set(coverage_page.WHY)


def test_what_is_named_is_there():
    names = {f.stem for f in (ROOT / "jobs").glob("*.py")} | {"tempscale"}
    assert set(coverage_page.NUMBERS) | set(coverage_page.KEPT) <= names
    assert not set(coverage_page.NUMBERS) & set(coverage_page.KEPT)


@pytest.mark.parametrize(
    ("numbers", "told"), [([], ""), ([3], "3"), ([3, 4], "3–4"), ([1, 3, 4, 5, 9], "1, 3–5, 9"), ([1, 2, 4, 5], "1–2, 4–5")]
)
def test_lines_are_told_as_ranges(numbers, told):
    assert coverage_page.ranges(numbers) == told
