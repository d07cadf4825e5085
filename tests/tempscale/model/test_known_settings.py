"""Every setting of sentence-transformers is obeyed as `SentenceTransformer.encode` does, refused by name, or harmless."""

import importlib
import inspect
import json
import pkgutil
import re
import shutil

import pytest
from sentence_transformers_cases import (
    CASES,
    CASES_OF_6,
    SAME,
    TEXTS,
    apart,
    as_users_have_it,
    change,
    pooling,
    stage,
    theirs,
    tokenizer,
    whole,
)

from tempscale.model import known_settings
from tempscale.model.checkpoint import ModelError
from tempscale.model.encoder import Encoder
from tempscale.model.known_settings import SETTINGS, STAGES
from tempscale.model.tokens import Tokenizer

pytestmark = pytest.mark.proof

pytest.importorskip("sentence_transformers")


def ours(folder, texts=TEXTS):
    return as_users_have_it(Encoder.load(folder, device="cpu"), texts)


@pytest.fixture(scope="module")
def saved(tiny_folder, tmp_path_factory):
    """A tiny model as the installed sentence-transformers saves it."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    folder = tmp_path_factory.mktemp("saved")
    bare = tiny_folder("bert")
    # Without its normaliser, so that lower-casing changes something.
    file = bare / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"normalizer": None}))
    SentenceTransformer(modules=[Transformer(str(bare)), Pooling(32)], device="cpu").save(str(folder))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 64, "do_lower_case": False}))
    return folder


@pytest.fixture
def edited(saved, tmp_path):
    """A function that copies the model, edits it, and returns the folder."""

    def copy(edit):
        folder = shutil.copytree(saved, tmp_path / "edited")
        edit(folder)
        return folder

    return copy


# --- obeyed -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*CASES, *CASES_OF_6])
def test_what_is_obeyed_gives_the_vectors_of_sentence_transformers(saved, edited, case):
    folder = edited((CASES | CASES_OF_6)[case])
    expected = theirs({case: folder})[case]
    found = ours(folder)
    assert apart(found, expected) < 1e-5
    before = ours(saved)
    same = found.shape == before.shape and apart(found, before) < 1e-5
    assert same == (case in SAME)


@pytest.mark.parametrize(
    ("family", "own", "asked", "expected"),
    [
        ("nomic_bert", 64, 100, 100), ("llama", 64, 100, 100), ("t5", 20, 40, 40), ("t5", 10**30, 40, 40),
        ("llama", 10**30, None, 64), ("roberta", 10**30, None, 64), ("roberta", 40, 20, 20),
    ],
)  # fmt: skip
def test_windows_of_families_are_those_of_sentence_transformers(tiny_folder, tmp_path, family, own, asked, expected):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    bare = tiny_folder(family)
    change(bare, "tokenizer_config.json", model_max_length=own)
    SentenceTransformer(modules=[Transformer(str(bare)), Pooling(32)], device="cpu").save(str(tmp_path / "saved"))
    change(tmp_path / "saved", "tokenizer_config.json", model_max_length=own)
    (tmp_path / "saved" / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": asked}))
    model = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    if family == "roberta" and asked is None:  # Theirs is longer than the table of positions, and long texts fail.
        model.max_seq_length = 64
    assert Tokenizer(tmp_path / "saved").max_length == expected
    texts = [*TEXTS, "a b " * 70]
    assert apart(ours(tmp_path / "saved", texts), model.encode(texts)) < 1e-5


def test_a_folder_without_stages_has_the_pooling_that_sentence_transformers_gives_it(tiny_folder):
    folder = tiny_folder("llama")
    mean = ours(folder)
    change(folder, "config.json", architectures=["LlamaForCausalLM"])
    # Files of sentence-transformers without modules.json are not read.
    stage(max_seq_length=5)(folder)
    whole(truncate_dim=3)(folder)
    assert apart(ours(folder), theirs({"": folder})[""]) < 1e-5
    assert apart(ours(folder), mean) > 1e-2


# --- refused ----------------------------------------------------------------------------------------------------------

MESSAGE = {
    "modality_config": {
        "text": {"method": "forward", "method_output_name": "last_hidden_state"},
        "message": {"method": "forward", "method_output_name": "last_hidden_state", "format": "structured"},
    },
    "module_output_name": "token_embeddings",
}


def modules(number, **values):
    """An edit of an entry of modules.json."""

    def edit(folder):
        found = json.loads((folder / "modules.json").read_text())
        found[number] |= values
        (folder / "modules.json").write_text(json.dumps(found))

    return edit


def config(**values):
    """An edit of the transformer's config.json."""
    return lambda folder: change(folder, "config.json", **values)


