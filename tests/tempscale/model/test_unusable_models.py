"""Models that cannot be used are refused in one sentence, by the library and by a run before Ray starts."""

import json
import shutil

import pytest
from sentence_transformers_cases import change, tokenizer

from tempscale.model.checkpoint import ModelError, check_weights, resolve
from tempscale.model.encoder import Encoder
from tempscale.model.loading import check_config, check_shapes
from tempscale.model.tokens import Tokenizer
from tempscale_jobs.config import audit
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import find_models


@pytest.fixture(scope="module")
def whole(tiny_folder):
    """A tiny model that can be used."""
    return tiny_folder("bert")


def config(**values):
    return lambda folder: change(folder, "config.json", **values)


def without(*names):
    def edit(folder):
        for name in names:
            (folder / name).unlink()

    return edit


def another_word(folder):
    found = json.loads((folder / "tokenizer.json").read_text())
    found["model"]["vocab"]["zebra"] = 500
    (folder / "tokenizer.json").write_text(json.dumps(found))


def index(name):
    """Weights in a file that an index names."""

    def edit(folder):
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (folder / "model.safetensors").rename(place)
        found = {"metadata": {}, "weight_map": {"embeddings.word_embeddings.weight": name}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(found))
        # Something of the model is in its folder.
        (folder / "other.safetensors").write_bytes(place.read_bytes())

    return edit


def long_header(folder):
    """A header of as many bytes as 1.5 million tensors need, in a file without blocks on the disk."""
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write((90 << 20).to_bytes(8, "little"))
        stream.truncate(91 << 20)


def lying_header(folder):
    file = folder / "model.safetensors"
    file.write_bytes((1 << 40).to_bytes(8, "little") + file.read_bytes()[8:])


def weights(damage):
    def edit(folder):
        file = folder / "model.safetensors"
        file.write_bytes(damage(file.read_bytes()))

    return edit


def pickled(later):
    """Weights that are pickled, where those of a later stage are not."""

    def edit(folder):
        (folder / later).mkdir()
        (folder / "model.safetensors").rename(folder / later / "model.safetensors")
        (folder / "pytorch_model.bin").write_bytes(b"pickle")

    return edit


def stages(*rows):
    """Stages in these folders, of these kinds."""

    def edit(folder):
        own = [
            {"idx": k, "path": path, "type": f"sentence_transformers.models.{kind}"} for k, (path, kind) in enumerate(rows)
        ]
        (folder / "modules.json").write_text(json.dumps(own))

    return edit


def another_beginning(folder):
    stages(("0_StaticEmbedding", "StaticEmbedding"))(folder)
    without("config.json")(folder)


def no_transformer(folder):
    stages(("0_Transformer", "Transformer"))(folder)
    (folder / "0_Transformer").mkdir()


