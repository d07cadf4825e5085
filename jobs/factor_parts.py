"""Durable parts of covariance factors: written by the steps that embed, read by those that compare pairs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import parts, schema
from jobs.storage import Storage


def table(ids: Any, tokens: Sequence[int], found: Sequence[tuple[Any, Any]]) -> pa.Table:
    """A part of the texts `ids` from each one's unit mean and factor, as an encoder gives them."""
    means = np.stack([mean.numpy() for mean, _ in found])
    return schema.factors(means.shape[1]).build(
        {
            "text_id": ids,
            "tokens": np.asarray(tokens, dtype=np.int32),
            "mean": parts.fixed_lists(means),
            "rank": np.array([factor.shape[0] for _, factor in found], dtype=np.int32),
            "factor": [factor.numpy().ravel() for _, factor in found],
        }
    )


@lru_cache(maxsize=2)
def read(root: str, names: tuple[str, ...]) -> tuple[list[str], Any, list[Any]]:
    """Ids, unit means and factors of some parts. The last two groups stay in memory: a row of tiles shares its rows."""
    import torch

    ids, means, factors = list[str](), [], []
    for name in names:
        part = Storage(root).read_table(name)
        means.append(torch.tensor(parts.matrix(part, "mean")))
        factors += [torch.tensor(np.asarray(f.values).reshape(-1, means[0].shape[1])) for f in part.column("factor")]
        ids += part.column("text_id").to_pylist()
    return ids, torch.cat(means), factors


def groups(texts: Sequence[int], rows: Sequence[int], most_texts: int, most_rows: int) -> list[list[int]]:
    """Consecutive parts that are worked on together: few where the texts are long, at least one."""
    found: list[list[int]] = []
    own_texts = own_rows = 0
    for part, (size, rank) in enumerate(zip(texts, rows, strict=True)):
        if not found or own_texts + size > most_texts or own_rows + rank > most_rows:
            found.append([])
            own_texts = own_rows = 0
        found[-1].append(part)
        own_texts, own_rows = own_texts + size, own_rows + rank
    return found