OF_THE_STAGE = {
    "module_output_name": "sentence_embedding", "transformer_task": "fill-mask", "config_args": {"hidden_act": "relu"},
    "config_kwargs": {"hidden_act": "relu"}, "tokenizer_name_or_path": "other", "query_length": 32, "document_length": 32,
    "query_expansion": {"strategy": "fixed", "length": 32}, "max_sequence_length": 12, "max_seq_length": 2,
}  # fmt: skip
OF_THE_WHOLE = {"truncate_dim": -5, "model_type": "SparseEncoder", "dimensions": 64, "prompts": ["query: "]}
OF_THE_MODEL = {
    "position_embedding_type": "relative_key", "quantization": {"bits": 4, "group_size": 64}, "embedding_size": 16,
    "pruned_heads": {"0": [1]}, "attention_temperature": 0.5, "use_logn_attn": True, "attn_temperature_tuning": 4,
}  # fmt: skip


def other_token_types(folder):
    """Every token of a text is of type 1."""
    tokenizer(model_input_names=["input_ids", "token_type_ids", "attention_mask"])(folder)
    file = folder / "tokenizer.json"
    text = [{"Sequence": {"id": "A", "type_id": 1}}]
    pair = [*text, {"Sequence": {"id": "B", "type_id": 1}}]
    processor = {"type": "TemplateProcessing", "single": text, "pair": pair, "special_tokens": {}}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"post_processor": processor}))


def another_transformer(folder):
    file = folder / "modules.json"
    more = {"idx": 2, "name": "2", "path": "", "type": "sentence_transformers.models.Transformer"}
    file.write_text(json.dumps([*json.loads(file.read_text()), more]))


REFUSED = {
    **{name: stage(**{name: value}) for name, value in OF_THE_STAGE.items()},
    **{name: whole(**{name: value}) for name, value in OF_THE_WHOLE.items()},
    **{name: config(**{name: value}) for name, value in OF_THE_MODEL.items()},
    "message": stage(**MESSAGE),
    "modality_config": stage(modality_config={"image": {"method": "forward"}}, module_output_name="token_embeddings"),
    "hidden_states": stage(
        modality_config={"text": {"method": "forward", "method_output_name": ["hidden_states", -2]}},
        module_output_name="token_embeddings",
    ),
    "subfolder": stage(model_args={"subfolder": "other"}),
    "variant": stage(model_kwargs={"variant": "fp16"}),
    "tokenizer_file": stage(tokenizer_args={"tokenizer_file": "/other/tokenizer.json"}),
    "truncation_side": stage(processor_kwargs={"truncation_side": "middle"}),
    "add_special_tokens": stage(processing_kwargs={"text": {"add_special_tokens": False}}),
    "max_length": stage(processing_kwargs={"text": {"max_length": "12"}}),
    "only_second": stage(processing_kwargs={"text": {"truncation": "only_second"}}),
    "texts": stage(processing_kwargs={"texts": {"max_length": 12}}),
    "adapter_config.json": lambda folder: change(folder, "adapter_config.json", peft_type="LORA", r=4),
    "processor_config.json": lambda folder: change(folder, "processor_config.json", processor_class="X"),
    "mylib.Pooling": modules(1, type="mylib.Pooling"),
    "mylib.models.Transformer": modules(0, type="mylib.models.Transformer"),
    "WeightedLayerPooling": modules(1, type="sentence_transformers.models.WeightedLayerPooling"),
    "Router": modules(0, type="sentence_transformers.models.Router"),
    "SpladePooling": modules(1, type="sentence_transformers.sparse_encoder.models.SpladePooling"),
    "sentence_transformers.models.Attention": modules(1, type="sentence_transformers.models.Attention"),
    "name": modules(1, name="0"),
    "weight": modules(1, weight=0.5),
    "temperature": pooling(pooling_mode="mean", temperature=0.5),
    "include_prompt": pooling(include_prompt="no"),
    "rotary": config(position_embedding_type="rotary"),
    "logn_attention_scale": config(logn_attention_scale=True, auto_map={"AutoModel": "modeling.NewModel"}),
    "llama_4_scaling_beta": config(rope_parameters={"rope_type": "default", "llama_4_scaling_beta": 0.1}),
    "padding_side": tokenizer(padding_side="left"),
    "side 'left'": stage(processor_kwargs={"padding_side": "left"}),
    "attention_mask": tokenizer(model_input_names=["input_ids", "token_type_ids"]),
    "token_type_ids": other_token_types,
    "config_sentence_transformers.json": lambda folder: (folder / "config_sentence_transformers.json").write_text("[1]"),
    "processing_kwargs is": stage(processing_kwargs=[1]),
    "second stage 'Transformer'": another_transformer,
}


