"""Facts about each model family: where the attention query is, and what else is added to the logits.

`attach`, `fold`, `verify` and `layers.observe` read this table; no other code knows a family. A family is added only after
`verify` passes on it: dividing its query and its position bias by τ must divide the whole logit by τ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn


class UnsupportedArchitecture(ValueError):
    """The attention temperature of a model cannot be set; the message is one sentence."""


@dataclass(frozen=True)
class Block:
    """The parts of a layer around its attention, as paths from the layer; `layers.observe` reads it.

    H -> (norm) -> attention -> `output` -> (`branch_norm`) -> Z; Y = H + Z; then the same with the feed-forward. With
    `post_norm`, the norms come after the two residual sums instead of before attention and feed-forward.
    """

    value: str
    """The projection W_V; the last third of a fused projection. Its input is the input of the attention."""
    output: str
    """The projection W_O; its output is the output of the attention."""
    feed_forward: tuple[str, str]
    """The first and the last module of the feed-forward."""
    post_norm: bool
    """Whether the norms come after the residual sums."""
    branch_norm: str = ""
    """A norm between W_O and the residual sum, if there is one."""
    feed_forward_norm: str = ""
    """A norm between the feed-forward and the residual sum, if there is one."""


_BERT_BLOCK = Block("attention.self.value", "attention.output.dense", ("intermediate", "output.dense"), True)
_ALBERT_BLOCK = Block("attention.value", "attention.dense", ("ffn", "ffn_output"), True)
_DISTILBERT_BLOCK = Block("attention.v_lin", "attention.out_lin", ("ffn", "ffn"), True)
_MPNET_BLOCK = Block("attention.attn.v", "attention.attn.o", ("intermediate", "output.dense"), True)
_T5_BLOCK = Block(
    "layer.0.SelfAttention.v", "layer.0.SelfAttention.o", ("layer.1.DenseReluDense", "layer.1.DenseReluDense"), False
)
_ROTARY_BLOCK = Block("self_attn.v_proj", "self_attn.o_proj", ("mlp", "mlp"), True)
_DECODER_BLOCK = replace(_ROTARY_BLOCK, post_norm=False)
_MODERNBERT_BLOCK = Block("attn.Wqkv", "attn.Wo", ("mlp", "mlp"), False)
_GEMMA_BLOCK = replace(
    _DECODER_BLOCK, branch_norm="post_attention_layernorm", feed_forward_norm="post_feedforward_layernorm"
)


@dataclass(frozen=True)
class Architecture:
    """Where one family keeps its attention, as paths from the base model (`layers`) and from each layer.

    `attention` is the module whose eager forward returns the probabilities, at index `probabilities`.

    `query` is the last module of the query before only linear operations follow (rotary embedding, the product with the
    keys): the scores are linear in its output, whose shape is the `layout`:

        flat        (text, token, head·width)      a projection
        fused       (text, token, 3·head·width)    a projection of query, key and value, in this order
        token_head  (text, token, head, width)     a norm of each head's query, which removes any scaling before it
        head_token  (text, head, token, width)     the same, heads first

    `bias` says how an additive position bias is added to the logits, if the family has one:

        argument    the attention gets it as `position_bias`, computed once from `bias_table` for all layers (mpnet)
        returned    the first layer computes it and returns it for the other layers (t5)
        own         each layer computes its own (umt5)
    """

    layers: str
    """The list of layers."""
    attention: str
    """The attention of a layer."""
    query: str
    """The last module of its query."""
    layout: Literal["flat", "fused", "token_head", "head_token"] = "flat"
    """The shape of that module's output."""
    bias: Literal["argument", "returned", "own"] | None = None
    """How a position bias is added to the logits."""
    bias_table: str = ""
    """The bias's embedding: a path from the base model if it is shared (`argument`), else from the attention."""
    probabilities: int = 1
    """Index of the attention probabilities in the output of the attention."""
    norm_offset: float = 0.0
    """A norm multiplies by offset + weight (1 for gemma); folding needs this."""
    decoder: bool = False
    """Whether it is a decoder used as an embedder, which by default caches keys and values."""
    encoder_decoder: bool = False
    """Whether its checkpoints also contain a decoder, which embeddings do not use."""
    asks: bool = False
    """Whether it returns the probabilities only with the argument `output_attentions`."""
    block: Block = _BERT_BLOCK
    """The parts of a layer around its attention."""


