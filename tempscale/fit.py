"""A temperature by length, fitted so that attention stays as strong a filter on long texts as on short ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch
from scipy.optimize import brentq

from tempscale.encoder import Encoder
from tempscale.layers import observe
from tempscale.spectrum import sigma_a
from tempscale.temperature import LARGEST_TAU, Temperature, TemperatureError

LOWEST_TAU = 0.1
"""The fit looks no lower."""
_FEWEST_TEXTS = 4
_MOST_TEXTS = 16
_TAU_TOLERANCE = 2e-3


class Step(NamedTuple):
    """One length of the fit."""

    tokens: int
    """The length that the texts were cut to."""
    texts: int
    """How many there were."""
    untouched: float
    """Mean σ_a at τ = 1."""
    tau: float
    """The one found, to three decimals, in [0.1, 2]."""
    fitted: float
    """Mean σ_a at `tau`."""


class FittedLength(NamedTuple):
    """What `fit_by_length` found."""

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
    *,
    on_length: Callable[[int], None] = lambda tokens: None,
) -> FittedLength:
    """The step table τ(n) that keeps the measured mean σ_a at its value for n₀ tokens (S1 §2, measured, not Theorem 3).

        τ(n):  mean σ_a(n, τ) = mean σ_a(n₀, 1),   σ_a = ‖(I − (1/n)11ᵀ)A‖₂

    The same texts are cut to n₀, √2·n₀, 2n₀, … tokens; at each length τ is found by Brent's method on the mean of σ_a over
    texts, layers and heads, the whole model running under that τ. Where σ_a falls with length, as S1 has it, τ < 1; where
    it grows, as in all-MiniLM-L6-v2, the fit gives τ > 1 and shows that this filter is not what collapses long texts
    there. Where no τ in [0.1, 2] reaches the target, the nearer end is taken: `steps` says what was reached. The encoder
    is left as it was.

    Args:
        encoder: any `Encoder`; its own temperature is set aside meanwhile.
        texts: at least 4 of 2·n₀ tokens or more; the 16 longest are used.
        n0: the length in tokens whose filter is the target, special tokens included.
        on_length: told each length when it is done.

    Returns:
        The schedule by length, its target, and what was measured at each length. τ is found to 0.002.

    Raises:
        TemperatureError: n₀ is out of range, or too few texts are long enough.
        UnsupportedArchitecture: the model's family is not supported.
    """
    limit = encoder.tokenizer.max_length
    if isinstance(n0, bool) or not isinstance(n0, int) or not 3 <= n0 <= limit:
        raise TemperatureError(f"n0 {n0!r} must be a whole number of tokens from 3 to {limit}, the model's own limit")
    lengths = encoder.tokenizer(texts).lengths
    chosen = sorted(range(len(texts)), key=lambda i: (-lengths[i], i))[:_MOST_TEXTS]
    grid = [n for n in _grid(n0, limit) if sum(lengths[i] >= n for i in chosen) >= _FEWEST_TEXTS]
    if not grid or (len(grid) < 2 and n0 < limit):
        raise TemperatureError(
            f"fewer than {_FEWEST_TEXTS} of {len(texts)} texts are longer than n0 = {n0} tokens; "
            "give longer texts or a smaller n0"
        )
    target = mean_sigma_a(encoder, _cut(encoder, texts, chosen, n0), 1.0)
    steps = []
    for n in grid[1:]:
        steps.append(_fitted(encoder, _cut(encoder, texts, chosen, n), n, target))
        on_length(n)
    table = {0: 1.0} | {step.tokens: step.tau for step in steps}
    return FittedLength(Temperature.by_length(table), target, steps)


def mean_sigma_a(encoder: Encoder, ids: Sequence[Sequence[int]], tau: float) -> float:
    """Mean σ_a over texts, layers and heads, under one τ (S1 §2); one layer's attention is held at a time.

    Args:
        encoder: any `Encoder`; its own temperature is set aside meanwhile.
        ids: the tokens of each text, special tokens included; at least one text.
        tau: in (0, 2].

    Returns:
        A number in [0, √n] for texts of n tokens, in float64; each σ_a is right to 1e-4 of itself.

    Raises:
        TemperatureError: τ is out of range.
        UnsupportedArchitecture: the model's family is not supported.
    """
    values: list[torch.Tensor] = []
    with _instead(encoder, tau):
        for text in ids:
            values += observe(encoder.model, text, lambda layer: sigma_a(layer.attention, 1e-4).mean())
    return float(torch.stack(values).double().mean())


def _fitted(encoder: Encoder, ids: list[list[int]], tokens: int, target: float) -> Step:
    measured: dict[float, float] = {}

    def above(tau: float) -> float:
        if tau not in measured:
            measured[tau] = mean_sigma_a(encoder, ids, tau)
        return measured[tau] - target

    # σ_a falls as τ rises. Most texts need a τ on the one side of 1 that the first measurement tells.
    low, high = (LOWEST_TAU, 1.0) if above(1.0) < 0 else (1.0, LARGEST_TAU)
    far = low if low < 1.0 else high
    beyond = (above(far) < 0) == (measured[1.0] < target)
    tau = far if beyond else float(brentq(above, low, high, xtol=_TAU_TOLERANCE))
    return Step(tokens, len(ids), measured[1.0], round(tau, 3), measured[min(measured, key=lambda t: abs(t - tau))])


def _cut(encoder: Encoder, texts: Sequence[str], chosen: list[int], tokens: int) -> list[list[int]]:
    """The chosen texts that have so many tokens, cut there."""
    return [ids for ids in encoder.tokenizer([texts[i] for i in chosen], tokens).ids if len(ids) == tokens]


def _grid(n0: int, limit: int) -> list[int]:
    """n₀, √2·n₀, 2n₀, … up to the limit, which is the last."""
    lengths, k = [n0], 1
    while (n := round(n0 * 2 ** (k / 2))) < limit:
        lengths.append(n)
        k += 1
    return lengths if n0 == limit else [*lengths, limit]


@contextmanager
def _instead(encoder: Encoder, tau: float) -> Iterator[None]:
    """Give the encoder another temperature for a while."""
    before = encoder.temperature
    encoder.set_temperature(tau)
    try:
        yield
    finally:
        encoder.set_temperature(before)
