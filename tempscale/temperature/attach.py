"""Attach a temperature to a model at run time, and detach it again.

S1 (arXiv 2410.24200) eq. 6: A = softmax(QKᵀ / (τ√d)). The query of each layer is divided by τ after its last non-linear
operation, and so is the additive position bias of T5 and MPNet; the attention kernel stays the same. `families` lists the
place in each architecture, `verify` proves the result, and `fold` makes the same change in the weights.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tempscale.temperature.divisors import Constants, divided, of_heads, text_temperatures
from tempscale.temperature.families import (
    Architecture,
    Places,
    UnsupportedArchitecture,
    base_model,
    family_of,
    places,
    supported,
)
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import Temperature

_ATTACHMENT = "_tempscale_attachment"
Model = TypeVar("Model")
"""A transformers model, or a SentenceTransformer or an Encoder around one; the type that is passed in is returned."""


def attach(model: Model, temperature: Temperature | float | str | Mapping[str, Any]) -> Model:
    """Divide every attention logit of `model` by τ, in place, from now on.

        A = softmax(QKᵀ / (τ√d)), so that A_τ ∝ A_1^{1/τ} row by row         S1 eq. 6

    The query is divided in the precision of the model, and so is the additive position bias of T5 and MPNet; `verify` proves
    the result on the model itself.

    Args:
        model: a transformers model of a supported family, or a SentenceTransformer or an Encoder around one.
        temperature: τ in (0, 2], a schedule, or any value that `Temperature.of` reads. τ = 1 leaves the model unchanged to
            the bit. With a schedule by length each text of a batch has its own τ. A schedule by role takes the role from the
            `encode_query` and `encode_document` of a SentenceTransformer, or from `role(model, "query")`.

    Returns:
        The same model.

    Raises:
        TemperatureError: τ cannot be used, the schedule has another number of layers or heads than the model, or the model
            already has a temperature.
        UnsupportedArchitecture: the model's family is not supported.
    """
    temperature = Temperature.of(temperature)
    layers = places(model)
    base = base_model(model)
    present = attachment(base)
    if present is not None:
        raise TemperatureError(
            f"this model already has temperature {present.temperature.canonical}; "
            f"detach it before attaching {temperature.canonical}"
        )
    temperature.check(len(layers), layers[0].heads)
    setattr(base, _ATTACHMENT, Attachment(temperature, model, base, layers))
    _recompile()
    return model


def detach(model: Model) -> Model:
    """Remove the temperature from `model`, which then computes the same as before `attach`, to the bit.

    Args:
        model: the model that was passed to `attach`, or the transformers model inside it.

    Returns:
        The same model.

    Raises:
        TemperatureError: the model has no temperature.
        UnsupportedArchitecture: it is not a transformers model and does not contain one.
    """
    base = base_model(model)
    present = attachment(base)
    if present is None:
        raise TemperatureError("this model has no temperature to detach")
    present.remove()
    delattr(base, _ATTACHMENT)
    _recompile()
    return model


def attached(model: Any) -> Temperature | None:
    """The temperature that `model` has.

    Args:
        model: as in `attach`.

    Returns:
        The attached temperature; None if there is none.

    Raises:
        UnsupportedArchitecture: it is not a transformers model and does not contain one.
    """
    present = attachment(base_model(model))
    return None if present is None else present.temperature


def attach_tensors(model: Any, temperature: Temperature) -> None:
    """Attach a temperature whose τ are tensors, or change them: compiled code then serves every τ of one kind, also 1."""
    base, layers = base_model(model), places(model)
    temperature.check(len(layers), layers[0].heads)
    if temperature.roles:
        raise TemperatureError("a temperature by role is not compiled; set that of the side that is embedded")
    if len({id(place.query) for place in layers}) < len(layers):
        raise UnsupportedArchitecture(f"{family_of(base)} runs its layers more than once and is not compiled")
    present = attachment(base)
    if present is not None:
        if present.put(temperature):
            return
        detach(model)
    setattr(base, _ATTACHMENT, Attachment(temperature, model, base, layers, in_tensors=True))
    _recompile()


@contextmanager
def role(model: Any, name: str | None) -> Iterator[None]:
    """A context in which `model` embeds texts of one role, for a temperature that depends on the role.

    Args:
        model: as in `attach`.
        name: «query» or «document»; None changes nothing.

    Yields:
        Nothing; the previous role is restored afterwards.

    Raises:
        TemperatureError: the role is unknown, and the model has a temperature.
        UnsupportedArchitecture: it is not a transformers model and does not contain one.
    """
    present = attachment(base_model(model))
    if name is None or present is None:
        yield
        return
    present.temperature.for_role(name)
    before, present.role = present.role, name
    try:
        yield
    finally:
        present.role = before


def _recompile() -> None:
    """Discard compiled code, because torch.compile would ignore the new hooks and continue with the old ones."""
    dynamo = sys.modules.get("torch._dynamo")
    if dynamo is not None:
        dynamo.reset()


def attachment(base: nn.Module) -> Attachment | None:
    """The attachment that `attach` stored on a base model, or None."""
    present = getattr(base, _ATTACHMENT, None)
    return present if isinstance(present, Attachment) else None


class Attachment:
    """The temperature on one model and the hooks that apply it; it is pickled with the model, for process pools."""

    def __init__(
        self, temperature: Temperature, model: Any, base: nn.Module, layer_places: list[Places], in_tensors: bool = False
    ) -> None:
        self.temperature = self._now = temperature
        self._tau_tensors: list[Tensor] = []
        """τ of each layer, of all heads or of each, where compiled code reads it: see `attach_tensors`."""
        self.enabled = True
        """False while `verify` runs the model without the temperature."""
        self.role: str | None = None
        self._task: str | None = None
        self._texts: Tensor | None = None
        self._constants = Constants()
        self._bias: Tensor | None = None
        self._calls: dict[int, int] = {}
        self._patched: list[Any] = []
        self._handles: list[RemovableHandle] = []
        if in_tensors and not temperature.by_text:
            device = next(base.parameters()).device
            with torch.inference_mode(False):
                self._tau_tensors = [torch.tensor(temperature.of_layer(k), device=device) for k in range(len(layer_places))]
        # τ = 1 adds no hook, so that the model stays unchanged to the bit.
        if temperature.is_identity and not in_tensors:
            return
        architecture = supported(family_of(base))
        self._parameters = list(inspect.signature(base.forward).parameters)
        self._around(base, self.begin)
        if isinstance(model, nn.Sequential):  # A SentenceTransformer calls `forward` itself, without the hooks.
            self._around(model[0], self._begin_features)
            self._handles.append(model.register_forward_pre_hook(self._take_task, with_kwargs=True))
        layers: dict[int, list[int]] = {}
        for number, place in enumerate(layer_places):
            layers.setdefault(id(place.query), []).append(number)
        unique = {id(place.query): place for place in reversed(layer_places)}
        for key, numbers in layers.items():
            self._hook(unique[key], numbers, architecture)

    def put(self, temperature: Temperature) -> bool:
        """Write another τ into the tensors; False where the temperature is of another kind."""
        if temperature == self.temperature:
            return True
        if not self._tau_tensors or temperature.by_text or temperature.roles:
            return False
        taus = [torch.tensor(temperature.of_layer(k)) for k in range(len(self._tau_tensors))]
        if any(new.shape != old.shape for new, old in zip(taus, self._tau_tensors, strict=True)):
            return False
        for new, old in zip(taus, self._tau_tensors, strict=True):
            old.copy_(new)
        self.temperature = self._now = temperature
        return True

    def remove(self) -> None:
        """Remove every hook."""
        for handle in self._handles:
            handle.remove()
        for module in self._patched:
            del module.compute_bias

    def _hook(self, place: Places, numbers: list[int], architecture: Architecture) -> None:
        divide = partial(self._divide_query, numbers, architecture.layout)
        self._handles.append(place.query.register_forward_hook(divide))
        if architecture.bias in ("argument", "returned"):
            give = partial(self._give_bias, numbers, list(inspect.signature(place.attention.forward).parameters))
            self._handles.append(place.attention.register_forward_pre_hook(give, with_kwargs=True))
        if architecture.bias == "returned":
            self._handles.append(place.attention.register_forward_hook(self._return_bias))
        if architecture.bias == "own":
            # This bias exists only inside the attention's forward, so the method that computes it is replaced.
            patched: Any = place.attention
            patched.compute_bias = partial(self._own_bias, numbers, patched)
            self._patched.append(patched)

    # ------------------------------------------------------------------------------------------ during a forward pass

    def _around(self, module: nn.Module, begin: Any) -> None:
        self._handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))
        self._handles.append(module.register_forward_hook(self._end))

    def _take_task(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        """Store the task that a SentenceTransformer passes with every batch: queries or documents."""
        self._task = kwargs.get("task")

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Before the first layer: select the schedule of the role, and the τ of each text."""
        if self._tau_tensors:
            return
        self._calls = {}
        if self.enabled:
            self._now = self.temperature.for_role(self.role or self._task)
            if self._now.by_text:
                inputs = dict(zip(self._parameters, args, strict=False)) | kwargs
                self._texts = text_temperatures(self._now, inputs, self._constants)

    def _begin_features(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.begin(module, (), args[0] if args else kwargs["features"])

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        """After the last layer: discard the τ of the texts of this batch."""
        if self._tau_tensors:
            return
        self._now, self._texts = self.temperature, None

    def _of_layer(self, numbers: list[int]) -> float | tuple[float, ...]:
        """τ of the current layer; layers that share weights are distinguished by counting calls."""
        if self._now.by_text or self._now.roles:
            raise TemperatureError(
                f"temperature {self.temperature.canonical} sees no batch: call the model itself, not its `forward`, "
                "and attach to the SentenceTransformer where there is one"
            )
        return self._now.of_layer(numbers[self._calls.get(numbers[0], 0) % len(numbers)])

    def _divide_query(self, numbers: list[int], layout: str, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        if not self.enabled:
            return output
        if self._texts is not None:
            expand = {"token_head": (..., None, None), "head_token": (slice(None), None, slice(None), None)}
            tau: Any = self._texts[expand.get(layout, (..., None))]
        elif self._tau_tensors:
            tau = of_heads(self._tau_tensors[numbers[0]], layout, output)
        else:
            tau = self._of_layer(numbers)
            if len(numbers) > 1:
                self._calls[numbers[0]] = self._calls.get(numbers[0], 0) + 1
            if isinstance(tau, tuple):
                tau = of_heads(self._constants(tau, output.device), layout, output)
        width = output.shape[-1] // (3 if layout == "fused" else 1)
        if not torch.is_grad_enabled():  # Nothing else reads the output, so no copy: half the traffic.
            output[..., :width].div_(tau)
            return output
        query = divided(output[..., :width], tau)
        return torch.cat((query, output[..., width:]), -1) if layout == "fused" else query

    def divide_bias(self, numbers: list[int], bias: Tensor) -> Tensor:
        """A position bias (1, head, token, token), or one a text, divided by τ."""
        if self._texts is not None:
            if self._texts.shape[1] != 1:
                raise TemperatureError("unpadded batches are not supported for models with a position bias")
            return divided(bias, self._texts[..., None, None])
        if self._tau_tensors:
            tau: Any = self._tau_tensors[numbers[0]]
            return divided(bias, tau[:, None, None] if tau.ndim else tau)
        tau = self._of_layer(numbers)
        return divided(bias, self._constants(tau, bias.device)[:, None, None] if isinstance(tau, tuple) else tau)

    def _give_bias(
        self, numbers: list[int], names: list[str], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Replace the shared bias in the arguments of an attention by the same bias divided by this layer's τ."""
        place = names.index("position_bias")
        bias = args[place] if place < len(args) else kwargs.get("position_bias")
        if bias is None and getattr(module, "has_relative_attention_bias", False):
            tokens = (args[0] if args else kwargs["hidden_states"]).shape[1]
            bias = module.compute_bias(tokens, tokens)
        self._bias = bias
        if bias is None or not self.enabled:
            return args, kwargs
        bias = self.divide_bias(numbers, bias)
        if place < len(args):
            return (*args[:place], bias, *args[place + 1 :]), kwargs
        return args, kwargs | {"position_bias": bias}

    def _return_bias(self, module: nn.Module, inputs: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
        """Pass the undivided bias to the next layer, which divides it by its own τ."""
        return output if self._bias is None else (output[0], self._bias, *output[2:])

    def _own_bias(self, numbers: list[int], module: Any, *args: Any, **kwargs: Any) -> Tensor:
        bias: Tensor = type(module).compute_bias(module, *args, **kwargs)
        return self.divide_bias(numbers, bias) if self.enabled else bias
