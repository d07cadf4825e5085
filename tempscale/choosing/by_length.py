"""Fit a temperature by length, under which attention filters long texts as strongly as short ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, get_args

import torch
from scipy.optimize import brentq

from tempscale.layers.observe import observe
from tempscale.layers.spectrum import sigma_a
from tempscale.model.encoder import Encoder, check_encoder
from tempscale.stats.enough import TEXTS_FOR_A_FILTER
from tempscale.temperature.reading import LARGEST_TAU, TemperatureError
from tempscale.temperature.schedule import Temperature

LOWEST_TAU = 0.1
"""The lowest τ that the fit tries."""
_MOST_TEXTS = 16
_TAU_TOLERANCE = 2e-3

Over = Literal["all", "last"]
"""The layers over which σ_a is averaged: all, or the last one alone, as in S1's Fig 5."""


class Step(NamedTuple):
    """One length of the fit."""

    tokens: int
    """The length that the texts were cut to."""
    texts: int
    """The number of texts."""
    untouched: float
    """Mean σ_a at τ = 1."""
    tau: float
    """The fitted τ, to three decimals, in [0.1, 2]."""
    fitted: float
    """Mean σ_a at `tau`."""


class FittedLength(NamedTuple):
    """The result of `fit_by_length`."""

    temperature: Temperature
    """A step table; τ = 1 up to n₀."""
    target: float
    """Mean σ_a at n₀ tokens and τ = 1."""
    steps: list[Step]
    """The lengths above n₀, ascending."""


def fit_by_length(
    encoder: Encoder,
    texts: Sequence[str],
    n0: int = 64,
    layers: Over = "all",
) -> FittedLength:
    """The step table τ(n) that keeps the measured mean σ_a at its value for n₀ tokens (S1 §2, measured, not Theorem 3).

        τ(n):  mean σ_a(n, τ) = mean σ_a(n₀, 1),   σ_a = ‖(I − (1/n)11ᵀ)A‖₂

    The same texts are cut to n₀, √2·n₀, 2n₀, … tokens. At each length Brent's method finds the τ for the mean of σ_a over
    texts, layers and heads, with the whole model running under that τ. If σ_a falls with length, as S1 reports for the last
    layer, then τ < 1. If σ_a grows, then τ > 1: longer texts are filtered less strongly, so this filter does not cause the
    collapse, as in all-MiniLM-L6-v2, where both values of `layers` give τ > 1. If no τ in [0.1, 2] reaches the target, the
    nearer end of the range is used, and `steps` gives its σ_a.

    Args:
        encoder: any `Encoder`; its temperature is replaced during the fit and then restored.
        texts: at least 4 of 2·n₀ tokens or more; the 16 longest are used.
        n0: the length in tokens whose filter is the target, special tokens included.
        layers: the mean is over «all» layers, or over the heads of the «last» layer as in S1's Fig 5.

    Returns:
        The schedule by length, its target, and the measurements at each length. τ is accurate to 0.002.

    Raises:
        TypeError: `encoder` is no Encoder.
        TemperatureError: n₀ is out of range, `layers` is neither, or too few texts are long enough.
        UnsupportedArchitecture: the model's family is not supported.
    """
    check_encoder(encoder)
    limit = encoder.tokenizer.max_length
    if isinstance(n0, bool) or not isinstance(n0, int) or not 3 <= n0 <= limit:
        raise TemperatureError(f"n0 {n0!r} must be a whole number of tokens from 3 to {limit}, the model's own limit")
    if layers not in get_args(Over):
        raise TemperatureError(f"layers {layers!r} must be 'all' or 'last'")
    lengths = encoder.tokenizer(texts).lengths
    chosen = sorted(range(len(texts)), key=lambda i: (-lengths[i], i))[:_MOST_TEXTS]
    grid = [n for n in _grid(n0, limit) if sum(lengths[i] >= n for i in chosen) >= TEXTS_FOR_A_FILTER]
    if not grid or (len(grid) < 2 and n0 < limit):
        raise TemperatureError(
            f"fewer than {TEXTS_FOR_A_FILTER} of {len(texts)} texts are longer than n0 = {n0} tokens; "
            "give longer texts or a smaller n0"
        )
    target = mean_sigma_a(encoder, _cut(encoder, texts, chosen, n0), 1.0, layers)
    steps = []
    for n in grid[1:]:
        steps.append(_fitted(encoder, _cut(encoder, texts, chosen, n), n, target, layers))
    table = {0: 1.0} | {step.tokens: step.tau for step in steps}
    return FittedLength(Temperature.by_length(table), target, steps)


def mean_sigma_a(encoder: Encoder, ids: Sequence[Sequence[int]], tau: float, layers: Over = "all") -> float:
    """Mean σ_a over texts, layers and heads, under one τ (S1 §2); the attention of only one layer is in memory.

    Args:
        encoder: any `Encoder`; its temperature is replaced during the measurement and then restored.
        ids: the tokens of each text, special tokens included; at least one text.
        tau: in (0, 2].
        layers: «all», or the «last» one alone (S1 Fig 5).

    Returns:
        A number in [0, √n] for texts of n tokens, in float64; the relative error of each σ_a is at most 1e-4.

    Raises:
        TemperatureError: τ is out of range.
        UnsupportedArchitecture: the model's family is not supported.
    """
    values: list[torch.Tensor] = []
    with _instead(encoder, tau):
        for text in ids:
            sigmas = observe(encoder.model, text, lambda layer: sigma_a(layer.attention, 1e-4).mean())
            values += sigmas if layers == "all" else sigmas[-1:]
    return float(torch.stack(values).double().mean())


def _fitted(encoder: Encoder, ids: list[list[int]], tokens: int, target: float, layers: Over) -> Step:
    measured: dict[float, float] = {}

    def above(tau: float) -> float:
        if tau not in measured:
            measured[tau] = mean_sigma_a(encoder, ids, tau, layers)
        return measured[tau] - target

    # σ_a falls as τ rises, so the measurement at τ = 1 shows on which side of 1 to search.
    low, high = (LOWEST_TAU, 1.0) if above(1.0) < 0 else (1.0, LARGEST_TAU)
    bound = low if low < 1.0 else high
    beyond = (above(bound) < 0) == (measured[1.0] < target)
    tau = bound if beyond else float(brentq(above, low, high, xtol=_TAU_TOLERANCE))
    return Step(tokens, len(ids), measured[1.0], round(tau, 3), measured[min(measured, key=lambda t: abs(t - tau))])


def _cut(encoder: Encoder, texts: Sequence[str], chosen: list[int], tokens: int) -> list[list[int]]:
    """The tokens of the chosen texts that have at least this many, cut to this many."""
    return [ids for ids in encoder.tokenizer([texts[i] for i in chosen], tokens).ids if len(ids) == tokens]


def _grid(n0: int, limit: int) -> list[int]:
    """The lengths n₀, √2·n₀, 2n₀, … up to the limit, which is the last one."""
    lengths, k = [n0], 1
    while (n := round(n0 * 2 ** (k / 2))) < limit:
        lengths.append(n)
        k += 1
    return lengths if n0 == limit else [*lengths, limit]


@contextmanager
def _instead(encoder: Encoder, tau: float) -> Iterator[None]:
    """A context in which the encoder has another temperature."""
    before = encoder.temperature
    encoder.set_temperature(tau)
    try:
        yield
    finally:
        encoder.set_temperature(before)
