"""The rules of the house: folders import downwards, light paths stay light, tempscale/ knows no Ray and no tables."""

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
JOBS = ROOT / "jobs" / "tempscale_jobs"
FOLDERS = (
    {"__main__"}, {"cli"}, {"submit"}, {"tune"}, {"audit", "correct", "pairs", "diagnose", "evaluate"}, {"verify"},
    {"nights"}, {"steps"}, {"corpus"}, {"lifecycle"}, {"report"}, {"workers"}, {"runs"}, {"config"}, {"tables"},
    {"errors", "outlets"},
    {"urls", "collecting", "interrupts"},
)  # fmt: skip
"""The folders of jobs/, from the top: each imports only from those further down, and none of one set another of it."""


@cache
def tree(file):
    """What a file says."""
    return ast.parse(file.read_text("utf-8"))


def imported(file):
    """Top-level and local imports of a file, as dotted names."""
    names = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name} uses a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def folder(file):
    """The first part of a file's path below jobs/, without an ending."""
    return file.relative_to(JOBS).parts[0].removesuffix(".py")


def sources(root):
    return sorted(root.rglob("*.py"))


def place(name):
    """How far up the list a folder is."""
    return next(rank for rank, names in enumerate(FOLDERS) if name in names)


@pytest.mark.parametrize("file", sources(ROOT / "tempscale"), ids=lambda f: str(f.relative_to(ROOT)))
def test_the_science_imports_no_ray_no_tables_no_storage_and_nothing_of_jobs(file):
    roots = {name.split(".")[0] for name in imported(file)}
    tables = {"pyarrow", "polars", "pandas", "fsspec", "datasets"}
    assert not roots & {"tempscale_jobs", "ray", "pydantic", "typer", "rich", *tables}


def mapped(text):
    """What a map names, in its order: folders and files with the folder they are in; a line has names, a gap and words."""
    names, inside = [], ""
    for line in re.findall(r"^ {4,6}\S.*", text, re.MULTILINE):
        here = re.split(r"\s{2,}", line.strip())[0].split(", ")
        if not line.startswith(" " * 6):
            inside = here[0] if here[0].endswith("/") else ""
        names += [name if name == inside else inside + name for name in here]
    return names


def test_the_map_names_every_file_once_and_each_folder_above_those_it_may_import():
    jobs, science = ast.get_docstring(tree(JOBS / "__init__.py")).split("`tempscale/`")
    named = mapped(jobs)
    files = [str(file.relative_to(JOBS).with_suffix("")).removesuffix("__init__") for file in sources(JOBS)]
    assert sorted(named) == sorted(filter(None, files))
    order = iter(name.rstrip("/") for name in named if "/" not in name.rstrip("/"))
    assert all({next(order) for _ in names} == names for names in FOLDERS)
    parts = {file.relative_to(ROOT / "tempscale").parts[0] for file in sources(ROOT / "tempscale")}
    folders = {part.removesuffix(".py") if part.endswith(".py") else f"{part}/" for part in parts}
    assert sorted(mapped(science)) == sorted(folders - {"__init__", "__main__"})


@pytest.mark.parametrize("file", sources(JOBS), ids=lambda f: str(f.relative_to(JOBS)))
def test_folders_import_only_from_folders_further_down(file):
    own = folder(file)
    if own == "__init__":
        return
    others = {name.split(".")[1] for name in imported(file) if name.startswith("tempscale_jobs.")} - {own}
    assert not {other for other in others if place(other) <= place(own)}


@pytest.mark.parametrize("package", [JOBS, ROOT / "tempscale"], ids=lambda package: package.name)
def test_no_file_imports_itself_by_way_of_others(package):
    modules = {".".join(file.relative_to(package.parent).with_suffix("").parts): file for file in sources(package)}
    graph = {}
    for module, file in modules.items():
        names = imported(file)
        graph[module] = {other for name in names for other in (name, name.rpartition(".")[0]) if other in modules} - {module}
    TopologicalSorter(graph).prepare()


LIGHT = (
    "audit --help", "audit --smaple 3", "audit --tau 0", "audit --night x", "diagnose --help", "diagnose --texts 0",
    "evaluate --help", "evaluate", "tune --help", "tune --tau 0", "history --help", "compare x", "submit --help",
    "compare --help", "report --help", "cache --help", "export --help",
    "submit -- audit --smaple 3", "pairs --help", "pairs --column-a x", "pairs --pairs x --alpha -1",
    "verify --help", "verify", "verify --embeddings x --sample few",
)  # fmt: skip
"""Commands that end before anything is computed."""


_LOADED = """
import contextlib, sys

def check(what):
    loaded = {"torch", "ray", "transformers", "pyarrow"} & set(sys.modules)
    assert not loaded, f"{what}: {loaded}"

import tempscale
check("import tempscale")
import tempscale_jobs.cli.app as cli, tempscale_jobs.config.audit as config, tempscale_jobs.errors as errors
config.resolve({})
check("a configuration")
with contextlib.suppress(errors.UsageError):
    config.resolve({"corpus": {"sample": -1}})
check("an error in it")
for line in sys.argv[1:]:
    with contextlib.suppress(SystemExit):
        cli.app(line.split())
    check(line)
    print("ended:", line)
"""


