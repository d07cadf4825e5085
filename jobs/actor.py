"""The model in a worker: loaded once, every temperature in turn; and the Ray Data pool of such workers. See `crew`."""

from __future__ import annotations

import ctypes
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jobs.engine import Cluster, failure, readable_failures
from jobs.errors import IncompleteRun
from jobs.provenance import note_processor, processor
from jobs.runs import EXCEPTIONS
from jobs.schema import REJECTED
from jobs.storage import Storage

if TYPE_CHECKING:
    from jobs.runs import Model, RunOf
    from tempscale.gathering import Encoded
    from tempscale.tokens import Tokens

ROLE = "document"
"""What the texts of a corpus are, for a temperature that depends on the role."""
TOKEN_BUDGETS = {False: 1024, True: 16_384}
"""Padded tokens of a micro-batch without and with a GPU, unless the configuration says or a run has measured."""
_LOST_DEVICE = 70
"""Exit code of a worker whose GPU does not answer any more."""
RETRIES = 3
"""How often what ends its process is tried again."""
_ROW = pa.schema(
    [("number", pa.int64()), ("payload", pa.large_binary()), ("failure", pa.string()), ("traceback", pa.string())]
)

Process = Callable[["ModelActor", int, pa.Table], dict[str, Any]]
"""What a step does with one piece of work, on an actor: leaves durable parts and reports its counts."""


class ModelActor:
    """Holds an encoder; a step's subclass says in `process` what one piece of work is."""

    def __init__(self, storage: Storage, model: Model, temperatures: list[Any], settings: dict[str, Any], gpus: int) -> None:
        import torch

        from tempscale.encoder import Encoder
        from tempscale.temperature import Temperature

        if not gpus:
            # A product's last bits depend on its threads; one thread everywhere makes every worker's bytes the same.
            torch.set_num_threads(1)
        self.storage, self.model = storage, model
        self.temperatures = [Temperature.of(value) for value in temperatures]
        self.encoder = Encoder.load(model.name, device="cuda" if gpus else "cpu", **settings)

    def __call__(self, batch: pa.Table) -> pa.Table:
        """Work through a batch of (number, payload) rows; returns what each reports, or how it failed."""
        reports = [self._report(row) for row in batch.to_pylist()]
        _return_freed_memory()
        return pa.Table.from_pylist(reports)

    def _report(self, row: dict[str, Any]) -> dict[str, Any]:
        if row["failure"] is not None:
            return {name: row[name] for name in ("number", "failure", "traceback")}
        try:
            return self.process(row["number"], unpack(row["payload"]))
        except Exception as error:
            return {"number": row["number"]} | _told(error)

    def run(self, process: Process, number: int, work: pa.Table) -> dict[str, Any]:
        """Hand one piece of work to a step's function."""
        report = process(self, number, work)
        _return_freed_memory()
        return report

    def note_processor(self) -> None:
        """Leave a record of what embeds here: every kind of processor has last digits of its own."""
        import torch

        device = next(self.encoder.model.parameters()).device
        note_processor(self.storage, processor() if device.type == "cpu" else torch.cuda.get_device_name(device), "embedded")

    def encode(self, tokens: Tokens, **how: Any) -> Encoded:
        """`Encoder.encode_tokens`, which finds the texts that the model fails on; a lost GPU ends the process."""
        try:
            return self.encoder.encode_tokens(tokens, isolate=True, **how)
        except RuntimeError as error:
            end_if_lost(error)
            raise

    def reject(self, number: int, rows: list[dict[str, Any]]) -> None:
        """Leave what a piece of work has rejected, in place of what an attempt that died may have."""
        name = f"rejected/model={self.model.label}/part-{number:05d}.parquet"
        self.storage.remove(name)
        if rows:
            self.storage.write_table(name, REJECTED.build_rows(rows))

    @contextmanager
    def noting(self, piece: str, died: bool = False) -> Iterator[None]:
        """Leave a record where the micro-batches of a piece of work are not those that follow from the corpus.

        Args:
            piece: what is embedded, such as «shard 7».
            died: whether some are halved because a process died in them.
        """
        before = self.encoder.halved
        yield
        memory = self.encoder.halved - before
        causes = ["its process died there"] * died + [f"{memory} × memory did not hold one"] * bool(memory)
        name = f"{EXCEPTIONS}/model={self.model.label}/{piece.replace(' ', '-')}.json"
        self.storage.remove(name)  # Of an attempt that died.
        if causes:
            note = f"{self.model.label}, {piece}: micro-batches in halves, {' and '.join(causes)}"
            self.storage.write_json(name, note)

    def process(self, number: int, work: pa.Table) -> dict[str, Any]:
        """Leave the durable parts of one piece of work and report its counts."""
        raise NotImplementedError


