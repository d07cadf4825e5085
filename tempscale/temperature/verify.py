"""Prove on a given model, layer by layer, that an attached temperature has its intended effect.

S1 (arXiv 2410.24200) eq. 6 implies an identity without a reference model: for equal input, A_τ ∝ A_1^{1/τ} row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tempscale.temperature.attach import Attachment, attachment, role
from tempscale.temperature.divisors import Constants, text_temperatures
from tempscale.temperature.families import Architecture, Places, base_model, family_of, places, supported, use_kernel
from tempscale.temperature.reading import TemperatureError
from tempscale.temperature.schedule import ROLES, Temperature

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6, torch.bfloat16: 8e-2, torch.float16: 2e-2}
_LONGEST_PROBE = 512


class VerificationError(RuntimeError):
    """The attention of a layer did not change as its temperature requires."""


def verify(model: Any) -> None:
    """Raise unless A_τ ∝ A_1^{1/τ}, row by row, in every layer for the same input (S1 eq. 6).

        log A_τ − mean(log A_τ) = (log A_1 − mean(log A_1)) / τ              each row

    A few seeded random token sequences are run, padded. Each layer's attention then gets the same input again, in eager
    mode, with the temperature and without it. log A_τ is compared with (log A_1) / τ after subtracting the mean of each row,
    in float64, relative to the size of the change; each text, layer and head has its own τ. The output of the model's own
    attention kernel is also compared with the eager output for that input. A schedule by role is verified in each role, and
    a schedule by length in the steps that texts of up to 512 tokens reach. The two sides may differ by 1e-3 of the largest
    logit in float32, 1e-6 in float64, 0.08 in bfloat16, 0.02 in float16.

    Args:
        model: as in `attach`, with a temperature.

    Raises:
        TemperatureError: the model has no temperature.
        VerificationError: a layer did not change as required, or its logits are constant, so no change can be seen.
        UnsupportedArchitecture: the model's family is not supported.
    """
    base: Any = base_model(model)
    present = attachment(base)
    if present is None:
        raise TemperatureError("this model has no temperature to verify; attach one first")
    layers, architecture = places(model), supported(family_of(base))
    was_training, kernel = base.training, base.config._attn_implementation
    base.eval()
    try:
        with torch.no_grad():
            for name in ROLES if present.temperature.roles else (None,):
                with role(base, name):
                    _verify(base, present, layers, architecture, present.temperature.for_role(name))
    finally:
        present.enabled = True
        use_kernel(base, layers, kernel)
        base.train(was_training)


def _verify(
    base: Any, present: Attachment, layers: list[Places], architecture: Architecture, temperature: Temperature
) -> None:
    kernel = base.config._attn_implementation
    inputs: dict[str, Any] = _probe_inputs(base, temperature)
    if architecture.decoder:
        inputs["use_cache"] = False  # Each layer runs twice on the same input, which a cache would count as further tokens.
    with _recorded(layers) as native:
        base(**inputs)
    use_kernel(base, layers, "eager")
    options = {"output_attentions": True} if architecture.asks else {}
    with _recorded(layers, native) as calls:
        base(**inputs, **options)
    mask = inputs["attention_mask"].bool()
    texts = text_temperatures(temperature, inputs, Constants())[..., None, None].double() if temperature.by_text else None
    for layer, (place, before, call) in enumerate(zip(layers, native, calls, strict=True)):
        present.enabled = False
        untouched = place.attention(*call["args"], **call["kwargs"])[architecture.probabilities]
        present.enabled = True
        tau: Any = texts
        if tau is None:
            tau = torch.as_tensor(temperature.of_layer(layer), dtype=torch.float64, device=mask.device).reshape(-1, 1, 1)
        tolerance = _TOLERANCE[untouched.dtype]
        _check_power(layer, call["output"][architecture.probabilities], untouched, tau, tolerance)
        output, eager = before["output"][0][mask], call["output"][0][mask]
        difference = (output - eager).abs().max() / eager.abs().max()
        if not difference <= tolerance:
            raise VerificationError(
                f"layer {layer}: the model's {kernel} attention and eager attention differ by {float(difference):.2g} "
                "(relative) on the same input; the temperature does not reach the kernel"
            )
    use_kernel(base, layers, kernel)


def _probe_inputs(base: nn.Module, temperature: Temperature) -> dict[str, Tensor]:
    """Padded random token sequences, with lengths that reach every step of a schedule by length."""
    config: Any = base.config
    limit = min(_LONGEST_PROBE, int(getattr(config, "max_position_embeddings", None) or _LONGEST_PROBE) - 2)
    sizes = {24, 17, 9} | {edge + 3 for edge, _ in temperature.steps}
    if temperature.n0 is not None:
        sizes |= {temperature.n0, 2 * temperature.n0, 4 * temperature.n0}
    lengths = torch.tensor(sorted((n for n in sizes if n <= limit), reverse=True) or [limit])[:, None]
    longest, texts = int(lengths.max()), len(lengths)
    ids = torch.randint(5, int(config.vocab_size), (texts, longest), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(longest) < lengths).long()
    padding = config.pad_token_id if getattr(config, "pad_token_id", None) is not None else 0
    device = next(base.parameters()).device
    return {"input_ids": torch.where(mask.bool(), ids, padding).to(device), "attention_mask": mask.to(device)}


@contextmanager
def _recorded(layers: list[Places], others: list[dict[str, Any]] | None = None) -> Iterator[list[dict[str, Any]]]:
    """Record each attention's arguments before the temperature changes them, and its output; `others` gives its input."""
    calls: list[dict[str, Any]] = []

    def before_forward(module: nn.Module, args: Any, kwargs: Any) -> Any:
        if others is not None:
            hidden = others[len(calls)]["hidden"]
            args, kwargs = ((hidden, *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": hidden})
        hidden = args[0] if args else kwargs["hidden_states"]
        calls.append({"args": args, "kwargs": dict(kwargs), "hidden": hidden})
        return args, kwargs

    def after_forward(module: nn.Module, args: Any, output: Any) -> None:
        calls[-1]["output"] = output

    handles = []
    for module in {id(place.attention): place.attention for place in layers}.values():
        handles.append(module.register_forward_pre_hook(before_forward, with_kwargs=True, prepend=True))
        handles.append(module.register_forward_hook(after_forward))
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _check_power(layer: int, sharpened: Tensor, untouched: Tensor, tau: Tensor, tolerance: float) -> None:
    """Raise unless the rows of `sharpened` are those of `untouched` to the power 1/τ, renormalised."""
    visible = (untouched > 1e-6) & (sharpened > 1e-6)
    # Rounding a probability changes its logarithm by about one ulp, so logits that are not larger prove nothing.
    noise = 8 * torch.finfo(untouched.dtype).eps
    measured, logits = _centred_log(sharpened, visible) * tau, _centred_log(untouched, visible)
    if not logits.abs().max() > 2 * noise:
        raise VerificationError(f"layer {layer}: attention logits are too uniform to show the effect of the temperature")
    # The power is fitted over all entries, where rounding averages out; then every entry is compared.
    power = float((measured * logits).sum() / logits.square().sum())
    error = (measured - logits).abs().max()
    if not (abs(power - 1) <= tolerance / 8 and error <= tolerance * logits.abs().max() + noise * tau.max()):
        taus = f"{float(tau.min()):g}" + (f"…{float(tau.max()):g}" if tau.min() < tau.max() else "")
        raise VerificationError(
            f"layer {layer}: log A_τ differs from (log A_1)/τ, τ = {taus}, by {float(error):.2g} "
            f"({power:.4g} of the required change); the temperature is not applied correctly"
        )


def _centred_log(probabilities: Tensor, visible: Tensor) -> Tensor:
    """The logarithms of each row minus their mean over the entries in `visible`; 0 elsewhere."""
    logs = torch.where(visible, probabilities.double(), 1.0).log()
    mean = logs.sum(-1, keepdim=True) / visible.sum(-1, keepdim=True).clamp_min(1)
    return torch.where(visible, logs - mean, 0.0)
