"""A model whose files are exchanged while a run goes on: no figure is of another model than the one that is named."""

import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from prepared import prepared
from safetensors.torch import load_file, save_file
from whole_run import as_lines, audited, digests, documented

from tempscale.model import checkpoint
from tempscale.model.encoder import Encoder
from tempscale_jobs import lifecycle
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import IncompleteRun, OtherModel, UsageError
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.provenance import on_this_machine
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.embed import Into, embed_shard
from tempscale_jobs.workers.actor import ModelActor, Tokenising, tokenizer

pytestmark = pytest.mark.proof

TAUS = [1.0, 0.8]


def other_weights(path, scale=1.5):
    """Exchange a model's weights by a rename, as a deploy does."""
    file = Path(path) / "model.safetensors"
    found = {name: scale * value for name, value in load_file(file).items()}
    save_file(found, file.with_suffix(".new"), metadata={"format": "pt"})
    os.replace(file.with_suffix(".new"), file)


@pytest.fixture
def model(small_model, tmp_path):
    return Path(shutil.copytree(small_model, tmp_path / "model"))


@pytest.fixture
def settings(model, tmp_path):
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("pyarrow")[:40]))

    def settings(out="run", **more):
        return {
            "out": str(tmp_path / out), "corpus": {"source": str(tmp_path / "texts.jsonl")},
            "embedding": {"models": [str(model)], "temperatures": TAUS, "shard_texts": 16},
            "analysis": {"socm_sample": 0, "probe_sample": 0},
            "execution": {"workers": 1, "cache": str(tmp_path / "cache")},
        } | more  # fmt: skip

    return settings


# --- a whole run ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ray_session")
def test_a_model_exchanged_before_it_is_loaded_ends_with_3_and_leaves_nothing(settings, model, monkeypatch, tmp_path):
    """The driver reads model A; before an actor has loaded it, somebody puts another one in its place."""
    begin = folder.begin

    def begun(*given, **how):
        found = begin(*given, **how)
        other_weights(model)
        return found

    shutil.copytree(model, tmp_path / "a")
    audited(settings("expected", execution={"workers": 1}))
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle.folder, "begin", begun)
        with pytest.raises(IncompleteRun, match=f"'{model}'"):
            audited(settings())
    assert not list((tmp_path / "run" / "texts").rglob("*.parquet"))
    assert not list((tmp_path / "cache").rglob("*.parquet"))
    # The new model is not taken for the old one by the same command, and the old one goes on.
    with pytest.raises(UsageError, match=r"models\.model\.fingerprint"):
        audited(settings())
    shutil.copytree(tmp_path / "a", model, dirs_exist_ok=True)
    audited(settings())
    assert digests(tmp_path / "run", "texts", "tables") == digests(tmp_path / "expected", "texts", "tables")


def test_files_that_change_while_they_are_fingerprinted_are_wrong_usage(settings, model, monkeypatch):
    fingerprint = checkpoint.fingerprint

    def read(path):
        found = fingerprint(path)
        other_weights(model)
        return found

    monkeypatch.setattr(checkpoint, "fingerprint", read)
    with pytest.raises(UsageError, match=str(model)):
        folder.find_models(resolve(settings()))


# --- one actor --------------------------------------------------------------------------------------------------------


def of(path, **more):
    path = Path(path)
    known = {"settings": checkpoint.settings_digest(path), "seen": on_this_machine(checkpoint.state(path))}
    return Model("m", str(path), checkpoint.fingerprint(path), 64, **known | more)


@pytest.fixture
def begun(model, tmp_path):
    """An actor, and one shard for it."""
    storage = Storage(str(tmp_path / "run"))
    work = prepared(storage, model, ["a river and a bridge " * (1 + k) for k in range(8)])
    worker = ModelActor(storage, of(model), TAUS, {"max_length": 64, "token_budget": 64}, 0)
    worker.started()
    return worker, work


def embed(worker, work):
    return embed_shard(worker, 0, work, Into(worker.storage))


def overwritten(path):
    """In place: weights are mapped from the disk, so the loaded model itself changes."""
    with (path / "model.safetensors").open("r+b") as stream:
        stream.seek(-50_000, os.SEEK_END)
        stream.write(bytes(50_000))


@pytest.mark.parametrize(
    "exchange", [overwritten, other_weights, shutil.rmtree, lambda path: (path / "vocab.txt").write_text("x")]
)
def test_files_exchanged_under_an_actor_write_no_part(begun, model, tmp_path, exchange):
    worker, work = begun
    before = worker.encoder.encode(["a river"]).embeddings
    exchange(model)
    moved = abs(worker.encoder.encode(["a river"]).embeddings - before).max() > 0
    assert moved == (exchange is overwritten)  # Why this matters.
    with pytest.raises(OtherModel):
        embed(worker, work)
    assert not list((tmp_path / "run" / "texts").rglob("*.parquet"))


