"""The intermediate results of each transformer layer for one text, passed to a visitor and then released.

S1 (arXiv 2410.24200) studies attention and its logits, S2 (arXiv 2604.27398) §6 studies H, Z, Y and X. One text runs at a
time, unpadded, with eager attention; the attention of only one layer is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from tempscale.temperature import attach
from tempscale.temperature.families import Block, Places, base_model, family_of, places, supported, use_kernel

Seen = TypeVar("Seen")
"""The result of a visitor for one layer."""
_CACHED = 1 << 18
"""Elements of an attention matrix that are looked at together: all of a text of 512 tokens."""
_SOFTMAX = (nn.functional.softmax, torch.softmax, Tensor.softmax)


@dataclass
class Layer:
    """One layer's pass over one text of n tokens. Tokens are rows: (n, d).

    H, Z, Y and X are S2's names: Y = H + Z is the first residual sum; `second_sum` is the one after the feed-forward.
    """

    number: int
    """From 0."""
    h: Float[Tensor, "token dim"]
    """The input of the layer."""
    attended: Float[Tensor, "token dim"]
    """The input of its attention: H, or the norm of H."""
    sigma_s: Float[Tensor, " head"]
    """Standard deviation of each head's logits, including position bias and temperature; the logits are not kept."""
    attention: Float[Tensor, "head token token"]
    """A: rows sum to 1."""
    values: Float[Tensor, "head token width"]
    """The values that each head averages: `attended` multiplied by W_V, plus its bias."""
    attention_output: Float[Tensor, "token dim"]
    """The output of W_O."""
    z: Float[Tensor, "token dim"]
    """The branch that is added to H: the output of the attention, or the norm of it."""
    y: Float[Tensor, "token dim"]
    """The first residual sum, H + Z."""
    fed: Float[Tensor, "token dim"]
    """The input of the feed-forward."""
    feed_forward_output: Float[Tensor, "token dim"]
    """The output of the feed-forward, before any norm of the branch."""
    second_sum: Float[Tensor, "token dim"]
    """The second residual sum, after the feed-forward."""
    x: Float[Tensor, "token dim"]
    """The output of the layer."""
    value_weights: Float[Tensor, "head width dim"]
    """W_V of each head; heads of one group have the same."""
    output_weights: Float[Tensor, "head dim width"]
    """W_O of each head."""
    feed_forward_branch: Float[Tensor, "token dim"]
    """The branch that is added after the feed-forward: its output, or the norm of it."""


def observe(model: Any, ids: Sequence[int], visit: Callable[[Layer], Seen], *, role: str | None = None) -> list[Seen]:
    """Run one text through a model and call a visitor with each layer, in order.

    Args:
        model: a transformers model of a supported family, or an object that contains one; its temperature stays attached.
        ids: the tokens of the text, special tokens included.
        visit: called with the `Layer` of each layer, which is released afterwards: do not keep its tensors.
        role: «query» or «document», for a temperature that depends on it.

    Returns:
        The results of `visit`, one a layer.

    Raises:
        UnsupportedArchitecture: the model's family is not in the table.
        TemperatureError: the model's temperature depends on the role and none is given, or the role is unknown.
    """
    base: Any = base_model(model)
    layers, architecture = places(model), supported(family_of(base))
    arguments: dict[str, Any] = {"use_cache": False} if architecture.decoder else {}
    watch = _Watch(layers, architecture.block, architecture.layout == "fused", visit)
    kernel, device = base.config._attn_implementation, next(base.parameters()).device
    training = base.training
    base.eval()
    use_kernel(base, layers, "eager")
    try:
        with torch.inference_mode(), attach.role(model, role), watch.hooked(), watch:
            base(input_ids=torch.tensor([list(ids)], device=device), **arguments)
    finally:
        use_kernel(base, layers, kernel)
        base.train(training)
    return watch.results


