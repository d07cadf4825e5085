"""Where H, Y and X of S2 §6 stand in each family's layers, told from the model's own norms, in float64: an oracle.

It reads inputs and outputs of norms only, and knows nothing of projections: Z is what was added to H, the feed-forward's
branch what was added behind it.
"""

import itertools

import numpy as np
import torch
from by_hand_attention import by_hand

BERTS = ("bert", "roberta", "xlm-roberta", "camembert", "electra")
ROTARY = ("nomic_bert", "gte", "jina_embeddings_v3")
T5S = ("t5", "mt5", "umt5")
DECODERS = ("eurobert", "llama", "mistral", "qwen2", "qwen3")
CACHED = ("llama", "mistral", "qwen2", "qwen3", "gemma3_text")

AT_THE_FIRST_SUM = {
    **dict.fromkeys(BERTS, lambda m: m.attention.output.LayerNorm),
    **dict.fromkeys(("albert", "mpnet"), lambda m: m.attention.LayerNorm),
    "distilbert": lambda m: m.sa_layer_norm,
    **dict.fromkeys(T5S, lambda m: m.layer[-1].layer_norm),
    **dict.fromkeys((*ROTARY, *DECODERS), lambda m: m.post_attention_layernorm),
    "modernbert": lambda m: m.mlp_norm,
    "gemma3_text": lambda m: m.pre_feedforward_layernorm,
}
"""The norm that is given Y."""
BEFORE_ATTENTION = {
    **dict.fromkeys(T5S, lambda m: m.layer[0].layer_norm),
    "modernbert": lambda m: m.attn_norm,
    **dict.fromkeys((*DECODERS, "gemma3_text"), lambda m: m.input_layernorm),
}
"""The norm that H passes first, where a family is pre-norm."""
BEHIND_THE_SECOND_SUM = {
    **dict.fromkeys((*BERTS, "mpnet"), lambda m: m.output.LayerNorm),
    "albert": lambda m: m.full_layer_layer_norm,
    "distilbert": lambda m: m.output_layer_norm,
    **dict.fromkeys(ROTARY, lambda m: m.post_mlp_layernorm),
}
"""What stands behind the second residual sum, where a family is post-norm."""
ON_BRANCHES = {"gemma3_text": (lambda m: m.post_attention_layernorm, lambda m: m.post_feedforward_layernorm)}
"""Norms of the two branches before they are added."""


def seen(base, layers, family, ids, tau):
    """One pass of a model in float64, its attention by hand; a dict of float64 arrays a layer.

    Args:
        base: a base model in float64.
        layers: its layers, in order; shared ones as often as they are passed.
        family: its model type.
        ids: the tokens.
        tau: the temperature.
    """
    told = {name: [] for name in ("h", "x", "y", "fed", "attended", "second_sum", "attention_output", "feed_forward_output")}
    attention, handles = [], []

    def keep(module, given=None, gives=None):
        def hook(_, args, kwargs, out):
            for name, value in ((given, args[0] if args else kwargs.get("hidden_states")), (gives, out)):
                if name is not None:
                    told[name].append((value if isinstance(value, torch.Tensor) else value[0])[0].numpy().copy())

        handles.append(module.register_forward_hook(hook, with_kwargs=True))

    for layer in {id(layer): layer for layer in layers}.values():
        keep(layer, "h", "x")
        keep(AT_THE_FIRST_SUM[family](layer), "y", "fed")
        if family in BEFORE_ATTENTION:
            keep(BEFORE_ATTENTION[family](layer), gives="attended")
        if family in BEHIND_THE_SECOND_SUM:
            keep(BEHIND_THE_SECOND_SUM[family](layer), "second_sum")
        for place, name in zip(ON_BRANCHES.get(family, ()), ("attention_output", "feed_forward_output"), strict=False):
            keep(place(layer), name)
    arguments = {"use_cache": False} if family in CACHED else {}
    try:
        with torch.no_grad(), by_hand(base, tau, attention):
            base(input_ids=torch.tensor([ids]), **arguments)
    finally:
        for handle in handles:
            handle.remove()
    every = []
    for number, (logits, weights) in enumerate(attention):
        own = {name: values[number] for name, values in told.items() if values}
        own |= {"logits": logits, "attention": weights, "z": own["y"] - own["h"]}
        own.setdefault("attended", own["h"])
        own.setdefault("second_sum", own["x"])
        own["branch"] = own["second_sum"] - own["fed" if family in BEHIND_THE_SECOND_SUM else "y"]
        own.setdefault("attention_output", own["z"])
        own.setdefault("feed_forward_output", own["branch"])
        every.append(own)
    assert len(every) == len(layers)
    assert all(np.array_equal(a["x"], b["h"]) for a, b in itertools.pairwise(every))
    return every
