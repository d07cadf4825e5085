"""A model folder -> the transformer itself: safetensors only, no remote code, no weights made up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from tempscale.architectures import Architecture, places, supported
from tempscale.checkpoint import ModelError, first_line, read_json
from tempscale.pooling import transformer_folder
from tempscale.temperature import Temperature


def check_family(folder: Path) -> Architecture:
    """The places of a folder's family, told without loading the model.

    Args:
        folder: a transformers or sentence-transformers folder.

    Returns:
        The family's row of `ARCHITECTURES`.

    Raises:
        UnsupportedArchitecture: the family is not supported.
        ModelError: the folder's config.json cannot be read.
    """
    config = read_json(transformer_folder(folder) / "config.json")
    return supported(str(config.get("model_type") if isinstance(config, dict) else None))


def check_temperatures(folder: Path, temperatures: Iterable[Temperature]) -> None:
    """Raise unless the model of a folder can have each temperature, told without loading the model.

    Args:
        folder: a transformers or sentence-transformers folder.
        temperatures: any.

    Raises:
        UnsupportedArchitecture: the family is not supported.
        TemperatureError: a schedule names other layers or heads than the model has.
        ModelError: the folder's config.json cannot be read.
    """
    from transformers import AutoConfig

    check_family(folder)
    try:
        config = AutoConfig.from_pretrained(transformer_folder(folder), trust_remote_code=False)
        layers = int(config.num_hidden_layers) * int(getattr(config, "inner_group_num", 1))  # ALBERT's groups
        heads = int(config.num_attention_heads)
    except Exception as error:  # Each family checks its own fields, with errors of its own.
        raise ModelError(f"the configuration in {folder} cannot be read: {first_line(error)}") from None
    for temperature in temperatures:
        temperature.check(layers, heads)


def load_transformer(folder: Path, dtype: torch.dtype | str = torch.float32) -> tuple[Any, list[str]]:
    """The transformer of a model folder on the CPU, and the names of weights that the folder does not have.

    Args:
        folder: a transformers or sentence-transformers folder.
        dtype: its precision; "auto" is the checkpoint's own.

    Returns:
        The model and its missing weights: a pooler's at most, which nothing here uses.

    Raises:
        ModelError: the files cannot be read, or weights other than a pooler's are missing.
        UnsupportedArchitecture: the family is not supported, or the model does not look as its family does.
    """
    from transformers import AutoModel, AutoModelForTextEncoding

    # Of T5 only the encoder embeds, and AutoModel would load the decoder too.
    loader = AutoModelForTextEncoding if check_family(folder).encoder_decoder else AutoModel
    try:
        model, found = loader.from_pretrained(
            transformer_folder(folder),
            use_safetensors=True,
            trust_remote_code=False,
            dtype=dtype,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(f"the model in {folder} cannot be loaded: {first_line(error)}") from None
    missing = sorted(found["missing_keys"])
    # transformers would fill them with random numbers.
    needed = [key for key in missing if "pooler." not in key]
    if needed:
        raise ModelError(f"the weights in {folder} are not this model's: {len(needed)} are missing, e.g. {needed[0]}")
    places(model)
    return model.eval(), missing