_BERT = Architecture("encoder.layer", "attention.self", "attention.self.query")
_ROTARY = Architecture("layers", "self_attn", "self_attn.q_proj", block=_ROTARY_BLOCK)
_DECODER = Architecture("layers", "self_attn", "self_attn.q_proj", decoder=True, block=_DECODER_BLOCK)
_T5 = Architecture(
    "encoder.block", "layer.0.SelfAttention", "layer.0.SelfAttention.q",
    bias="returned", bias_table="relative_attention_bias", probabilities=2, encoder_decoder=True, block=_T5_BLOCK,
)  # fmt: skip

ARCHITECTURES: dict[str, Architecture] = {
    "bert": _BERT,
    "roberta": _BERT,
    "xlm-roberta": _BERT,
    "camembert": _BERT,
    "electra": _BERT,
    "albert": Architecture("encoder.albert_layer_groups", "attention", "attention.query", block=_ALBERT_BLOCK),
    "distilbert": Architecture("transformer.layer", "attention", "attention.q_lin", block=_DISTILBERT_BLOCK),
    "mpnet": Architecture(
        "encoder.layer",
        "attention.attn",
        "attention.attn.q",
        bias="argument",
        bias_table="encoder.relative_attention_bias",
        asks=True,
        block=_MPNET_BLOCK,
    ),
    "t5": _T5,
    "mt5": _T5,
    "umt5": replace(_T5, bias="own", probabilities=1),
    "nomic_bert": _ROTARY,
    "gte": _ROTARY,
    "jina_embeddings_v3": _ROTARY,
    "eurobert": replace(_ROTARY, block=_DECODER_BLOCK),
    "modernbert": Architecture("layers", "attn", "attn.Wqkv", layout="fused", block=_MODERNBERT_BLOCK),
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "qwen3": replace(_DECODER, query="self_attn.q_norm", layout="token_head"),
    "gemma3_text": replace(_DECODER, query="self_attn.q_norm", layout="head_token", norm_offset=1.0, block=_GEMMA_BLOCK),
}
"""The supported families, by the `model_type` of their config."""

_DEBERTA = (
    "its disentangled attention adds products of relative positions with query and key, each of which must be divided too"
)
_NEEDED = {
    "deberta": _DEBERTA,
    "deberta-v2": _DEBERTA,
    "longformer": "its global attention has a second query, and its window attention computes its own scores",
    "big_bird": "its block-sparse attention computes its own scores",
    "funnel": "it pools the sequence between layers and adds its own relative scores",
    "nystromformer": "its attention is an approximation without one softmax over all tokens, so there is no logit to divide",
    "convbert": "half of its heads are convolutions that mix tokens without any softmax",
    "xlm": "its attention code is not yet in the table of families and not verified",
    "gemma2": "it caps its attention logits, so that dividing the query is not dividing the logit",
    "gemma3": "the image tower has its own attention; load the text model alone (model type gemma3_text)",
}
"""Why other well-known families are not supported; a part of the error message."""


@dataclass(frozen=True)
class Places:
    """The modules of one layer that matter to temperature; layers that share weights share these modules."""

    layer: nn.Module
    """The whole layer."""
    attention: nn.Module
    """Its attention."""
    query: nn.Module
    """The module whose output is divided by τ."""
    bias_table: nn.Embedding | None
    """The position bias by bucket and head, (buckets, heads); None if this layer has none."""
    heads: int
    """Heads of its attention."""


