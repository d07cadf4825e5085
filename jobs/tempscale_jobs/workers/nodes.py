"""Check that all machines of a cluster see each other's files and the models, before a run uses them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.provenance import note_processor, processor
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers.cluster import NODE_LABEL
from tempscale_jobs.workers.dispatch import ANSWER_SECONDS, ask_nodes

_CHECK_SECONDS = 300
"""The other machines are waited for so long after the first answer: each must start a process."""


def check_run(run: Run, folders: Sequence[tuple[str, Storage]]) -> None:
    """Call `check` with the run's models and record the kinds of processor in the run."""
    for kind in check_shared(folders, [model.name for model in run.read_models if os.path.isabs(model.name)]):
        note_processor(run.storage, kind, "computed")


def check_shared(folders: Sequence[tuple[str, Storage]], models: Sequence[str]) -> set[str]:
    """Raise a UsageError unless every node shares `folders` and has `models`; return the nodes' kinds of processor."""
    # Each node must read a file of this process and write one that this process reads.
    nodes = _alive()
    local = [(option, storage) for option, storage in folders if storage.is_local]
    if len(nodes) < 2:
        return set()
    processors = set()
    token = uuid.uuid4().hex
    for _, storage in local:
        storage.write(f"{PROOF}-{token}/driver", token.encode())
    roots = [storage.root for _, storage in local]
    try:
        # A node that dies during the check gives no answer, and will not be used.
        arguments: dict[str | None, tuple[Any, ...]] = {node: (roots, list(models), token, node) for node in nodes}
        silent = list[str]()
        with closing(ask_nodes(answer, arguments, patience=_CHECK_SECONDS, linger=ANSWER_SECONDS)) as answers:
            for node, reply in answers:
                address = nodes[str(node)]
                if reply is None:
                    silent.append(address)
                    continue
                are_read, are_present, kind = reply
                processors.add(kind)
                for (option, storage), is_read in zip(local, are_read, strict=True):
                    name = f"{PROOF}-{token}/{node}"
                    if not (is_read and storage.exists(name) and storage.read(name) == token.encode()):
                        raise UsageError(
                            f"{option} '{storage.root}' is a folder of this machine that node {address} does not share "
                            "or cannot write; give one on a shared disk or object storage, such as s3://bucket/run"
                        )
                for model, is_present in zip(models, are_present, strict=True):
                    if not is_present:
                        raise UsageError(
                            f"model folder '{model}' is not on node {address}; put it on a shared disk or on every node"
                        )
    finally:
        for _, storage in local:
            storage.remove(f"{PROOF}-{token}")
    if silent:
        raise IncompleteRun(
            f"node {' and '.join(silent)} did not answer within {_CHECK_SECONDS // 60} minutes; see ray status, or take it "
            "out of the cluster, and start the same command again"
        )
    return processors


def _alive() -> dict[str, str]:
    """The addresses of the nodes by their ids."""
    import ray

    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def that_sees(files: Sequence[str]) -> dict[str, Any]:
    """Ray's options of tasks that read these files: none if all nodes have the files, else this node."""
    import ray

    nodes = _alive()
    if len(nodes) < 2 or not files:
        return {}
    samples = [(file, os.path.getsize(file)) for file in (files[0], files[-1])]
    # A node that is gone gives no answer and may come back.
    answers = dict(ask_nodes(sees, dict.fromkeys(nodes, (samples,))))
    if len(answers) == len(nodes) and all(answers.values()):
        return {}
    return {"label_selector": {NODE_LABEL: ray.get_runtime_context().get_node_id()}}


def sees(files: Sequence[tuple[str, int]]) -> bool:
    """Whether these files of these sizes are on this machine."""
    try:
        return all(os.path.getsize(file) == size for file, size in files)
    except OSError:
        return False


PROOF = ".proof"
"""Prefix of the temporary folder of the check's files."""


def answer(roots: Sequence[str], models: Sequence[str], token: str, node: str) -> tuple[list[bool], list[bool], str]:
    """Copy the driver's token where it is readable; return which folders are, which models exist, and the processor."""
    are_read = []
    for root in roots:
        storage, name = Storage(root), f"{PROOF}-{token}/driver"
        try:
            is_read = storage.exists(name) and storage.read(name) == token.encode()
            if is_read:
                storage.write(f"{PROOF}-{token}/{node}", token.encode())
        except (OSError, IncompleteRun):  # The folder may be read-only on this node.
            is_read = False
        are_read.append(is_read)
    return are_read, [os.path.isdir(model) for model in models], processor()