class _Watch(TorchFunctionMode):
    """Collect the intermediate results of one layer at a time; as a torch function mode it also sees the softmax."""

    def __init__(self, layers: list[Places], block: Block, fused: bool, visit: Callable[[Layer], Any]) -> None:
        super().__init__()
        self._places, self._block, self._fused, self._visit = layers, block, fused, visit
        self._seen: dict[str, Tensor] = {}
        self._attending = False
        self.results: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if self._attending and func in _SOFTMAX:
            self._seen |= {"sigma_s": sigma_s(args[0]), "attention": out}
        return out

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Hooks on the modules of every layer; a module shared by several layers has them only once."""
        handles: list[Any] = []
        try:
            for place in {id(place.layer): place for place in self._places}.values():
                handles += self._hooks(place)
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hooks(self, place: Places) -> Iterator[Any]:
        layer, block = place.layer, self._block
        get = layer.get_submodule
        begin, end = (get(path) for path in block.feed_forward)
        yield layer.register_forward_pre_hook(self._begin_layer, with_kwargs=True)
        yield place.attention.register_forward_pre_hook(self._begin_attention)
        yield place.attention.register_forward_hook(self._end_attention)
        yield get(block.value).register_forward_hook(self._keep("values", "attended"))
        yield get(block.output).register_forward_hook(self._keep("attention_output"))
        yield begin.register_forward_pre_hook(self._keep_input("fed"))
        yield end.register_forward_hook(self._keep("feed_forward_output"))
        for name, path in (("z", block.branch_norm), ("feed_forward_branch", block.feed_forward_norm)):
            if path:
                yield get(path).register_forward_hook(self._keep(name))
        yield layer.register_forward_hook(self._finish)

    def _begin_layer(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self._seen = {"h": args[0] if args else kwargs["hidden_states"]}

    def _begin_attention(self, module: nn.Module, args: Any) -> None:
        self._attending = True

    def _end_attention(self, module: nn.Module, args: Any, output: Any) -> None:
        self._attending = False

    def _keep(self, name: str, of_input: str | None = None) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:
            self._seen[name] = output
            if of_input is not None:
                self._seen[of_input] = args[0]

        return keep

    def _keep_input(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any) -> None:
            self._seen[name] = args[0]

        return keep

    def _finish(self, module: nn.Module, args: Any, output: Any) -> None:
        x = output if isinstance(output, Tensor) else output[0]
        self.results.append(self._visit(self._layer(self._places[len(self.results)], x)))
        self._seen = {}

    def _layer(self, place: Places, x: Tensor) -> Layer:
        tensors = {name: value[0] for name, value in self._seen.items()}
        value_weights, output_weights, values = _by_head(place, self._block, self._fused, tensors.pop("values"))
        z = tensors.setdefault("z", tensors["attention_output"])
        y = tensors["h"] + z
        branch = tensors.setdefault("feed_forward_branch", tensors["feed_forward_output"])
        second = (tensors["fed"] if self._block.post_norm else y) + branch
        return Layer(
            number=len(self.results), **tensors, y=y, second_sum=second, x=x[0], values=values,
            value_weights=value_weights, output_weights=output_weights,
        )  # fmt: skip


def _by_head(place: Places, block: Block, fused: bool, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """W_V (head, width, dim), W_O (head, dim, width) and values (head, token, width); heads of a group share W_V."""
    projection: Any = place.layer.get_submodule(block.value)
    out: Any = place.layer.get_submodule(block.output)
    weight = projection.weight
    if fused:
        third = weight.shape[0] // 3
        weight, values = weight[2 * third :], values[..., 2 * third :]
    width = out.weight.shape[1] // place.heads
    groups = weight.shape[0] // width
    shared = place.heads // groups
    value_weights = weight.view(groups, width, -1).repeat_interleave(shared, 0)
    by_group = values.view(values.shape[0], groups, width).transpose(0, 1)
    return value_weights, out.weight.view(-1, place.heads, width).transpose(0, 1), by_group.repeat_interleave(shared, 0)


def sigma_s(logits: Float[Tensor, "*head token token"]) -> Float[Tensor, "*head"]:
    """σ_s: the standard deviation of a head's attention logits, over the tokens visible to each row; float64, ≥ 0.

    Logits that a causal or window mask has set far below all others are left out. S1 (4) sets τ_s = 1/σ_s.

    Args:
        logits: the input of the softmax, including position bias and temperature: (…, n, n).

    Returns:
        σ_s, (…).
    """
    return torch.stack([_deviation(head) for head in logits.flatten(0, -3)]).reshape(logits.shape[:-2])


def _deviation(logits: Tensor) -> Tensor:
    """The standard deviation of one head's visible logits."""
    lowest, about = torch.finfo(logits.dtype).min / 4, None
    count, total, squares = (torch.zeros((), dtype=torch.float64, device=logits.device) for _ in range(3))
    for rows in few_rows(logits):
        visible = rows > lowest
        seen = visible.sum()
        if about is None:  # The mean of the first rows: without it the squares could be much larger than the variance.
            about = rows.double().where(visible, 0).sum() / seen.clamp_min(1)
        centred = (rows.double() - about).where(visible, 0)
        count, total, squares = count + seen, total + centred.sum(), squares + centred.square().sum()
    return (squares / count - (total / count).square()).clamp_min(0).sqrt()


def few_rows(matrix: Float[Tensor, "*head token column"]) -> tuple[Tensor, ...]:
    """A matrix of each head, some rows at a time: on a CPU so few that a float64 copy of one head's stays in the caches.

    Args:
        matrix: (…, n, m).

    Returns:
        Views (…, rows, m) that together are the matrix.
    """
    rows = matrix.shape[-2] if matrix.is_cuda else max(1, _CACHED // matrix.shape[-1])
    return torch.split(matrix, rows, -2)
