"""The whole audit once more, plainly: float64, no tiles, one text at a time. Imports nothing of ours.

BERT is typed out from its definition in oracles.py, with the logits divided by τ (S1 eq. 6); the statistics are brute force.
"""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import oracles
from safetensors.numpy import load_file
from tokenizers import Tokenizer


class PlainBert:
    def __init__(self, folder):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        stored = load_file(Path(folder) / "model.safetensors")
        self.weights = {
            name.removeprefix("bert."): own.astype(np.float64) for name, own in stored.items() if own.dtype.kind == "f"
        }
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        self.tokenizer.no_padding()

    def ids(self, text, max_length=512):
        self.tokenizer.enable_truncation(max_length)
        return self.tokenizer.encode(text).ids

    def tokens(self, ids, tau):
        layers, heads, epsilon = (
            self.config[name] for name in ("num_hidden_layers", "num_attention_heads", "layer_norm_eps")
        )
        return oracles.forward(self.weights, "bert", layers, heads, ids, tau, epsilon=epsilon)[0]


def text_figures(x):
    """Embedding, ‖μ‖, spread and within-text cosine of token embeddings x (n, d)."""
    mean = x.mean(0)
    norm = np.linalg.norm(mean)
    scaled = x / norm
    sigma = (scaled - scaled.mean(0)).T @ (scaled - scaled.mean(0)) / len(x)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    return mean / norm, norm, np.trace(sigma), (unit @ unit.T).mean()


def socm_figures(x1, x2):
    """d_μ, d_Σ, SOCM with dense d×d matrices and their symmetric square roots."""
    (mean1, sigma1), (mean2, sigma2) = (
        (scaled.mean(0), np.cov(scaled.T, bias=True)) for scaled in (x / np.linalg.norm(x.mean(0)) for x in (x1, x2))
    )
    d_mu, d_sigma = np.sum((mean1 - mean2) ** 2) / 4, oracles.d_sigma_of(sigma1, sigma2)
    return d_mu, d_sigma, (1 - d_mu) * d_sigma


def run_alone(encoder, text):
    """The token embeddings (n, d) of a text that no other runs with."""
    import torch

    with torch.inference_mode():
        return encoder.model(input_ids=torch.tensor(encoder.tokenizer([text]).ids)).last_hidden_state[0].double().numpy()


def all_pairs(tokens):
    """d_μ and d_Σ of all pairs of texts as matrices, d_Σ by singular values, from the token embeddings of each text."""
    scaled = [x / np.linalg.norm(x.mean(0)) for x in tokens]
    means = np.array([x.mean(0) for x in scaled])
    factors = [(x - x.mean(0)) / math.sqrt(len(x)) for x in scaled]
    trace = np.array([np.square(factor).sum() for factor in factors])
    cross = np.diag(trace)
    for i, j in itertools.combinations(range(len(tokens)), 2):
        cross[i, j] = cross[j, i] = np.linalg.svd(factors[i] @ factors[j].T, compute_uv=False).sum()
    return np.square(means[:, None] - means[None]).sum(-1) / 4, (trace[:, None] + trace[None] - 2 * cross) / 4


def pair_means(values, rows, columns):
    """All values of unordered pairs between two index sets, and each row's and column's own mean."""
    block = values[np.ix_(rows, columns)]
    if rows is columns or np.array_equal(rows, columns):
        flat = block[np.triu_indices(len(rows), 1)]
        off = ~np.eye(len(rows), dtype=bool)
        own = np.array([block[k][off[k]].mean() for k in range(len(rows))]) if len(rows) > 1 else np.array([])
        return flat, own, own
    return block.ravel(), block.mean(1), block.mean(0)


def standard_error(row_means, column_means, same):
    if same:
        return 2 * row_means.std(ddof=1) / math.sqrt(len(row_means)) if len(row_means) > 2 else None
    if len(row_means) < 2 or len(column_means) < 2:
        return None
    return math.sqrt(row_means.var(ddof=1) / len(row_means) + column_means.var(ddof=1) / len(column_means))


effective_rank = oracles.effective_rank
top_component = oracles.top_component
