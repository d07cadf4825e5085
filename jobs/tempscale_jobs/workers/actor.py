"""Actors that load a model once and run it under every temperature; see also `dispatch`."""

from __future__ import annotations

import copy
import gc
import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from typing_extensions import override

from tempscale_jobs.collecting import collect_seldom
from tempscale_jobs.errors import RunError, SickWorker, UsageError
from tempscale_jobs.runs.folder import BEGUN, EXCEPTIONS, part, place
from tempscale_jobs.runs.memory import return_freed
from tempscale_jobs.runs.provenance import note_processor, processor
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import REJECTED
from tempscale_jobs.urls import reason
from tempscale_jobs.workers.cluster import Cluster, grow_segments
from tempscale_jobs.workers.failures import COLUMNS, columns_of
from tempscale_jobs.workers.loaded import Loaded, check_tokens
from tempscale_jobs.workers.meter import Meter, Turn

if TYPE_CHECKING:
    import torch

    from tempscale.model.gathering import Encoded
    from tempscale.model.sequences import Tokens
    from tempscale.model.tokens import Long, Tokenizer
    from tempscale.temperature.schedule import Temperature
    from tempscale_jobs.config.sections import CutModels, Encoding
    from tempscale_jobs.config.verify import OneModel
    from tempscale_jobs.runs.folder import Model, Run


ROLE = "document"
"""The role of a corpus's texts, for temperatures that depend on the role."""
_ACTORS_OF_A_TASK, _TASKS_OF_A_GPU = 16, 32
"""One task tokenises for 16 actors without a GPU: it is a hundred times as fast as a small model. Up to 32 tasks tokenise
for one GPU: each makes 0.1 to 0.7 million tokens a second, and MiniLM takes 7 million on an H100.
"""
_LOST_DEVICE = 70
"""Exit code of a worker that has lost its GPU."""


class Started(NamedTuple):
    """An actor's first answer."""

    node: str
    """The id of its node."""
    computes_socm: bool
    """Whether SOCM is computed on its GPU; see `tempscale.second_order.routing`."""


Step = Callable[..., Any]
"""A step's function for one piece of work; its first argument is the actor; it writes durable parts.

It may return a function for the work that needs no model: on a GPU the next piece runs at the same time.
"""
TURNS = 2
"""Pieces of work that an actor with a GPU has at once: one runs the model, another is read or written."""


class PlainActor:
    """An actor without a model, for steps that need none."""

    name = "tiles"
    """Its name in Ray's dashboard."""

    def __repr__(self) -> str:
        return self.name

    def __init__(self, gpus: int) -> None:
        collect_seldom()
        import torch

        if not gpus:
            # The last bits of a product depend on the number of threads: one thread makes the bytes of all workers equal.
            torch.set_num_threads(1)
        else:
            grow_segments()

    def started(self) -> Started:
        """Answer once the actor has started."""
        return Started(_node(), self.computes_socm())

    def computes_socm(self) -> bool:
        """Whether SOCM is computed on this actor's GPU."""
        return False

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        """Run a function that needs no model; a lost GPU is a SickWorker, because a restart here would not help."""
        from tempscale.model.batches import lost_device

        try:
            function(*arguments, **options)
        except RuntimeError as error:
            if lost_device(error):
                raise _sick("has lost its GPU", error) from None
            raise
        return_freed()

    def unload(self) -> None:
        """Free the model's memory on the GPU: the steps that follow need no model."""


