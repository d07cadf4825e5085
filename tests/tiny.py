"""Small random models of every family, from a config alone."""

import pytest

FAMILIES = (
    "bert", "roberta", "xlm-roberta", "camembert", "electra", "albert", "distilbert", "mpnet", "t5", "mt5", "umt5",
    "nomic_bert", "gte", "jina_embeddings_v3", "eurobert", "modernbert", "llama", "mistral", "qwen2", "qwen3", "gemma3_text",
)  # fmt: skip
COMMON = ("bert", "mpnet", "modernbert", "qwen3")
"""Families that stand for all of them in `make test`: positions learned, relative and rotary, and a causal mask."""
WRITTEN_OUT = ("bert", "roberta", "xlm-roberta", "distilbert")
"""Families that oracles.py computes from the embeddings to the last layer."""
WIDTH, LAYERS, HEADS, VOCABULARY, LONGEST = 32, 3, 4, 160, 64

LETTERS = ["a", "b c", "the quick brown fox", "0 1 2 3 4 5 6 7 8 9", "zz", "!", "mean pooling hides what differs", "x" * 30]
"""Texts for a tokenizer of single letters."""

_SIZES = {
    "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 2 * WIDTH,
    "vocab_size": VOCABULARY, "max_position_embeddings": LONGEST,
}  # fmt: skip
_DISTILBERT = {
    "dim": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "hidden_dim": 2 * WIDTH,
    "vocab_size": VOCABULARY, "max_position_embeddings": LONGEST,
}  # fmt: skip
_T5 = {
    "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": 2 * WIDTH, "num_layers": LAYERS, "num_heads": HEADS,
    "vocab_size": VOCABULARY, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16,
}  # fmt: skip
_SPECIAL = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep", "mask")}
_GROUPED = _SIZES | {"num_key_value_heads": 2}
_MORE_POSITIONS = _SIZES | {"max_position_embeddings": LONGEST + 2}

CONFIGS = {
    "roberta": _MORE_POSITIONS,
    "xlm-roberta": _MORE_POSITIONS,
    "camembert": _MORE_POSITIONS,
    "mpnet": _MORE_POSITIONS,
    "electra": _SIZES | {"embedding_size": WIDTH // 2},
    # Two groups of two layers, each run more than once: six layers in all.
    "albert": _SIZES | {"embedding_size": WIDTH // 2, "num_hidden_groups": 2, "inner_group_num": 2},
    "distilbert": _DISTILBERT,
    "t5": _T5,
    "mt5": _T5,
    "umt5": _T5,
    "eurobert": _GROUPED | _SPECIAL,
    "modernbert": _SIZES | _SPECIAL | {"local_attention": 8, "global_attn_every_n_layers": 2},
    "llama": _GROUPED,
    "mistral": _GROUPED | {"head_dim": 16, "sliding_window": 6},
    "qwen2": _GROUPED,
    "qwen3": _GROUPED | {"head_dim": 16},
    "gemma3_text": _GROUPED
    | {"head_dim": 16, "sliding_window": 6, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
}


def model(family, seed=0, **changes):
    """A model in evaluation mode with seeded weights."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding

    torch.set_num_threads(1)
    try:
        config = AutoConfig.for_model(family, **(CONFIGS.get(family, _SIZES) | changes))
    except ValueError:
        pytest.skip(f"this transformers does not know {family}")
    loader = AutoModelForTextEncoding if family in ("t5", "mt5", "umt5") else AutoModel
    built = loader.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in built.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * noise if parameter.ndim > 1 else parameter + 0.1 * noise)
        for name, parameter in built.named_parameters():
            if name.endswith("SelfAttention.q.weight"):  # T5 has its 1/√d in the weights.
                parameter.mul_((WIDTH / HEADS) ** -0.5)
            # Shared layers that attend evenly would collapse every token into one before the last.
            if family == "albert" and ".attention." in name:
                parameter.mul_(1.3 if "query" in name or "key" in name else 0.7)
    return built.eval()


def save_bert(folder, tokenizer_of, seed, **sizes):
    """Leave a small random BERT in a folder, with the tokenizer of another model's folder."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(seed)
    usual = {"vocab_size": 30522, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    BertModel(BertConfig(**usual | sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer_of).save_pretrained(folder)
    return str(folder)
