"""The page of figures says what the results say, of any machine; README's figures are the page's."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import charts, render, wording
from benchmarks.groups import GROUPS, Group

ROOT = Path(__file__).resolve().parent.parent
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
RATE = {"what": "a way", "rate": 1234.4, "unit": "texts/s"}
MEASURED = {"on": "2026-01-02", "tempscale": "9.8.7", "python": "3.99.1", "torch": "7.7", "scipy": "5.5"}


def growing(series, grows, sizes, power):
    rows = [{"size": size, "seconds": 1e-6 * size**power, "rate": 100.0, "unit": "pairs/s"} for size in sizes]
    extra = {"benchmark": "growth", "series": series, "grows": grows, "exponent": power, "exponent_se": 0.03, "ratio": 1.0}
    return [{"what": f"{series}, {row['size']:,} {grows}"} | row | extra for row in rows]


def scaling(series, ratios):
    return [
        {
            "benchmark": "workers",
            "what": f"{series}, {k + 1} workers",
            "rate": 50 * ratio,
            "unit": "tokens/s",
            "ratio": ratio,
        }
        | {"workers": k + 1, "efficiency": ratio / (k + 1), "series": series}
        for k, ratio in enumerate(ratios)
    ]


GROWN = [
    *growing("cosine pass", "texts", (1000, 2000, 4000), 2.0),
    *growing("SOCM", "texts", (100, 200), 1.9),
    *growing("SOCM", "tokens", (64, 128), 2.5),
    *scaling("embedding step", (1.0, 1.85)),
]


def labels(svg):
    """What a chart's marks say to who cannot see it: each point's figures."""
    return sorted(re.findall(r'aria-label="([^"]*)"', svg))


# --- the page that is there -------------------------------------------------------------------------------------------


def test_the_page_and_its_charts_are_current():
    machines, soak = render.read(RESULTS)
    assert machines
    assert (DOCS / render.PAGE).read_text("utf-8") == render.page(machines, soak), "run: python -m benchmarks render"
    drawn = {name: chart for stem, found in machines.items() for name, chart in charts.of(stem, found["results"]).items()}
    there = {file.stem: file.read_text("utf-8") for file in (DOCS / render.CHARTS).glob("*.svg")}
    assert set(there) == set(drawn), "run: python -m benchmarks render"
    for name, chart in drawn.items():  # Where letters stand depends on the fonts of the machine that drew it.
        assert labels(there[name]) == labels(charts.svg(chart)), "run: python -m benchmarks render"


def test_what_the_page_points_to_is_there():
    page = (DOCS / render.PAGE).read_text("utf-8")
    links = set(re.findall(r"\]\((?!https?://|#)([^)#]+)", page))
    assert "../benchmarks/NOTES.md" in links
    assert not {link for link in links if not (DOCS / link).exists()}


def test_every_benchmark_has_its_words():
    from benchmarks.__main__ import every

    assert set(every()) == set(GROUPS)
    for file in render.read(RESULTS)[0].values():
        measured = {row["benchmark"] for row in file["results"]}
        assert measured <= set(GROUPS)
        assert measured == set(file["measured"])
        assert all({"on", "tempscale", "torch"} <= set(own) for own in file["measured"].values())


def table_rows(text):
    """The cells of each row of the tables of a text, without their heads."""
    tables = re.findall(r"(?:^\|.*\|\n?)+", text, re.M)
    rows = [line for table in tables for line in table.splitlines()[2:]]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


def numbers(text):
    return set(re.findall(r"(?<![\w.])\d[\d,.]*\d(?:e-\d+)?|(?<![\w.])\d(?![\w.])", text))


def test_readme_tells_the_figures_of_the_page():
    readme = (ROOT / "README.md").read_text("utf-8")
    section = readme.split("## How fast, against what")[1].split("\n## ")[0]
    rows = table_rows(section)
    assert len(rows) >= 8
    groups = (DOCS / render.PAGE).read_text("utf-8").split("\n### ")
    for what, *cells in rows:
        told = [cell for cell in cells if cell]
        homes = [group for group in groups if any(set(told) <= set(row) for row in table_rows(group))]
        assert homes, f"no row of docs/performance.md has {told}"
        assert any(numbers(what) <= numbers(group) for group in homes), f"{what}: {numbers(what)}"


def test_tables_and_numbers_are_read_as_they_stand():
    assert table_rows("| a | b |\n| --- | ---: |\n| x \\| y | 1,234 /s |\n| z | 2 /s |") == [
        ["x \\| y", "1,234 /s"],
        ["z", "2 /s"],
    ]
    assert numbers("1,000 texts, 2.6e-07, bfloat16, 9 min 49 s, 0.9999714, d×d, 7") == {
        "1,000", "2.6e-07", "9", "49", "0.9999714", "7"
    }  # fmt: skip


# --- pages of other machines ------------------------------------------------------------------------------------------


def test_a_machine_of_which_little_is_recorded():
    page = render.page({"old-box": {"results": [{"benchmark": "own", **RATE}]}}, None)
    assert "## old-box\n" in page
    assert "cores: not recorded; system: not recorded; GPU: not recorded" in page
    assert "### own\n\n| what | rate |\n| --- | ---: |\n| a way | 1,234 texts/s |\n" in page
    assert "When and with what this was measured is not recorded." in page
    assert "### Versions" not in page
    assert "What it survives" not in page


def test_text_can_neither_end_a_cell_nor_begin_an_element():
    row = RATE | {"benchmark": "own", "what": "a|b\n<img src=x>", "unit": "x|y"}
    page = render.page({"m": {"machine": {"processor": "A|B <b>"}, "results": [row]}}, None)
    assert "| a\\|b &lt;img src=x> | 1,234 x\\|y |\n" in page
    assert "## A\\|B &lt;b>\n" in page


def test_columns_that_no_row_fills_are_left_out_and_others_kept():
    group = Group("t", "", "times", "share")
    rows = [RATE | {"limit_share": 0.256}, RATE | {"limit_share": None, "largest_error": 1.25e-7}]
    assert render.table(rows, group).splitlines() == [
        "| what | rate | share | besides |",
        "| --- | ---: | ---: | --- |",
        "| a way | 1,234 texts/s | 26 % |  |",
        "| a way | 1,234 texts/s |  | largest error 1.2e-07 |",
    ]


def test_each_benchmark_has_its_own_date_and_versions():
    later = MEASURED | {"on": "2026-05-06", "tempscale": "10.0", "known_from": "the log"}
    names = ("cosine", "socm", "growth")
    found = {
        "results": [RATE | {"benchmark": name} for name in names],
        "measured": dict(zip(names, [MEASURED, MEASURED, later], strict=True)),
    }
    page = render.page({"m": found}, None)
    assert page.count("Measured on 2026-01-02 with tempscale 9.8.7, torch 7.7.") == 2
    assert page.count("Measured on 2026-05-06 with tempscale 10.0, torch 7.7 (the log).") == 1
    assert "- socm, cosine: tempscale 9.8.7, python 3.99.1, torch 7.7, scipy 5.5.\n- growth: tempscale 10.0, python" in page


def test_groups_stand_in_the_order_of_their_words_with_what_is_unknown_last():
    rows = [RATE | {"benchmark": name} for name in ("own", "socm", "embedding")]
    headings = re.findall(r"^### (.+)$", render.page({"m": {"results": rows}}, None), re.M)
    assert headings == [GROUPS["embedding"].title, GROUPS["socm"].title, "own"]


def test_growth_and_scaling_are_drawn_with_words_for_who_cannot_see(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "docs").mkdir()
    (tmp_path / "results" / "m.json").write_text(json.dumps({"results": GROWN}), "utf-8")
    written = render.write(tmp_path / "results", tmp_path / "docs")
    names = ["m-growth-in-n", "m-growth-in-length", "m-workers"]
    assert [file.name for file in written] == [*(f"{name}.svg" for name in names), "performance.md"]
    page = written[-1].read_text("utf-8")
    pictures = dict(re.findall(r"!\[([^\]]+)\]\(performance/(.+)\.svg\)", page))
    assert list(pictures.values()) == names
    in_n, in_length, workers = pictures
    assert "cosine pass from 1 s at 1,000 texts to 16 s at 4,000, exponent 2.00; SOCM" in in_n
    assert "SOCM from 0.033 s at 64 tokens to 0.19 s at 128, exponent 2.50" in in_length
    assert "embedding step at 2: 1.85 times the rate of one" in workers
    assert "- cosine pass, from 1,000 to 4,000 texts: seconds grow as texts to the power of 2.00 ± 0.03\n" in page
    assert "- SOCM, from 64 to 128 tokens: seconds grow as tokens to the power of 2.50 ± 0.03\n" in page
    assert "efficiency 92 %" in page
    for file, points in zip(written, (5, 2, 2), strict=False):
        svg = file.read_text("utf-8")
        assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
        assert len(re.findall(r'aria-roledescription="point"', svg)) == points


def test_what_is_not_measured_any_more_leaves_neither_group_nor_chart(tmp_path):
    (tmp_path / "results").mkdir()
    folder = tmp_path / "docs" / "performance"
    folder.mkdir(parents=True)
    (folder / "m-workers.svg").write_text("<svg/>", "utf-8")
    (tmp_path / "results" / "m.json").write_text(json.dumps({"results": [RATE | {"benchmark": "socm"}]}), "utf-8")
    render.write(tmp_path / "results", tmp_path / "docs")
    page = (tmp_path / "docs" / "performance.md").read_text("utf-8")
    assert not list(folder.iterdir())
    assert "![" not in page
    assert GROUPS["growth"].title not in page
    assert GROUPS["socm"].title in page


def test_the_page_says_that_no_gpu_was_measured_until_one_was():
    assert "Nothing was ever measured on a GPU" in render.page({"m": {"results": [RATE | {"benchmark": "socm"}]}}, None)
    assert "ever measured" not in render.page({"m": {"results": [RATE | {"benchmark": "gpu"}]}}, None)


@pytest.mark.parametrize(
    ("same", "told"), [(True, "with the bytes of an undisturbed one"), (False, "not every run ended as it")]
)
def test_the_last_soak_takes_two_lines(same, told):
    soak = {"kills": 5, "of": {"actor": 3, "raylet": 2}, "runs": 2, "nodes": 4, "same_bytes": same}
    last = render.page({}, {"storms": soak}).split("## What it survives\n\n")[1]
    assert last.startswith("The last `make soak`: 5 kills (3 of actors, 2 of raylets) in 2 runs on 4 nodes; ")
    assert told in last
    assert last.endswith("[reliability.md](reliability.md).\n")
    assert len(last.splitlines()) == 2


# --- words for figures ------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"seconds": 588.9457, "peak_memory_bytes": 3190554624}, "9 min 49 s; peak memory 3.2 GB"),
        ({"seconds": 30.997, "ray_start_seconds": 4.2954}, "31.0 s; Ray's start 4.30 s"),
        ({"seconds": 0.0123, "memory": 242556928}, "12.3 ms; memory grows by 243 MB"),
        ({"nan": 4, "pairs": 4, "largest_error": None}, "NaN in 4 of 4 pairs"),
        ({"nan": 0, "largest_error": 2.5587e-07, "certified_error": 0.0}, "largest error 2.6e-07"),
        ({"certified_error": 4.2e-10}, "certified 4.2e-10"),
        ({"least_cosine": 0.99999999}, "least cosine 0.9999999"),
        ({"moments_cost": -0.031}, "moments take −3.1 % more time"),
        ({"embedding_over_first": 0.0759, "memory_over_fewer": 1.1032},
         "1.10 times the memory of fewer; embedding in 7.6 % of the first night's time"),
    ],
)  # fmt: skip
def test_further_figures(row, told):
    assert wording.further(RATE | row) == told
