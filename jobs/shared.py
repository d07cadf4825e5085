"""Before a run spreads over several machines: each must see the files that another writes, and the models that are named."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from typing import Any

from jobs.engine import readable_failures
from jobs.errors import IncompleteRun, UsageError
from jobs.provenance import note_processor, processor
from jobs.runs import RunOf
from jobs.storage import Storage

_ANSWER_SECONDS = 60


def check_run(run: RunOf[Any], folders: Sequence[tuple[str, Storage]]) -> None:
    """`check` for a run whose workers write to some folders; the kinds of processor are left in its record.

    Raises:
        UsageError: as `check`.
    """
    for kind in check(folders, [model.name for model in run.models if os.path.isabs(model.name)]):
        note_processor(run.storage, kind, "computed")


def check(folders: Sequence[tuple[str, Storage]], models: Sequence[str]) -> set[str]:
    """Prove that every node of the Ray cluster reads what this process writes and the other way round.

    Args:
        folders: local folders that all must share, each with the option that names it.
        models: folders of models that all must have.

    Returns:
        The kinds of processor of the nodes; none where there is only this machine.

    Raises:
        UsageError: a node does not; names the node, the folder and what to do.
    """
    import ray.exceptions
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    local = [(option, storage) for option, storage in folders if storage.is_local]
    if len(nodes) < 2:
        return set()
    processors = set()
    died = (
        ray.exceptions.TaskUnschedulableError, ray.exceptions.NodeDiedError, ray.exceptions.WorkerCrashedError,
        ray.exceptions.LocalRayletDiedError,
    )  # fmt: skip
    token = uuid.uuid4().hex
    for _, storage in local:
        storage.write(f"{PROOF}-{token}/driver", token.encode())
    roots = [storage.root for _, storage in local]
    ask = ray.remote(num_cpus=0, max_retries=3)(answer)
    asked = {
        node: ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            roots, list(models), token, node
        )
        for node in nodes
    }
    try:
        for node, reference in asked.items():
            with readable_failures():
                try:
                    read, present, kind = ray.get(reference)
                except died:
                    continue  # While it was asked: it will not work for this run.
            processors.add(kind)
            for (option, storage), seen in zip(local, read, strict=True):
                name = f"{PROOF}-{token}/{node}"
                if not (seen and storage.exists(name) and storage.read(name) == token.encode()):
                    raise UsageError(
                        f"{option} '{storage.root}' is a folder of this machine that node {nodes[node]} does not share or "
                        "cannot write; give one on a shared disk or object storage, such as s3://bucket/run"
                    )
            for model, there in zip(models, present, strict=True):
                if not there:
                    raise UsageError(
                        f"model folder '{model}' is not on node {nodes[node]}; put it on a shared disk or on every node"
                    )
    finally:
        # Where one node has failed the others may still be writing theirs.
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        for _, storage in local:
            storage.remove(f"{PROOF}-{token}")
    return processors


PROOF = ".proof"
"""Begins the name of the folder of the files that prove it, which stays for seconds."""


def answer(roots: Sequence[str], models: Sequence[str], token: str, node: str) -> tuple[list[bool], list[bool], str]:
    """On a node: whether each folder holds the driver's token, whether each model is there, and the kind of processor.

    Leaves tokens of its own.
    """
    read = []
    for root in roots:
        storage, name = Storage(root), f"{PROOF}-{token}/driver"
        try:
            seen = storage.exists(name) and storage.read(name) == token.encode()
            if seen:
                storage.write(f"{PROOF}-{token}/{node}", token.encode())
        except (OSError, IncompleteRun):  # Read-only there, say.
            seen = False
        read.append(seen)
    return read, [os.path.isdir(model) for model in models], processor()
