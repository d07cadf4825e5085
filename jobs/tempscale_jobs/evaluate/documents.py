"""Embed the documents of large corpora in pieces on all workers, before the cells are scored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate.loaded_task import load_once, sentence
from tempscale_jobs.evaluate.tasks import RunTask
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import Model, Run, place
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.evaluate import CELL_DOCUMENTS
from tempscale_jobs.tables.evaluate import documents as table
from tempscale_jobs.tables.parts import matrix_of_bytes, row_bytes
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Crew, Piece


class Call(NamedTuple):
    """The documents of one call that mteb makes to the model."""

    task: int
    """The place of its task in an aggregate task, else 0."""
    subset: str
    split: str
    first: int
    """The number of its first document in the corpus."""
    documents: int


class Large(NamedTuple):
    """A task with a corpus of several pieces, and its missing cells."""

    unit: RunTask
    spec: dict[str, Any]
    """A worker's arguments for loading the task."""
    temperatures: list[Temperature]
    calls: list[Call]

    @property
    def of_documents(self) -> list[Temperature]:
        """The distinct temperatures of documents in these cells."""
        return list(dict.fromkeys(temperature.for_role("document") for temperature in self.temperatures))

    @property
    def documents(self) -> int:
        """The number of documents to embed, under all temperatures."""
        return len(self.of_documents) * sum(call.documents for call in self.calls)

    def pieces(self) -> Iterator[dict[str, Any]]:
        """The pieces of all calls under every temperature of documents, divided as the model divides a call."""
        size = self.spec["piece_texts"]
        for temperature in self.of_documents:
            for call in self.calls:
                for start in range(0, call.documents, size):
                    texts = min(size, call.documents - start)
                    piece = call._replace(first=call.first + start, documents=texts)
                    yield {"temperature": temperature.canonical, "piece": piece._asdict()}


def calls(task: Any, model: Any) -> list[Call]:
    """The calls that mteb will make for the documents of a loaded task's large corpora."""
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.models.search_wrappers import SearchEncoderWrapper

    at_once, planned = SearchEncoderWrapper(model).corpus_chunk_size, list[Call]()
    for number, subtask in enumerate(getattr(task, "tasks", None) or [task]):
        if not isinstance(subtask, AbsTaskRetrieval):
            continue
        subtask.convert_v1_dataset_format_to_v2(num_proc=None)
        for subset in subtask.hf_subsets if subtask.hf_subsets is not None else subtask.dataset:
            for split in subtask.eval_splits:
                data = subtask.dataset[subset][split]
                documents = len(data["corpus"])
                # Ranked documents are embedded by mteb in one call, which belongs to the cell.
                if documents > min(at_once, model.piece_texts) and not data.get("top_ranked"):
                    starts = range(0, documents, at_once)
                    planned += [Call(number, subset, split, k, min(at_once, documents - k)) for k in starts]
    return planned


def embed(large: Large, crew: Crew, stage: Stage) -> str:
    """Embed the missing pieces on all workers; return a note; the cells report why a piece fails."""
    pieces = [
        Piece(
            k, (large.spec | part,), f"documents of {large.unit.name}, piece {k}", size=part["piece"]["documents"],
            cost=float(part["piece"]["documents"]),
        )
        for k, part in enumerate(large.pieces())
    ]  # fmt: skip
    existing, failures = 0, list[str]()
    for piece, report, given_up in crew.attempt(write_piece, pieces):
        stage.advance(piece.size)
        existing += report is not None and report["existed"]
        failure = given_up if report is None else report["failure"]
        failures += [failure] if failure is not None else []
    note = count(len(pieces), "piece") + (f", {existing} of them finished before" if existing else "")
    return note + (f", {len(failures)} failed, which the cells will repeat: {failures[0]}" if failures else "")


def write_piece(worker: actor.ModelActor, spec: dict[str, Any]) -> dict[str, Any]:
    """Embed one piece and write it, unless its file exists; return the failure, if any."""
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    from tempscale_jobs.evaluate.grid_model import digest

    unit, temperature, piece = RunTask(**spec["unit"]), Temperature.of(spec["temperature"]), Call(**spec["piece"])
    loaded = load_once(worker, spec)
    if isinstance(loaded, str):
        return {"existed": False, "failure": loaded}
    whole, model = loaded
    try:
        task = (getattr(whole, "tasks", None) or [whole])[piece.task]
        corpus = task.dataset[piece.subset][piece.split]["corpus"].select(range(piece.first, piece.first + piece.documents))
        # Read titles and texts as mteb's search does.
        inputs = create_dataloader(corpus, task_metadata=task.metadata, prompt_type=PromptType.document, batch_size=512)
        texts, keys, _ = model.read(inputs, task.metadata, PromptType.document)
        name = digest(keys, "document", temperature)
        at = piece_name(worker.model, temperature, unit, name)
        if worker.storage.exists(at):
            return {"existed": True, "failure": None}
        with worker.noting(f"{unit.slug} documents {name[:12]} τ {temperature.slug}"):
            vectors = model.embed_documents(texts, keys, temperature)
        rows = table(vectors.shape[1]).build({"embedding": row_bytes(vectors)})
        worker.storage.write_table(at, rows, "none")  # Floats hardly compress.
    except Exception as error:
        actor.end_if_lost(error)
        return {"existed": False, "failure": sentence(unit.name, error)}
    worker.note_processor()
    return {"existed": False, "failure": None}


def reader(storage: Storage, model: Model, unit: RunTask) -> Callable[[Temperature, str], np.ndarray | None]:
    """A function that reads the embeddings of a piece of a task's documents, or returns None if nobody embedded it."""

    def read(temperature: Temperature, name: str) -> np.ndarray | None:
        at = piece_name(model, temperature, unit, name)
        return matrix_of_bytes(storage.read_table(at), "embedding") if storage.exists(at) else None

    return read


def remove(run: Run, model: Model, large: Large, missing: Sequence[Temperature]) -> None:
    """Remove the pieces of a task, except those that its missing cells need."""
    needed = {temperature.for_role("document") for temperature in missing}
    for temperature in large.of_documents:
        if temperature not in needed:
            run.storage.remove(_folder(model, temperature, large.unit))


def remove_all(run: Run) -> None:
    """Remove the pieces of an earlier session."""
    run.storage.remove(CELL_DOCUMENTS)


def _folder(model: Model, temperature: Temperature, unit: RunTask) -> str:
    return f"{place(CELL_DOCUMENTS, model, temperature)}/task={unit.slug}"


def piece_name(model: Model, temperature: Temperature, unit: RunTask, name: str) -> str:
    """The file of a piece, named by `grid_model.digest`."""
    return f"{_folder(model, temperature, unit)}/{name}.parquet"
