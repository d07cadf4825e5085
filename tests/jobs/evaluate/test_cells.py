"""Cells of an evaluation: no score depends on what a worker scored before, and a worker that dies costs its cell alone."""

import math
import os

import numpy as np
import polars as pl
import pytest

from tempscale import Encoder
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.evaluate import EvaluateConfig, OwnTask
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate.charts import named
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import actor
from tempscale_jobs.workers import cluster as sessions
from tempscale_jobs.workers.dispatch import Crew, Piece

pytest.importorskip("mteb")

from tempscale_jobs.evaluate import scored
from tempscale_jobs.evaluate.grid_model import Checkpoint, GridModel
from tempscale_jobs.evaluate.own_tasks import build
from tempscale_jobs.evaluate.scored import ScoringOptions, score

pytestmark = pytest.mark.proof


@pytest.mark.parametrize("kind", ["clustering", "classification"])
def test_a_cell_is_the_same_whatever_was_scored_before_it(tmp_path, task_texts, small_model, kind):
    labels = [text.split()[0] < "I" for text in task_texts]
    pl.DataFrame({"text": task_texts, "label": labels}).write_parquet(tmp_path / "labels.parquet")
    own = {"name": "labels", "type": kind, "source": str(tmp_path / "labels.parquet")}
    model = GridModel(Encoder.load(small_model, device="cpu", max_length=48), Checkpoint("tiny", "rev"))

    def values(task, *taus):
        cells = [score(task, model, Temperature(tau), ScoringOptions(keep=False)) for tau in taus]
        return [cell.result["scores"]["test"][0]["main_score"] for cell in cells]

    task = build(checked(OwnTask, own), 0)
    first, other, again = values(task, 1.0, 0.5, 1.0)
    assert first == again
    assert first != other
    assert values(build(checked(OwnTask, own), 0), 0.5) == [other]


@pytest.fixture
def config(tmp_path, small_model):
    """An evaluation on one worker."""
    data = {"out": str(tmp_path / "run"), "tasks": ["x"], "execution": {"workers": 1}}
    return checked(EvaluateConfig, data | {"embedding": {"models": [small_model]}})


@pytest.mark.soak
def test_a_piece_that_kills_its_worker_is_given_up_and_the_others_go_on(config, ray_session):
    def kill_or_count(worker, number):  # In here, so that a worker gets it by value.
        if number == 1:
            os._exit(9)
        return number + 1

    run = folder.begin(config)
    pieces = [Piece(k, (k,)) for k in range(4)]
    with sessions.session(config.execution) as cluster, Crew(run, cluster, run.models[0], config.embedding) as crew:
        found = list(crew.attempt(kill_or_count, pieces))
    assert {piece.number: result for piece, result, _ in found if result} == {0: 1, 2: 3, 3: 4}
    ((lost, sentence),) = [(piece.number, why) for piece, result, why in found if result is None]
    assert lost == 1
    assert "\n" not in sentence
    assert len(sentence) > 20


def test_a_lost_gpu_ends_the_process_and_other_errors_do_not(monkeypatch):
    ended = []
    monkeypatch.setattr(os, "_exit", ended.append)
    for error in (ValueError("CUDA error"), RuntimeError("shape mismatch"), RuntimeError("CUDA out of memory")):
        actor.end_if_lost(error)
    assert not ended
    actor.end_if_lost(RuntimeError("CUDA error: an illegal memory access was encountered"))
    assert len(ended) == 1


def test_starting_over_leaves_what_another_command_keeps_inside_the_folder(tmp_path, small_model):
    def begin(seed, fresh):
        data = {"out": str(tmp_path / "runs"), "seed": seed, "embedding": {"models": [small_model]}}
        return folder.begin(resolve(data), fresh=fresh)

    begin(0, False)
    outer = Storage(str(tmp_path / "runs"))
    kept = ("evaluate/run.json", "audit/run.json", "cells/mine.txt", "measured/run.json")
    for name in kept:
        outer.write(name, b"{}")
    outer.write(folder.SHARDED, b"{}")
    with pytest.raises(UsageError, match="seed was 0, now 1"):
        begin(1, False)
    begin(1, True)
    assert all(outer.exists(name) for name in kept)
    assert not outer.exists(folder.SHARDED)


def test_an_evaluation_starts_over_without_its_own_cells(config):
    folder.begin(config)
    storage = Storage(config.out)
    storage.write("cells/a/result.json", b"{}")
    folder.begin(config)
    assert storage.exists("cells/a/result.json")
    folder.begin(config.model_copy(update={"seed": 1}), fresh=True)
    assert not storage.exists("cells")


@pytest.mark.parametrize("fresh", [False, True])
def test_a_remote_folder_of_somebody_else_is_no_run_folder(small_model, fresh):
    out = "memory://bucket-of-another/data"
    Storage(out).write("texts/mine.txt", b"precious")
    with pytest.raises(UsageError, match="is no tempscale run"):
        folder.begin(resolve({"out": out, "embedding": {"models": [small_model]}}), fresh=fresh)
    assert Storage(out).read("texts/mine.txt") == b"precious"


def test_splits_and_subsets_have_names_of_their_own_where_there_are_several():
    rows = [
        ("needle", "test_256", "default"), ("needle", "test_512", "default"), ("plain", "test", "default"),
        ("intent", "test", "en"), ("intent", "test", "de"), ("both", "dev", "en"), ("both", "test", "de"),
        ("lost", None, None),
    ]  # fmt: skip
    table = pl.DataFrame(rows, schema=["task", "split", "subset"], orient="row")
    assert named(table)["name"].to_list() == [
        "needle (test_256)", "needle (test_512)", "plain", "intent (en)", "intent (de)", "both (en, dev)",
        "both (de, test)", "lost",
    ]  # fmt: skip


def test_the_entropy_of_a_classifiers_output_by_hand_and_where_it_has_none():
    class Sure:
        def predict_proba(self, embeddings):
            return np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75]])

    expected = [math.log(2), 0.0, 0.25 * math.log(4) + 0.75 * math.log(4 / 3)]
    np.testing.assert_allclose(scored.entropies(Sure(), np.zeros((3, 4))), expected, atol=1e-12)
    none = scored.entropies(object(), np.zeros((3, 4)))
    assert none.shape == (3,)
    assert np.isnan(none).all()