@pytest.mark.parametrize("named", REFUSED)
def test_what_is_refused_is_refused_by_name(edited, named):
    folder = edited(REFUSED[named])
    with pytest.raises(ModelError) as error:
        Encoder.load(folder)
    assert named in str(error.value).replace(str(folder), "")
    assert "\n" not in str(error.value)


def test_a_chat_template_of_a_plain_folder_is_refused_and_of_one_with_stages_not_read(tiny_folder, saved, tmp_path):
    plain = tiny_folder("qwen3")
    whole_model = shutil.copytree(saved, tmp_path / "model")
    for folder in (plain, whole_model):
        (folder / "chat_template.jinja").write_text("{% for m in messages %}say {{ m['content'] }}{% endfor %}")
    with pytest.raises(ModelError, match="chat template"):
        Encoder.load(plain)
    assert apart(ours(whole_model), theirs({"": whole_model})[""]) < 1e-5
    assert apart(ours(whole_model), ours(saved)) < 1e-6


def test_the_inner_folder_of_a_model_is_not_taken_for_the_whole(edited):
    from sentence_transformers_cases import nested

    folder = edited(nested)
    with pytest.raises(ModelError) as error:
        Encoder.load(folder / "0_Transformer")
    assert str(error.value).endswith(f"give {folder}")


@pytest.mark.parametrize(
    "extras",
    [
        {"use_cache": True, "position_embedding_type": "absolute", "classifier_dropout": None},
        {"directionality": "bidi", "pooler_fc_size": 768, "pooler_num_fc_layers": 3, "pooler_type": "first_token_transform"},
        {"output_past": True, "task_specific_params": {"a": 1}, "_name_or_path": "x", "torch_dtype": "float32"},
        {"id2label": {"0": "LABEL_0"}, "sbert_ce_default_activation_function": "torch.nn.Identity"},
        {"matryoshka_dimensions": [64], "attn_implementation": None, "adapters": {"adapters": {}, "config_map": {}}},
        {"something_new": None, "another": False, "a_third": {}},
        {"auto_map": {"AutoModel": "code.Model"}, "emb_pooler": "mean", "rotary_emb_base": 1000},
        {"unsloth_fixed": True, "unk_token_id": 1, "pad_token": "[PAD]", "max_seq_length": 512, "prompt_names": ["query"]},
        {"embedding_size": 32, "emb_size": 32, "neuron": {"task": "x"}, "pooling": "mean", "vocab_file": "vocab.txt"},
    ],
)
def test_usual_extras_of_published_models_are_no_hindrance(saved, edited, extras):
    assert apart(ours(edited(config(**extras))), ours(saved)) < 1e-6


@pytest.mark.parametrize(
    ("family", "value"), [("modernbert", "sans_pos"), ("gte", "rope"), ("nomic_bert", "rotary"), ("mpnet", "rotary")]
)
def test_a_kind_of_positions_that_a_family_never_read_is_no_hindrance(tiny_folder, family, value):
    folder = tiny_folder(family)
    before = ours(folder)
    change(folder, "config.json", position_embedding_type=value)
    assert apart(ours(folder), before) == 0


@pytest.mark.parametrize("family", ["electra", "albert", "distilbert"])
def test_padding_on_the_left_is_refused_where_positions_count_it(tiny_folder, family):
    folder = tiny_folder(family)
    change(folder, "tokenizer_config.json", padding_side="left")
    with pytest.raises(ModelError, match="padding_side"):
        Tokenizer(folder)


