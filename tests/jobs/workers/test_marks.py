"""The text that kills its process is found and left out; deaths with other causes leave nothing out."""

import json
import os
import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prepared import prepared
from ray import cloudpickle
from whole_run import as_lines, audited, read_parts, read_record, rejected

from tempscale import Encoder
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.embed import Into, embed_shard
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.marks import DEADLY, Marks, forget

pytestmark = pytest.mark.proof


BATCHES = [[3, 1], [0, 2]]


@pytest.fixture
def storage(tmp_path):
    return Storage(str(tmp_path))


class Death(BaseException):
    """The process is gone: nothing is tidied up."""


def attempt(storage, batches, dies):
    """One process's work on a shard: the batches it ran, or None where it died."""
    marks, ran = Marks(storage, "marks/shard.json"), []
    for batch in marks.begin(batches):
        marks.before(batch)
        if dies(batch):
            return None
        ran.append(batch)
    marks.after()
    marks.done()
    return ran, marks.deadly, marks.halved


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.data())
def test_exactly_what_kills_is_left_out(tmp_path_factory, sizes, data):
    storage = Storage(str(tmp_path_factory.mktemp("marks")))
    numbers = iter(range(100))
    batches = [[next(numbers) for _ in range(size)] for size in sizes]
    everything = [i for batch in batches for i in batch]
    deadly = data.draw(st.sets(st.sampled_from(everything), max_size=3))
    deaths = 0
    while (found := attempt(storage, batches, lambda batch: bool(deadly & set(batch)))) is None:
        deaths += 1
        assert deaths <= 1 + len(deadly) * 8
    ran, left_out, halved = found
    assert set(left_out) == deadly
    assert sorted(i for batch in ran for i in batch) == sorted(set(everything) - deadly)
    assert halved == any(len(batch) > 1 and deadly & set(batch) for batch in batches)
    assert not storage.list("marks")


def test_each_micro_batch_is_marked_only_after_a_death(storage):
    for fine, doing in ((False, "shard"), (True, [3, 4])):
        marks = Marks(storage, "marks/shard.json")
        batches = marks.begin([[1, 2], [3, 4]])
        for batch in batches:
            marks.before(batch)
        assert marks.fine is fine
        assert storage.read_json("marks/shard.json")["doing"] == doing  # The process dies here.


def test_a_shard_loses_the_text_that_kills_its_process_and_no_other(tmp_path, tiny_folder):
    folder, storage = str(tiny_folder()), Storage(str(tmp_path))
    texts = [*(f"a b {letter}" for letter in "cdefghij"), "k z", *(f"m n {letter}" for letter in "opqr")]
    work, deaths, how = prepared(storage, folder, texts), 0, {"max_length": 64, "token_budget": 30}
    while deaths < 20:
        worker = actor.ModelActor(storage, Model("tiny", folder, "", 64), [1.0, 0.5], how, 0)
        (deadly,) = worker.encoder.tokenizer(["z"]).ids
        hidden = worker.encoder.hidden_states

        def guarded(ids, mask, tokens, deadly=deadly[1], hidden=hidden):
            if (ids == deadly).any():
                raise Death
            return hidden(ids, mask, tokens)

        worker.encoder.hidden_states = guarded
        try:
            embed_shard(worker, 0, work, Into(storage))
            break
        except Death:
            deaths += 1
    assert 0 < deaths < 10
    (lost,) = storage.read_table("rejected/model=tiny/part-00000000.parquet").to_pylist()
    assert (lost["text_id"], lost["reason"]) == ("t8", f"tiny: {DEADLY}")
    assert not storage.list("partials/marks")
    for tau in ("1.0", "0.5"):
        (name,) = storage.list(f"texts/model=tiny/temperature={tau}")
        found = storage.read_table(name).column("text_id").to_pylist()
        assert sorted(found) == sorted(f"t{k}" for k in range(len(texts)) if k != 8)


def test_deaths_while_a_shard_is_written_are_not_its_own(storage):
    """Beside it, another shard has a text that kills the process: twenty times would be too often for its own work."""
    for deaths in range(20):
        marks = Marks(storage, "marks/shard.json")
        assert marks.begin(BATCHES) == BATCHES
        assert marks.known["deaths"] == deaths
        for batch in BATCHES:
            marks.before(batch)
        marks.after()
        marks.written()
    assert (marks.deadly, marks.halved) == ([], False)
    marks.done()
    assert not storage.list("marks")


def test_deaths_with_another_cause_or_of_an_earlier_session_change_no_batch(storage):
    for place in (0, 1):
        lives = iter([False] * place + [True])
        assert attempt(storage, BATCHES, lambda batch, lives=lives: next(lives)) is None
    assert attempt(storage, BATCHES, lambda batch: False) == (BATCHES, [], False)
    for _ in range(6):  # A user stops the run at the same place again and again.
        assert attempt(storage, BATCHES, lambda batch: batch == [0, 2]) is None
        forget(storage, "marks")
    assert attempt(storage, BATCHES, lambda batch: False) == (BATCHES, [], False)


