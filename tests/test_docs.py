"""Documentation that is generated is current; what it points to is there."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest
import typer

from jobs import config

ROOT = Path(__file__).resolve().parent.parent


def generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])
GENERATED = ("tables.md", "configuration.md", "data-flow.svg", "operations.md", "reliability.md", "coverage.md")


@pytest.mark.parametrize("page", GENERATED)
def test_generated_pages_are_current(page):
    assert (ROOT / "docs" / page).read_text("utf-8") == generator().PAGES[page](), "run: python docs/generate.py"


def test_each_generated_page_is_checked():
    assert set(GENERATED) == set(generator().PAGES)


def test_every_function_and_test_that_the_equations_name_exists():
    text = (ROOT / "docs" / "equations.md").read_text("utf-8")
    for path in re.findall(r"`((?:tests|jobs)/\w+\.py)`", text):
        assert (ROOT / path).is_file(), path
    modules = "moments|socm|length|sampling|aggregates|spectrum|contraction|layers|temperature|correlation|search"
    for module, name in re.findall(rf"`({modules})\.(\w+)", text):
        found = importlib.import_module(f"tempscale.{module}")
        assert hasattr(found, name), f"tempscale.{module}.{name}"
    for name in re.findall(r"`tempscale\.(\w+)`", text):
        assert hasattr(importlib.import_module("tempscale"), name), name


def anchors(page):
    """What a link may name behind the # of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?://)([^)\s]+)\)", page.read_text("utf-8"))
    for link in links:
        place, _, heading = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), link
        assert not heading or heading in anchors(target), link
    assert len(links) > 8 or page.name not in ("README.md", "operations.md", "reproduction.md", "reliability.md")