def test_files_whose_times_alone_change_are_the_same_model(begun, model, tmp_path):
    worker, work = begun
    for file in model.rglob("*"):
        os.utime(file)
    shutil.copy2(model / "model.safetensors", model / "again")
    os.replace(model / "again", model / "model.safetensors")
    embed(worker, work)
    assert len(list((tmp_path / "run" / "texts").rglob("*.parquet"))) == len(TAUS)


def test_files_of_the_same_state_are_not_read_again(model, tmp_path, monkeypatch):
    own, elsewhere = of(model), of(model, seen="of another machine")
    read = []
    fingerprint = checkpoint.fingerprint
    monkeypatch.setattr(checkpoint, "fingerprint", lambda path: read.append(path) or fingerprint(path))
    for known, reads in ((own, 0), (elsewhere, 1)):
        ModelActor(Storage(str(tmp_path / "run")), known, TAUS, {}, 0).started()
        assert len(read) == reads


def test_a_restarted_actor_that_finds_another_model_runs_nothing(model, tmp_path):
    known = of(model)
    other_weights(model)
    worker = ModelActor(Storage(str(tmp_path / "run")), known, TAUS, {}, 0)
    for call in (worker.started, lambda: worker.run(lambda *given: pytest.fail("it ran"), 0, pa.table({}))):
        with pytest.raises(OtherModel) as told:
            call()
        assert told.value.exit_code == 2


def test_files_exchanged_between_loading_and_proof_are_noticed(model, tmp_path, monkeypatch):
    # A is fingerprinted, B loaded, A put back: what decides is what was there while the actor read.
    known, load = of(model), Encoder.load

    def loaded(*given, **how):
        shutil.copytree(model, tmp_path / "a")
        other_weights(model)
        found = load(*given, **how)
        shutil.copy2(tmp_path / "a" / "model.safetensors", model / "back")
        os.replace(model / "back", model / "model.safetensors")
        return found

    monkeypatch.setattr(Encoder, "load", loaded)
    with pytest.raises(OtherModel):
        ModelActor(Storage(str(tmp_path / "run")), known, TAUS, {}, 0).started()


def test_a_tokenizer_is_proved_where_it_is_loaded(model):
    how = Tokenising(str(model), 64, "truncate", digest=of(model).settings)
    tokenizer.cache_clear()
    assert tokenizer(how)(["a river"]).ids
    (model / "tokenizer_config.json").write_text((model / "tokenizer_config.json").read_text() + " ")
    tokenizer.cache_clear()
    with pytest.raises(OtherModel):
        tokenizer(how)


# --- a hub name -------------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(model, tmp_path, monkeypatch):
    """A hub cache of one repository with two revisions, whose `main` is the first."""
    from huggingface_hub import constants

    home = tmp_path / "hub" / "models--mine--small"
    for revision in ("1" * 40, "2" * 40):
        shutil.copytree(model, home / "snapshots" / revision)
        other_weights(model)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("1" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return home


def test_a_hub_name_means_one_revision_for_the_whole_run(hub, settings, tmp_path):
    data = settings()
    data["embedding"]["models"] = ["mine/small"]
    (own,) = folder.find_models(resolve(data))
    assert (own.name, own.label, own.revision) == (f"mine/small@{'1' * 40}", "small", "1" * 40)
    (hub / "refs" / "main").write_text("2" * 40)
    assert checkpoint.resolve("mine/small").name == "2" * 40
    assert checkpoint.resolve(own.name).name == "1" * 40  # What workers are given.
    ModelActor(Storage(str(tmp_path / "run")), own, TAUS, {}, 0).started()
    data["embedding"]["models"] = [f"mine/small@{'1' * 40}"]
    assert folder.find_models(resolve(data)) == [own]


def test_a_run_whose_hub_name_moved_is_another_run(hub, settings):
    data = settings()
    data["embedding"]["models"] = ["mine/small"]
    begun = folder.begin(resolve(data))
    begun.storage.write_json(folder.SHARDED, {})  # Its corpus was read.
    assert folder.begin(resolve(data)).models == begun.models
    (hub / "refs" / "main").write_text("2" * 40)
    with pytest.raises(UsageError, match=r"models\.small\.fingerprint"):
        folder.begin(resolve(data))
    with pytest.raises(checkpoint.ModelError, match="'mine/small@no-such'"):
        checkpoint.resolve("mine/small@no-such")
