"""Attaching a temperature to a model, taking it off again, and proving that it does what it should.

S1 (arXiv 2410.24200) eq. 6: A = softmax(QKᵀ / (τ√d)). The output of each layer's query projection is divided by τ, so
the attention kernel (SDPA, eager) stays what it was. Identity: given the same input, A_τ ∝ A_1^{1/τ} row by row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tempscale.architectures import Places, base_model, places
from tempscale.temperature import Temperature, TemperatureError

_ATTACHMENT = "_tempscale_attachment"
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.bfloat16: 8e-2, torch.float16: 2e-2}
Model = TypeVar("Model", bound=nn.Module)


class VerificationError(RuntimeError):
    """A layer's attention did not change as its temperature says it should."""


class _Attachment:
    """The temperature on one model and the hooks that apply it."""

    def __init__(self, temperature: Temperature, found: list[Places]) -> None:
        self.temperature = temperature
        self.enabled = True
        # τ = 1 hooks nothing, so that the untouched model stays the untouched model, to the bit.
        self._handles: list[RemovableHandle] = []
        if not temperature.is_identity:
            self._handles = [place.query.register_forward_hook(self._divide) for place in found]

    def _divide(self, module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output / self.temperature.tau if self.enabled else output

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()


def attach(model: Model, temperature: Temperature | float | str | Mapping[str, Any]) -> Model:
    """Divide every attention logit of `model` by τ, in place, from now on (S1 eq. 6).

    Args:
        model: a transformers model of a supported family, or a SentenceTransformer around one.
        temperature: τ in (0, 2], or anything `Temperature.of` reads. τ = 1 leaves the model bitwise as it is.

    Returns:
        The same model.

    Raises:
        TemperatureError: τ cannot be used, or the model already has a temperature.
        UnsupportedArchitecture: the model's family is not supported.
    """
    temperature = Temperature.of(temperature)
    found = places(model)
    base = base_model(model)
    present = _attachment(base)
    if present is not None:
        raise TemperatureError(
            f"this model already has temperature {present.temperature.canonical}; "
            f"detach it before attaching {temperature.canonical}"
        )
    setattr(base, _ATTACHMENT, _Attachment(temperature, found))
    return model


def detach(model: Model) -> Model:
    """Take the temperature off `model`: it computes again what it did before `attach`, to the bit.

    Raises:
        TemperatureError: the model has no temperature.
    """
    base = base_model(model)
    present = _attachment(base)
    if present is None:
        raise TemperatureError("this model has no temperature to detach")
    present.remove()
    delattr(base, _ATTACHMENT)
    return model


def attached(model: nn.Module) -> Temperature | None:
    """The temperature that `model` has, or None."""
    present = _attachment(base_model(model))
    return None if present is None else present.temperature


def verify(model: nn.Module) -> None:
    """Raise unless, in every layer and given the same input, A_τ ∝ A_1^{1/τ} row by row (S1 eq. 6).

    Runs a few seeded random token sequences, padded, with eager attention; feeds each layer's attention its own input
    again with the temperature off; and compares log A_τ with (log A_1) / τ after removing each row's constant, in
    float64, relative to the size of the change. Then checks that the model's own attention kernel gives the same output.

    Raises:
        TemperatureError: the model has no temperature.
        VerificationError: a layer did not change as it should, or cannot tell (its logits are constant).
        UnsupportedArchitecture: the model's family is not supported.
    """
    base: Any = base_model(model)
    present = _attachment(base)
    if present is None:
        raise TemperatureError("this model has no temperature to verify; attach one first")
    found = places(model)
    was_training, kernel = base.training, base.config._attn_implementation
    base.eval()
    try:
        with torch.no_grad():
            inputs = _probe_inputs(base)
            output = base(**inputs)[0]
            base.set_attn_implementation("eager")
            with _recorded(found) as calls:
                eager = base(**inputs)[0]
            tolerance = _TOLERANCE[output.dtype]
            for layer, (place, call) in enumerate(zip(found, calls, strict=True)):
                present.enabled = False
                untouched = place.attention(*call["args"], **call["kwargs"])[1]
                present.enabled = True
                _check_power(layer, call["probabilities"], untouched, present.temperature.tau, tolerance)
            kept = inputs["attention_mask"].bool()
            difference = (output - eager)[kept].abs().max() / eager[kept].abs().max()
            if not difference <= tolerance:
                raise VerificationError(
                    f"the model's {kernel} attention and eager attention differ by {float(difference):.2g} (relative); "
                    "the temperature does not reach the kernel"
                )
    finally:
        present.enabled = True
        base.set_attn_implementation(kernel)
        base.train(was_training)


def _attachment(base: nn.Module) -> _Attachment | None:
    present = getattr(base, _ATTACHMENT, None)
    return present if isinstance(present, _Attachment) else None


def _probe_inputs(base: nn.Module) -> dict[str, Tensor]:
    config: Any = base.config
    generator = torch.Generator().manual_seed(0)
    lengths = torch.tensor([[24], [17], [9]])
    ids = torch.randint(5, int(config.vocab_size), (3, 24), generator=generator)
    mask = (torch.arange(24) < lengths).long()
    padding = config.pad_token_id if config.pad_token_id is not None else 0
    device = next(base.parameters()).device
    return {"input_ids": torch.where(mask.bool(), ids, padding).to(device), "attention_mask": mask.to(device)}


@contextmanager
def _recorded(found: list[Places]) -> Iterator[list[dict[str, Any]]]:
    """Record what each layer's attention was given and the probabilities that it computed."""
    calls: list[dict[str, Any]] = []

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        calls.append({"args": args, "kwargs": kwargs, "probabilities": output[1]})

    handles = [place.attention.register_forward_hook(record, with_kwargs=True) for place in found]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _check_power(layer: int, sharpened: Tensor, untouched: Tensor, tau: float, tolerance: float) -> None:
    """Raise unless the rows of `sharpened` are those of `untouched` to the power 1/τ, renormalised.

    The power is fitted over all entries, where rounding averages out, and then every entry is compared.
    """
    seen = (untouched > 1e-6) & (sharpened > 1e-6)
    measured, logits = _centred_log(sharpened, seen), _centred_log(untouched, seen)
    # Rounding of a probability moves its logarithm by one ulp; logits no larger than that prove nothing.
    noise = 8 * torch.finfo(untouched.dtype).eps
    if not logits.abs().max() > 4 * noise:
        raise VerificationError(f"layer {layer}: attention logits are too even to tell whether the temperature is applied")
    power = float((measured * logits).sum() / logits.square().sum())
    error = (measured - logits / tau).abs().max()
    if not (abs(power * tau - 1) <= tolerance / 8 and error <= tolerance * logits.abs().max() / tau + noise):
        raise VerificationError(
            f"layer {layer}: log A_τ differs from (log A_1)/{tau:g} by {float(error):.2g} (fitted τ {1 / power:.4g}); "
            "the temperature is not applied as it should be"
        )


def _centred_log(probabilities: Tensor, seen: Tensor) -> Tensor:
    """Each row's logarithms less their mean over what is seen; 0 elsewhere."""
    logs = torch.where(seen, probabilities.double(), 1.0).log()
    mean = logs.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(seen, logs - mean, 0.0)
