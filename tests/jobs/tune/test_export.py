"""tempscale export: τ in a plain checkpoint that sentence-transformers and transformers run as it is."""

import json
import stat
import sys

import numpy as np
import pytest
import torch
from command_line import in_process, said, tempscale
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from tiny import LETTERS

import tempscale as ts
from tempscale import Encoder, Temperature, attach
from tempscale.model.checkpoint import default_model
from tempscale_jobs.errors import UsageError
from tempscale_jobs.tune.export import export

TEXTS = ["a short text", "attention is a low-pass filter that gets stronger with length " * 12, "zeros and ones " * 40]


@pytest.fixture(scope="module")
def exported(minilm, tmp_path_factory):
    out = tmp_path_factory.mktemp("export") / "m"
    code, _, stderr = tempscale("export", "--tau", "0.8", "--out", str(out))
    assert code == 0, stderr
    return out, stderr


@pytest.mark.proof
def test_plain_sentence_transformers_equals_the_attached_model(exported, minilm):
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(exported[0]), device="cpu").encode(TEXTS)
    model = SentenceTransformer(str(minilm), device="cpu")
    plain = model.encode(TEXTS)
    np.testing.assert_allclose(found, attach(model, 0.8).encode(TEXTS), atol=1e-6)
    assert np.abs(found - plain).max() > 1e-3


def test_everything_else_that_a_server_needs_is_there(exported, minilm):
    out, _ = exported
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "modules.json", "1_Pooling/config.json",
                 "sentence_bert_config.json"):  # fmt: skip
        assert (out / name).read_bytes() == (minilm / name).read_bytes()
    config = json.loads((out / "config.json").read_text())
    assert config["model_type"] == "bert"
    assert not {"auto_map", "_name_or_path"} & config.keys()
    assert not list(out.rglob("*.bin")) + list(out.rglob("*.py")) + list(out.rglob("*.onnx"))
    modes = {stat.S_IMODE(file.stat().st_mode) for file in out.rglob("*") if file.is_file()}
    assert len(modes) == 1
    assert modes.pop() & 0o600 == 0o600


def test_the_card_and_the_command_say_what_users_must_do(exported):
    out, printed = exported
    card = ModelCard.load(out / "README.md")
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert (card.data.library_name, card.data.pipeline_tag) == ("sentence-transformers", "sentence-similarity")
    assert card.data.tags == ["sentence-transformers", "feature-extraction", "tempscale"]
    assert "| attention temperature | `0.8` |" in card.text
    for told in (card.text, printed):
        assert "queries and the whole index again" in told
    assert str(out) in printed
    assert len(printed.splitlines()) == 3, "no bars of other libraries"


@pytest.mark.parametrize("name", ["team/model", "team/model@v1"])
def test_a_hub_snapshot_gives_its_revision(tiny_folder, tmp_path, monkeypatch, name):
    import shutil

    snapshot = tmp_path / "models--team--model" / "snapshots" / ("0123456789" * 4)
    shutil.copytree(tiny_folder(), snapshot)
    monkeypatch.setattr("tempscale.model.checkpoint.from_hub", lambda name: snapshot)
    export(name, Temperature(0.5), str(tmp_path / "m"))
    card = (tmp_path / "m" / "README.md").read_text()
    assert f"| revision | `{snapshot.name}` |" in card
    assert ModelCard(card).data.base_model == "team/model"


@pytest.mark.parametrize(("front", "found"), [
    ("---\nlicense: apache-2.0\n---\n", {"license": "apache-2.0"}),
    ("---\nlicense: other\nlicense_name: our own\nlicense_link: LICENSE\n---\n",
     {"license": "other", "license_name": "our own", "license_link": "LICENSE"}),
    ("---\nlicense: [\n---\n", {}), ("# No front matter\n", {}),
])  # fmt: skip
def test_the_licence_is_what_the_base_models_card_says(tiny_folder, tmp_path, front, found):
    folder = tiny_folder()
    (folder / "README.md").write_text(front + "\nIts own text\n")
    export(str(folder), Temperature(0.5), str(tmp_path / "m"))
    card = ModelCard.load(tmp_path / "m" / "README.md")
    assert {key: value for key, value in card.data.to_dict().items() if key.startswith("license")} == found
    assert f"| licence | {found.get('license_name') or found.get('license', '')}" in card.text
    assert "Its own text" not in card.text


@pytest.mark.proof
def test_each_family_is_written_and_read_again(tiny_folder, family, tmp_path):
    folder = tiny_folder(family)
    assert export(str(folder), Temperature(0.5), str(tmp_path / "m")).difference < 1e-5
    found = Encoder.load(tmp_path / "m", device="cpu").encode(LETTERS).embeddings
    expected = Encoder.load(folder, temperature=0.5, device="cpu").encode(LETTERS).embeddings
    plain = Encoder.load(folder, device="cpu").encode(LETTERS).embeddings
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found - plain).abs().max() > 1e-3
    assert "base_model" not in (tmp_path / "m" / "README.md").read_text(), "a local folder is no name on the hub"