def test_what_was_learned_outlives_the_session(storage):
    for _ in range(4):
        assert attempt(storage, [[3, 1, 4], [0, 2]], lambda batch: 4 in batch) is None
    forget(storage, "marks")
    assert storage.read_json("marks/shard.json")["batches"] == [[3, 1], [4], [0, 2]]


def test_processes_that_die_in_ever_other_texts_end_the_session(storage):
    batches = [[k] for k in range(1000)]
    for struck in range(101):
        assert attempt(storage, batches, lambda batch, struck=struck: batch == [struck]) is None
    with pytest.raises(IncompleteRun, match="100 times"):
        attempt(storage, batches, lambda batch: False)
    forget(storage, "marks")  # The next session begins anew.
    assert attempt(storage, batches, lambda batch: False) is not None


def test_a_process_that_dies_again_and_again_before_the_model_runs_ends_the_session(storage):
    for _ in range(7):
        assert Marks(storage, "marks/shard.json").begin(BATCHES) == BATCHES
    with pytest.raises(IncompleteRun, match=r"marks/shard\.json.* 7 "):
        Marks(storage, "marks/shard.json").begin(BATCHES)


@pytest.mark.parametrize("left", ["", "{", "[]", '{"doing": "shard"}'])
def test_a_mark_that_the_fall_of_a_machine_cut_off_is_none(storage, left):
    storage.write("marks/shard.json", left.encode())
    forget(storage, "marks")
    assert storage.list("marks") == []
    storage.write("marks/shard.json", left.encode())
    assert attempt(storage, BATCHES, lambda batch: False) == (BATCHES, [], False)


# --- on Ray -----------------------------------------------------------------------------------------------------------


class KillingActor(actor.ModelActor):
    """Its process dies of one token, fails on another, and runs out of memory over large batches with a third."""

    def __init__(self, **arguments):
        super().__init__(**arguments)
        tokenizer = self.encoder.tokenizer
        kills, fails, fills = (tokenizer([word]).ids[0][1] for word in ("killing", "failing", "filling"))
        hidden = self.encoder.hidden_states

        def guarded(ids, mask, tokens):
            seen = set(ids[mask].tolist())
            if kills in seen:
                with open(self.storage.path("deaths"), "a") as log:
                    log.write("died\n")
                os._exit(1)
            if fails in seen:
                raise IndexError("index out of range in self")
            if fills in seen and len(ids) > 2:
                raise MemoryError
            return hidden(ids, mask, tokens)

        self.encoder.hidden_states = guarded


@pytest.fixture(scope="module")
def survived(no_ray, tmp_path_factory, small_model):
    """An audit over texts of which one kills, one fails and one fills the memory."""
    folder = tmp_path_factory.mktemp("poison")
    random.seed(0)
    words = ["river", "bridge", "winter", "market", "engine", "garden", "paper", "silver"]
    texts = [{"id": f"t{i:03d}", "text": " ".join(random.choices(words, k=random.randint(3, 40)))} for i in range(300)]
    for place, word in ((17, "killing"), (120, "failing"), (244, "filling")):
        texts[place]["text"] += f" {word}"
    file, out = folder / "texts.jsonl", folder / "run"
    file.write_text(as_lines(texts))
    data = {
        "out": str(out), "corpus": {"source": str(file)}, "execution": {"workers": 2},
        "embedding": {"models": [small_model], "shard_texts": 100, "token_budget": 128},
        "analysis": {"socm_sample": 40, "probe_sample": 0},
    }  # fmt: skip
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempscale_jobs.workers.dispatch.ModelActor", KillingActor)
        try:
            audited(data)
        finally:
            cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    return out


@pytest.mark.soak
def test_texts_that_kill_or_fail_are_recorded_and_all_others_analysed(survived, small_model):
    reasons = rejected(survived)
    assert set(reasons) == {"t017", "t120"}
    assert reasons["t017"].endswith(DEADLY)
    assert "IndexError: index out of range in self" in reasons["t120"]
    record = read_record(survived)
    assert record["corpus"]["rejected_by_models"] == 2
    assert len(record["byte_identity_exceptions"]) == 2  # A process died, and memory did not hold a batch.
    texts = {row["id"]: row["text"] for row in map(json.loads, (survived.parent / "texts.jsonl").read_text().splitlines())}
    assert set(read_parts(survived, "texts", 0.8)["text_id"]) == set(texts) - set(reasons)
    found = read_parts(survived, "texts", 1.0)
    assert sorted(found["text_id"]) == sorted(set(texts) - set(reasons))
    expected = Encoder.load(small_model, device="cpu").encode([texts[name] for name in found["text_id"]])
    np.testing.assert_allclose(np.stack(found["embedding"].to_list()), expected.embeddings.numpy(), atol=1e-6)
    np.testing.assert_allclose(found["spread"].to_numpy(), expected.moments.spread.numpy(), rtol=1e-4)


@pytest.mark.soak
def test_the_number_of_deaths_is_bounded(survived):
    assert 4 <= len((survived / "deaths").read_text().splitlines()) <= 9
    assert not list((survived / "partials" / "marks").rglob("*.json"))
