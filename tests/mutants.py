"""Whether the tests would notice a mistake: each of `mutations.py` is made in a copy of the project, and its tests are run.

`python tests/mutants.py` is what `make mutants` runs; with words, only the subjects whose names hold one of them. The
result of each mutation is written to benchmarks/results/mutants.json at once, with its commit; `--left` makes only those
that the record lacks or that nobody noticed. Tests of `make soak` are not run.
"""

from __future__ import annotations

import datetime
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import shapes
from mutations import SUBJECTS, Mutation, Subject

ROOT = Path(__file__).resolve().parent.parent
RESULT = ROOT / "benchmarks" / "results" / "mutants.json"
_SECONDS = 900.0
"""After which tests that hang count as having noticed."""
_TIERS = {"test": "not proof and not soak", "proof": "proof and not soak"}
"""The marks of the tests of each tier that runs, the fastest first."""
_PASSED, _NOTICED, _NO_TESTS = 0, 1, 5
"""pytest's exit codes where all tests passed, where one has failed, and where there was none; another is a mistake in the
mutation.
"""


class Told(NamedTuple):
    """What came of some tests."""

    code: int | None
    """pytest's exit code; None where they hung."""
    test: str
    """The test that failed."""
    tier: str
    """The tier that was running at the end."""


class Copy:
    """A copy of the project, in which one mutation at a time is made."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "tree"
        listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in filter(None, listed.split("\0")):
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        if (ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        path = os.pathsep.join((str(self.root), str(self.root / "jobs")))
        # Without bytecode, a file that changes twice a second is never taken for the one before.
        self._environment = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def run(self, tests: tuple[str, ...]) -> Told:
        """Run some tests until one fails, those of `make test` first."""
        told = Told(_PASSED, "", "test")
        for tier in _TIERS:
            if told.code == _PASSED:
                told = self._run(tests, tier)
        return told

    def _run(self, tests: tuple[str, ...], tier: str) -> Told:
        """The same with the tests of one tier."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", _TIERS[tier], "-p", "no:cacheprovider", "-rfE", *tests]
        process = subprocess.Popen(
            command, cwd=self.root, env=self._environment, text=True, start_new_session=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            printed, _ = process.communicate(timeout=_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Told(None, "", tier)
        failed = re.search(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*)?(?: - .*)?$", printed, re.MULTILINE)
        code = _PASSED if process.returncode == _NO_TESTS else process.returncode
        return Told(code, failed[1] if failed else "", tier)

    def mutated(self, mutation: Mutation, tests: tuple[str, ...]) -> Told:
        """The same with a mistake in it.

        Raises:
            shapes.NotFound: the file does not hold what the mutation replaces.
        """
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
        shapes.NotFound: the file does not hold what the mutation replaces, or holds it more than once.
    """
    return shapes.replaced(text, mutation.function, mutation.old, mutation.new)


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def commit() -> str:
    """The commit that is checked out, with "+" if a file differs from it; the record itself may."""
    changed = _git("status", "--porcelain", "--", ".", f":!{RESULT.relative_to(ROOT)}")
    return _git("rev-parse", "--short", "HEAD") + ("+" if changed else "")


def made(subject: Subject, copies: list[Copy], at: str, mutations: Sequence[Mutation]) -> Iterator[dict[str, Any]]:
    """Make some mutations of a subject; the result of each that is found. The subject's tests must pass without any."""
    free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutation: Mutation | None) -> dict[str, Any]:
        copy, begun = free.get(), time.monotonic()
        try:
            told = copy.run(subject.tests) if mutation is None else copy.mutated(mutation, subject.tests)
        except (shapes.NotFound, FileNotFoundError) as error:
            print(f"NOT FOUND  {error}", flush=True)
            return {}
        finally:
            free.put(copy)
        if mutation is None:
            if told.code != _PASSED:
                raise SystemExit(f"the tests of {subject.name} fail without a mutation: {told.test}")
            return {}
        noticed, seconds = told.code in (_NOTICED, None), round(time.monotonic() - begun)
        said = f"{f'noticed by make {told.tier}' if noticed else 'NOT NOTICED'} in {seconds} s"
        print(f"{said}  {mutation.file}: {' '.join(mutation.old.split())[:70]}  {told.test.rpartition('::')[2]}", flush=True)
        by = {_NOTICED: told.test, None: "they hang"}.get(told.code, "")
        result = {"noticed": noticed, "by": by, "tier": told.tier if noticed else None, "exit_code": told.code}
        return mutation._asdict() | result | {"seconds": seconds, "commit": at}

    with ThreadPoolExecutor(len(copies)) as pool:
        yield from filter(None, pool.map(one, (None, *mutations) if mutations else ()))


def settled(row: dict[str, Any]) -> bool:
    """Whether a mutation of the record was noticed, or has a reason why none can notice it."""
    return row["noticed"] or (bool(row["reason"]) and row["exit_code"] == 0)


def missed(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The mutations that no test noticed, and that have no reason why none can."""
    return [row for row in found["mutations"] if not settled(row)]


def recorded(row: dict[str, Any]) -> Mutation:
    """A mutation of the record."""
    return Mutation(*(row[name] for name in Mutation._fields))


def stale(subjects: Sequence[Subject], found: dict[str, Any]) -> list[str]:
    """The names of the subjects whose mutations are not those of the record."""
    made = {name: [recorded(row)[:4] for row in of["mutations"]] for name, of in found.items()}
    return [one.name for one in subjects if [own[:4] for own in one.mutations] != made.get(one.name)]


def is_found(mutation: Mutation) -> bool:
    """Whether the code still holds what a mutation replaces."""
    try:
        mutated((ROOT / mutation.file).read_text("utf-8"), mutation)
    except (shapes.NotFound, FileNotFoundError):
        return False
    return True


def main(words: list[str]) -> int:
    """0 if every mutation was made and noticed, or has a reason why none can."""
    if words == ["--stale"]:  # A warning, since the record takes an hour.
        for name in stale(SUBJECTS, json.loads(RESULT.read_text("utf-8"))):
            print(f"warning: the record of make mutants is older than its list: {name}")
        for one in SUBJECTS:
            if lost := sum(not is_found(own) for own in one.mutations):
                print(f"warning: {lost} of {len(one.mutations)} mutations are not found in the code: {one.name}")
        return 0
    only_left = "--left" in words
    words = [word for word in words if word != "--left"]
    subjects = [subject for subject in SUBJECTS if not words or any(word in subject.name for word in words)]
    well, at = True, commit()
    with tempfile.TemporaryDirectory(prefix="tempscale-mutants-", ignore_cleanup_errors=True) as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(os.cpu_count() or 1)]
        for subject in subjects:
            earlier = _record().get(subject.name) if only_left else None
            reasons = {mutation[:4]: {"reason": mutation.reason} for mutation in subject.mutations}
            known = [row | reasons.get(recorded(row)[:4], {}) for row in (earlier or {"mutations": []})["mutations"]]
            rows = {recorded(row)[:4]: row for row in known if settled(row)}
            before, begun = earlier["seconds"] if earlier else 0, time.monotonic()
            left = [mutation for mutation in subject.mutations if mutation[:4] not in rows]
            for row in made(subject, copies, at, left):
                rows[recorded(row)[:4]] = row
                _write(subject, rows, {"commit": at, "seconds": round(before + time.monotonic() - begun)})
            if earlier and not left:  # Others may have gone from the list.
                _write(subject, rows, {"commit": earlier["commit"], "seconds": before})
            found = _record()[subject.name]
            count, noticed = len(found["mutations"]), sum(row["noticed"] for row in found["mutations"])
            print(f"{subject.name}: {noticed} of {count} noticed, {len(missed(found))} missed without a reason", flush=True)
            well &= not missed(found) and count == len(subject.mutations)
    return 0 if well else 1


def _record() -> dict[str, Any]:
    """The record, by subject."""
    return dict(json.loads(RESULT.read_text("utf-8"))) if RESULT.exists() else {}


def _write(subject: Subject, rows: dict[tuple[str, ...], dict[str, Any]], when: dict[str, Any]) -> None:
    """Write what is known of a subject's mutations into the record, in the order of the lists."""
    results = [rows[mutation[:4]] for mutation in subject.mutations if mutation[:4] in rows]
    when |= {"on": datetime.datetime.now(datetime.UTC).date().isoformat(), "cores": os.cpu_count()}
    record = _record() | {subject.name: when | {"mutations": results}}
    ordered = {each.name: record[each.name] for each in SUBJECTS if each.name in record}
    RESULT.write_text(json.dumps(ordered, indent=2, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
