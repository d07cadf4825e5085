"""From a model folder to the transformer: safetensors only, no remote code, and no weights filled with random numbers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tempscale.model.checkpoint import ModelError, first_line, read_json
from tempscale.model.settings import Settings
from tempscale.temperature.families import Architecture, places, supported
from tempscale.temperature.schedule import Temperature


def check_family(folder: Path) -> Architecture:
    """The table row of the family that a folder's config.json names; the model is not loaded."""
    config = read_json(Settings.of(folder).transformer / "config.json")
    return supported(str(config.get("model_type") if isinstance(config, dict) else None))


def check_temperatures(folder: Path, temperatures: Iterable[Temperature]) -> None:
    """Raise unless the model of a folder can have each of these temperatures; the model is not loaded."""
    from transformers import AutoConfig

    check_family(folder)
    try:
        config = AutoConfig.from_pretrained(Settings.of(folder).transformer, trust_remote_code=False)
        layers = int(config.num_hidden_layers) * int(getattr(config, "inner_group_num", 1))  # ALBERT's groups
        heads = int(config.num_attention_heads)
    except Exception as error:  # Each family checks its fields and raises its own errors.
        raise ModelError(f"the configuration in {folder} cannot be read: {first_line(error)}") from None
    for temperature in temperatures:
        temperature.check(layers, heads)


def dimensions(folder: Path) -> int:
    """The dimensions of the embeddings of a checkpoint, from its configurations alone."""
    from transformers import AutoConfig

    from tempscale.model.pooling import load_head

    config = AutoConfig.from_pretrained(Settings.of(folder).transformer, trust_remote_code=False)
    return load_head(folder).width(int(config.hidden_size))


def load_transformer(folder: Path, dtype: torch.dtype | str = torch.float32) -> tuple[Any, list[str]]:
    """The transformer of a model folder on the CPU, and the names of the weights missing in the folder: at most a pooler's,
    which is not used. The dtype "auto" is the checkpoint's own.
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    # AutoModel would also load the decoder of T5, but only the encoder gives embeddings.
    loader = AutoModelForTextEncoding if check_family(folder).encoder_decoder else AutoModel
    try:
        model, found = loader.from_pretrained(
            Settings.of(folder).transformer,
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {first_line(error)}") from None
    missing = sorted(found["missing_keys"])
    # transformers fills missing weights with random numbers.
    needed = [key for key in missing if "pooler." not in key]
    if needed:
        raise ModelError(f"the weights in {folder} are not this model's: {len(needed)} are missing, e.g. {needed[0]}")
    places(model)
    return model.eval(), missing


def round_weights(model: Any) -> None:
    """Round a model's weights to bfloat16, in place.

    Buffers stay as they are: the angles of rotary positions would lose what tells distant tokens apart.
    """
    for parameter in model.parameters():
        if parameter.dtype == torch.float32:
            parameter.data = parameter.data.bfloat16()
