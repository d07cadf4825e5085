"""Save a temperature in a file next to an unchanged checkpoint; this also serves schedules that weights cannot express."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tempscale.model.checkpoint import ModelError, check_weights, read_json, resolve
from tempscale.optional import needs
from tempscale.temperature.schedule import Temperature

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FILE = "tempscale.json"
"""The file of a checkpoint's temperature: `{"temperature": {"by_length": {"0": 1.0, "256": 0.8}}}`."""


def save(model: SentenceTransformer, folder: str | Path) -> None:
    """Write a model with its attached temperature, for `load`.

    The weights stay without the temperature: a program that does not know its file loads the original model.

    Args:
        model: a SentenceTransformer of a supported family, with a temperature attached or without one.
        folder: the folder for `SentenceTransformer.save_pretrained`, created if it is missing.

    Raises:
        UnsupportedArchitecture: the model's family is not supported.
    """
    from tempscale.temperature.attach import attached

    temperature = attached(model) or Temperature(1.0)
    model.save_pretrained(str(folder))
    write(temperature, Path(folder))


def load(name: str | Path, **options: Any) -> SentenceTransformer:
    """Load a SentenceTransformer and attach the temperature that its folder names, if it names one.

    Weights are read from safetensors only, and no code of the checkpoint runs.

    Args:
        name: a folder that `save` or `tempscale export` wrote, or a hub name, NAME or NAME@REVISION.
        options: further arguments of `SentenceTransformer`, such as `device`.

    Returns:
        The model; `encode_query` and `encode_document` use a schedule's temperature for their role.

    Raises:
        ModelError: there is no safetensors model, or its temperature cannot be read.
        TemperatureError: the temperature has another number of layers or heads than the model.
        UnsupportedArchitecture: the model's family is not supported.
        ImportError: sentence-transformers is not installed.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise ImportError(needs("ts.load", "sentence_transformers")) from error

    from tempscale.temperature.attach import attach

    folder = resolve(str(name))
    check_weights(folder)
    temperature = read(folder)
    model_options = {"use_safetensors": True} | options.pop("model_kwargs", {})
    model = SentenceTransformer(str(folder), model_kwargs=model_options, trust_remote_code=False, **options)
    if temperature.is_identity:
        return model
    return attach(model, temperature)


def read(folder: Path) -> Temperature:
    """The temperature that a checkpoint's folder names; 1 where it names none."""
    file = folder / FILE
    if not file.is_file():
        return Temperature(1.0)
    content = read_json(file)
    try:
        return Temperature.of(content["temperature"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"{file} has no temperature: {error}; write it with tempscale.save") from None


def write(temperature: Temperature, folder: Path) -> None:
    """Write or replace the temperature's file in a checkpoint's folder; remove it for τ = 1."""
    file = folder / FILE
    if temperature.is_identity:
        file.unlink(missing_ok=True)
    else:
        file.write_text(json.dumps({"temperature": temperature.as_data()}, indent=2) + "\n", "utf-8")
