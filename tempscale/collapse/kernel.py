"""One pass over a block of cosines directly after its product: counts, sums, bins, near-duplicates, neighbours.

Separate passes over the product would cost three times as much as the product itself. All work on a row is done while the
row is in the first-level cache: its sums, bins and comparisons are loops that the compiler vectorises.
"""

from __future__ import annotations

import numpy as np

from tempscale.compiled import compiled, summing
from tempscale.lanes import LANES, largest, load, maximum, splat

# numba notices a change of this file only; lanes.py and compiled.py: b07b0cab0b6b

_WIDTH = 64
"""Columns that are compared together with the current neighbours; only groups with a candidate are searched one by one."""


@compiled
def scan(
    cosines: np.ndarray, first_row: int, first_column: int, diagonal: bool,
    row_interval: np.ndarray, column_starts: np.ndarray,
    first: np.ndarray, second: np.ndarray, pairs: np.ndarray, histogram: np.ndarray, bins: np.ndarray,
    row_near: np.ndarray, row_label: np.ndarray, column_near: np.ndarray, column_label: np.ndarray,
    row_ids: np.ndarray, column_ids: np.ndarray, row_floor: np.ndarray, column_floor: np.ndarray,
    duplicate: float, duplicates: np.ndarray, pair_cosine: np.ndarray, pair_ids: np.ndarray, kept: np.ndarray,
) -> None:  # fmt: skip
    """Add a block of cosines to the aggregates of its super-tile."""
    # The shapes, which numba's signature does not show:
    #   cosines                      (rows, columns) float32
    #   first_row, first_column      position of the block in the super-tile
    #   diagonal                     the super-tile's rows and columns are the same texts: only column > row counts
    #   row_interval                 (rows,) int64, length interval of every row of the super-tile
    #   column_starts                (intervals + 1,) int64, first column of every interval in the super-tile, and the end
    #   first, second, pairs         (interval, interval): Σcos and Σcos² float64, number of pairs int64
    #   histogram                    (interval, interval, bins) uint32; the caller empties it before it can overflow
    #   bins                         (columns,) int32, scratch
    #   row_near, column_near        (texts, k) float32, largest cosines so far, descending; k = 0 searches for none
    #   row_label, column_label      (texts, k) int32, the neighbours' labels
    #   row_ids, column_ids          (texts,) int32, each text's own label, which breaks ties
    #   row_floor, column_floor      (texts,) in the cosines' type, the last cosine of each list; infinite if k = 0
    #   duplicate, duplicates        cosine from which a pair is a near-duplicate; (interval, interval) int64, their number
    #   pair_cosine, pair_ids, kept  (capacity,) float32, (capacity, 2) int32 and (1,) int64: the listed near-duplicates
    rows, columns = cosines.shape
    for i in range(rows):
        place = first_row + i
        a = row_interval[place]
        begin = max(0, place + 1 - first_column) if diagonal else 0
        if begin >= columns:
            continue
        row = cosines[i]
        for b in range(len(column_starts) - 1):
            low, high = max(begin, column_starts[b] - first_column), min(columns, column_starts[b + 1] - first_column)
            if low >= high:
                continue
            one, two = _sums(row[low:high], bins[low:high], histogram.shape[2])
            first[a, b] += one
            second[a, b] += two
            pairs[a, b] += high - low
            _count(bins[low:high], histogram[a, b])
        _look(
            row, begin, place, first_column, row_near, row_label, column_near, column_label, row_ids, column_ids,
            row_floor, column_floor, a, column_starts, duplicate, duplicates, pair_cosine, pair_ids, kept,
        )  # fmt: skip


@summing
def _sums(values: np.ndarray, bins: np.ndarray, count: int) -> tuple[float, float]:
    """Σcos and Σcos² of a slice of a row; also writes its bins."""
    # The index starts at 0, because numba does not vectorise a loop whose index could be negative.
    half, last = np.float32(count / 2), np.int32(count - 1)
    one, two = 0.0, 0.0
    for j in range(len(values)):
        bins[j] = min(max(np.int32((values[j] + np.float32(1.0)) * half), np.int32(0)), last)
        x = np.float64(values[j])
        one += x
        two += x * x
    return one, two


@compiled
def _count(bins: np.ndarray, cell: np.ndarray) -> None:
    for j in range(len(bins)):
        cell[np.uint32(bins[j])] += np.uint32(1)


