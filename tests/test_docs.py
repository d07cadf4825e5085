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


@pytest.mark.parametrize("page", ["tables.md", "configuration.md"])
def test_generated_pages_are_current(page):
    assert (ROOT / "docs" / page).read_text("utf-8") == generator().PAGES[page](), "run: python docs/generate.py"


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


def test_relative_links_of_the_readme_lead_somewhere():
    for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", (ROOT / "README.md").read_text("utf-8")):
        assert (ROOT / link).exists(), link


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


def test_the_options_that_the_readme_names_exist():
    from jobs.cli import app

    # What the how-tos of cluster/ say is parsed whole by test_cluster_commands.py.
    text = (ROOT / "README.md").read_text("utf-8") + (ROOT / "docs" / "nights.md").read_text("utf-8")
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