def end_if_lost(error: BaseException) -> None:
    """End this process where its GPU does not answer any more: a death like any other, for nothing more can run here."""
    from tempscale.batches import lost_device

    if lost_device(error):
        os._exit(_LOST_DEVICE)


def pool(
    run: RunOf[Any],
    cluster: Cluster,
    model: Model,
    actor: type[ModelActor],
    work: dict[int, pa.Table],
    prepare: Callable[..., pa.Table] | None = None,
    prepare_arguments: dict[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Stream pieces of work through a pool of model actors with Ray Data.

    One row is one piece of work, so that what shares a micro-batch never depends on blocks or workers.

    Args:
        run: the run whose settings and storage the actors use.
        cluster: how many actors, and whether they have a GPU.
        model: the model that the actors load.
        actor: the step's actor.
        work: pieces by number.
        prepare: run on CPU tasks ahead of the actors, on (number, payload) rows.
        prepare_arguments: keyword arguments of `prepare`.

    Yields:
        Each piece's report, as they finish.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    if not work:
        return
    import ray.data

    blank = {"failure": None, "traceback": None}
    rows = [{"number": number, "payload": pack(work[number])} | blank for number in cluster.ordered(sorted(work))]
    data = ray.data.from_items(rows, override_num_blocks=len(rows))
    if prepare is not None:
        # Without a claim to a CPU: where a cluster has become smaller, its actors could hold all of them for ever.
        ahead = ray.data.TaskPoolStrategy(size=min(cluster.workers, len(rows)))
        data = data.map_batches(
            _prepared, batch_size=1, batch_format="pyarrow", num_cpus=0, compute=ahead,
            fn_kwargs={"prepare": prepare, "arguments": prepare_arguments or {}},
        )  # fmt: skip
    resources: dict[str, Any] = {"num_gpus": 1} if cluster.gpus else {"num_cpus": 1}
    data = data.map_batches(
        actor,
        batch_size=1,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(size=min(cluster.workers, len(rows)), max_tasks_in_flight_per_actor=2),
        fn_constructor_kwargs=arguments(run, cluster, model),
        **resources,
    )  # fmt: skip
    with readable_failures():
        for report in data.iter_rows():
            if report.get("failure"):
                raise IncompleteRun(report["failure"]) from RuntimeError(report["traceback"])
            yield report


def _prepared(batch: pa.Table, prepare: Callable[..., pa.Table], arguments: dict[str, Any]) -> pa.Table:
    """What `prepare` makes of a batch of one row, or how it failed."""
    try:
        return prepare(batch, **arguments)
    except Exception as error:
        row = {"number": batch.column("number")[0].as_py(), "payload": b""} | _told(error)
        return pa.Table.from_pylist([row], schema=_ROW)


def _told(error: Exception) -> dict[str, str]:
    """How a step failed, as a part of its report: Ray Data would say no more of it than that user code has failed."""
    return {"failure": failure(error), "traceback": traceback.format_exc()}


def arguments(run: RunOf[Any], cluster: Cluster, model: Model) -> dict[str, Any]:
    """What a model actor is made with."""
    embedding = run.config.embedding
    return {
        "storage": run.storage, "model": model, "temperatures": [t.as_data() for t in run.temperatures],
        "settings": {
            "max_length": model.max_length, "long": embedding.long, "precision": embedding.precision,
            "token_budget": embedding.token_budget or TOKEN_BUDGETS[bool(cluster.gpus)],
        },
        "gpus": cluster.gpus,
    }  # fmt: skip


@lru_cache(maxsize=4)
def tokenizer(folder: str, max_length: int, long: Any) -> Any:
    """A model's tokenizer, loaded once in a process, for the tasks that need no model."""
    from tempscale.checkpoint import resolve
    from tempscale.tokens import Tokenizer

    return Tokenizer(Path(resolve(folder)), max_length, long)


def _return_freed_memory() -> None:
    """Give freed heap back to the system: micro-batches of ever new shapes leave hundreds of MB of holes in it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def pack(table: pa.Table) -> bytes:
    """A table as bytes, for one cell of a row."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def unpack(payload: bytes) -> pa.Table:
    """The table that `pack` packed."""
    return pa.ipc.open_stream(payload).read_all()


def rows(pieces: dict[int, pa.Table]) -> pa.Table:
    """(number, payload) rows, as a pool's `prepare` returns them."""
    found = [{"number": number, "payload": pack(table)} for number, table in pieces.items()]
    return pa.Table.from_pylist(found, schema=_ROW)
