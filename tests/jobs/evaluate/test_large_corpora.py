"""Large corpora: who embeds a piece of documents changes no byte, and no piece is embedded twice."""

import json
import os
from contextlib import closing, nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console
from score_tasks import DOCUMENTS, EDGES, LONGEST, QUERIES, rows_of, settings, tasks_in
from whole_run import as_lines, digests, evaluated

from tempscale import Encoder
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.evaluate import documents, loaded_task, tasks
from tempscale_jobs.evaluate.run import score_missing
from tempscale_jobs.evaluate.tasks import Evaluation
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.observing import Observer
from tempscale_jobs.tables.evaluate import CELL_DOCUMENTS

mteb = pytest.importorskip("mteb")

from mteb.models.search_wrappers import SearchEncoderWrapper  # noqa: E402

from tempscale_jobs.evaluate.grid_model import Checkpoint, GridModel  # noqa: E402

pytestmark = pytest.mark.proof

PIECE = 20
PIECES = 4
"""Of the corpus of 72 documents under one temperature: 20, 20, 20 and 12."""


class InProcess:
    """A crew of one worker in this process, which counts the texts of each run of the model."""

    def __init__(self, run, encoder, loses=False):
        self.worker = SimpleNamespace(
            storage=run.storage, model=run.models[0], encoder=encoder, noting=lambda name: nullcontext(), note_processor=int
        )
        self.loses, self.there, self.embedded = loses, [], []
        """Whether its pieces end their process; the files of pieces when work begins; the texts of each run of the model."""
        self.process = None
        plain = encoder.encode_tokens

        def encode(tokens, **how):
            self.embedded.append((self.process, len(tokens)))
            return plain(tokens, **how)

        self.encode, self.plain = encode, plain

    def attempt(self, process, pieces):
        self.process = process.__name__
        self.there.append(self.worker.storage.list(CELL_DOCUMENTS))
        for piece in pieces:
            if self.loses and process is documents.write_piece:
                yield piece, None, "its process ended"
            else:
                yield piece, process(self.worker, *piece.arguments), None


@pytest.fixture(scope="module")
def encoder(small_model):
    return Encoder.load(small_model, device="cpu", max_length=LONGEST)


@pytest.fixture
def scored(tmp_path, task_files, small_model, encoder, monkeypatch):
    """A function that scores tasks with pieces of some size in this process; the crew, and the stages."""

    def score(out, own, piece=PIECE, loses=False, **embedding):
        monkeypatch.setattr(tasks, "PIECE_TEXTS", piece)
        loaded_task.loaded.clear()
        config = checked(EvaluateConfig, settings(tmp_path / out, small_model, own, **embedding))
        run = folder.begin(config)
        evaluation = Evaluation(run, tuple(tasks.expand(config.tasks)), config.embedding, tuple(EDGES), config.seed)
        crew, stages = InProcess(run, encoder, loses), []
        with (
            closing(Journal(Console(file=open(os.devnull, "w")), [Stages(stages)])) as journal,
            monkeypatch.context() as own,
        ):
            own.setattr(encoder, "encode_tokens", crew.encode)
            wrong = score_missing(evaluation, crew, run.models[0], journal)
        assert not wrong
        assert not run.storage.list(CELL_DOCUMENTS)
        return crew, stages

    return score


class Stages(Observer):
    """An observer that keeps (stage, total, done)."""

    def __init__(self, stages):
        super().__init__()
        self.stages = stages

    def stage(self, name, total):
        super().stage(name, total)
        self.stages.append([name, total, 0])

    def progress(self, done):
        super().progress(done)
        self.stages[-1][2] = done


def cells_of(out):
    """The bytes of each cell's items and relevant documents, and its scores."""
    found = {**digests(out, "cells")}
    for file in Path(out).glob("cells/*/*/*/result.json"):
        found[str(file.relative_to(out))] = json.loads(file.read_text("utf-8"))["mteb"]["scores"]
    assert found
    return found


def run_by(crew, process):
    return [texts for own, texts in crew.embedded if own == process]


def test_all_workers_embed_the_documents_and_cells_that_lost_them_have_the_same_bytes(scored, tmp_path, task_files):
    found, alike, *_ = tasks_in(task_files)
    shared, stages = scored("shared", [found, alike])
    lost, _ = scored("lost", [found, alike], loses=True)
    assert cells_of(tmp_path / "shared") == cells_of(tmp_path / "lost")
    assert run_by(shared, "write_piece") == [20, 20, 20, 12] * 2
    assert sum(run_by(lost, "write_cells")) - sum(run_by(shared, "write_cells")) == 2 * DOCUMENTS
    assert not run_by(lost, "write_piece")
    assert [len(names) for names in shared.there] == [0, 0, 2 * PIECES]  # The cells, the pieces, and the cells again.
    label = "tiny-bert"
    assert stages == [
        [f"score {label}", 4, 2], [f"embed documents {label} found", 2 * DOCUMENTS, 2 * DOCUMENTS],
        [f"score {label} found", 2, 2],
    ]  # fmt: skip


def test_pairs_of_roles_share_the_pieces_of_documents(scored, tmp_path, task_files):
    own = tasks_in(task_files)[:1]
    grid, stages = scored("grid", own, role_grid=True)
    assert run_by(grid, "write_piece") == [20, 20, 20, 12] * 2  # Four cells, two temperatures of documents.
    assert sum(run_by(grid, "write_cells")) == 4 * QUERIES
    assert [stage[1] for stage in stages] == [4, 2 * DOCUMENTS, 4]
    scored("plain", own)
    both = cells_of(tmp_path / "grid")
    plain = cells_of(tmp_path / "plain")
    assert {name: both[name] for name in plain} == plain
    lost, _ = scored("lost", own, loses=True, role_grid=True)
    assert cells_of(tmp_path / "lost") == both
    assert sum(run_by(lost, "write_cells")) == 4 * (QUERIES + DOCUMENTS)


