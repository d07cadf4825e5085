"""A run on a cluster of several nodes whose actors, workers, raylets and driver are killed at seeded random moments.

The moments may be those of some stages of the run, which it tells as it goes: `make soak` strikes in every stage of every
command, see storms.py.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import shared_ray

KINDS = ("actor", "worker", "raylet", "driver")
NODES, CPUS, PATIENCE = 3, 1, 900
_LOOK_SECONDS, _STEP_SECONDS, _SHORT_SECONDS = 0.002, 0.0005, 0.1


class Heard:
    """The stages of a run, as its status.json tells them while it goes on."""

    def __init__(self, driver: subprocess.Popen[bytes], out: Path) -> None:
        self.stage: str | None = None
        """The stage that it is in."""
        self.begun: dict[str, float] = {}
        """When each stage began last."""
        self._driver, self._file, self._news = driver, out / "status.json", threading.Event()
        self._lock, self._seen = threading.Lock(), b""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            ended = self._driver.poll() is not None  # What a dead one wrote last is read once more.
            self.look()
            if ended:
                return
            time.sleep(_LOOK_SECONDS)

    def look(self) -> str | None:
        """The stage that the file tells now."""
        with self._lock, suppress(OSError):
            data = self._file.read_bytes()  # It is replaced as a whole.
            if data != self._seen:
                told, self._seen = json.loads(data), data
                if told["state"] == "running" and told["stage"] and told["stage"] != self.stage:
                    self.begun[told["stage"]] = time.monotonic()
                    self.stage = told["stage"]
                    self._news.set()
        return self.stage

    def wait(self, seconds: float) -> None:
        """Wait for the next stage, but no longer than this."""
        if self._news.wait(max(0.0, seconds)):
            self._news.clear()

    def end(self) -> str | None:
        """The last stage of a driver that has ended."""
        self._thread.join(PATIENCE)
        return self.stage


class Storm:
    """A cluster, a run on it, and the kills."""

    def __init__(self, arguments: list[str], out: Path, seed: int | str) -> None:
        from ray.cluster_utils import Cluster

        self.arguments, self.out, self.random = arguments, out, random.Random(seed)
        self._guarded = shared_ray.guarded()
        self._guarded.__enter__()
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 200 << 20})
        for _ in range(NODES):
            self._add_node()
        self.kills: list[dict[str, Any]] = []
        self.heard: Heard
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

    def strike(self, wanted: dict[str, list[str]], seconds: dict[str, float]) -> int:
        """Start the run and strike in its stages; its last exit code.

        `wanted` are the kinds of what is to be killed in each stage, and `seconds` how long a stage takes undisturbed: the
        moment is drawn from its first eight tenths. Where there is nothing of a kind, the driver is killed. Into a stage of
        milliseconds the driver is led in steps, and dies there.
        """
        before = {one: other for one, other in pairwise(seconds) if seconds[other] < _SHORT_SECONDS}
        wanted = {stage: list(kinds) for stage, kinds in wanted.items()}
        deadline = time.monotonic() + PATIENCE + 60 * sum(map(len, wanted.values()))
        driver, begun, when = self._start(), 0.0, 0.0
        while time.monotonic() < deadline:
            if (code := driver.poll()) is not None:
                if code == 0:
                    return 0
                self.ends.append(code)
                driver, begun = self._start(), 0.0
            stage = self.heard.stage
            if stage is not None and wanted.get(before.get(stage, "")) and not wanted.get(stage):
                stage = self._lead(driver, stage)
                if wanted.get(stage or "") and stage in before.values():
                    wanted[stage].pop(0)
                    self._kill("driver", driver)
                    continue
                driver.send_signal(signal.SIGCONT)
            left = wanted.get(stage or "")
            if stage is None or not left:
                self.heard.wait(0.2)
                continue
            if begun != self.heard.begun[stage]:
                begun = self.heard.begun[stage]
                when = begun + self.random.uniform(0, 0.8 * seconds.get(stage, 0.0))
            if time.monotonic() < when:
                self.heard.wait(when - time.monotonic())
                continue
            kind = left.pop(0)
            if not self._kill(kind, driver):
                self._kill("driver", driver)
            begun = 0.0  # Another moment of the same stage, if it is to be struck again.
        driver.kill()
        return -1

    def _lead(self, driver: subprocess.Popen[bytes], stage: str) -> str | None:
        """Let the driver run half a millisecond at a time until it has left a stage, and stop it; the stage it is in."""
        while self.heard.look() == stage and driver.poll() is None:
            driver.send_signal(signal.SIGCONT)
            time.sleep(_STEP_SECONDS)
            driver.send_signal(signal.SIGSTOP)
        return self.heard.stage

    def _start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        command = [sys.executable, "-m", "tempscale_jobs", *self.arguments, "--address", self.cluster.address]
        (self.out / "status.json").unlink(missing_ok=True)  # It is the last driver's.
        log = open(self.out.with_name(f"{self.out.name}-driver-{self.starts}.log"), "wb")  # noqa: SIM115 - the child's
        driver = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        self.heard = Heard(driver, self.out)
        return driver

    def _kill(self, kind: str, driver: subprocess.Popen[bytes]) -> bool:
        """Whether there was something of this kind to kill."""
        if kind == "driver":
            if not (self.out / "begun.json").exists():
                return False
            driver.kill()
            killed = driver.wait() == -signal.SIGKILL  # Otherwise it had ended by itself.
            self.heard.end()
            return killed and self._noted(kind, driver.pid)
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
        self.kills.append({"what": kind, "process": what, "hit": True, "stage": self.heard.stage, "done": self._done()})
        return bool(pid >= 0)

    def _done(self) -> dict[str, int]:
        """Parts that are there: how far the run was."""
        return {kind: len(list((self.out / kind).rglob("*.parquet"))) for kind in ("texts", "factors", "partials", "tables")}

    def close(self) -> None:
        """Stop the cluster."""
        self.cluster.shutdown()
        self._guarded.__exit__(None, None, None)


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
