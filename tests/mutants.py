"""Whether the tests would notice a mistake: each of `mutations.py` is made in a copy of the project, and its tests are run.

`python tests/mutants.py` is what `make mutants` runs; with words, only the subjects whose names hold one of them. What came
of it is written to benchmarks/results/mutants.json. Tests of `make soak` are not run.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mutations import SUBJECTS, Mutation, Subject

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"
_SECONDS = 900.0
"""After which tests that hang count as having noticed."""
_NOTICED = 1
"""pytest's exit code where a test has failed; another is a mistake in the mutation."""


class Copy:
    """A copy of the project, in which one mutation at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        for name in filter(None, listed.stdout.decode().split("\0")):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        if (ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        path = os.pathsep.join((str(self.root), str(self.root / "jobs")))
        # Without bytecode, a file that changes twice a second is never taken for the one before.
        self._environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, tests: tuple[str, ...]) -> tuple[int | None, str, float]:
        """Run some tests until one fails; pytest's exit code (None: they hung), the test that failed, and the seconds."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not soak", "-p", "no:cacheprovider", "-rfE", *tests]
        begun = time.monotonic()
        process = subprocess.Popen(
            command, cwd=self.root, env=self._environment, text=True, start_new_session=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            told, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return None, "", time.monotonic() - begun
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", told, re.MULTILINE)
        return process.returncode, failed[1] if failed else "", time.monotonic() - begun

    def mutated(self, mutation: Mutation, tests: tuple[str, ...]) -> tuple[int | None, str, float]:
        """The same with a mistake in it."""
        file = self.root / mutation.file
        before = file.read_text("utf-8")
        file.write_text(mutated(before, mutation), "utf-8")
        try:
            return self.run(tests)
        finally:
            file.write_text(before, "utf-8")


def mutated(text: str, mutation: Mutation) -> str:
    """A file's text with a mistake in it.

    Raises:
        ValueError: the file does not hold once what the mutation replaces.
    """
    if (found := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.file} holds {found} times: {mutation.old}")
    return text.replace(mutation.old, mutation.new)


def made(subjects: list[Subject]) -> list[dict[str, Any]]:
    """Make every mutation; what came of each. Tests of a subject that fail without any end it all."""
    copies, lock = list[Copy](), threading.Lock()
    with tempfile.TemporaryDirectory(prefix="tempscale-mutants-", ignore_cleanup_errors=True) as folder:
        workers = max(1, os.cpu_count() or 1)
        copies += [Copy(Path(folder) / str(number)) for number in range(workers)]

        def one(subject: Subject, mutation: Mutation | None) -> dict[str, Any]:
            with lock:
                copy = copies.pop()
            try:
                code, test, seconds = copy.run(subject.tests) if mutation is None else copy.mutated(mutation, subject.tests)
            finally:
                with lock:
                    copies.append(copy)
            if mutation is None:
                if code != 0:
                    raise SystemExit(f"the tests of {subject.name} fail without a mutation: {test}")
                return {}
            noticed = code in (_NOTICED, None)
            found = {
                "subject": subject.name, "file": mutation.file, "old": mutation.old, "new": mutation.new,
                "noticed": noticed, "by": test if code == _NOTICED else "they hang" if code is None else "",
                "exit_code": code, "reason": mutation.reason, "seconds": round(seconds),
            }  # fmt: skip
            said = f"{'noticed' if noticed else 'NOT NOTICED'} in {seconds:.0f} s"
            print(
                f"{said}  {mutation.file}: {' '.join(mutation.old.split())[:70]}  {found['by'].rpartition('::')[2]}",
                flush=True,
            )
            return found

        work = [(subject, own) for subject in subjects for own in (None, *subject.mutations)]
        with ThreadPoolExecutor(workers) as pool:
            return [found for found in pool.map(lambda own: one(*own), work) if found]


def main(words: list[str]) -> int:
    """0 if every mutation was noticed, or has a reason why none can."""
    subjects = [subject for subject in SUBJECTS if not words or any(word in subject.name for word in words)]
    begun = time.monotonic()
    found = made(subjects)
    missed = [own for own in found if not own["noticed"] and (not own["reason"] or own["exit_code"] != 0)]
    if not words:
        when = {"on": datetime.datetime.now(datetime.UTC).date().isoformat(), "cores": os.cpu_count()}
        result = when | {"seconds": round(time.monotonic() - begun), "mutations": found}
        RESULT.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", "utf-8")
        print(f"written to {RESULT}")
    print(f"{len(found)} mutations, {sum(own['noticed'] for own in found)} noticed, {len(missed)} missed without a reason")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
