"""Which pairs: the i ≤ j grid of blocks, and seeded samples that stay put from night to night."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable

SMALLEST_BLOCK, LARGEST_BLOCK, LARGEST_BLOCK_BYTES = 1024, 65_536, 128 << 20


def block_size(texts: int, dim: int) -> int:
    """Rows of one block of the pair grid: about a sixteenth of the texts, a multiple of 1,024, at most 65,536 or 128 MB.

    It follows from the texts alone, never from workers, so that every run cuts the same tiles.

    Args:
        texts: how many there are.
        dim: dimensions of a float32 embedding.

    Returns:
        Texts, ≥ 1,024.
    """
    most = min(LARGEST_BLOCK, LARGEST_BLOCK_BYTES // (4 * dim) // SMALLEST_BLOCK * SMALLEST_BLOCK)
    return max(SMALLEST_BLOCK, min(most, -(-texts // (16 * SMALLEST_BLOCK)) * SMALLEST_BLOCK))


def blocks(texts: int, size: int) -> list[tuple[int, int]]:
    """The blocks that a number of rows is cut into.

    Args:
        texts: how many rows.
        size: of a block; the last may be smaller.

    Returns:
        [start, stop) of each, in order.
    """
    return [(start, min(start + size, texts)) for start in range(0, texts, size)]


def upper_triangle(count: int) -> list[tuple[int, int]]:
    """Every unordered pair of blocks once.

    Args:
        count: how many blocks.

    Returns:
        All (i, j) with i ≤ j < count, row by row.
    """
    return [(i, j) for i in range(count) for j in range(i, count)]


def keyed_hash(text_id: str, seed: int) -> int:
    """A 64-bit hash of an id under a seed: uniform, the same on every machine and in every year.

    Args:
        text_id: any text.
        seed: any 64-bit whole number.

    Returns:
        A whole number in [0, 2⁶⁴).
    """
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(text_id.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest(), "big")


def seeded_sample(ids: Iterable[str], size: int, seed: int) -> list[str]:
    """The `size` ids of smallest keyed hash, in that order; all of them where there are fewer.

    A simple random sample for every seed. Adding or removing a text changes it by at most one text.

    Args:
        ids: each once.
        size: how many are wanted.
        seed: of `keyed_hash`.

    Returns:
        Ids, at most `size`.
    """
    return heapq.nsmallest(size, ids, key=lambda text_id: (keyed_hash(text_id, seed), text_id))
