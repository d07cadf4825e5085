"""One temperature for each layer, found by gradient on texts without labels.

Source: the attention is eq. 6 of S1 (arXiv 2410.24200), A_l = softmax(Q_lK_lᵀ / (τ_l√d)); S1 chooses one τ by downstream
scores. The objective is new here. It is based on the prefix probe: the same texts cut short and long.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.model.batches import micro_batches, run_batches
from tempscale.model.encoder import Encoder
from tempscale.model.sequences import Tokens
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.temperature.attach import attach, attached, detach
from tempscale.temperature.families import places
from tempscale.temperature.reading import LARGEST_TAU, TemperatureError
from tempscale.temperature.schedule import Temperature

BOUNDS = (0.5, 1.0)
"""The default lowest and highest τ."""
KEEP = 10.0
"""The default weight of the third term."""
GRAPH_BUDGET = 8192
"""Most padded tokens whose graph is in memory: it takes 8 GB for a BERT base."""


class Cosines(NamedTuple):
    """The objective and the cosines of the texts for one choice of temperatures."""

    objective: float
    """The value that is minimised, see `layer_temperatures`."""
    long: float
    """Mean pairwise cosine of the long prefixes."""
    short: float
    """The same for the short prefixes."""
    change: float
    """Root mean square, over pairs of short prefixes, of the change of the cosine from its value at τ = 1."""


class LayerTemperatures(NamedTuple):
    """The result of `layer_temperatures`."""

    temperatures: list[float]
    """τ of each layer, first layer first, to two decimals."""
    before: Cosines
    """Over all texts at τ = 1."""
    after: Cosines
    """Over all texts at `temperatures`. If its objective is not below that of `before`, the search gained nothing."""
    history: list[Cosines]
    """Before each step, over the texts of that step."""

    @property
    def temperature(self) -> Temperature:
        """The schedule."""
        return Temperature.by_layer(self.temperatures)


@torch.inference_mode(False)  # Gradients must work even if the caller has disabled them.
def layer_temperatures(
    encoder: Encoder,
    short: Sequence[Sequence[int]],
    long: Sequence[Sequence[int]],
    *,
    bounds: tuple[float, float] = BOUNDS,
    steps: int = 20,
    learning_rate: float = 0.05,
    keep: float = KEEP,
    texts_per_step: int = 64,
    seed: int = 0,
) -> LayerTemperatures:
    """The τ_l that lower the mean cosine of long texts and keep the cosines of short texts, by projected Adam.

    With c_ij the cosine of texts i and j and ⟨·⟩ the mean over pairs i < j, τ within the bounds minimises

        ⟨c_ij(long; τ)⟩ + max(0, ⟨c_ij(short; τ)⟩ − ⟨c_ij(short; 1)⟩) + keep·⟨(c_ij(short; τ) − c_ij(short; 1))²⟩.

    The gap between the two means alone could also be closed by raising the cosines of the short texts. The second term
    removes any gain from that, and the third keeps the neighbours of short texts. The weights and the encoder's temperature
    do not change. Memory is that of one micro-batch for any number of texts: embeddings are computed without a graph, then
    the gradient of the objective with respect to them, and each micro-batch then runs again to pass its part of the gradient
    to τ. The transformer runs in the precision of its weights, without autocast; the objective in float64.

    The objective does not know the use of the embeddings: a lower cosine is not a better search. Judge a schedule by a task.

    Args:
        encoder: any `Encoder`; its temperature is replaced during the search and then restored.
        short: token ids of each text's short prefix, from `encoder.tokenizer(texts, 32).ids`; at least 3 texts.
        long: the long prefixes of the same texts, in the same order.
        bounds: the lowest and the highest τ, in (0, 2]. The search begins at τ = 1, or at the nearer bound.
        steps: number of steps of Adam. The step size falls linearly to a tenth, so that τ converges.
        learning_rate: about the change of τ in each of the first steps.
        keep: the weight of the third term. At 10, a change of the short pairs by 0.05 (root mean square) costs as much as a
            decrease of the long pairs' mean by 0.025 gains.
        texts_per_step: size of the seeded sample of texts for each step; all texts if there are no more.
        seed: the seed of these samples.

    Returns:
        τ of each layer with the cosines before, after and at every step. Equal arguments give equal τ on the same kind of
        processor.

    Raises:
        TemperatureError: fewer than 3 texts, prefixes that do not belong together, a setting out of range, or embeddings
            with values that are not finite.
        UnsupportedArchitecture: the model's family is not supported.
    """
    _check_prefixes(encoder, short, long)
    _check_settings(bounds, steps, learning_rate, keep, texts_per_step)
    generator = torch.Generator().manual_seed(seed)
    # On the CPU even if the model is not: a CPU scalar can divide a tensor of any device.
    taus = torch.ones(len(places(encoder)), dtype=torch.float64, requires_grad=True)
    history: list[Cosines] = []
    with _searching(encoder, taus):
        untouched = _embeddings(encoder, short)
        everything = _Objective(untouched, keep)
        before = everything(torch.cat([untouched, _embeddings(encoder, long)]))[1]
        _project(taus, bounds)
        optimizer = torch.optim.Adam([taus], lr=learning_rate)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=steps)
        for _ in range(steps):
            chosen = list(range(len(short)))
            if texts_per_step < len(short):
                chosen = sorted(torch.randperm(len(short), generator=generator)[:texts_per_step].tolist())
            objective = _Objective(untouched[chosen], keep)
            ids = [side[i] for side in (short, long) for i in chosen]
            taus.grad, cosines = _gradient(encoder, ids, taus, objective)
            history.append(cosines)
            optimizer.step()
            schedule.step()
            _project(taus, bounds)
        with torch.no_grad():
            taus.copy_(taus.mul(100).round().div(100))
        _project(taus, bounds)
        after = everything(_embeddings(encoder, [*short, *long]))[1]
    return LayerTemperatures(taus.tolist(), before, after, history)


# --- the objective ------------------------------------------------------------------------------------------------------


class _Objective:
    """The objective, for embeddings of short prefixes followed by those of long prefixes."""

    def __init__(self, untouched: Float[Tensor, "text dim"], keep: float) -> None:
        self.untouched, self.keep = _pair_cosines(untouched), keep

    def __call__(self, embeddings: Float[Tensor, "prefix dim"]) -> tuple[Float[Tensor, ""], Cosines]:
        """The objective, differentiable, and its cosines; a TemperatureError if it is not finite."""
        short, long = map(_pair_cosines, embeddings.chunk(2))
        raised = (short.mean() - self.untouched.mean()).relu()
        change = (short - self.untouched).square().mean()
        value = long.mean() + raised + self.keep * change
        if not torch.isfinite(value):
            raise TemperatureError(
                "the model gives these texts embeddings that are not finite, so no temperature can be found"
            )
        parts = (value, long.mean(), short.mean(), change.detach().sqrt())
        return value, Cosines(*(float(part.detach()) for part in parts))


def _pair_cosines(embeddings: Float[Tensor, "text dim"]) -> Float[Tensor, " pair"]:
    """Cosine of every unordered pair of unit vectors."""
    rows, columns = torch.triu_indices(len(embeddings), len(embeddings), 1)
    return (embeddings @ embeddings.T)[rows, columns]


def _gradient(
    encoder: Encoder, ids: Sequence[Sequence[int]], taus: Tensor, objective: _Objective
) -> tuple[Float[Tensor, " layer"], Cosines]:
    """The exact gradient of the objective with respect to τ, with the graph of one micro-batch at a time."""
    # dL/dτ = Σ_b (∂U_b/∂τ)ᵀ ∂L/∂U_b over micro-batches b, because only L combines the embeddings U of different batches.
    leaf = _embeddings(encoder, ids).requires_grad_()
    value, cosines = objective(leaf)
    (slope,) = torch.autograd.grad(value, leaf)

    def part(batch: list[int]) -> Tensor:
        gradient: Tensor = torch.autograd.grad(_embedded(encoder, [ids[i] for i in batch]), taus, slope[batch])[0]
        return gradient

    total = torch.zeros_like(taus)
    budget = min(encoder.token_budget, GRAPH_BUDGET)
    for gradient in run_batches(micro_batches([len(row) for row in ids], budget), part, halved=[]):
        total += gradient
    return total, cosines


def _embeddings(encoder: Encoder, ids: Sequence[Sequence[int]]) -> Float[Tensor, "prefix dim"]:
    """Embeddings in float64 on the CPU, without a graph."""
    with torch.no_grad():
        batches = micro_batches([len(row) for row in ids], encoder.token_budget)
        run = lambda batch: (batch, _embedded(encoder, [ids[i] for i in batch]))  # noqa: E731
        passes = list(run_batches(batches, run, halved=[]))
        order = torch.tensor([i for batch, _ in passes for i in batch])
        together = torch.cat([embeddings for _, embeddings in passes])
        return torch.empty_like(together).index_copy_(0, order, together)


def _embedded(encoder: Encoder, ids: list[Sequence[int]]) -> Float[Tensor, "prefix dim"]:
    """Embeddings of one micro-batch as in `Encoder.encode_tokens`, but without inference mode."""
    tokens = Tokens([list(row) for row in ids], [False] * len(ids))
    hidden, mask = encoder.hidden_states(*encoder.padded(tokens)[range(len(ids))], sum(map(len, ids)))
    embeddings: Tensor = encoder.head(hidden.to(torch.promote_types(hidden.dtype, torch.float32)), mask)[0]
    return embeddings.cpu().double()


# --- the model during the search ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Differentiable(Temperature):
    """A temperature by layer whose numbers are a tensor, so that gradients flow to them through the hooks of `attach`."""

    taus: Any = field(default=None, compare=False, repr=False)

    def of_layer(self, layer: int) -> Any:
        """τ of one layer, as a tensor."""
        return self.taus[layer]


@contextmanager
def _searching(encoder: Encoder, taus: Tensor) -> Iterator[None]:
    """A context in which the encoder has `taus`, frozen weights and no dropout; its old state is restored afterwards."""
    modules = [*encoder.model.modules(), *encoder.head.modules()]
    parameters = [*encoder.model.parameters(), *encoder.head.parameters()]
    training, requires_grad = [module.training for module in modules], [parameter.requires_grad for parameter in parameters]
    before = attached(encoder.model)
    if before is not None:
        detach(encoder.model)
    try:
        attach(encoder.model, _Differentiable(layers=(1.0,) * len(taus), taus=taus))
        for module in modules:
            module.training = False
        for parameter in parameters:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.training = mode
        for parameter, flag in zip(parameters, requires_grad, strict=True):
            parameter.requires_grad_(flag)
        if attached(encoder.model) is not None:
            detach(encoder.model)
        if before is not None:
            attach(encoder.model, before)


def _project(taus: Tensor, bounds: tuple[float, float]) -> None:
    """Clamp every τ to the bounds."""
    with torch.no_grad():
        taus.clamp_(*bounds)


# --- checks of the arguments --------------------------------------------------------------------------------------------


def _check_prefixes(encoder: Encoder, short: Sequence[Sequence[int]], long: Sequence[Sequence[int]]) -> None:
    if len(short) != len(long):
        raise TemperatureError(f"{len(short)} short prefixes and {len(long)} long ones; give one of each for every text")
    if len(short) < VALUES_FOR_AN_ERROR:
        raise TemperatureError(f"{len(short)} texts are too few to compare; give at least {VALUES_FOR_AN_ERROR}")
    for number, (head, full) in enumerate(zip(short, long, strict=True)):
        if not 0 < len(head) < len(full):
            raise TemperatureError(
                f"text {number} has {len(head)} tokens short and {len(full)} long; the long prefix must be the longer one"
            )
        if len(full) > encoder.tokenizer.max_length:
            raise TemperatureError(f"text {number} has {len(full)} tokens; this model takes {encoder.tokenizer.max_length}")


def _check_settings(bounds: tuple[float, float], steps: int, learning_rate: float, keep: float, texts_per_step: int) -> None:
    lower, upper = bounds
    if not 0 < lower < upper <= LARGEST_TAU:
        raise TemperatureError(f"bounds {bounds!r} must be 0 < lowest τ < highest τ ≤ {LARGEST_TAU:g}, e.g. {BOUNDS}")
    if steps < 1:
        raise TemperatureError(f"steps {steps!r} must be at least 1")
    if not 0 < learning_rate < math.inf:
        raise TemperatureError(f"learning_rate {learning_rate!r} must be above 0, e.g. 0.05")
    if not 0 <= keep < math.inf:
        raise TemperatureError(f"keep {keep!r} must be at least 0, e.g. {KEEP:g}")
    if texts_per_step < VALUES_FOR_AN_ERROR:
        raise TemperatureError(f"texts_per_step {texts_per_step!r} must be at least {VALUES_FOR_AN_ERROR}")