UNUSABLE = {
    "quantised": ("quantization_config", config(quantization_config={"load_in_4bit": True, "quant_method": "bitsandbytes"})),
    "no heads": ("config.json", config(num_attention_heads=0)),
    "heads that do not divide": ("config.json", config(num_attention_heads=5)),
    "a negative width": ("config.json", config(hidden_size=-4)),
    "another width": ("shape", config(hidden_size=64)),
    "an unknown activation": ("config.json", config(hidden_act="nothing")),
    "no layers": ("num_hidden_layers", config(num_hidden_layers=0)),
    "fewer layers in the weights": ("layer 8", config(num_hidden_layers=9)),
    "a billion labels": ("num_labels", config(num_labels=10**9)),
    "layers in words": ("num_hidden_layers", config(num_hidden_layers="three")),
    "100,000 layers": ("100000", config(num_hidden_layers=100_000)),
    "a table that is too small": ("shape", config(vocab_size=50)),
    "a word beyond the table": ("vocab_size", another_word),
    "a window in words": ("model_max_length", tokenizer(model_max_length="512")),
    "half a token": ("model_max_length", tokenizer(model_max_length=2.5)),
    "a negative window": ("model_max_length", tokenizer(model_max_length=-1)),
    "a window of nothing": ("model_max_length", tokenizer(model_max_length=0)),
    "a window that is a list": ("model_max_length", tokenizer(model_max_length=[64])),
    "no tokenizer": ("tokenizer.json", without("tokenizer.json")),
    "no tokenizer at all": ("tokenizer.json", without("tokenizer.json", "tokenizer_config.json")),
    "a damaged tokenizer": ("tokenizer", lambda folder: (folder / "tokenizer.json").write_text("{")),
    "a header of 90 MiB": ("90 MiB", long_header),
    "a header that lies": ("header", lying_header),
    "half of the weights": ("model.safetensors", weights(lambda whole: whole[: len(whole) // 2])),
    "weights without a header": ("model.safetensors", weights(lambda whole: whole[:7])),
    "weights of no byte": ("model.safetensors", weights(lambda whole: b"")),
    "pickled weights": ("pickled", pickled("elsewhere")),
    "pickled weights beside those of a later stage": ("pickled", pickled("2_Dense")),
    "a stage above the folder": ("../other", stages(("", "Transformer"), ("../other", "Pooling"))),
    "a stage above the folder, by a detour": ("1/../../other", stages(("", "Transformer"), ("1/../../other", "Pooling"))),
    "a stage elsewhere": ("/etc", stages(("", "Transformer"), ("/etc", "Pooling"))),
    "a stage whose path is no text": ("path", stages((None, "Transformer"))),
    "another first stage": ("StaticEmbedding", another_beginning),
    "a first stage that is missing": ("0_Transformer", no_transformer),
    "weights above the folder": ("../w.safetensors", index("../w.safetensors")),
    "weights above the folder, by a detour": ("1/../../w.safetensors", index("1/../../w.safetensors")),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_run_refuses_it_in_one_sentence_before_ray_starts(whole, tmp_path, case):
    named, edit = UNUSABLE[case]
    folder = shutil.copytree(whole, tmp_path / "model")
    edit(folder)
    with pytest.raises(UsageError) as error:
        find_models(audit.resolve({"embedding": {"models": [str(folder)]}}))
    assert named in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 600
    for use in (check_weights, Encoder.load):
        try:
            use(folder)
        except ValueError:
            break
    else:
        pytest.fail("the library uses it")


def test_weights_of_an_absolute_path_are_refused_and_those_in_a_folder_of_the_model_are_not(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "model")
    index("parts/w.safetensors")(folder)
    check_weights(folder)
    check_shapes(folder, check_config(folder))  # Of what is in the folder itself, which need not be all.
    (folder / "other.safetensors").rename(folder / "model.safetensors")
    index(str(tmp_path / "elsewhere.safetensors"))(folder)
    with pytest.raises(ValueError, match=r"elsewhere.safetensors"):
        check_weights(folder)


def test_a_tokenizer_without_a_window_needs_one(tiny_folder):
    folder = tiny_folder("t5")
    change(folder, "tokenizer_config.json", model_max_length=...)
    for asked in (None, "limit"):
        with pytest.raises(ValueError, match="--max-length"):
            Tokenizer(folder, asked)
    assert Encoder.load(folder, max_length=40, device="cpu").encode(["a b " * 100]).truncated.tolist() == [True]
    with pytest.raises(UsageError, match="--max-length"):
        find_models(audit.resolve({"embedding": {"models": [str(folder)]}}))


def test_what_is_lower_case_already_is_not_made_so_twice(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "model")
    stages = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(stages))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": True}))
    asked, plain = Tokenizer(folder), Tokenizer(whole)
    assert asked(["Some TEXT"]).ids == plain(["some text"]).ids == plain(["Some TEXT"]).ids


def slow_tokenizer(folder):
    """A class of tokenizers that transformers has in Python only."""
    for file in folder.glob("*token*"):
        file.unlink()
    (folder / "vocab.txt").write_text("a")  # A vocabulary, which this class does not read.
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CanineTokenizer", "model_max_length": 64}))


def no_vocabulary(folder):
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text("{}")  # Of another class.
    settings = {"tokenizer_class": "BertTokenizerFast", "model_max_length": 64}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize(
    ("family", "edit", "named"),
    [
        ("bert", slow_tokenizer, "tokenizer.json"),
        ("bert", no_vocabulary, "vocab.txt"),
        ("roberta", config(pad_token_id=None), "pad_token_id"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused_by_name(tiny_folder, family, edit, named):
    folder = tiny_folder(family)
    edit(folder)
    with pytest.raises(ModelError) as error:
        Tokenizer(folder)
    assert named in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_beside_the_stages_of_a_model_is_a_model_of_its_own(whole, tmp_path):
    parent = tmp_path / "parent"
    parent.mkdir()
    (parent / "modules.json").write_text(
        json.dumps([{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}])
    )
    first, other = shutil.copytree(whole, parent / "0_Transformer"), shutil.copytree(whole, parent / "checkpoint-500")
    assert resolve(str(other)) == other
    with pytest.raises(ModelError, match="only a part"):
        resolve(str(first))


def test_a_file_of_settings_that_is_too_long_is_not_read(whole, tmp_path):
    folder = shutil.copytree(whole, tmp_path / "model")
    with (folder / "config.json").open("ab") as stream:
        stream.truncate((1 << 28) + 1)  # Without blocks on the disk.
    with pytest.raises(ModelError, match=r"config\.json"):
        Encoder.load(folder)


def test_the_bound_of_layers_is_a_thousand_for_shared_ones_too(tiny_folder):
    folder = tiny_folder("albert")
    change(folder, "config.json", num_hidden_layers=500)  # Two groups of so many.
    assert Encoder.load(folder, device="cpu").model.config.num_hidden_layers == 500
    change(folder, "config.json", num_hidden_layers=1001)
    with pytest.raises(ValueError, match="2002"):
        Encoder.load(folder)