def test_a_corpus_of_one_piece_and_documents_that_are_ranked_already_stay_with_their_cells(
    scored, tmp_path, task_files, task_texts
):
    found, *_ = tasks_in(task_files)
    small, stages = scored("small", [found], piece=DOCUMENTS)
    assert small.there == [[]]
    assert [stage[0] for stage in stages] == ["score tiny-bert"]
    assert run_by(small, "write_cells") == [QUERIES, DOCUMENTS] * 2
    rows = [
        {"query": t[:40], "positives": [t[40:]], "negatives": [task_texts[k - 9][40:]]} for k, t in enumerate(task_texts)
    ]
    (tmp_path / "rows.jsonl").write_text(as_lines(rows))
    ranked, stages = scored("ranked", [{"name": "ranked", "type": "reranking", "source": str(tmp_path / "rows.jsonl")}])
    assert ranked.there == [[]]
    assert len(stages) == 1
    assert max(run_by(ranked, "write_cells")) == PIECE  # Its calls are cut like all others.


def test_a_resumed_run_embeds_the_missing_pieces_and_keeps_those_of_failed_cells(scored, tmp_path, task_files, monkeypatch):
    own, plain, died, scored_pieces = tasks_in(task_files)[:1], documents.write_piece, [], []

    def until_the_sixth(worker, spec):
        if len(scored_pieces) == 5:
            died.append(spec)
            raise KeyboardInterrupt
        scored_pieces.append(spec)
        return plain(worker, spec)

    with monkeypatch.context() as patch:
        patch.setattr(documents, "write_piece", until_the_sixth)
        with pytest.raises(KeyboardInterrupt):
            scored("resumed", own)
    crew, stages = scored("resumed", own)
    assert died
    assert run_by(crew, "write_piece") == [20, 20, 12]
    assert stages[1][1:] == [2 * DOCUMENTS, 2 * DOCUMENTS]
    scored("whole", own)
    assert cells_of(tmp_path / "resumed") == cells_of(tmp_path / "whole")
    kept = documents.Large(tasks.expand(["SciFact"])[0], {}, [Temperature(1.0), Temperature(0.5)], [])
    run = SimpleNamespace(storage=folder.Storage(str(tmp_path / "kept")))
    model = folder.Model("m", "m", "f", LONGEST)
    for temperature in kept.temperatures:
        run.storage.write(documents.piece_name(model, temperature, kept.unit, "0a"), b"x")
    documents.remove(run, model, kept, [Temperature.by_role(query=1.0, document=0.5)])
    assert [name.split("/")[2] for name in run.storage.list(CELL_DOCUMENTS)] == ["temperature=0.5"]


@pytest.mark.parametrize("at_once", [30, 20, 9])
def test_pieces_are_those_of_mtebs_own_calls_titles_and_all(scored, tmp_path, task_files, task_texts, monkeypatch, at_once):
    rows = [row | {"title": f"On {k}" if k % 3 else ""} for k, row in enumerate(rows_of(task_texts)["corpus"])]
    (tmp_path / "titled.jsonl").write_text(as_lines(rows))
    own = [tasks_in(task_files)[0] | {"corpus": str(tmp_path / "titled.jsonl")}]
    monkeypatch.setattr(SearchEncoderWrapper.__init__, "__defaults__", (at_once, None))
    crew, _ = scored("cut", own)
    whole = {30: [20, 10, 20, 10, 12], 20: [20, 20, 20, 12], 9: [9] * 8}[at_once]
    assert run_by(crew, "write_piece") == whole * 2
    assert sum(run_by(crew, "write_cells")) == 2 * QUERIES, "a document was embedded by a cell"


def test_tasks_of_mteb_with_subsets_splits_and_parts_of_an_aggregate(encoder):
    from datasets import Dataset

    new = mteb.get_task("MIRACLRetrieval", languages=["deu", "fin"])
    side = {"queries": [], "relevant_docs": {}, "top_ranked": None}
    rows = {n: Dataset.from_list([{"id": str(k), "title": "", "text": "t"} for k in range(n)]) for n in (20, 41)}
    new.dataset = {"de": {"dev": side | {"corpus": rows[41]}}, "fi": {"dev": side | {"corpus": rows[20]}}}
    model = GridModel(encoder, Checkpoint("tiny", "rev"), piece_texts=PIECE)
    assert documents.calls(new, model) == [documents.Call(0, "de", "dev", 0, 41)]
    assert documents.calls(SimpleNamespace(tasks=[object(), new]), model) == [documents.Call(1, "de", "dev", 0, 41)]
    assert documents.calls(mteb.get_task("STSBenchmark"), model) == []


@pytest.mark.soak
def test_two_workers_give_the_bytes_of_one(no_ray, tmp_path, task_files, small_model, monkeypatch):
    """That a piece is given out again when its worker dies is in test_cells.py and workers/test_sick.py."""
    monkeypatch.setattr(tasks, "PIECE_TEXTS", PIECE)
    one, two = tmp_path / "1", tmp_path / "2"
    for out in (one, two):
        evaluated(settings(out, small_model, tasks_in(task_files)[:2], execution={"workers": int(out.name)}))
        assert not list(out.rglob(f"{CELL_DOCUMENTS}/**/*.parquet"))
    assert digests(two, "tables") == digests(one, "tables")
    assert cells_of(two) == cells_of(one)
