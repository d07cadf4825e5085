"""The page of figures says what the results say, of any machine; README's figures are the page's."""

import re
from pathlib import Path

import pytest

from benchmarks import charts, render, wording

ROOT = Path(__file__).resolve().parents[2]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs" / "dev"
RATE = {"what": "a way", "rate": 1234.4, "unit": "texts/s"}
MEASURED = {"on": "2026-01-02", "tempscale": "9.8.7", "python": "3.99.1", "torch": "7.7", "scipy": "5.5"}


def labels(svg):
    """What a chart's marks say to who cannot see it: each point's figures."""
    return sorted(re.findall(r'aria-label="([^"]*)"', svg))


def test_the_page_and_its_charts_are_current():
    machines = render.read(RESULTS)
    assert machines
    assert (DOCS / render.PAGE).read_text("utf-8") == render.page(machines), "run: python -m benchmarks render"
    drawn = {name: chart for stem, found in machines.items() for name, chart in charts.of(stem, found["results"]).items()}
    there = {file.stem: file.read_text("utf-8") for file in (DOCS / render.CHARTS).glob("*.svg")}
    assert set(there) == set(drawn), "run: python -m benchmarks render"
    for name, chart in drawn.items():  # Where letters stand depends on the fonts of the machine that drew it.
        assert labels(there[name]) == labels(charts.svg(chart)), "run: python -m benchmarks render"


def table_rows(text):
    """The cells of each row of the tables of a text, without their heads."""
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.M)
    rows = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def numbers(text):
    return set(re.findall(r"(?<![\w.])\d[\d,.]*\d(?:e-\d+)?|(?<![\w.])\d(?![\w.])", text))


def test_readme_tells_the_figures_of_the_page():
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme.split("## How fast")[1].split("\n## ")[0]
    rows = table_rows(section)
    assert len(rows) == 5
    groups = (DOCS / render.PAGE).read_text("utf-8").split("\n### ")
    for what, *cells in rows:
        told = [cell for cell in cells if cell]
        homes = [group for group in groups if any(set(told) <= set(row) for row in table_rows(group))]
        assert homes, f"no row of docs/dev/performance.md has {told}"
        assert any(numbers(what) <= numbers(group) for group in homes), f"{what}: {numbers(what)}"


def test_each_benchmark_has_its_own_date_and_versions():
    later = MEASURED | {"on": "2026-05-06", "tempscale": "10.0", "known_from": "the log"}
    names = ("cosine", "socm", "growth")
    found = {
        "results": [RATE | {"benchmark": name} for name in names],
        "measured": dict(zip(names, [MEASURED, MEASURED, later], strict=True)),
    }
    page = render.page({"m": found})
    assert page.count("Measured on 2026-01-02 with tempscale 9.8.7") == 2
    assert page.count("2026-05-06* with tempscale 10.0") == 1
    assert "python 3.99.1; scipy 5.5." in page.split("The machine:")[1].split("###")[0]
    assert "not recorded" in render.page({"old-box": {"results": [{"benchmark": "own", **RATE}]}})


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.4424, "0.442"), (3.14159, "3.14"), (12.13, "12.1"), (99.96, "100.0"), (123.6, "124"), (73215.99, "73,216"),
        (2.8073e7, "28.1 M"), (1.04e8, "104 M"), (2.5e9, "2,500 M"), (0, "0"),
    ],
)  # fmt: skip
def test_rates_have_three_digits_or_all_before_the_point(value, told):
    assert wording.rate(value) == told


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"ratio": 0.347, "limit_share": 2.7375}, ("0.35", "274 %")),
        ({"ratio": 13.18, "limit_share": None}, ("13.2", "")),
        ({"ratio": 1.0, "limit_share": 0.0049}, ("1.00", "<1 %")),
        ({"ratio": 2094.08}, ("2,094", "")),
        ({}, ("", "")),
        ({"ratio": 0.99, "overhead": 0.00662, "overhead_se": 0.0097}, ("+0.7 ± 1.0 %", "")),
        ({"ratio": 1.01, "overhead": -0.012, "overhead_se": 0.004}, ("−1.2 ± 0.4 %", "")),
        ({"ratio": 1.0, "overhead": 0.0, "overhead_se": 0.0}, ("0", "")),
    ],
)
def test_ratios_overheads_and_shares(row, told):
    assert wording.cells(RATE | row)[1:] == told


def test_further_figures_have_their_units():
    row = {
        "seconds": 588.9457, "peak_memory_bytes": 3190554624, "ray_start_seconds": 4.2954, "memory": 242556928,
        "largest_error": 2.5587e-07, "least_cosine": 0.99999999, "moments_cost": -0.031, "nan": 4, "pairs": 5,
    }  # fmt: skip
    told = wording.further(RATE | row)
    for figure in ("9 min 49 s", "3.2 GB", "4.30 s", "243 MB", "2.6e-07", "0.9999999", "−3.1 %", "4 of 5"):
        assert figure in told
    assert wording.further(RATE | {"seconds": 0.0123, "nan": 0, "largest_error": None}) == "12.3 ms"