@pytest.mark.parametrize("family", ["roberta", "qwen2"])
def test_padding_on_the_left_changes_nothing_elsewhere(tiny_folder, family):
    folder = tiny_folder(family)
    before = ours(folder)
    change(folder, "tokenizer_config.json", padding_side="left")
    assert apart(ours(folder), before) < 1e-6
    assert apart(ours(folder), theirs({"": folder})[""]) < 1e-5


_NOMIC = {
    "auto_map": {"AutoModel": "code.Model"}, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_inner": 64, "prenorm": False,
    "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "qkv_proj_bias": False,
    "activation_function": "swiglu", "use_rms_norm": None, "causal": False, "rotary_emb_scale_base": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (None, None), ("n_layer", 2), ("n_head", 8), ("layer_norm_epsilon", 1e-5), ("rotary_emb_base", 10000),
        ("rotary_emb_fraction", 0.5), ("prenorm", True), ("qkv_proj_bias", True), ("activation_function", "gelu"),
    ],
)  # fmt: skip
def test_the_older_names_of_nomic_bert_say_what_is_computed(tiny_folder, name, value):
    folder = tiny_folder("nomic_bert")
    before = ours(folder)
    change(folder, "config.json", **_NOMIC)
    if name is None:
        assert apart(ours(folder), before) == 0
        return
    change(folder, "config.json", **{name: value})
    with pytest.raises(ModelError, match=name):
        Encoder.load(folder)


# --- the list and the installed library -------------------------------------------------------------------------------


def classes():
    """All stages of the installed library, by name."""
    import sentence_transformers
    from sentence_transformers.base.modules.module import Module

    found = {}
    for module in pkgutil.walk_packages(sentence_transformers.__path__, "sentence_transformers."):
        if ".modules" in module.name:
            for name, value in vars(importlib.import_module(module.name)).items():
                if inspect.isclass(value) and issubclass(value, Module) and not name.startswith("_"):
                    found.setdefault(name, set()).add(value)
    return found


def parameters(function):
    return {name for name in inspect.signature(function).parameters if name not in ("self", "model_name_or_path")}


def test_every_stage_of_the_library_is_in_the_list_and_its_name_means_one_class():
    found = classes()
    assert found.keys() - {"Module", "InputModule"} <= STAGES.keys()
    assert all(len(each) == 1 for each in found.values())


@pytest.mark.parametrize("name", [name for name, setting in STAGES.items() if setting.treatment == "obeyed"])
def test_every_key_of_an_obeyed_stage_is_in_the_list(name):
    (stage_class,) = classes()[name]
    group = known_settings.STAGE if name == "Transformer" else name
    keys = set(stage_class.config_keys) | stage_class.config_key_renames.keys() | parameters(stage_class.__init__)
    keys -= {"backend", "init_weight", "init_bias"}  # Arguments that no file can have.
    assert keys <= SETTINGS[group].keys()


def test_every_key_that_the_library_reads_of_a_model_is_in_the_list():
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.model import BaseModel
    from sentence_transformers.base.modules.transformer import Transformer
    from sentence_transformers.sentence_transformer.modules.pooling import _LEGACY_POOLING_MODE_KWARGS

    read = inspect.getsource(BaseModel) + inspect.getsource(SentenceTransformer)
    keys = set(re.findall(r"model_config(?:\.get\(|\[)\"(\w+)\"", read)) | set(
        re.findall(r"config\.get\(\"(model_type)\"", read)
    )
    assert {"prompts", "truncate_dim", "model_type", "requirements"} <= keys <= SETTINGS[known_settings.WHOLE].keys()
    entries = set(re.findall(r"module_config(?:\.get\(|\[)\"(\w+)\"", read))
    assert {"type", "path", "name"} <= entries <= SETTINGS[known_settings.MODULES].keys()
    names = re.findall(r"\"(sentence_[\w-]+_config\.json)\"", inspect.getsource(Transformer.load_config))
    assert tuple(names) == known_settings.CONFIG_NAMES
    assert _LEGACY_POOLING_MODE_KWARGS.keys() <= SETTINGS["Pooling"].keys()
    assert SETTINGS[known_settings.PROCESSING].keys() == Transformer._VALID_PROCESSING_KWARGS_KEYS
    older = inspect.getsource(Transformer._load_init_kwargs)
    assert set(re.findall(r"\"(\w+_args)\": \"\w+\"", older)) <= SETTINGS[known_settings.STAGE].keys()
