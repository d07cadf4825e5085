"""Which pairs are computed: the grid of blocks with i ≤ j."""

from __future__ import annotations

SMALLEST_BLOCK, LARGEST_BLOCK, LARGEST_BLOCK_BYTES = 1024, 65_536, 128 << 20


def block_size(texts: int, dim: int) -> int:
    """Rows of one block of the pair grid: about a sixteenth of the texts, a multiple of 1,024, at most 65,536 rows or 128
    MB. It depends only on the texts, not on the workers, so that every run has the same tiles.
    """
    most = min(LARGEST_BLOCK, LARGEST_BLOCK_BYTES // (4 * dim) // SMALLEST_BLOCK * SMALLEST_BLOCK)
    return max(SMALLEST_BLOCK, min(most, -(-texts // (16 * SMALLEST_BLOCK)) * SMALLEST_BLOCK))


def blocks(texts: int, size: int) -> list[tuple[int, int]]:
    """[start, stop) of each block of `size` rows, in order; the last may be smaller."""
    return [(start, min(start + size, texts)) for start in range(0, texts, size)]


def upper_triangle(count: int) -> list[tuple[int, int]]:
    """Every unordered pair of blocks once: all (i, j) with i ≤ j < count, row by row."""
    return [(i, j) for i in range(count) for j in range(i, count)]
