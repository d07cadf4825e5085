"""Every block of code in README and docs/: commands are read by our own command line, and what runs offline is run."""

import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import pytest
import typer
from command_line import UsageError, in_process, parsed
from markdown_it import MarkdownIt
from whole_run import as_lines, audited, documented

pytestmark = pytest.mark.proof

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
     *(page for page in (ROOT / "docs").rglob("*.md") if page.name != "api.md")]  # Equations and signatures.
)  # fmt: skip
PRINTED = {("operations.md", "texts")}
"""Indented blocks that show what a command prints, by their page and first word."""
ELSEWHERE = {"make", "pip", "python", "curl"}
"""Commands that are not ours."""


def name(value):
    return value.name if isinstance(value, Path) else None


def tokens(page):
    """Blocks and inline pieces of a page, as a reader of Markdown sees them."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text("utf-8")):
        yield token
        yield from token.children or ()


def blocks(page, kind):
    """The fenced blocks of a language; of `indented`, those that are set in by four spaces."""
    wanted = "code_block" if kind == "indented" else "fence"
    return [t.content for t in tokens(page) if t.type == wanted and (kind == "indented" or t.info.split()[:1] == [kind])]


def commands(page):
    """Each line of the indented blocks that is a command, without its comment."""
    found = []
    for block in blocks(page, "indented"):
        first = block.split()[0]
        if not first.startswith("[") and (page.name, first) not in PRINTED:
            found += [re.sub(r"\s+#( .*|)$", "", line) for line in block.splitlines() if line.strip()]
    return found


def quoted(page):
    """The commands of tempscale inside sentences and tables that are more than a command's name."""
    inline = [token.content for token in tokens(page) if token.type == "code_inline"]
    return [text.removesuffix(" --help") for text in inline if re.match(r"tempscale [a-z]+ .", text) and "…" not in text]


OURS = [
    pytest.param(shlex.split(line.replace("DATE", "2026-11-22")), id=f"{page.name}-{number}")
    for page in PAGES
    for number, line in enumerate([*(c for c in commands(page) if c.startswith("tempscale ")), *quoted(page)])
]


@pytest.mark.parametrize("words", OURS)
def test_commands_are_ours(words):
    assert parsed(words)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_line_of_an_indented_block_is_a_command_that_is_known(page):
    for line in commands(page):
        words = shlex.split(line)
        assert words[0] in ELSEWHERE | {"tempscale"}, f"{page.name}: {line}"
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE), line
        if words[0] == "python" and words[1] != "-m":
            assert (ROOT / words[1]).is_file(), line
        if words[0] == "pip":
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
            assert set(re.findall(r"\[([^]]+)\]", line)) <= set(extras), line


def test_a_command_that_is_wrong_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("A page\n\n    tempscale audit --loud   # why\n\nsays `tempscale tune --tau x`, `tempscale pairs`.\n")
    assert [*commands(page), *quoted(page)] == ["tempscale audit --loud", "tempscale tune --tau x"]
    for line in [*commands(page), *quoted(page)]:
        with pytest.raises(UsageError):
            parsed(shlex.split(line))
    assert len(OURS) > 60


def test_every_command_that_a_page_names_is_there():
    from tempscale_jobs.cli.app import app

    known = set(typer.main.get_command(app).commands)
    inline = [token.content for page in PAGES for token in tokens(page) if token.type == "code_inline"]
    named = {found for text in inline for found in re.findall(r"^tempscale ([a-z]+)", text)}
    assert len(named) > 9
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_python_compiles_and_tables_of_toml_are_configurations(page):
    from tempscale_jobs.config.audit import resolve
    from tempscale_jobs.config.evaluate import EvaluateConfig
    from tempscale_jobs.config.strict import checked

    for block in blocks(page, "python"):
        compile(block, page.name, "exec")
    for block in [*blocks(page, "toml"), *(b for b in blocks(page, "indented") if b.lstrip().startswith("["))]:
        data = tomllib.loads(block)
        if "tasks" in data:
            assert checked(EvaluateConfig, data).tasks
        else:
            assert resolve(data).temperatures()
    kinds = {(*t.info.split(), "unnamed")[0] for t in tokens(page) if t.type == "fence"}
    assert kinds <= {"python", "toml", "mermaid", "sql", "json"}


