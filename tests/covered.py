"""Which lines and branches of the program the tests run: `python tests/covered.py`, which is what `make coverage` runs.

The tests of `make test` and of `make proof`. What came of it is written to benchmarks/results/coverage.json, for
docs/dev/coverage.md. `python tests/covered.py --add TESTS` adds what further tests run; of a file that has changed since, it
records what these tests run.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

_SAVER = """
import os, sys, threading, time

def save():
    import coverage, shutil
    copied = None
    while True:
        time.sleep(.5)
        if (own := coverage.Coverage.current()) is not None:
            own.save()
            folder, name = os.path.split(own.get_data().data_filename())
            if not os.path.exists(os.path.join(folder, name)):
                continue
            state = os.stat(os.path.join(folder, name))
            if (state.st_mtime_ns, state.st_size) != copied:  # Most workers are idle most of the time.
                copied = state.st_mtime_ns, state.st_size
                part = os.path.join(folder, "copying-" + name)
                shutil.copyfile(os.path.join(folder, name), part)
                os.replace(part, os.path.join(folder, name + ".copy"))

def wait_before_it_ends(name):
    ray = sys.modules["ray"]
    end = getattr(ray, name)

    def later(*arguments, **how):
        time.sleep(1)
        return end(*arguments, **how)

    setattr(ray, name, later)

def wait_for_ray():
    names = ("kill", "shutdown", "timeline")
    while not all(hasattr(sys.modules.get("ray"), name) for name in names):  # It is being imported.
        time.sleep(.05)
    for name in ("kill", "shutdown"):
        wait_before_it_ends(name)

of_ray = any("default_worker" in word for word in sys.argv)
threading.Thread(target=save if of_ray else wait_for_ray, daemon=True).start()
"""
"""Run at the start of Python. A worker of Ray's that is killed leaves what it counted half a second before, and one that is
killed while it writes that, a copy; a process that ends workers waits until they have written.
"""
ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "coverage.json"


def measured(folder: Path, arguments: list[str]) -> dict[str, Any]:
    """Run the tests, their processes and Ray's workers under coverage.py; its report by file."""
    environment = os.environ | {"COVERAGE_FILE": str(folder / "data"), "TEMPSCALE_COVERAGE": "1"}
    (folder / "sitecustomize.py").write_text(_SAVER, "utf-8")
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment["NUMBA_CACHE_DIR"] = str(folder / "numba")  # With what is compiled already, nothing would run the compiler.

    def coverage(*how: str) -> int:
        return subprocess.run([sys.executable, "-m", "coverage", *how], cwd=ROOT, env=environment, check=False).returncode

    tests = coverage("run", "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", "--no-loadscope-reorder", *arguments)
    coverage("combine", "--quiet")
    coverage("json", "--quiet", "-o", str(folder / "report.json"))
    return {"exit_code": tests} | json.loads((folder / "report.json").read_text("utf-8"))


def of_file(report: dict[str, Any]) -> dict[str, Any]:
    """What is run of a file, and what is not: lines, and branches as [from, to]."""
    summary = report["summary"]
    return {
        "lines": summary["num_statements"],
        "lines_run": summary["covered_lines"],
        "branches": summary["num_branches"],
        "branches_run": summary["covered_branches"],
        "lines_not_run": report["missing_lines"],
        "branches_not_run": report["missing_branches"],
    }


def together(before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """What two measurements of one file run of it."""
    lines = sorted({*before["lines_not_run"]} & {*now["lines_not_run"]})
    branches = sorted({*map(tuple, before["branches_not_run"])} & {*map(tuple, now["branches_not_run"])})
    return now | {
        "lines_run": now["lines"] - len(lines), "lines_not_run": lines,
        "branches_run": now["branches"] - len(branches), "branches_not_run": [list(branch) for branch in branches],
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """0 if every test passed."""
    adds = arguments[:1] == ["--add"]
    with tempfile.TemporaryDirectory(prefix="tempscale-coverage-") as folder:
        report = measured(Path(folder), arguments[adds:] or ["-m", "not soak", "--ignore", "tests/test_typing.py"])
    files = {name: of_file(own) for name, own in sorted(report["files"].items())}
    if adds:
        known = json.loads(RESULT.read_text("utf-8"))["files"]
        sizes = {name: (own["lines"], own["branches"]) for name, own in known.items()}
        if changed := [name for name, own in files.items() if sizes.get(name) != (own["lines"], own["branches"])]:
            print(f"changed since the record, so what these tests alone run of it is recorded: {', '.join(changed)}")
        files = known | {name: own if name in changed else together(known[name], own) for name, own in files.items()}
    result = {
        "on": datetime.datetime.now(datetime.UTC).date().isoformat(), "coverage": report["meta"]["version"], "files": files,
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    print(f"written to {RESULT}")
    return int(report["exit_code"])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