@pytest.mark.parametrize("temperature", [{"by_layer": [0.5, 0.8, 1.0]}, {"by_head": [[0.5, 0.7, 0.9, 1.0]] * 3}])
def test_a_temperature_file_by_layer_or_head(tiny_folder, tmp_path, temperature):
    file, folder = tmp_path / "t.json", tiny_folder()
    file.write_text(json.dumps(temperature))
    code, _, err = in_process("export", "--model", str(folder), "--temperature", str(file), "--out", str(tmp_path / "m"))
    assert code == 0, err
    found = Encoder.load(tmp_path / "m", device="cpu").encode(LETTERS).embeddings
    expected = Encoder.load(folder, temperature=temperature, device="cpu").encode(LETTERS).embeddings
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_pooler_that_was_never_there_is_not_made_up(tiny_folder, tmp_path):
    folder = tiny_folder()
    weights = load_file(folder / "model.safetensors")
    kept = {name: value for name, value in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    export(str(folder), Temperature(0.5), str(tmp_path / "m"))
    assert load_file(tmp_path / "m" / "model.safetensors").keys() == kept.keys()


def test_half_precision_and_shards_are_kept_apart_from_the_queries(tiny_model, tiny_folder, tmp_path):
    folder = tiny_folder()
    (folder / "model.safetensors").unlink()
    tiny_model("bert").to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert export(str(folder), Temperature(0.5), str(tmp_path / "m")).dtype == "bfloat16"
    state = load_file(tmp_path / "m" / "model.safetensors")
    assert all(value.dtype == torch.bfloat16 for value in state.values())


@pytest.mark.proof
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--tau T or --temperature FILE, or --correction FILE"), (["--tau", "0"], "0.0 is out of range"),
        (["--tau", "nan"], "nan is out of range"), (["--tau", "0.8", "--model", "/no/where"], "/no/where"),
        (["--tau", "0.8", "--temperature", "t.toml"], "--tau T or --temperature FILE"),
        (["--temperature", "/no/t.toml"], "'/no/t.toml'"), (["--tau", "0.9", "--fitted-on", "a"], "--correction"),
        (["--correction", "nowhere.json"], "nowhere.json"), (["--correction", sys.executable], "JSON"),
        (["--tau", "0.5", "--public"], "--push"),
    ],
)  # fmt: skip
def test_wrong_usage_is_named_with_exit_code_2(tmp_path, arguments, named):
    code, stdout, stderr = in_process("export", *arguments, "--out", str(tmp_path / "m"))
    assert (code, named in said(stdout + stderr)) == (2, True), stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", [{"by_layer": [0.5]}, {"by_role": {"query": 1.0, "document": {"by_layer": [0.5]}}}])
def test_what_cannot_be_folded_is_refused_and_leaves_nothing(minilm, tmp_path, data):
    with pytest.raises(UsageError, match="1 layers, the model has 6"):
        export(default_model(), Temperature.of(data), str(tmp_path / "m"))
    assert not list(tmp_path.iterdir())


@pytest.mark.proof
@pytest.mark.parametrize(
    "data", [{"by_length": {"0": 1.0, "32": 0.7}}, {"log_length": 64}, {"by_role": {"query": 1.0, "document": 0.8}}]
)
def test_a_schedule_that_no_weight_can_express_is_written_beside_them(minilm, tmp_path, data):
    from sentence_transformers import SentenceTransformer

    assert export(default_model(), Temperature.of(data), str(tmp_path / "m")).difference < 1e-5
    expected = attach(SentenceTransformer(str(minilm), device="cpu"), Temperature.of(data))
    found = ts.load(tmp_path / "m", device="cpu")
    for name in ("encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(found, name)(TEXTS), getattr(expected, name)(TEXTS), atol=1e-6)
    before, after = load_file(minilm / "model.safetensors"), load_file(tmp_path / "m" / "model.safetensors")
    assert all(torch.equal(after[name], before[name]) for name in after)
    assert "ts.load(" in ModelCard.load(tmp_path / "m" / "README.md").text


def test_a_folder_in_use_a_quantised_model_and_an_adapter_are_refused(tiny_folder, tmp_path):
    def refused(named, out):
        with pytest.raises(UsageError, match=named):
            export(str(folder), Temperature(0.8), str(out))

    folder = tiny_folder()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("x")
    refused("full' is there already", tmp_path / "full")
    refused("/proc/m", "/proc/m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "bitsandbytes"}}))
    refused(r"quantised \(bitsandbytes\)", tmp_path / "m")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "adapter_config.json").write_text("{}")
    refused("adapter_config", tmp_path / "m")
    assert [place.name for place in tmp_path.iterdir()] == ["full"]
