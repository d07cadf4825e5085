"""The run folder: what a mistake, a kill at the last moment or an odd --out may cost. Nothing."""

import json
import shutil
from dataclasses import replace

import pyarrow as pa
import pytest
from rich.console import Console

from tempscale_jobs.audit.run import audit
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs import folder, provenance
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.finished import completed
from tempscale_jobs.urls import without_secrets


def resolved(out, source="docstrings:pyarrow", **embedding):
    return resolve({"out": str(out), "corpus": {"source": str(source)}, "embedding": embedding})


@pytest.fixture
def journal():
    journal = Journal(Console(stderr=True, quiet=True))
    yield journal
    journal.close()


def finished(out, data):
    """A folder as a finished run leaves it, as far as `begin` looks."""
    run = folder.begin(data)
    folder.complete(run, {"corpus": {}})
    (out / "tables").mkdir()
    (out / "tables" / "kept.parquet").write_bytes(b"kept")


def test_starting_over_with_a_mistake_costs_nothing(tmp_path, minilm, journal):
    out, empty = tmp_path / "run", tmp_path / "empty.jsonl"
    empty.write_text("")
    finished(out, resolved(out))
    for source in (tmp_path / "typo.parquet", empty):
        with pytest.raises(UsageError, match=source.name):
            audit(resolved(out, source), journal, fresh=True)
    asked = {"out": str(out), "corpus": {"source": "docstrings:pyarrow"}, "execution": {"address": "127.0.0.1:1"}}
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:1"):
        audit(resolve(asked), journal, fresh=True)
    assert (out / "tables" / "kept.parquet").read_bytes() == b"kept"
    assert (out / "run.json").is_file()


def test_a_kill_between_the_last_two_steps_costs_nothing(tmp_path, minilm):
    out = tmp_path / "run"
    finished(out, resolved(out))
    Storage(str(out)).write_json(folder.SHARDED, {})  # run.json is there, shards/ not yet away
    run = folder.begin(resolved(out))
    assert run.complete
    assert (out / "tables" / "kept.parquet").read_bytes() == b"kept"
    assert not (out / "shards").exists()


def test_two_folders_of_one_model_are_refused_and_two_models_of_one_name_told_apart(tmp_path, tiny_folder):
    first, second, other = tmp_path / "a" / "model-x", tmp_path / "b" / "model-x", tmp_path / "c" / "model-x"
    shutil.copytree(tiny_folder(), first)
    shutil.copytree(first, second)
    shutil.copytree(tiny_folder(seed=1), other)
    with pytest.raises(UsageError, match="b/model-x'"):
        folder.find_models(resolved(tmp_path / "run", models=[str(first), str(second)]))
    labels = [model.label for model in folder.find_models(resolved(tmp_path / "run", models=[str(first), str(other)]))]
    assert labels[0] == "model-x"
    assert labels[1].startswith("model-x-")


@pytest.mark.parametrize("out", ["/proc/tempscale-run", "{file}/below"])
def test_a_folder_that_cannot_be_written_is_wrong_usage(tmp_path, minilm, out):
    (tmp_path / "file").write_text("x")
    out = out.format(file=tmp_path / "file")
    with pytest.raises(UsageError, match=out):
        folder.begin(resolved(out))


def test_a_strange_folder_is_refused_by_its_url_too(tmp_path, minilm):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(UsageError, match=str(tmp_path)):
        folder.begin(resolved(f"file://{tmp_path}"))
    assert [f.name for f in tmp_path.iterdir()] == ["precious.txt"]


def test_a_schedule_for_another_model_is_refused_before_anything_is_written(tmp_path, minilm):
    data = resolved(tmp_path / "run", temperatures=[1.0, {"by_layer": [0.8, 0.9]}])
    with pytest.raises(UsageError, match=r"2 layers.* 6"):
        folder.begin(data)
    assert not (tmp_path / "run").exists()


def test_a_password_in_the_source_is_not_kept(tmp_path, minilm):
    out = tmp_path / "run"
    config = resolved(out, "http://bob:SECRETPW@127.0.0.1:1/x.jsonl?token=SECRETPW")
    run = folder.begin(config)
    assert "SECRETPW" not in (out / "begun.json").read_text()
    assert "SECRETPW" not in json.dumps(folder.facts(run, config))
    assert "127.0.0.1" in json.loads((out / "begun.json").read_text())["identity"]["config"]["corpus"]["source"]


def test_several_kinds_of_processor_are_listed(tmp_path, minilm):
    config = resolved(tmp_path / "run")
    run = folder.begin(config)
    for name in (provenance.processor(), provenance.processor()):
        provenance.note_processor(run.storage, name, "embedded")
    assert folder.facts(run, config)["byte_identity_exceptions"] == []
    provenance.note_processor(run.storage, "another GPU", "embedded")
    provenance.note_processor(run.storage, "another CPU", "computed")
    first, second = folder.facts(run, config)["byte_identity_exceptions"]
    assert ("embedded on 2" in first, "another GPU" in first) == (True, True)
    assert ("computed on 2" in second, "another CPU" in second) == (True, True)


def test_no_address_in_a_configuration_keeps_its_secrets():
    """Every place of every command's configuration that may be an address with a user and a password."""
    secret = "s3://user:SECRET@bucket/x"
    config = {
        "gate": {"baseline": secret}, "record": {"history": secret}, "correction": secret, "audits": [secret, secret],
        "corpus": {"source": secret}, "queries": {"source": secret}, "embeddings": {"source": secret},
        "tasks": [dict.fromkeys(("source", "corpus", "queries", "qrels"), secret)],
    }  # fmt: skip
    shown = without_secrets(config)
    assert "SECRET" not in json.dumps(shown)
    assert json.dumps(shown).count("s3://***@bucket/x") == 12


def test_a_model_without_prompts_and_a_window_that_it_does_not_have_are_refused(tmp_path, tiny_folder):
    models = [str(tiny_folder())]
    assert folder.window(resolved(tmp_path, models=models, max_length=32)) == 32
    with pytest.raises(UsageError, match="4096"):
        folder.window(resolved(tmp_path, models=models, max_length=4096))
    with pytest.raises(UsageError, match="--prompts model"):
        folder.find_models(resolved(tmp_path, models=models, prompts="model"))


def test_a_model_whose_weights_were_exchanged_ends_the_run_as_incomplete(tmp_path, tiny_folder):
    path = tiny_folder()
    run = folder.begin(resolved(tmp_path / "run", models=[str(path)]))
    folder.check_models(run)
    weights = path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"abcd")
    with pytest.raises(IncompleteRun, match="exchanged"):
        folder.check_models(run)


def test_the_revision_of_a_hub_name_is_in_the_record(tmp_path, minilm):
    config = resolved(tmp_path / "run")
    run = folder.begin(config)
    models = [replace(run.models[0], label="of the hub", revision="abc"), run.models[0]]
    found = folder.facts(replace(run, models=models), config)["models"]
    assert [entry.get("revision") for entry in found.values()] == ["abc", None]


def test_tables_of_an_earlier_version_have_the_names_and_columns_of_this_one():
    earlier = pa.table({"ranking": ["socm"], "kept_by_frobenius": pa.array([7], pa.int64()), "of_another_tool": [1]})
    found = completed("socm_search", earlier)
    assert found.column("kept_by_factors").to_pylist() == [7]
    assert found.column("texts").to_pylist() == [None]
    assert found.column_names[-1] == "of_another_tool"
    assert "kept_by_frobenius" not in found.column_names
    assert completed("of_another_tool", earlier) == earlier
