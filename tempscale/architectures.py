"""Facts per model family: where the attention query is.

`apply.py` reads this table; nothing else in the project knows a family. A family belongs here only after `verify`
passes on it: scaling the output of its query projection must divide the whole logit by τ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


class UnsupportedArchitecture(ValueError):
    """A model whose attention temperature cannot be set, said in one sentence."""


@dataclass(frozen=True)
class Architecture:
    """Where one family keeps its attention, as paths from the base model (`layers`) and from each layer.

    Scores are linear in the output of `query` and carry no additive position bias, so dividing that output by τ
    divides the logits by τ. `attention` is the module whose forward returns (output, probabilities) when eager.
    """

    layers: str
    attention: str
    query: str


_BERT_LIKE = Architecture(layers="encoder.layer", attention="attention.self", query="attention.self.query")

ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT_LIKE,
    "roberta": _BERT_LIKE,
    "xlm-roberta": _BERT_LIKE,
    "distilbert": Architecture(layers="transformer.layer", attention="attention", query="attention.q_lin"),
}


@dataclass(frozen=True)
class Places:
    """The modules of one layer that matter to temperature."""

    attention: nn.Module
    query: nn.Linear


def base_model(model: nn.Module) -> nn.Module:
    """The transformer inside `model`: a transformers model, with or without a head, or a SentenceTransformer.

    Raises:
        UnsupportedArchitecture: no transformers model is found inside.
    """
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel) and isinstance(model, nn.Sequential) and len(model) > 0:
        first = model[0]
        model = next((child for child in first.children() if isinstance(child, PreTrainedModel)), model)
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedArchitecture(
            f"a {type(model).__name__} is no transformers model; give a PreTrainedModel or a SentenceTransformer"
        )
    found: nn.Module = model.base_model
    return found


def supported(family: str) -> Architecture:
    """The places of a family, by its config's `model_type`.

    Raises:
        UnsupportedArchitecture: the family is not in the table; the message lists those that are.
    """
    if family not in ARCHITECTURES:
        raise UnsupportedArchitecture(
            f"model family '{family}' is not supported; supported families: {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[family]


def places(model: nn.Module) -> list[Places]:
    """The places of every layer of `model`, first layer first.

    Raises:
        UnsupportedArchitecture: the family is not in the table, or the model does not look as the table says.
    """
    base = base_model(model)
    config: Any = base.config
    family = str(getattr(config, "model_type", "") or type(base).__name__)
    architecture = supported(family)
    if getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False):
        raise UnsupportedArchitecture(f"this {family} is configured as a decoder; only the encoder is supported")
    try:
        layers = list(base.get_submodule(architecture.layers).children())
        found = [Places(layer.get_submodule(architecture.attention), _linear(layer, architecture.query)) for layer in layers]
    except AttributeError as error:
        raise UnsupportedArchitecture(f"this {family} is not laid out as expected: {error}") from None
    if not found:
        raise UnsupportedArchitecture(f"this {family} has no layers, so a temperature would change nothing")
    return found


def _linear(layer: nn.Module, path: str) -> nn.Linear:
    module = layer.get_submodule(path)
    if not isinstance(module, nn.Linear):
        raise AttributeError(f"{path} is a {type(module).__name__}, not a Linear")
    return module
