"""The precision of a run: the requested one or, for `auto`, one that the workers' processors have instructions for."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import COMPUTED_IN, Run
from tempscale_jobs.runs.provenance import processor
from tempscale_jobs.workers.cluster import HELPER_CPUS, Cluster, machines
from tempscale_jobs.workers.dispatch import ask_nodes

_INSTRUCTIONS = ("amx_bf16", "avx512_bf16")
"""The flags of a CPU on which oneDNN multiplies in bfloat16; on others it converts, which is several times slower."""
_TENSOR_CORES = (8, 0)
"""The least compute capability of GPUs that multiply in bfloat16."""
_OF_A_GPU = "tensor cores"
"""The part of a GPU that multiplies in bfloat16 and in TF32."""
LITTLE = 0.01
"""The share of a GPU that a question to it claims."""


class Processor(NamedTuple):
    """A worker's processor."""

    name: str
    instructions: str
    """Its instructions for bfloat16; empty if it has none."""


class Settled(NamedTuple):
    """The precision of a run."""

    asked: str
    precision: Literal["float32", "tf32", "bfloat16"]
    why: str


def decide(run: Run, cluster: Cluster, asked: str) -> Settled:
    """The precision of a run, decided once from the requested one (perhaps `auto`) and kept."""
    if run.storage.exists(COMPUTED_IN):
        return Settled(**run.storage.read_json(COMPUTED_IN))
    decision = decided(asked, workers(cluster))
    run.storage.write_json(COMPUTED_IN, decision._asdict())
    return decision


def decided(asked: str, seen: list[Processor]) -> Settled:
    """The precision for these processors: `auto` is bfloat16 if every one multiplies in it, else float32."""
    without = sorted({device.name for device in seen if not device.instructions})
    have = "; ".join(sorted({f"{device.instructions} of {device.name}" for device in seen if device.instructions}))
    if asked == "tf32":
        if others := sorted({device.name for device in seen if device.instructions != _OF_A_GPU}):
            raise UsageError(
                f"--precision tf32 needs GPUs of compute capability 8 or more, and {' and '.join(others)} is none; choose "
                "float32, bfloat16 or auto"
            )
        return Settled(asked, "tf32", have)
    lack = f"{' and '.join(without)} cannot multiply in bfloat16 ({' or '.join(_INSTRUCTIONS)}, or a GPU's tensor cores)"
    if asked == "auto":
        precision: Literal["float32", "tf32", "bfloat16"] = "float32" if without or not seen else "bfloat16"
        return Settled(asked, precision, have if precision == "bfloat16" else lack if without else "no worker answered")
    if without:
        lack = f"as asked, but {lack} and needs several times as long as in float32; --precision auto would choose that"
    return Settled(asked, "bfloat16", lack if without else have)


def gpu_here() -> Processor | None:
    """This process's first GPU; None if it does not answer."""
    import torch

    try:
        able = torch.cuda.get_device_capability() >= _TENSOR_CORES
        return Processor(torch.cuda.get_device_name(), _OF_A_GPU if able else "")
    except RuntimeError:
        return None


def here() -> Processor:
    """This process's processor."""
    return Processor(processor(), ", ".join(name for name in _INSTRUCTIONS if name in _flags()))


def _flags() -> set[str]:
    """The flags of this machine's CPU; empty if the system does not list them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return {flag for line in lines if line.startswith("flags") for flag in line.split(":", 1)[1].split()}
    except OSError:
        return set()


def workers(cluster: Cluster) -> list[Processor]:
    """The processors of all nodes that a worker can be placed on."""
    # If the autoscaler has not started a machine yet, the question itself makes it start one. A machine that is fully used
    # by others answers too late and decides nothing.
    nodes: list[str | None] = [*machines(cluster)] or [None]
    question, claim = (gpu_here, {"num_gpus": LITTLE}) if cluster.gpus else (here, {"num_cpus": HELPER_CPUS})
    answers = (answer for _, answer in ask_nodes(question, dict[str | None, tuple[Any, ...]].fromkeys(nodes, ()), claim))
    return [answer for answer in answers if answer is not None]