@compiled
def _look(
    row: np.ndarray, begin: int, place: int, first_column: int,
    row_near: np.ndarray, row_label: np.ndarray, column_near: np.ndarray, column_label: np.ndarray,
    row_ids: np.ndarray, column_ids: np.ndarray, row_floor: np.ndarray, column_floor: np.ndarray,
    a: int, column_starts: np.ndarray, duplicate: float, duplicates: np.ndarray,
    pair_cosine: np.ndarray, pair_ids: np.ndarray, kept: np.ndarray,
) -> None:  # fmt: skip
    """Compare a row's cosines with the neighbours of both texts of each pair, and with the near-duplicate threshold."""
    columns = len(row)
    for start in range(begin, columns, _WIDTH):
        stop = min(start + _WIDTH, columns)
        if not _candidates(row, start, stop, min(row_floor[place], duplicate), column_floor, first_column):
            continue
        for j in range(start, stop):
            value, column = row[j], first_column + j
            if value >= row_floor[place]:
                row_floor[place] = keep(row_near[place], row_label[place], value, column_ids[column])
            if value >= column_floor[column]:
                column_floor[column] = keep(column_near[column], column_label[column], value, row_ids[place])
            if value >= duplicate:
                b = 0
                while column_starts[b + 1] <= column:
                    b += 1
                duplicates[a, b] += 1
                _note(pair_cosine, pair_ids, kept, value, row_ids[place], column_ids[column])


@compiled
def _note(cosine: np.ndarray, ids: np.ndarray, kept: np.ndarray, value: float, one: int, other: int) -> None:
    """Insert a pair into the list, a heap whose root is the least similar pair, which is replaced when the list is full."""
    low, high, size = min(one, other), max(one, other), kept[0]
    if size < len(cosine):
        k = size
        kept[0] = size + 1
        while k > 0 and _before(value, low, high, cosine, ids, (k - 1) // 2):
            above = (k - 1) // 2
            cosine[k], ids[k, 0], ids[k, 1] = cosine[above], ids[above, 0], ids[above, 1]
            k = above
    else:
        if size == 0 or _before(value, low, high, cosine, ids, 0):
            return
        k = 0
        while 2 * k + 1 < size:
            below = 2 * k + 1
            if below + 1 < size and _before(cosine[below + 1], ids[below + 1, 0], ids[below + 1, 1], cosine, ids, below):
                below += 1
            if _before(value, low, high, cosine, ids, below):
                break
            cosine[k], ids[k, 0], ids[k, 1] = cosine[below], ids[below, 0], ids[below, 1]
            k = below
    cosine[k], ids[k, 0], ids[k, 1] = value, low, high


@compiled
def _before(value: float, low: int, high: int, cosine: np.ndarray, ids: np.ndarray, k: int) -> bool:
    """Whether a pair is less similar than pair k of the list; of equally similar pairs the smaller ids are kept."""
    if value != cosine[k]:
        return bool(value < cosine[k])
    if low != ids[k, 0]:
        return bool(low > ids[k, 0])
    return bool(high > ids[k, 1])


@compiled
def _candidates(row: np.ndarray, start: int, stop: int, floor: float, column_floor: np.ndarray, first_column: int) -> bool:
    """Whether any cosine of a group reaches the floor of its row or of its column."""
    if stop - start == _WIDTH:
        floors = splat(load(row, start), floor)
        best = load(row, start) - floors
        for j in range(start, stop, LANES):
            x = load(row, j)
            best = maximum(best, maximum(x - floors, x - load(column_floor, first_column + j)))
        return bool(largest(best) >= 0.0)
    for j in range(start, stop):  # noqa: SIM110 - numba compiles no generator expressions
        if row[j] >= floor or row[j] >= column_floor[first_column + j]:
            return True
    return False


@compiled
def search(
    cosines: np.ndarray, first_row: int, near: np.ndarray, label: np.ndarray, ids: np.ndarray, floor: np.ndarray
) -> None:
    """Add a block of cosines to the nearest texts of its rows; `ids` are the columns' labels, the rest is as in `scan`."""
    rows, columns = cosines.shape
    for i in range(rows):
        row, place = cosines[i], first_row + i
        for start in range(0, columns, _WIDTH):
            stop = min(start + _WIDTH, columns)
            if not _reaches(row, start, stop, floor[place]):
                continue
            for j in range(start, stop):
                if row[j] >= floor[place]:
                    floor[place] = keep(near[place], label[place], row[j], ids[j])


@compiled
def _reaches(row: np.ndarray, start: int, stop: int, floor: float) -> bool:
    """Whether any cosine of a group reaches the floor of its row."""
    if stop - start == _WIDTH:
        best = load(row, start)
        for j in range(start, stop, LANES):
            best = maximum(best, load(row, j))
        return bool(largest(best) >= floor)
    for j in range(start, stop):  # noqa: SIM110 - numba compiles no generator expressions
        if row[j] >= floor:
            return True
    return False


@compiled
def keep(near: np.ndarray, label: np.ndarray, value: float, own: int) -> float:
    """Insert a neighbour into its sorted list (largest cosine first, ties by label) and return the list's last cosine."""
    last = len(near) - 1
    if value < near[last] or (value == near[last] and own >= label[last]):
        return float(near[last])
    k = last
    while k > 0 and (near[k - 1] < value or (near[k - 1] == value and label[k - 1] > own)):
        near[k], label[k] = near[k - 1], label[k - 1]
        k -= 1
    near[k], label[k] = value, own
    return float(near[last])
