"""Text embeddings in the plane: t-SNE, the same for the same embeddings and seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl

FEWEST, PERPLEXITY = 5, 30.0


def rows(seen: pl.DataFrame, seed: int) -> list[dict[str, Any]]:
    """Rows of the table `map`, without its key; none for fewer than five texts.

    Args:
        seen: text_id, tokens, interval, document and embedding of each text.
        seed: of t-SNE.
    """
    if len(seen) < FEWEST:
        return []
    places = placed(np.stack(seen["embedding"].to_list()), seed)
    distances = np.linalg.norm(places, axis=1)
    columns = seen.select("text_id", "tokens", "interval", "document").to_dicts()
    return [
        row | {"x": float(x), "y": float(y), "origin_distance": float(distance)}
        for row, (x, y), distance in zip(columns, places, distances, strict=True)
    ]


def placed(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Places (texts, 2) whose mean is the origin. Called with one thread: the sums of several end in other digits."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    found = TSNE(init="pca", perplexity=perplexity, random_state=seed % 2**32).fit_transform(vectors.astype(np.float32))
    centred: np.ndarray = found.astype(np.float64) - found.astype(np.float64).mean(0)
    return centred
