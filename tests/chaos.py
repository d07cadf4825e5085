"""A run on a cluster of several nodes whose actors, workers, raylets and driver are killed at seeded random moments.

`make soak` storms until twenty-four kills have hit: soak.py.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
from whole_run import digests

KINDS = ("actor", "worker", "raylet", "driver")
NODES, CPUS, PATIENCE = 3, 1, 900


class Storm:
    """A cluster, a run on it, and the kills."""

    def __init__(self, arguments: list[str], out: Path, seed: int) -> None:
        from ray.cluster_utils import Cluster

        self.arguments, self.out, self.random = arguments, out, random.Random(seed)
        os.environ["RAY_AUTH_MODE"] = "disabled"
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 << 20})
        for _ in range(NODES):
            self._add_node()
        self.kills: list[dict[str, Any]] = []
        self.starts = 0
        self.ends: list[int] = []
        """Exit codes of the driver before its last."""

    def _add_node(self) -> None:
        self.cluster.add_node(num_cpus=CPUS, object_store_memory=200 << 20)

    def run(self, kills: list[str], pause: tuple[float, float]) -> int:
        """Start the run, kill what is listed one after another, start it again where it ended; its last exit code."""
        wanted, deadline = list(kills), time.monotonic() + PATIENCE + 60 * len(kills)
        driver = self._start()
        strike = time.monotonic() + self.random.uniform(*pause)
        while time.monotonic() < deadline:
            code = driver.poll()
            if code == 0 and not wanted:
                return 0
            if code == 0:  # Done before all was killed: the rest would hit nothing.
                self.kills += [{"what": kind, "hit": False} for kind in wanted]
                return 0
            if code is not None:
                # Only a killed driver may end: whatever else dies, the run goes on by itself.
                self.ends.append(code)
                driver = self._start()
            if wanted and time.monotonic() >= strike:
                kind = wanted[0]
                if self._kill(kind, driver):
                    wanted.pop(0)
                    strike = time.monotonic() + self.random.uniform(*pause)
            time.sleep(0.2)
        driver.kill()
        return -1

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        log = open(self.out.with_name(f"driver-{self.starts}.log"), "wb")  # noqa: SIM115 - the child's
        command = [sys.executable, "-m", "tempscale_jobs", *self.arguments, "--address", self.cluster.address]
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def _kill(self, kind: str, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was something of this kind to kill."""
        if kind == "driver":
            if not (self.out / "begun.json").exists():
                return False
            driver.kill()
            driver.wait()
            return self._noted(kind, driver.pid)
        nodes = [node for node in self.cluster.list_all_nodes() if node is not self.cluster.head_node]
        if kind == "raylet":
            if not any(workers_of(node, "ray::") for node in nodes):
                return False
            node = self.random.choice(nodes)
            self.cluster.remove_node(node, allow_graceful=False)
            self._add_node()
            return self._noted(kind, 0)
        name = "ModelActor" if kind == "actor" else ""
        found = [process for node in nodes for process in workers_of(node, name)]
        if kind == "worker":
            found = [
                process for process in found if not any(word in _name(process) for word in ("IDLE", "Agent", "Tracker"))
            ]
        if not found:
            return False
        victim = self.random.choice(sorted(found, key=lambda process: process.pid))
        what = _name(victim)
        victim.send_signal(signal.SIGKILL)
        return self._noted(kind, victim.pid, what)

    def _noted(self, kind: str, pid: int, what: str = "") -> bool:
        self.kills.append({"what": kind, "process": what, "hit": True, "done": self._done()})
        return bool(pid >= 0)

    def _done(self) -> dict[str, int]:
        """Parts that are there: how far the run was."""
        return {kind: len(list((self.out / kind).rglob("*.parquet"))) for kind in ("texts", "factors", "partials", "tables")}

    def close(self) -> None:
        """Stop the cluster."""
        self.cluster.shutdown()


def workers_of(node: Any, name: str) -> list[psutil.Process]:
    """The worker processes of a node whose title holds a name."""
    try:
        (raylet,) = node.all_processes["raylet"]
        children = psutil.Process(raylet.process.pid).children()
    except (psutil.NoSuchProcess, KeyError):
        return []
    return [process for process in children if _name(process).startswith("ray::") and name in _name(process)]


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).strip()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return ""


def plan(kills: int, seed: int) -> list[str]:
    """As many kills of each kind as fit, in a seeded order."""
    kinds = [KINDS[k % len(KINDS)] for k in range(kills)]
    random.Random(seed).shuffle(kinds)
    return kinds


def soak(kills: int, seed: int) -> dict[str, Any]:
    """Storm runs until as many kills have hit; each must end as an undisturbed one: `same_bytes`."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="tempscale-soak-"))
    sizes = ["--sample", "400", "--socm-sample", "200", "--tau", "1.0", "--tau", "0.8"]
    base = ["audit", "--corpus", "docstrings:scipy", *sizes]
    undisturbed = folder / "undisturbed"
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "tempscale_jobs", *base, "--out", str(undisturbed)], check=True)
    expected, seconds = digests(undisturbed), time.monotonic() - begun
    hits: list[dict[str, Any]] = []
    rounds = starts = 0
    same = True
    while len(hits) < kills and same:
        out = folder / f"run-{rounds}"
        storm = Storm([*base, "--out", str(out), "--cache", str(folder / f"cache-{rounds}")], out, seed + rounds)
        try:
            code = storm.run(plan(min(8, kills - len(hits)), seed + rounds), (3.0, 45.0))
        finally:
            storm.close()
        killed = sum(kill["what"] == "driver" and kill["hit"] for kill in storm.kills)
        same = code == 0 and digests(out) == expected and storm.ends == [-9] * killed
        hits += [kill for kill in storm.kills if kill["hit"]]
        rounds, starts = rounds + 1, starts + storm.starts
        print(f"round {rounds}: exit code {code}, {len(hits)} of {kills} kills, same bytes: {same}", flush=True)
    counts = {kind: sum(kill["what"] == kind for kill in hits) for kind in KINDS}
    return {
        "kills": len(hits), "of": counts, "runs": rounds, "starts": starts, "same_bytes": same, "files": len(expected),
        "seed": seed, "nodes": NODES + 1, "seconds": round(time.monotonic() - begun), "undisturbed_seconds": round(seconds),
        "hits": hits,
    }  # fmt: skip
