"""Load the transformer of a model folder: from safetensors only, without remote code and without random weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from tempscale.model.checkpoint import ModelError, first_line, read_json, weights
from tempscale.model.known_settings import CONFIG, SETTINGS, is_known, refuse, unknown
from tempscale.model.settings import Settings
from tempscale.temperature.families import Architecture, UnsupportedArchitecture, places, supported
from tempscale.temperature.schedule import Temperature

_MOST_LAYERS = 1000
"""The most layers of a model that is loaded; the largest language models have 130."""
_MOST_LABELS = 100_000
"""The most labels of a classifier: embeddings do not use them, but transformers first makes a list of them."""
_OLD_NAMES = {
    "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
    "n_inner": "intermediate_size", "layer_norm_epsilon": "layer_norm_eps",
}  # fmt: skip
"""Settings of nomic_bert: the names in its authors' code, and those in transformers' class, which ignores the former."""
_COMPUTED = {
    "activation_function": "swiglu", "prenorm": False, "parallel_block": False, "use_rms_norm": False, "causal": False,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False,
}  # fmt: skip
"""The fixed settings of transformers' class of nomic_bert, by the names in its authors' code."""


def check_family(folder: Path) -> Architecture:
    """The table row of the family that a folder's config.json names; the model is not loaded."""
    config = read_json(Settings.of(folder).transformer / CONFIG)
    return supported(str(config.get("model_type") if isinstance(config, dict) else None))


def check_config(folder: Path) -> Any:
    """The model that a folder's config.json describes, without weights; a ModelError names a setting that prevents it."""
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    architecture, file = check_family(folder), Settings.of(folder).transformer / CONFIG
    raw = read_json(file)
    _check_size(raw, file)
    try:
        config = AutoConfig.from_pretrained(file.parent, trust_remote_code=False)
        _check_keys(raw, type(config), file)
        if config.model_type == "nomic_bert":
            _check_old_names(raw, config, file)
        loader = AutoModelForTextEncoding if architecture.encoder_decoder else AutoModel
        with torch.device("meta"):
            model = loader.from_config(config)
        places(model)
    except (ModelError, UnsupportedArchitecture):
        raise
    except Exception as error:  # Each family checks its fields and raises its own errors.
        raise ModelError(f"no model can be made of {file}: {type(error).__name__} {first_line(error)}") from None
    return model


def check_temperatures(model: Any, temperatures: Iterable[Temperature]) -> None:
    """Raise unless a model, which needs no weights, can have each of these temperatures."""
    config = model.config
    layers = int(config.num_hidden_layers) * int(getattr(config, "inner_group_num", 1))  # ALBERT's groups
    for temperature in temperatures:
        temperature.check(layers, int(config.num_attention_heads))


def check_shapes(folder: Path, model: Any) -> None:
    """Raise for weights whose shape is not that of the model; weights that transformers renames are not checked."""
    from safetensors import safe_open

    inner = Settings.of(folder).transformer
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    files = [file for file in weights(inner) if file.parent == inner and file.name.startswith("model")]
    keys = set[str]()
    for file in files:
        with safe_open(file, framework="np") as stream:
            keys.update(stream.keys())
            for key in stream.keys():  # noqa: SIM118  It is no dictionary.
                shape = stream.get_slice(key).get_shape()
                expected = shapes.get(key.removeprefix(f"{model.base_model_prefix}."))
                if expected not in (None, shape):
                    raise ModelError(
                        f"the weights {file} have {key} of shape {shape}, and config.json says {expected}; copy or download "
                        "the model again"
                    )

    if files == weights(inner):  # Otherwise weights are in other files, too.
        last = max((layer for name in shapes for layer in _layers(name)), default=0)
        if not any(last in _layers(key) for key in keys):
            raise ModelError(
                f"the weights in {inner} have no layer {last}, counted from 0, and config.json asks for it; copy or "
                "download the model again"
            )


def _layers(name: str) -> list[int]:
    """The numbers in the name of a weight, such as that of its layer."""
    return [int(part) for part in name.split(".") if part.isdecimal()]


