"""Seeded samples of texts: one added or removed text changes at most one text of the sample."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable


def keyed_hash(text_id: str, seed: int) -> int:
    """A 64-bit hash of an id under a seed: uniform in [0, 2⁶⁴), and the same on every machine and at any time."""
    key = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(text_id.encode("utf-8", "surrogatepass"), digest_size=8, key=key).digest(), "big")


def seeded_sample(ids: Iterable[str], size: int, seed: int) -> list[str]:
    """The `size` ids with the smallest keyed hash, in that order: a simple random sample."""
    return heapq.nsmallest(size, ids, key=lambda text_id: (keyed_hash(text_id, seed), text_id))
