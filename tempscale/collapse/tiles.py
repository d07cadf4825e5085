"""The grid of blocks i ≤ j that holds every pair; it depends only on the texts, so that every run has the same tiles."""

from __future__ import annotations

SMALLEST_BLOCK, LARGEST_BLOCK, LARGEST_BLOCK_BYTES = 1024, 65_536, 128 << 20


def block_size(texts: int, dim: int) -> int:
    """Rows of one block of the pair grid: a sixteenth of the texts, in multiples of 1,024, at most 65,536 rows or 128 MB."""
    most = min(LARGEST_BLOCK, LARGEST_BLOCK_BYTES // (4 * dim) // SMALLEST_BLOCK * SMALLEST_BLOCK)
    return max(SMALLEST_BLOCK, min(most, -(-texts // (16 * SMALLEST_BLOCK)) * SMALLEST_BLOCK))


MOST_PANELS = 24
LARGEST_PANEL, LARGEST_PANEL_OF_GPUS = 4, 16
"""The work on two panels is lost when a process dies: sixteen large tiles take a processor a quarter of an hour."""


def panel_size(count: int, largest: int = LARGEST_PANEL) -> int:
    """Consecutive blocks of a panel, so that there are at most 24 panels: a text has one list of neighbours from each."""
    return max(1, min(largest, -(-count // MOST_PANELS)))


def blocks(texts: int, size: int) -> list[tuple[int, int]]:
    """[start, stop) of each block of `size` rows, in order; the last may be smaller."""
    return [(start, min(start + size, texts)) for start in range(0, texts, size)]


def upper_triangle(count: int) -> list[tuple[int, int]]:
    """Every unordered pair of blocks once: all (i, j) with i ≤ j < count, row by row."""
    return [(i, j) for i in range(count) for j in range(i, count)]


def runs(count: int, most: int) -> list[range]:
    """Divide 0 … count − 1 into at most `most` runs of a power of two, which do not change the result of `merge_tree`."""
    size = 1
    while size * most < count:
        size *= 2
    return [range(start, min(start + size, count)) for start in range(0, count, size)]