def test_help_mistyped_options_and_configuration_errors_load_neither_torch_nor_ray():
    run = subprocess.run([sys.executable, "-c", _LOADED, *LIGHT], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.count("ended: ") == len(LIGHT)


@pytest.mark.parametrize("file", [*sources(ROOT / "tempscale"), *sources(JOBS)], ids=lambda f: str(f.relative_to(ROOT)))
def test_files_are_named_by_their_subject(file):
    assert file.stem not in {"utils", "helpers", "base", "manager", "registry", "common", "misc"}


MOST_PARAMETERS = 5
MANY_PARAMETERS = {
    "cli/records.py": {"export", "history"}, "cli/submit.py": {"submit"},  # The options of commands.
    "collapse/fused.py": {"_scan"}, "collapse/kernel.py": {"scan", "_look", "_note", "_before", "_candidates", "search"},
    "second_order/bidiagonal.py": {"_bidiagonalise", "_products_with_column", "_sum_of_roots", "_ql_step"},
    "second_order/bounds.py": {"_pick"}, "model/packed.py": {"attend"},  # transformers calls it.
}  # fmt: skip
"""Functions that may take more: compiled kernels, and what others call."""


def parameters(function, optional_too):
    """How many parameters a function has; those that can only be given by name count where they are not left out."""
    given = [*function.args.posonlyargs, *function.args.args, *(function.args.kwonlyargs if optional_too else ())]
    return len([one for one in given if one.arg not in ("self", "cls")])


@pytest.mark.parametrize("root", [ROOT / "tempscale", JOBS], ids=["tempscale", "jobs"])
def test_a_function_takes_five_parameters_or_a_value_that_names_them(root):
    """Options by name only are free in the public functions of the science."""
    many = {}
    for file in sources(root):
        functions = (node for node in ast.walk(tree(file)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
        private = {f for f in functions if parameters(f, optional_too=root == JOBS or _is_private(f)) > MOST_PARAMETERS}
        if private:
            many[file.relative_to(root).as_posix()] = {function.name for function in private}
    exempt = {file: names for file, names in MANY_PARAMETERS.items() if (root / file).exists()}
    assert many == exempt


def _is_private(function):
    return function.name.startswith("_") and function.name != "__init__"


def test_work_is_given_to_ray_and_taken_from_it_in_one_file():
    """And Ray is started or joined in one other."""
    authors = {
        file.relative_to(JOBS).as_posix() for file in sources(JOBS)
        if re.search(r"\bray\.(get|wait|put)\(|\.remote\(", file.read_text("utf-8"))
    }  # fmt: skip
    assert authors <= {"workers/dispatch.py", "workers/cluster.py"}


def test_the_names_of_durable_parts_are_made_in_one_file():
    authors = [file.relative_to(JOBS).as_posix() for file in sources(JOBS) if "/part-{" in file.read_text("utf-8")]
    places = [file.relative_to(JOBS).as_posix() for file in sources(JOBS) if "model={" in file.read_text("utf-8")]
    assert authors == places == ["runs/folder.py"]


@cache
def names_in(module):
    """What a module of ours defines or imports outside of functions; None for a module of others."""
    place = Path(*module.split("."))
    files = [root / place.with_suffix(".py") for root in (ROOT, JOBS.parent)]
    files += [root / place / "__init__.py" for root in (ROOT, JOBS.parent)]
    file = next(filter(Path.exists, files), None)
    if file is None:
        return None
    parsed = tree(file)
    names = {node.id for node in ast.walk(parsed) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    names |= {node.name for node in parsed.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    imports = (node for node in ast.walk(parsed) if isinstance(node, (ast.Import, ast.ImportFrom)))
    names |= {alias.asname or alias.name for node in imports for alias in node.names}
    return names | {other.stem for other in file.parent.iterdir()}


@pytest.mark.parametrize("place", ["benchmarks", "tests", "docs"])
def test_what_tests_and_benchmarks_use_of_a_module_is_there(place):
    """What they import from it, also inside a function, and what they name as «module:NAME»."""
    missing = []
    for file in sources(ROOT / place):
        parsed = tree(file)
        used = [(n.module, a.name) for n in ast.walk(parsed) if isinstance(n, ast.ImportFrom) and n.module for a in n.names]
        texts = (n.value for n in ast.walk(parsed) if isinstance(n, ast.Constant) and isinstance(n.value, str))
        used += [found.groups() for found in map(re.compile(r"(tempscale[\w.]*):(\w+)").fullmatch, texts) if found]
        for module, name in used:
            known = names_in(module) if module.split(".")[0] in ("tempscale", "tempscale_jobs", "benchmarks") else None
            if known is not None and name not in known and name != "*":
                missing.append(f"{file.name}: {module} has no {name}")
    assert missing == []