@pytest.fixture(scope="module")
def place(tmp_path_factory, small_model, ray_session):
    """A folder in which what the pages name is there: texts, two nights with a cache, and a finished run."""
    import polars as pl

    folder = tmp_path_factory.mktemp("place")
    texts = documented("pyarrow")[:150]
    pl.DataFrame(texts).write_parquet(folder / "texts.parquet")
    for night, sampled in ((24, 0), (25, 20)):  # Of the first night only what the second is compared with.
        (folder / "night.jsonl").write_text(as_lines([*texts[: 100 + night], {"id": "no text", "text": 3}]))
        audited(
            {
                "out": str(folder / "nights" / "{night}"), "night": f"2026-11-{night}",
                "corpus": {"source": str(folder / "night.jsonl")},
                "embedding": {"models": [small_model], "max_length": 128, "temperatures": [1.0]},
                "analysis": {"intervals": [0, 32, 64, 100], "socm_sample": sampled, "probe_sample": sampled},
                "gate": {"thresholds": ["collapse_gap <= 1"], "baseline": "latest"},
                "execution": {"workers": 1, "cache": str(folder / "cache")},
            }
        )  # fmt: skip
    for copy in ("mine", "audit"):
        shutil.copytree(folder / "nights" / "2026-11-25", folder / "runs" / copy)
    return folder


AS_WRITTEN = (
    ("tempscale audit --corpus texts.parquet --plan", ["150 of 150 usable", "about"]),
    ("tempscale report runs/mine", ["report: ", "report.html"]),
    ("tempscale compare nights/2026-11-24 nights/2026-11-25", ["1 added", "mean cosine"]),
    ("tempscale history nights", ["2026-11-24", "2026-11-25", "history.html"]),
    ("tempscale history s3://bucket/nights --accept 2026-11-25", ["accepted: the night of 2026-11-25"]),
    ("tempscale cache /data/cache", ["tiny-bert", "128"]),
    ("tempscale cache /data/cache prune --keep nights/2026-11-25", ["freed"]),
    ("tempscale history nights --prune --keep 7", ["nothing to remove"]),
    ("tempscale export --tau 0.8 --out minilm-0.8", ["checkpoint: minilm-0.8", "temperature 0.8"]),
)


@pytest.mark.parametrize(("line", "told"), AS_WRITTEN, ids=[line.split(" ", 1)[1] for line, _ in AS_WRITTEN])
def test_what_runs_offline_runs_as_it_is_written(place, monkeypatch, line, told):
    assert any(line in commands(page) for page in PAGES), "no page has this line"
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    words = shlex.split(line.replace("/data/cache", "cache").replace("s3://bucket/", ""))  # As if those were here.
    code, out, err = in_process(*words[1:])
    assert code == 0, out + err
    for word in told:
        assert word in out + err


def test_lines_of_polars_read_what_a_run_leaves(place, monkeypatch):
    import polars as pl

    found, plain = [], pl.scan_parquet
    monkeypatch.setattr(pl, "scan_parquet", lambda *args, **how: found.append(plain(*args, **how)) or found[-1])
    monkeypatch.chdir(place)
    (block,) = [block for block in blocks(ROOT / "docs" / "nights.md", "python") if "import polars" in block]
    exec(compile(block, "nights.md", "exec"), {})
    (nights,) = found
    assert len(nights.collect()) == 2


def test_a_run_leaves_what_the_drawing_of_the_data_shows(place):
    run = place / "nights" / "2026-11-25"
    (drawing,) = re.findall(r"```mermaid\n(.*?)```", (ROOT / "docs" / "dev" / "data-flow.md").read_text("utf-8"), re.S)
    names = {part for shown in re.findall(r"\[\(([^)]*)\)\]", drawing) for part in re.findall(r"[\w/]+/", shown)}
    assert {"texts/", "tables/", "partials/cosine/", "partials/groups/"} <= names
    # So few texts are not dealt to groups: all of their pairs are measured.
    for name in names - {"partials/top/", "history/", "shards/", "partials/groups/"} | {"factors/"}:
        assert (run / name).exists(), name
    assert not (run / "shards").exists()
    assert (place / "nights" / "history").is_dir()
    assert json.loads((run / "run.json").read_text())["gate"]["verdict"] == "passed"