class ModelActor(PlainActor):
    """An actor with an encoder, which runs the functions of all steps."""

    def __init__(self, storage: Storage, model: Model, temperatures: list[Any], settings: dict[str, Any], gpus: int) -> None:
        from tempscale.temperature.schedule import Temperature

        super().__init__(gpus)
        self.meter = Meter(_run_of(storage), model.label)
        self.turn = Turn(self.meter)
        """The turn of the piece that runs the model; an actor without a GPU has one piece at a time."""
        self.overlaps = bool(gpus)
        """Whether a piece is written while another one runs the model."""
        self.model, self.name = model, model.label
        self.failed: RunError | None = None
        """The error that prevented the model from being loaded."""
        self.device: torch.device
        """The device that the model is on, or was before it was freed."""
        self._budget_noted = False
        self._processor_noted: set[str] = set()
        """The run folders in which this actor's processor is recorded."""
        device = "cuda" if gpus else "cpu"
        if storage.exists(budget_name(model)) and (budget := budget_kept(storage.read_json(budget_name(model)), device)):
            settings = settings | {"token_budget": budget}
        self.temperatures = [Temperature.of(value) for value in temperatures]
        try:
            self._load(storage, settings | {"device": device})
        except ValueError as error:
            # Ray would report an error here as its own, in a hundred lines.
            self.failed = UsageError(str(error))
        except RunError as error:
            self.failed = error
        except Exception as error:
            # Torch raises errors of many types where a card is sick. Ray never restarts an actor whose start raises.
            self.failed = _sick("cannot load the model", error)

    def _load(self, storage: Storage, settings: dict[str, Any]) -> None:
        """Load the model, and prove that it is the run's."""
        from tempscale.model.encoder import Encoder

        self._loaded = Loaded(self.model)
        self.storage = storage.guarded(self._loaded.check)  # Never write a file of another model.
        self.encoder = Encoder.load(str(self._loaded.folder), **settings)
        self.encoder.tokenizer.leave_tokie()  # Shards alone are embedded again after a difference.
        self.device = next(self.encoder.model.parameters()).device
        self._loaded.prove()

    @override
    def started(self) -> Started:
        self._check()
        return super().started()

    def _check(self) -> None:
        """Raise the error that prevented the model from being loaded."""
        if self.failed is not None:
            raise self.failed

    def below(self, storage: Storage, temperatures: int | None = None) -> ModelActor:
        """The same actor for a run in another folder, such as that of the queries, under the first few temperatures."""
        other = copy.copy(self)
        other.storage, other.temperatures = storage.guarded(self._loaded.check), self.temperatures[:temperatures]
        return other

    def take(self, function: Step, block: pa.Table) -> list[dict[str, Any]]:
        """Run `function(self, number, prepared)`, which takes the turn, on each row of a block; return a report a row."""
        reports: list[dict[str, Any]] = block.select(["number", *COLUMNS]).to_pylist()
        for k, report in enumerate(reports):
            if report["failure"] is None:
                rows = block.column("work").slice(k, 1).combine_chunks().flatten()
                self._begin(function)
                function(self, report["number"], pa.Table.from_struct_array(rows))
                return_freed()
        return reports

    @override
    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> None:
        self._check()  # The actor may have been restarted.
        super().call(function, *arguments, **options)

    def run(self, function: Step, *arguments: Any) -> Any:
        """Run a step's function on one piece of work; return its result when its parts are durable."""
        self._begin(function)
        with self.turn:
            result = function(self, *arguments)
        result = result() if callable(result) else result
        return_freed()
        return result

    def _begin(self, function: Step) -> None:
        """Begin a piece of work."""
        self._check()  # The actor may have been restarted.
        self.meter.step = getattr(getattr(function, "func", function), "__name__", "")

    @override
    def unload(self) -> None:
        """Free the model; a restarted actor loads it again, which is harmless."""
        import torch

        if self.failed is None:
            del self.encoder
            gc.collect()
            torch.cuda.empty_cache()

    @override
    def computes_socm(self) -> bool:
        from tempscale.second_order.routing import socm_device

        return socm_device(self.device).type != "cpu"

    def note_processor(self) -> None:
        """Record the processor that embeds here, because the last digits depend on it."""
        import torch

        if self.storage.root not in self._processor_noted:
            name = processor() if self.device.type == "cpu" else torch.cuda.get_device_name(self.device)
            note_processor(self.storage, name, "embedded")
            self._processor_noted.add(self.storage.root)

    def note_budget(self) -> None:
        """Write the encoder's token budget into the run, unless the run has one; check the storage once."""
        name = budget_name(self.model)
        if not self._budget_noted and not self.storage.exists(name):
            self.storage.write_json(name, budget_to_keep(self.encoder.token_budget, self.device.type))
        self._budget_noted = True

    def encode(self, tokens: Tokens, **options: Any) -> Encoded:
        """Call `Encoder.encode_tokens`, isolating texts on which the model fails; a lost GPU ends the process."""
        self.meter.add("texts", len(tokens))
        self.meter.add("tokens", sum(tokens.lengths))
        try:
            return self.encoder.encode_tokens(tokens, isolate=True, **options)
        except RuntimeError as error:
            end_if_lost(error)
            raise

    def reject(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Write the rejected rows of a piece of work, replacing those of an attempt that died."""
        name = self.part("rejected", None, number)
        self.storage.remove(name)
        if rows:
            self.storage.write_table(name, REJECTED.build_rows(rows))

    @contextmanager
    def noting(self, piece: str, died: bool = False) -> Iterator[None]:
        """Write a note if micro-batches of `piece` («shard 7») are halved, because other runs may then have other bytes."""
        halved_before = self.encoder.halved
        yield
        self.note_halved(piece, self.encoder.halved - halved_before, died)

    def note_halved(self, piece: str, memory: int, died: bool) -> None:
        """Write a note if micro-batches of a piece of work were halved, `memory` times for lack of memory; see `noting`."""
        self.meter.add("halvings", memory)
        causes = ["its process died there"] * died + [f"{memory} × memory did not hold one"] * bool(memory)
        name = f"{place(EXCEPTIONS, self.model)}/{piece.replace(' ', '-')}.json"
        self.storage.remove(name)  # An attempt that died may have written it.
        if causes:
            note = f"{self.model.label}, {piece}: micro-batches in halves, {' and '.join(causes)}"
            self.storage.write_json(name, note)

    def part(self, kind: str, temperature: Temperature | None, number: int) -> str:
        """The name of one durable part of this actor's model."""
        return part(kind, self.model, temperature, number)


def _run_of(storage: Storage) -> str:
    """The id of the run in a folder; empty if none has begun."""
    return str(storage.read_object(BEGUN)["run"]) if storage.exists(BEGUN) else ""


def _sick(what: str, error: Exception) -> SickWorker:
    """The error of a worker that cannot work."""
    name = socket.gethostname()
    return SickWorker(f"a worker on {name} {what}: {reason(error)}", _node(), name)


def _node() -> str:
    """The id of the node of this process, empty outside of Ray."""
    import ray

    return str(ray.get_runtime_context().get_node_id()) if ray.is_initialized() else ""


def end_if_lost(error: BaseException) -> None:
    """Exit if the GPU is lost: the device is unusable, so the process cannot continue."""
    from tempscale.model.batches import lost_device

    if lost_device(error):
        os._exit(_LOST_DEVICE)


def budget_name(model: Model) -> str:
    """The name of the file with the run's token budget."""
    return f"{place('partials/budget', model)}.json"


def budget_to_keep(tokens: int, device: str | None, rates: dict[str, int] | None = None) -> dict[str, Any]:
    """The content of a budget's file: the budget, its device (None if the user gave it), and the measured rates."""
    return {"token_budget": tokens, "tokens_per_second": rates or {}, "token_budget_of": device}


def budget_kept(content: dict[str, Any], device: str) -> int | None:
    """The budget in such a file; None if it is for another device: a GPU's budget would fill a CPU's memory."""
    return int(content["token_budget"]) if content.get("token_budget_of") in (None, device) else None


def ahead(cluster: Cluster) -> int:
    """The number of tasks that prepare work: one for many actors without a GPU, several for one GPU."""
    if cluster.gpus:
        return _TASKS_OF_A_GPU * cluster.workers  # Ray runs as many of them as there are CPUs, also on nodes to come.
    return math.ceil(cluster.workers / _ACTORS_OF_A_TASK)


def prepared(batch: pa.Table, prepare: Callable[..., pa.Table | None], shared: dict[str, Any]) -> pa.Table:
    """A block of Ray Data from a batch of one row: the prepared piece, if any, or its failure."""
    row, failure, work = batch.to_pylist()[0], dict.fromkeys(COLUMNS), None
    try:
        work = prepare(*row["arguments"], **shared)
    except Exception as error:
        failure = columns_of(error)
    strings = {"name": row["name"], **failure}
    columns = {"number": pa.array([row["number"]], pa.int64())}
    columns |= {name: pa.array([value], pa.string()) for name, value in strings.items()}
    if work is not None:
        # Put all rows into one cell, because Ray Data may cut a block between rows.
        rows = pa.StructArray.from_arrays([column.combine_chunks() for column in work.columns], fields=list(work.schema))
        columns["work"] = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    return pa.table(columns)


def arguments(run: Run, cluster: Cluster, model: Model, encoding: Encoding | CutModels | OneModel) -> dict[str, Any]:
    """The arguments of a model actor."""
    return {
        "storage": run.storage, "model": model, "temperatures": [t.as_data() for t in run.temperatures],
        "settings": {
            "max_length": model.max_length, "prompt": model.document_prompt, "long": encoding.long,
            "precision": encoding.precision, "compiled": encoding.compiled, "packed": encoding.packed,
            "token_budget": encoding.token_budget,
        },
        "gpus": cluster.gpus,
    }  # fmt: skip


class Tokenising(NamedTuple):
    """The settings of tokenisation."""

    folder: str
    max_length: int
    long: Long
    prompt: str = ""
    digest: str = ""
    """Of the tokenizer's files at the start of the run: `Model.settings`."""
    fast: bool = False
    """Whether tokie may be asked: only by who does its work again after a difference."""


@lru_cache(maxsize=4)
def tokenizer(how: Tokenising) -> Tokenizer:
    """A model's tokenizer, loaded once in each process, for tasks that need no model."""
    from tempscale.model.checkpoint import resolve
    from tempscale.model.tokens import Tokenizer

    check_tokens(how.folder, how.digest)
    loaded = Tokenizer(Path(resolve(how.folder)), how.max_length, how.long, how.prompt, fast=how.fast)
    check_tokens(how.folder, how.digest)
    return loaded
