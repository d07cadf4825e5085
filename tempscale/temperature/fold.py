"""Fold a temperature into the weights: the result is a plain checkpoint for any server.

The query projection (or the norm after it) and the table of the position bias are divided by τ, which divides the logits by
τ (S1, arXiv 2410.24200, eq. 6). `families` lists where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tempscale.temperature.attach import Model, attached
from tempscale.temperature.families import Places, base_model, family_of, places, supported
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature


def fold(model: Model, temperature: Temperature | float | str | Mapping[str, Any]) -> Model:
    """Divide the weights behind every attention logit by τ, in place and permanently.

        A = softmax(QKᵀ / (τ√d)),  Q ← Q/τ                                   S1 eq. 6

    The division is in float64 and rounded once to the precision of the weights; the table of a position bias (T5, MPNet) is
    divided in the same way.

    Args:
        model: a transformers model of a supported family, or a SentenceTransformer around one, without a temperature.
        temperature: a constant, one by layer, or one by layer and head, each τ in (0, 2].

    Returns:
        The same model, now a plain one: `attached` returns None.

    Raises:
        TemperatureError: weights cannot express this temperature, or the model has one attached.
        UnsupportedArchitecture: the model's family is not supported.
    """
    temperature = Temperature.of(temperature)
    layers = places(model)
    base = base_model(model)
    present = attached(model)
    if present is not None:
        raise TemperatureError(f"this model has temperature {present.canonical} attached; detach it before folding one")
    temperature.check(len(layers), layers[0].heads)
    check_foldable(base, temperature, layers)
    if temperature.is_identity:
        return model
    divided_ids: set[int] = set()
    with torch.no_grad():
        for layer, place in enumerate(layers):
            if id(place.query) not in divided_ids:
                _fold_query(base, place, temperature.of_layer(layer))
            table = place.bias_table
            if table is not None and id(table) not in divided_ids:  # (buckets, heads), each head by its τ.
                divisor = torch.tensor(temperature.of_layer(layer), dtype=torch.float64, device=table.weight.device)
                table.weight.copy_(table.weight.double() / divisor)
            divided_ids |= {id(place.query), id(table)}
    return model


def check_foldable(base: nn.Module, temperature: Temperature, layers: list[Places]) -> None:
    """Raise a TemperatureError unless the weights of `base` can express the temperature."""
    family = family_of(base)
    architecture = supported(family)
    if temperature.by_text:
        raise TemperatureError(
            f"{temperature.canonical} depends on each text's length, which weights do not know; "
            "attach it at run time, or fold a constant"
        )
    if temperature.roles:
        raise TemperatureError(
            f"{temperature.canonical} differs by role, and a checkpoint has one set of weights; "
            "fold each role into a separate checkpoint"
        )
    if temperature.per_head and architecture.layout in ("token_head", "head_token"):
        raise TemperatureError(
            f"one q_norm serves all heads of a layer of {family}, so weights cannot express a temperature for each head; "
            "fold one for each layer, or attach it at run time"
        )
    if len(set(temperature.layers)) > 1:
        if len({id(place.query) for place in layers}) < len(layers):
            raise TemperatureError(
                f"the layers of this {family} share their weights, so they share one temperature; fold a constant"
            )
        if architecture.bias in ("argument", "returned"):
            raise TemperatureError(
                f"the layers of {family} share one position bias, so they share one temperature; fold a constant"
            )
    for number, place in enumerate(layers):
        for module in (place.query, place.bias_table):
            if module is not None:
                _check_plain(number, module)


def _check_plain(layer: int, module: nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if not parameter.is_floating_point() or parameter.is_meta or type(parameter) not in (nn.Parameter, Tensor):
            raise TemperatureError(
                f"layer {layer}: {name} is a {type(parameter).__name__} of {parameter.dtype} on {parameter.device}; "
                "quantised, sharded or offloaded weights cannot be folded: load the model whole and in plain floats"
            )
    if torch.nn.utils.parametrize.is_parametrized(module) or not hasattr(module, "weight"):
        raise TemperatureError(
            f"layer {layer}: its query is wrapped ({type(module).__name__}); merge adapters into the weights first"
        )


def _fold_query(base: nn.Module, place: Places, tau: float | tuple[float, ...]) -> None:
    architecture = supported(family_of(base))
    query: Any = place.query
    if architecture.layout in ("token_head", "head_token"):
        query.weight.copy_((architecture.norm_offset + query.weight.double()) / tau - architecture.norm_offset)
        return
    rows = query.weight.shape[0] // (3 if architecture.layout == "fused" else 1)
    divisor = torch.as_tensor(tau, dtype=torch.float64, device=query.weight.device)
    if divisor.ndim:
        divisor = divisor.repeat_interleave(rows // len(divisor))
    query.weight[:rows] = (query.weight[:rows].double().T / divisor).T
    if query.bias is not None:
        query.bias[:rows] = query.bias[:rows].double() / divisor
