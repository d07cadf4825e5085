"""Generated pages are current; links, functions, files, options, tables and examples that a page names are there."""

import importlib
import json
import re
import tomllib
from pathlib import Path

import coverage_page
import generate
import pytest
import reliability
import typer
import vectors

from tempscale.model.known_settings import FILES, SETTINGS, STAGES
from tempscale.model.pooling import POOLINGS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
PAGES = sorted(
    [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/NOTES.md")),
     *(ROOT / "docs").rglob("*.md"), *(ROOT / "cluster").rglob("*.md")]
)  # fmt: skip


@pytest.mark.usefixtures("with_figures")
@pytest.mark.parametrize("page", generate.PAGES)
def test_generated_pages_are_current(page):
    assert (ROOT / "docs" / page).read_text("utf-8") == generate.PAGES[page](), "run: python docs/generate.py"


def anchors(page):
    """What a link may name behind the # of a page."""
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text("utf-8")):
        place, _, heading = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link


def test_every_function_and_test_that_the_equations_name_exists():
    text = (ROOT / "docs" / "equations.md").read_text("utf-8")
    for path in re.findall(r"`((?:tests|jobs)/[\w/]+\.py)`", text):
        assert (ROOT / path).is_file(), path
    folders = "|".join(sorted(path.parent.name for path in (ROOT / "tempscale").glob("*/__init__.py")))
    named = re.findall(rf"`((?:{folders})\.\w+)\.(\w+)", text)
    assert len(named) > 25
    for module, name in named:
        assert hasattr(importlib.import_module(f"tempscale.{module}"), name), f"tempscale.{module}.{name}"
    for name in re.findall(r"`tempscale\.(\w+)`", text):
        assert hasattr(importlib.import_module("tempscale"), name), name


def test_the_page_on_reliability_names_tests_that_exist():
    there = {f"{file}::{test.name}" for file, tests in reliability.suite().items() for test in tests}
    named = {name for _, _, names in reliability.FAULTS for name in names}
    assert len(named) > 40
    assert named <= there
    assert {file for file, _ in reliability.BAD_INPUTS} <= set(reliability.suite())


def test_each_gap_of_the_coverage_has_its_reason_and_no_reason_is_left_over():
    files = json.loads(coverage_page.RESULT.read_text("utf-8"))["files"]
    gaps = {name for name, own in files.items() if coverage_page.group(name) is not None and coverage_page.gaps(own)}
    assert gaps == set(coverage_page.WHY)
    for name in (*coverage_page.NUMBERS, *coverage_page.KEPT):
        assert (ROOT / name).exists() or (ROOT / "jobs" / "tempscale_jobs" / name).exists(), name
    assert not set(coverage_page.NUMBERS) & set(coverage_page.KEPT)


def test_every_head_and_window_of_the_page_on_vectors_was_measured_and_is_within_the_limit():
    rows = json.loads(vectors.RESULT.read_text("utf-8"))["rows"]
    random = {(row["pooling"], row["stages"], row["normalised"], row["asked"]) for row in rows if "random" in row["model"]}
    assert random == {(p, s, n, w) for p in POOLINGS for s in vectors.STAGES for n in (False, True) for w in vectors.WINDOWS}
    assert [row["window"] for row in rows if row["model"] == "all-MiniLM-L6-v2"] == [256, 64, 512]
    assert all(0 < row["away"] < 1e-5 for row in rows)
    assert {row["cut"] > 0 for row in rows if row["asked"] == 64} == {True}


def test_every_setting_of_a_model_is_on_the_page_on_vectors_with_its_treatment():
    lines = (ROOT / "docs" / "vectors.md").read_text("utf-8").splitlines()
    for keys in (*SETTINGS.values(), STAGES, FILES):
        for key, setting in keys.items():
            own = [line for line in lines if line.startswith(f"- {vectors.treatment(setting)}: ") and f"`{key}`" in line]
            assert any(setting.reason in line for line in own), key


def test_the_drawing_of_the_data_names_what_is_there():
    text = (ROOT / "docs" / "dev" / "data-flow.md").read_text("utf-8")
    (drawing,) = re.findall(r"```mermaid\n(.*?)```", text, re.S)
    steps = set(re.findall(r"[\w/]+/\w+\.py", drawing))
    assert len(steps) > 12
    for name in steps | set(re.findall(r"`(\w+/\w+\.py)`", text)):
        assert (ROOT / "jobs" / "tempscale_jobs" / name).is_file(), name


def test_the_plan_s_lines_are_explained():
    from tempscale_jobs.audit import plan

    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    lines = re.findall(r'add_row\(\s*"(\w+)"', (ROOT / "jobs" / "tempscale_jobs" / "audit" / "plan.py").read_text("utf-8"))
    assert len(lines) == 6
    for line in lines:
        assert f"\n| {line} | " in text
        assert re.search(rf"^ {{4,}}{line} ", text, re.MULTILINE)
    assert f"embeds {plan.MEASURED_TEXTS} of its texts" in text


def test_the_python_of_the_readme_runs(minilm, capsys):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(block.splitlines()) <= 11
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "socm=tensor(0." in printed
    assert "torch.Size([2, 384])" in printed
    assert "torch.Size([6, 12])" in printed


def test_the_readme_is_read_in_five_minutes():
    assert len(README.split()) <= 1000


def test_the_families_and_schedules_of_the_page_on_temperature_are_all_there():
    from tempscale.temperature.families import ARCHITECTURES
    from tempscale.temperature.schedule import Temperature

    page = (ROOT / "docs" / "temperature.md").read_text("utf-8")
    paragraph = re.search(r"^bert, roberta,.*?(?=Any other)", page, re.S | re.M).group()
    assert set(re.findall(r"[\w-]+\d?", paragraph)) - {"encoders"} == set(ARCHITECTURES)
    rows = re.findall(r"^\|[^|]+\| `(\w+ = [^`]+)` \|$", page, re.M)
    assert len(rows) == 6
    for row in rows:
        assert Temperature.of(tomllib.loads(row)).canonical


def test_the_options_that_the_pages_name_exist():
    from tempscale_jobs.cli.app import app

    # What the how-tos of cluster/ say is parsed whole by test_cluster_commands.py.
    pages = [
        page
        for page in PAGES
        if page.parent in (ROOT, ROOT / "docs", ROOT / "docs" / "dev") and page.name not in ("tables.md", "CONTRIBUTING.md")
    ]
    group = typer.main.get_command(app)
    parameters = [p for command in (group, *group.commands.values()) for p in command.params]
    known = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    named = {name for page in pages for name in re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", page.read_text("utf-8"))}
    assert len(named) >= 8
    assert named <= known
