"""`python -m tempscale.precompile` compiles the loops that an audit needs; otherwise a machine's first audit does."""

from __future__ import annotations

import numpy as np
import torch

from tempscale.collapse.aggregates import Block, Tile
from tempscale.collapse.cosine import cosine_tiles, nearest
from tempscale.second_order.bounds import survivors
from tempscale.second_order.nuclear import all_nuclear_norms, paired_nuclear_norms

_TEXTS, _DIM = 4, 8


def precompile() -> None:
    """Call each loop with the types of arguments that an audit has."""
    values = np.random.default_rng(0).standard_normal((_TEXTS, _DIM)).astype(np.float32)
    embeddings = values / np.linalg.norm(values, axis=1, keepdims=True)
    labels, trace = np.arange(_TEXTS, dtype=np.int32), np.ones(_TEXTS, np.float32)
    for column in (labels, trace):  # As those of a file and of Ray are: for numba that is a type of its own.
        column.flags.writeable = False
    block = Block(embeddings, np.zeros(_TEXTS, np.int64), labels)
    cosine_tiles([Tile(0, block, 0, block)], 1, neighbours=1, listed=1)
    nearest(block, [block], 1)
    survivors(embeddings, trace, embeddings, trace, diagonal=True, socm=0.0, same_mean=0.0, cosine=0.0)
    factors = [torch.from_numpy(values[: k + 1]) for k in range(_TEXTS)]
    all_nuclear_norms(factors)
    paired_nuclear_norms(factors, [0, 1], [2, 3])


if __name__ == "__main__":
    precompile()
