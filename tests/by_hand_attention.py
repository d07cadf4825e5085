"""Attention with the whole logit divided by τ, written out, for every family: the oracle of `attach` and `fold`.

It is handed the query, key and value of a layer as they enter the scores, so it knows nothing of where a family keeps its
projections: A = softmax((QKᵀ·scale + bias)/τ + mask), in float64 (S1 eq. 6).
"""

from contextlib import contextmanager
from unittest import mock

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


@contextmanager
def by_hand(model, tau, seen=None):
    """Within it, every attention of `model` is computed by hand.

    Args:
        model: a base model.
        tau: a number, or a function of the layer's number that gives what divides logits (text, head, query, key).
        seen: gets each layer's logits, those that a mask hides below −1e30, and weights.
    """
    of_layer = tau if callable(tau) else lambda layer: tau
    layer = 0

    def attention(module, query, key, value, mask, scaling=None, position_bias=None, **kwargs):
        nonlocal layer
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, dim=1).double() for x in (key, value))
        logits = torch.einsum("bhqd,bhkd->bhqk", query.double(), key) * (
            query.shape[-1] ** -0.5 if scaling is None else scaling
        )
        if position_bias is not None:
            logits = logits + position_bias.double()
        logits = logits / of_layer(layer)
        if mask is not None:
            logits = logits + mask[..., : key.shape[-2]].double()
        layer += 1
        weights = torch.exp(logits - logits.amax(-1, keepdim=True))
        weights = weights / weights.sum(-1, keepdim=True)
        if seen is not None:
            seen.append((logits[0].numpy(), weights[0].numpy()))
        out = torch.einsum("bhqk,bhkd->bhqd", weights, value).to(query.dtype).transpose(1, 2).contiguous()
        return out, weights.to(query.dtype)

    def softmax(scores, dim):
        """MPNet computes its own scores, mask and bias included; the mask is as good as −∞ before and after."""
        nonlocal layer
        weights = torch.softmax(scores.double() / of_layer(layer), dim)
        if seen is not None:
            seen.append(((scores.double() / of_layer(layer))[0].numpy(), weights[0].numpy()))
        layer += 1
        return weights.to(scores.dtype)

    if model.config.model_type == "mpnet":
        with mock.patch("transformers.models.mpnet.modeling_mpnet.nn.functional.softmax", softmax):
            yield
    else:
        ALL_ATTENTION_FUNCTIONS.register("by_hand", attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register("by_hand", eager_mask)
        kernel = model.config._attn_implementation
        use(model, "by_hand")
        try:
            yield
        finally:
            use(model, kernel)
    assert layer, "no attention was computed by hand"


def use(model, kernel):
    """Some versions of some families give their layers a copy of the configuration."""
    model.set_attn_implementation(kernel)
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = kernel
