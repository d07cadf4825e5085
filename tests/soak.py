"""What takes too long for `make test`: the tests marked `soak`, then a hundred kills in all stages of all commands.

`python tests/soak.py` is what `make soak` runs; `python tests/soak.py tests` or `… storms` runs one of the two. What came of
each is written to benchmarks/results/soak.json, with its own date.
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
from xml.etree import ElementTree

import storms

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "soak.json"


def slow_tests() -> dict[str, Any]:
    """Run the tests marked `soak`; how many there were, what failed, and the seconds of each."""
    with tempfile.TemporaryDirectory(prefix="tempscale-soak-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-m", "soak", "-n", "2", "--dist", "loadfile", f"--junitxml={report}"]
        subprocess.run(command, cwd=ROOT, check=False)
        return counted(report.read_bytes())


def counted(report: bytes) -> dict[str, Any]:
    """What a JUnit report says of its tests."""
    cases = list(ElementTree.fromstring(report).iter("testcase"))
    named = {case: f"{case.get('classname', '').removeprefix('tests.')}::{case.get('name')}" for case in cases}
    fell = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return {
        "tests": len(cases),
        "skipped": sum(case.find("skipped") is not None for case in cases),
        "failed": sorted(named[case] for case in fell),
        "seconds": {named[case]: round(float(case.get("time", 0))) for case in cases},
    }


PARTS = {
    "tests": (slow_tests, lambda found: found["tests"] > found["skipped"] and not found["failed"]),
    "storms": (lambda: storms.soak(3, 100, 0), lambda found: found["same_bytes"] and not found["fewer"]),
}
"""What each part runs, and whether that went well."""


def main(parts: list[str]) -> int:
    """0 if every test passed and every storm ended in the undisturbed run's bytes."""
    well = True
    for name in parts or PARTS:
        run, is_well = PARTS[name]
        when = {"on": datetime.datetime.now(datetime.UTC).date().isoformat(), "cores": os.cpu_count()}
        found = when | run()
        result = json.loads(RESULT.read_text("utf-8")) if RESULT.exists() else {}
        RESULT.write_text(json.dumps(result | {name: found}, indent=2) + "\n", "utf-8")
        print(f"{name}: {'well' if is_well(found) else 'not well'}; written to {RESULT}", flush=True)
        well &= is_well(found)
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
