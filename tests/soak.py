"""What takes too long for `make test`: the tests marked `soak`, then twenty-four kills on a cluster of four nodes.

`python tests/soak.py` is what `make soak` runs. What came of it is written to benchmarks/results/soak.json.
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

import chaos

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


def main() -> int:
    """0 if every test passed and every storm ended in the undisturbed run's bytes."""
    tests = slow_tests()
    storm = chaos.soak(24, 0)
    result = {
        "on": datetime.datetime.now(datetime.UTC).date().isoformat(), "cores": os.cpu_count(), "slow": tests, **storm,
    }  # fmt: skip
    RESULT.write_text(json.dumps(result, indent=2) + "\n", "utf-8")
    print(f"written to {RESULT}")
    return 0 if storm["same_bytes"] and tests["tests"] and not tests["failed"] else 1


if __name__ == "__main__":
    sys.exit(main())