def base_model(model: Any) -> nn.Module:
    """The transformer without its head, from a transformers model, a compiled one, a SentenceTransformer or an Encoder."""
    from transformers import PreTrainedModel

    inner = getattr(model, "_orig_mod", model)  # torch.compile's wrapper
    if isinstance(inner, nn.Sequential) and len(inner) > 0:  # a SentenceTransformer
        inner = next((child for child in inner[0].children() if isinstance(child, PreTrainedModel)), inner)
    elif not isinstance(inner, nn.Module):  # an Encoder
        inner = getattr(inner, "model", inner)
    inner = getattr(inner, "_orig_mod", inner)
    if not isinstance(inner, PreTrainedModel):
        raise UnsupportedArchitecture(
            f"a {type(inner).__name__} is no transformers model; give a PreTrainedModel, a SentenceTransformer or an Encoder"
        )
    base: nn.Module = inner.base_model
    return base


def family_of(base: nn.Module) -> str:
    """The family of a base model: the `model_type` of its config."""
    config: Any = base.config
    return str(getattr(config, "model_type", "") or type(base).__name__)


def supported(family: str) -> Architecture:
    """The table row of a family; the error for another family names what its support would need."""
    if family not in ARCHITECTURES:
        needed = f": {_NEEDED[family]}" if family in _NEEDED else ""
        raise UnsupportedArchitecture(
            f"model family '{family}' is not supported{needed}; supported families: {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[family]


def places(model: Any) -> list[Places]:
    """The places of every layer of `model`, at least one, in the order in which a forward pass uses them."""
    base = base_model(model)
    config: Any = base.config
    family = family_of(base)
    architecture = supported(family)
    if not architecture.decoder and (getattr(config, "is_decoder", False) or getattr(config, "add_cross_attention", False)):
        raise UnsupportedArchitecture(f"this {family} is configured as a decoder; only the encoder is supported")
    if hasattr(base, "decoder"):
        raise UnsupportedArchitecture(
            f"this {family} has a decoder, whose attention would not change; load only the encoder (e.g. T5EncoderModel)"
        )
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise UnsupportedArchitecture(
            f"this {family} caps its attention logits (attn_logit_softcapping): dividing the query does not divide them"
        )
    try:
        layers = [_places(base, layer, architecture) for layer in _layers(base, architecture)]
    except AttributeError as error:
        raise UnsupportedArchitecture(f"this {family} is not laid out as expected: {error}") from None
    if not layers:
        raise UnsupportedArchitecture(f"this {family} has no layers, so a temperature would change nothing")
    return layers


def use_kernel(base: Any, layers: list[Places], kernel: str) -> None:
    """Switch the attention kernel, such as «eager», also in a model that copies its configuration (umt5)."""
    base.set_attn_implementation(kernel)
    for place in layers:
        config: Any = getattr(place.attention, "config", None)
        if config is not None:
            config._attn_implementation = kernel


def _layers(base: nn.Module, architecture: Architecture) -> Iterator[nn.Module]:
    listed = list(base.get_submodule(architecture.layers).children())
    if not listed or not hasattr(listed[0], "albert_layers"):
        yield from listed
        return
    config: Any = base.config
    for number in range(config.num_hidden_layers):  # ALBERT runs the layers of few groups many times.
        group: Any = listed[int(number / (config.num_hidden_layers / config.num_hidden_groups))]
        yield from group.albert_layers


def _places(base: nn.Module, layer: nn.Module, architecture: Architecture) -> Places:
    query = layer.get_submodule(architecture.query)
    if architecture.layout in ("flat", "fused") and not isinstance(query, nn.Linear):
        raise AttributeError(
            f"{architecture.query} is a {type(query).__module__}.{type(query).__name__}, not a plain Linear"
        )
    attention = layer.get_submodule(architecture.attention)
    table = None
    if architecture.bias:
        owner = base if architecture.bias == "argument" else attention
        try:
            table = owner.get_submodule(architecture.bias_table)
        except AttributeError:  # In T5 only the first layer has the table, which all layers share.
            if architecture.bias != "returned":
                raise AttributeError(f"there is no {architecture.bias_table}") from None
    config: Any = base.config
    heads = int(getattr(config, "num_attention_heads", None) or config.num_heads)
    assert table is None or isinstance(table, nn.Embedding)
    return Places(layer, attention, query, table, heads)
