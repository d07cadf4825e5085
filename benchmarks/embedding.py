"""Embedding with `Encoder` against sentence-transformers at the same maximum length, on the real MiniLM."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measuring import fastest, gemm_rate, texts


def measure() -> list[dict[str, Any]]:
    """Tokens a second, ratios to sentence-transformers, and the share of the machine's GEMM rate."""
    from sentence_transformers import SentenceTransformer

    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    corpus, folder = texts(), default_model()
    peer = SentenceTransformer(folder, device="cpu")
    peer.max_seq_length = 512
    encoder = Encoder.load(folder, max_length="limit", device="cpu")
    warm = Encoder.load(folder, max_length="limit", device="cpu", temperature=0.8)
    lengths = encoder.tokenizer(corpus).lengths
    tokens = sum(lengths)
    with torch.inference_mode():
        seconds = fastest(
            2,
            lambda: peer.encode(corpus, normalize_embeddings=True, show_progress_bar=False),
            lambda: encoder.encode(corpus, moments=False),
            lambda: encoder.encode(corpus),
            lambda: warm.encode(corpus),
        )
        away = (
            peer.encode(corpus, convert_to_tensor=True, normalize_embeddings=True) - encoder.encode(corpus).embeddings
        ).abs()
    needed = operations(encoder.model.config, lengths)
    names = ("sentence-transformers", "tempscale", "tempscale + token moments", "tempscale + moments, τ 0.8")
    return [
        {
            "what": name,
            "rate": tokens / s,
            "unit": "tokens/s",
            "ratio": seconds[0] / s,
            "limit_share": needed / s / gemm_rate(),
        }
        | ({"largest_difference": float(away.max())} if name == "tempscale" else {})
        for name, s in zip(names, seconds, strict=True)
    ]


def operations(config: Any, lengths: list[int]) -> float:
    """The float operations of a transformer's matrix products, without padding: an encoder's, or a gated decoder's."""
    d, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    head = getattr(config, "head_dim", None) or d // config.num_attention_heads
    queries, of_keys = head * config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    is_decoder = of_keys is not None
    weights = d * (2 * queries + 2 * head * (of_keys or config.num_attention_heads)) + (2 + is_decoder) * d * inner
    pairs = 2 if is_decoder else 4  # A token of a decoder sees half of the others.
    return float(sum(layers * (2 * n * weights + pairs * n * n * queries) for n in lengths))
