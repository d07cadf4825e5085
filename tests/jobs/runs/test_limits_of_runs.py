"""What a run's folder, its models and its machines may be at their limits."""

import json
from types import SimpleNamespace

import pyarrow as pa
import pytest

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.runs import folder
from tempscale_jobs.runs.folder import BEGUN, Model, begun_record, check_models, find_models, window
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import nodes

# --- models -----------------------------------------------------------------------------------------------------------


def config(model, **embedding):
    return resolve({"embedding": {"models": [str(model)]} | embedding})


def test_a_model_without_prompts_has_none_to_put_before_texts(tiny_folder):
    path = tiny_folder("bert")
    with pytest.raises(UsageError, match="--prompts model"):
        find_models(config(path, prompts="model"))
    (model,) = find_models(config(path))
    run = SimpleNamespace(models=[model, Model("given", "", "", 64)])
    check_models(run)
    (path / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes()[:-4] + b"abcd")
    with pytest.raises(IncompleteRun, match="exchanged"):
        check_models(run)


def test_a_window_that_the_model_does_not_have_is_refused(tiny_folder):
    path = tiny_folder("bert")
    assert window(config(path, max_length=32)) == 32
    with pytest.raises(UsageError, match="4096"):
        window(config(path, max_length=4096))


def test_the_revision_of_a_hub_name_is_in_the_record(monkeypatch, tmp_path):
    storage = Storage(str(tmp_path))
    begun = {"run": "1", "started": folder.now(), "processor": "x", "identity": {"versions": {}}}
    models = [Model("one", "a/one", "f1", 64, revision="abc"), Model("two", "a/two", "f2", 64)]
    run = SimpleNamespace(storage=storage, models=models, night=None, temperatures=[])
    monkeypatch.setattr(folder, "started", lambda run: begun)
    monkeypatch.setattr(folder, "processors", lambda storage, kinds: [])
    facts = folder.facts(run, resolve({}))
    assert {name: entry.get("revision") for name, entry in facts["models"].items()} == {"one": "abc", "two": None}


# --- the folder -------------------------------------------------------------------------------------------------------


def test_a_folder_that_says_of_no_run_that_it_is_one_is_refused(tmp_path):
    storage = Storage(str(tmp_path / "run"))
    assert begun_record(storage, False) is None
    storage.write_json(BEGUN, {"identity": "none"})
    with pytest.raises(UsageError, match="--fresh"):
        begun_record(storage, False)
    assert begun_record(storage, True) == {"identity": {}}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="file"):
        begun_record(Storage(str(tmp_path / "file")), False)


def test_a_remote_folder_is_removed_where_it_holds_no_file():
    storage = Storage("memory://limits/run")
    storage.write("texts/kept.json", b"{}")
    storage.remove_empty("texts")
    assert storage.exists("texts/kept.json")
    storage.remove("texts/kept.json")
    storage.remove_empty("texts")
    storage.remove_empty("nothing")
    assert not storage.list("texts")
    storage.sweep()  # Nothing is left half written there.


def test_columns_of_a_later_version_are_null_in_an_earlier_table(tmp_path):
    storage = Storage(str(tmp_path))
    storage.write_table("t.parquet", pa.table({"a": [1, 2], "b": ["x", "y"]}))
    later = {"c": pa.int64(), "b": pa.string()}
    found = storage.read_table("t.parquet", ["a"], later)
    assert found.to_pydict() == {"a": [1, 2], "b": ["x", "y"], "c": [None, None]}
    assert found.schema.field("c").type == pa.int64()


# --- the machines of a cluster ----------------------------------------------------------------------------------------


@pytest.fixture
def answering(monkeypatch, tmp_path):
    """A function that lets two machines answer a question; the second as it is told."""
    told = {}

    def ask(question, arguments, **limits):
        for node in arguments:
            if told["silent"] and node == "n2":
                yield node, None
            elif question is nodes.answer:
                for root in arguments[node][0]:
                    Storage(root).write(f"{nodes.PROOF}-{arguments[node][2]}/{node}", arguments[node][2].encode())
                yield node, told["answer"]
            else:
                yield node, told["sees"] or node == "n1"

    monkeypatch.setattr(nodes, "_alive", lambda: {"n1": "10.0.0.1", "n2": "10.0.0.2"})
    monkeypatch.setattr(nodes, "ask_nodes", ask)

    def set_to(silent=False, answer=([True], [], "amd"), sees=True):
        told.update(silent=silent, answer=answer, sees=sees)
        return Storage(str(tmp_path / "run"))

    return set_to


def test_the_processors_of_all_machines_are_noted(answering, monkeypatch):
    storage, noted = answering(), []
    monkeypatch.setattr(nodes, "note_processor", lambda storage, kind, what: noted.append((kind, what)))
    nodes.check_run(SimpleNamespace(storage=storage, models=[Model("tiny", "a/tiny", "f", 64)]), [("--out", storage)])
    assert noted == [("amd", "computed")]
    assert not storage.list("")


def test_a_machine_that_does_not_answer_or_sees_other_files_is_named(answering):
    with pytest.raises(IncompleteRun, match=r"10\.0\.0\.2"):
        nodes.check_shared([("--out", answering(silent=True))], [])
    with pytest.raises(UsageError, match=r"--out.*10\.0\.0\.1"):
        nodes.check_shared([("--out", answering(answer=([False], [], "amd")))], [])
    with pytest.raises(UsageError, match=r"/models/tiny.*10\.0\.0\.1"):
        nodes.check_shared([("--out", answering(answer=([True], [False], "amd")))], ["/models/tiny"])


def test_tasks_run_where_their_files_are(answering, tmp_path, monkeypatch):
    import ray

    file = tmp_path / "corpus.jsonl"
    file.write_text(json.dumps({"text": "a"}))
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "n1"))
    answering(sees=True)
    assert nodes.that_sees([]) == {}
    assert nodes.that_sees([str(file)]) == {}
    answering(sees=False)
    assert nodes.that_sees([str(file)]) == {"label_selector": {nodes.NODE_LABEL: "n1"}}
    answering(silent=True)
    assert nodes.that_sees([str(file)]) == {"label_selector": {nodes.NODE_LABEL: "n1"}}
    size = file.stat().st_size
    assert nodes._sees([(str(file), size)])
    assert not nodes._sees([(str(file), size + 1)])
    assert not nodes._sees([(str(tmp_path / "gone"), 1)])