def test_every_page_of_docs_can_be_reached_from_the_readme():
    reached, new = set(), {ROOT / "README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        links = re.findall(r"\]\((?!https?://|#)([^)\s#]+\.md)[^)]*\)", page.read_text("utf-8"))
        new |= {(page.parent / link).resolve() for link in links} - reached
    assert set(PAGES) - {ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"} <= reached
    # Not by way of another page: what a user looks for by name.
    readme = (ROOT / "README.md").read_text("utf-8")
    for name in (
        "operations.md",
        "reproduction.md",
        "reliability.md",
        "data-flow.md",
        "temperature.md#which-τ-should-i-use",
    ):
        assert f"(docs/{name})" in readme, name


def test_the_page_on_reliability_names_tests_that_exist():
    reliability = generator().beside("reliability")
    there = {f"{file}::{test.name}" for file, tests in reliability.suite().items() for test in tests}
    named = [name for _, _, names in reliability.FAULTS for name in names]
    assert len(named) > 40
    assert set(named) <= there
    assert {file for file, _ in reliability.BAD_INPUTS} <= set(reliability.suite())


def test_the_tests_of_the_page_on_reliability_are_counted_rightly():
    import ast

    reliability = generator().beside("reliability")
    source = """
@settings(deadline=None, max_examples=7)
@given(st.integers())
def test_one(n): ...

def test_two():
    @drawn(11)
    @given(st.integers())
    def check(n): ...

@pytest.mark.parametrize("a", [1, 2, 3])
@pytest.mark.parametrize(("b", "c"), ((1, 2), (3, 4)))
@pytest.mark.parametrize("d", SOME)
@given(st.integers())
def test_three(a, b, c, d, n): ...
"""
    one, two, three = ast.parse(source).body
    (inner,) = [node for node in two.body if isinstance(node, ast.FunctionDef)]
    assert [reliability._examples(node) for node in (one, inner, three)] == [7, 11, 100]
    assert [reliability.cases(node) for node in (one, two, three)] == [1, 1, 6]
    collected = {own.test for own in reliability.drawn() if own.file == "test_fuzz"}
    assert len(collected) > 8


def test_the_drawing_of_the_data_names_what_is_there():
    from jobs import runs

    boxes = generator().beside("data_flow").BOXES.values()
    steps = {name for box in boxes for text in (box.name, *box.lines) for name in re.findall(r"\w+\.py", text)}
    assert len(steps) > 15
    for name in steps:
        assert (ROOT / "jobs" / name).is_file(), name
    folders = {name for box in boxes if box.kind in ("kept", "passing") for name in re.findall(r"(\w+)/", box.name)}
    assert {"texts", "factors", "partials", "tables", "shards"} <= folders
    assert folders - {"history", "cosine", "probe", "exposure", "socm", "top"} <= set(runs._OURS)


def test_the_plan_s_lines_are_explained():
    from jobs import plan

    text = (ROOT / "docs" / "operations.md").read_text("utf-8")
    lines = re.findall(r'add_row\("(\w+)"', (ROOT / "jobs" / "plan.py").read_text("utf-8"))
    assert len(lines) == 6
    for line in lines:
        assert f"\n| {line} | " in text
        assert re.search(rf"^ {{4,}}{line} ", text, re.MULTILINE)
    assert f"embeds {plan._MEASURED_TEXTS} of its texts" in text


def test_the_python_of_the_readme_runs(minilm, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    api = [block for block in blocks if "import tempscale" in block]
    assert len(api) == 2
    assert len(api[0].strip().splitlines()) <= 11
    exec(compile(api[0], "README.md", "exec"), {})
    assert "torch.Size([2, 384])" in capsys.readouterr().out
    exec(compile(api[1], "README.md", "exec"), {})
    printed = capsys.readouterr().out.split()
    told = re.search(r"```\n\n((?: {4,}\S+  0\.\d{3}\n)+)", (ROOT / "README.md").read_text("utf-8")).group(1).split()
    assert printed[::2] == told[::2]
    for here, there in zip(printed[1::2], told[1::2], strict=True):  # The installed scipy may have other docstrings.
        assert float(here) == pytest.approx(float(there), abs=0.03)


def test_the_families_and_schedules_that_the_readme_names_are_all_there():
    from tempscale.architectures import ARCHITECTURES
    from tempscale.temperature import Temperature

    text = (ROOT / "README.md").read_text("utf-8")
    paragraph = re.search(r"^bert, roberta,.*?(?=Any other)", text, re.S | re.M).group()
    assert set(re.findall(r"[\w-]+\d?", paragraph)) - {"encoders"} == set(ARCHITECTURES)
    rows = re.findall(r"^\|[^|]+\| `(\w+ = [^`]+)` \|$", text, re.M)
    assert len(rows) == 6
    for row in rows:
        assert Temperature.of(tomllib.loads(row)).canonical


def test_the_tables_and_columns_that_the_readme_names_exist():
    from jobs import evaluate_schema, night_schema, pairs_schema, schema

    text = (ROOT / "README.md").read_text("utf-8")
    tables = (*schema.TABLES, *pairs_schema.TABLES, *evaluate_schema.EVERY, *night_schema.EVERY)
    names = {table.name: {column.name for column in table.columns} for table in tables}
    read = re.findall(r"tables/(\w+)\.parquet", text)
    assert len(read) >= 4
    assert set(read) <= set(names)
    figures = re.findall(r"^\| `([a-z_]+)` \|", text, re.M)
    assert len(figures) >= 4
    assert set(figures) <= names["collapse_summary"]


def test_the_options_that_the_pages_name_exist():
    from jobs.cli import app

    # What the how-tos of cluster/ say is parsed whole by test_cluster_commands.py.
    text = "".join(page.read_text("utf-8") for page in PAGES if page.name not in ("tables.md", "CONTRIBUTING.md"))
    parameters = [p for command in typer.main.get_command(app).commands.values() for p in command.params]
    known = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    named = set(re.findall(r"(?<![\w-])--[a-z]+(?:-[a-z]+)*", text))
    assert len(named) >= 8
    assert named <= known


def test_the_nightly_configuration_of_the_readme_is_valid():
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert len(blocks) == 1
    assert config.resolve(tomllib.loads(blocks[0])).corpus.sample == 50000


def test_the_gate_that_the_page_on_nights_shows_is_valid():
    blocks = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "nights.md").read_text("utf-8"), re.S)
    assert len(blocks) == 1
    gate = config.resolve(tomllib.loads(blocks[0])).gate
    assert len(gate.read_thresholds()) == 4
    assert gate.baseline == "latest"