def _check_size(raw: Mapping[str, Any], file: Path) -> None:
    """Raise for impossibly many layers or labels: transformers makes each of them before it reads a weight."""
    layers = 1
    for key in ("num_hidden_layers", "num_layers", "n_layers", "num_hidden_groups", "inner_group_num"):
        value = raw.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelError(f"{file} has {key} = {value!r}; expected a whole number from 1")
        layers = max(layers, value) if key != "inner_group_num" else layers * value
    if layers > _MOST_LAYERS:
        raise ModelError(f"{file} asks for {layers} layers, more than the {_MOST_LAYERS} that are supported")
    labels = raw.get("num_labels")
    if labels is not None and (not isinstance(labels, int) or isinstance(labels, bool) or not 0 <= labels <= _MOST_LABELS):
        raise ModelError(f"{file} has num_labels = {labels!r}; expected a whole number up to {_MOST_LABELS}")


def _check_keys(raw: Mapping[str, Any], declaring: type, file: Path) -> None:
    """Raise for a key that transformers does not read, unless it changes no vector."""
    defaults: Any = declaring()
    declared = defaults.to_dict().keys() | defaults.attribute_map.keys()
    rotary = [raw[name] for name in ("rope_parameters", "rope_scaling") if isinstance(raw.get(name), Mapping)]
    for key, value in [*raw.items(), *(pair for table in rotary for pair in table.items() if pair[0] in SETTINGS[CONFIG])]:
        if key in SETTINGS[CONFIG]:
            if not (families := SETTINGS[CONFIG][key].families) or raw.get("model_type") in families:
                refuse(SETTINGS[CONFIG][key], key, value, file)
        # With auto_map, further keys belong to the authors' code, which sentence-transformers does not run either.
        elif value and key not in declared and not is_known(key, raw) and "auto_map" not in raw:
            raise unknown(key, value, file)


def _check_old_names(raw: Mapping[str, Any], config: Any, file: Path) -> None:
    """Raise where a nomic_bert's settings by their older names differ from the values that transformers uses."""
    computed = {name: getattr(config, attribute) for name, attribute in _OLD_NAMES.items()} | _COMPUTED
    computed["rotary_emb_base"] = config.rope_parameters["rope_theta"]
    for name, value in computed.items():
        if raw.get(name) is not None and raw[name] != value:
            hint = f"; write it as {_OLD_NAMES[name]} if the model was trained so" if name in _OLD_NAMES else ""
            raise ModelError(f"{file} has {name} = {raw[name]!r}, and transformers computes with {value!r}{hint}")


def dimensions(folder: Path) -> int:
    """The dimensions of the embeddings of a checkpoint, from its configurations alone."""
    from transformers import AutoConfig

    from tempscale.model.pooling import load_head

    config = AutoConfig.from_pretrained(Settings.of(folder).transformer, trust_remote_code=False)
    return load_head(folder).width(int(config.hidden_size))


def load_transformer(folder: Path, dtype: torch.dtype | str = torch.float32) -> tuple[Any, list[str]]:
    """The transformer of a model folder on the CPU, and the weights that the folder lacks: at most an unused pooler's."""
    from transformers import AutoModel, AutoModelForTextEncoding

    # AutoModel would also load the decoder of T5, but only the encoder gives embeddings.
    loader = AutoModelForTextEncoding if check_family(folder).encoder_decoder else AutoModel
    try:
        model, info = loader.from_pretrained(
            Settings.of(folder).transformer,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
    except Exception as error:  # Each family and each kind of weights has its own errors.
        raise ModelError(f"the model in {folder} cannot be loaded: {first_line(error)}") from None
    missing = sorted(info["missing_keys"])
    # transformers fills missing weights with random numbers.
    needed = [key for key in missing if "pooler." not in key]
    if needed:
        raise ModelError(f"the weights in {folder} are not this model's: {len(needed)} are missing, e.g. {needed[0]}")
    places(model)
    model.config.return_dict = True  # As in sentence-transformers, whatever the file says.
    return model.eval(), missing


def round_weights(model: Any) -> None:
    """Round a model's weights to bfloat16, in place."""
    for parameter in model.parameters():  # Not the buffers: rounded rotary angles no longer separate distant tokens.
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.bfloat16()
