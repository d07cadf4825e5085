"""The rules of the house: imports run one way, light paths stay light, files stay readable."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
STEPS = {
    "embed", "factors", "pairwise", "exposure", "pairwise_socm", "socm_top", "probe", "report", "pair_chunks", "pair_socm",
    "cache", "vectors", "budget", "precision", "looks", "repeated", "two_texts", "diagnose_report",
    "cells", "mteb_results", "evaluate_report", "tune_layers", "tune_scores", "tune_collapse", "tune_report",
}  # fmt: skip
KNOW_STEPS = {
    "audit.py", "analysis.py", "pairs.py", "diagnose.py", "evaluate.py", "tune.py", "cli.py", "commands.py", "plan.py",
    "cache_upkeep.py", "beside.py",
}  # fmt: skip
BELOW_STEPS = {
    "runs",
    "raylet",
    "storage",
    "schema",
    "config",
    "execution_config",
    "readers",
    "lakes",
    "inputs",
    "marks",
    "lock",
    "shared",
    "strict",
    "page",
    "diagnose_config",
    "diagnose_schema",
    "diagnose_figures",
    "text_map",
    "findings",
    "diagnose_sentences",
    "versions",
    "urls",
    "pairs_config",
    "pairs_schema",
    "errors",
    "engine",
    "actor",
    "corpus",
    "sources",
    "layout",
    "parts",
    "blocks",
    "socm_sample",
    "socm_tables",
    "factor_pairs",
    "factor_parts",
    "headline",
    "verdict",
    "columns",
    "collapsed",
    "night_figures",
    "figures",
    "crew",
    "series",
    "evaluate_config",
    "evaluate_schema",
    "evaluate_figures",
    "evaluate_sentences",
    "evaluate_analyses",
    "tasks",
    "own_tasks",
    "windows",
    "paired",
    "comparison",
    "mteb_model",
    "scored",
    "tune_config",
    "tune_schema",
    "tune_sentences",
    "gate",
    "night_config",
    "night_schema",
    "notify",
    "observing",
    "provenance",
}


def imported(file):
    """Top-level and local imports of a file, as dotted names."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} uses a relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def sources(package):
    return sorted((ROOT / package).rglob("*.py"))


@pytest.mark.parametrize("file", sources("tempscale"), ids=lambda f: f.name)
def test_the_science_imports_no_ray_no_tables_no_storage_and_nothing_of_jobs(file):
    roots = {name.split(".")[0] for name in imported(file)}
    assert not roots & {"jobs", "ray", "pyarrow", "polars", "pandas", "fsspec", "pydantic", "typer", "rich", "datasets"}


@pytest.mark.parametrize("step", sorted(STEPS | BELOW_STEPS))
def test_steps_and_what_they_stand_on_import_neither_a_step_nor_what_stands_above(step):
    ours = {name.split(".")[1] for name in imported(ROOT / "jobs" / f"{step}.py") if name.startswith("jobs.")}
    assert ours <= BELOW_STEPS
    assert not ours & (
        STEPS
        | {"audit", "analysis", "pairs", "diagnose", "evaluate", "tune", "cli", "commands", "plan", "closing"}
        | {
            "closing_tune",
            "history",
            "history_page",
            "nights",
            "compare",
            "compare_sentences",
            "submit",
            "submission",
            "beside",
        }
        | {"summary", "pairs_summary", "diagnose_summary", "evaluate_summary", "cache_upkeep"}
    )


def test_only_the_command_line_and_the_runs_know_the_steps():
    for file in sources("jobs"):
        known = {name.split(".")[1] for name in imported(file) if name.startswith("jobs.")} & STEPS
        assert not known or file.name in KNOW_STEPS, f"{file.name} imports {known}"


def loaded_after(code):
    run = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import tempscale",
        "import jobs.config as c; c.resolve({})",
        "import jobs.config as c, jobs.errors as e\ntry: c.resolve({'corpus': {'sample': -1}})\nexcept e.UsageError: pass",
        "import jobs.cli as c\ntry: c.app(['audit', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['audit', '--smaple', '3'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['audit', '--tau', '0'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['diagnose', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['diagnose', '--texts', '0'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['evaluate', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['evaluate'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['tune', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['history', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['compare', 'x'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['submit', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['submit', '--', 'audit', '--smaple', '3'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['audit', '--night', 'x'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['tune', '--tau', '0'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['pairs', '--help'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['pairs', '--column-a', 'x'])\nexcept SystemExit: pass",
        "import jobs.cli as c\ntry: c.app(['pairs', '--pairs', 'x', '--alpha', '-1'])\nexcept SystemExit: pass",
    ],
)
def test_help_mistyped_options_and_configuration_errors_load_neither_torch_nor_ray(code):
    assert not loaded_after(code) & {"torch", "ray", "transformers", "pyarrow"}


@pytest.mark.parametrize("file", [*sources("tempscale"), *sources("jobs")], ids=lambda f: f"{f.parent.name}/{f.name}")
def test_files_stay_readable(file):
    assert len(file.read_text("utf-8").splitlines()) <= 330
    assert file.stem not in {"utils", "helpers", "base", "manager", "registry", "common", "misc"}
