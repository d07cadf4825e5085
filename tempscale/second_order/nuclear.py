"""‖F_1F_2ᵀ‖_* of many pairs: the cross term of d_Σ (S2 eq. 6), without a d×d matrix.

One matrix product gives the cross blocks of many pairs. The next step depends on the device and the precision: on a CPU in
float32, sixteen blocks at a time in SIMD lanes (`bidiagonal`); on a GPU, polar iterations of matrix products alone
(`polar`); in float64 and for blocks too large for lanes, eigenvalues of Gram matrices in float64.
benchmarks/NOTES.md lists the slower methods that were tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from threadpoolctl import threadpool_limits
from torch import Tensor

_LANES = 16
LARGEST_BLOCK = 448 * 448
"""Elements of the largest cross block computed in lanes; from there on Gram matrices are faster, by 1.2 at 512×512."""
_CHUNK_ELEMENTS = 1 << 19
"""Float32 elements of the products computed at once on a CPU: 2 MB, about the second-level cache of one core."""
GRAM_ELEMENTS = 4_000_000
"""Float64 elements of the cross blocks whose eigenvalues are computed at once: 32 MB."""
_FEW = 64
"""Up to this many texts may be packed pair by pair: sixteen texts of all lengths in a block are padded to the longest."""
_OF_AN_ELEMENT, _OF_A_PAIR = 42, 66_000
"""Further cost of a block's element and of a pair with its own product, in steps of the reduction."""
_NO_EIGENVALUE = 1e-10
"""An eigenvalue of a covariance that is smaller, relative to its largest one, is 0: the rounding of float32."""
_DENSE = 8
"""If at least one in eight of all pairs of a list is wanted, all are computed: products of many texts are faster."""

LARGEST_EPSILON = 1e-8
"""The largest regularization whose eigenvalues are approximated by singular values, see `cross_nuclear_norms`."""

Factors = Sequence[Float[Tensor, "rank dim"]]
"""Covariance factors (rank_i, d) of some texts, all in one precision and on one device."""


def cross_nuclear_norms(
    factors1: Factors, factors2: Factors, *, regularization: float = 0.0
) -> Float[Tensor, "text1 text2"]:
    """‖F_1F_2ᵀ‖_* = tr (Σ_1^½ Σ_2 Σ_1^½)^½ of every text of one list with every text of another (in S2 eq. 6).

    Products are in the factors' precision. For float32 factors of unit-mean texts, d_Σ (which contains half of this norm) is
    within 1e-5 of its float64 value, and usually within 1e-6.

    Args:
        factors1, factors2: covariance factors (rank_i, d); a factor of rank 0 gives 0. The texts may be in any order: they
            are sorted by rank internally.
        regularization: ε > 0 gives tr (S Σ_2 S + εI)^½ with S = (Σ_1 + εI)^½, as S2's published code does: the roots of the
            eigenvalues of F_2(Σ_1 + εI)F_2ᵀ plus ε, and (d − rank_2)·√ε. It lowers d_Σ by about (d − r)√ε/2 and depends a
            little on which text is first. In float32 on a CPU, up to ε = 1e-8, these eigenvalues are the squares of the
            singular values of F_1F_2ᵀ and, from the (rank_1 + 1)st on, ε times those of Σ_2. None is larger than the exact
            one, and d_Σ is at most √ε·tr Σ_2/4 too large; of real texts with ε = 1e-9 by 3e-6, seldom by 1e-5.

    Returns:
        Float64 (texts1, texts2), ≥ 0, on the CPU.
    """
    norms = np.zeros((len(factors1), len(factors2)))
    if not len(factors1) or not len(factors2):
        return torch.from_numpy(norms)
    if regularization and not _fit_lanes(factors1, regularization):
        return _regularized_norms(factors1, factors2, regularization)
    rows, columns = _by_rank(factors1), _by_rank(factors2)
    sorted1, sorted2 = [factors1[i] for i in rows], [factors2[j] for j in columns]

    def place(group: int, first: int, block: np.ndarray) -> None:
        norms[np.ix_(rows[first:], columns[group : group + _LANES])] = block

    _each_group(sorted1, sorted2, lambda group: 0, place, regularization)
    if regularization:
        ranks, every = _Tails.of(factors1, regularization).ranks, np.arange(len(factors2))
        norms += _Tails.of(factors2, regularization).after(ranks[:, None], every)
    return torch.from_numpy(norms)


def all_nuclear_norms(factors: Factors, *, regularization: float = 0.0) -> Float[Tensor, "text text"]:
    """‖F_iF_jᵀ‖_* of all pairs of one list, each computed once (the cross term of S2 eq. 6).

    Args:
        factors: covariance factors (rank_i, d).
        regularization: as in `cross_nuclear_norms`, where text i is the first of the pair (i, j), i < j.

    Returns:
        Float64 (texts, texts), ≥ 0, symmetric to the bit, on the CPU; without a regularization the diagonal is
        ‖F_iF_iᵀ‖_* = tr Σ_i. As precise as `cross_nuclear_norms`.
    """
    if not len(factors):
        return torch.zeros(0, 0, dtype=torch.float64)
    if regularization:
        if _fit_lanes(factors, regularization):
            tails = _Tails.of(factors, regularization)
            norms = _symmetric_norms(factors, regularization) + tails.after(tails.ranks[:, None], np.arange(len(factors)))
        else:
            norms = _regularized_norms(factors, factors, regularization).numpy()
        return torch.from_numpy(np.triu(norms) + np.triu(norms, 1).T)
    return torch.from_numpy(_symmetric_norms(factors, 0.0))


def _symmetric_norms(factors: Factors, epsilon: float) -> np.ndarray:
    """Σ√(s² + ε) over d singular values s of F_iF_jᵀ, most of them 0, for all pairs of one list."""
    norms, order = np.zeros((len(factors), len(factors))), _by_rank(factors)
    ordered = [factors[i] for i in order]
    if _fit_lanes(factors, epsilon) and len(factors) <= _FEW:
        upper = np.triu_indices(len(factors), 1)
        packed = _Packed.of(factors, *upper)
        if len(upper[0]) and packed.work() < _square_work(packed.ranks[order]):
            norms[upper] = packed.norms(factors, epsilon)
            norms += norms.T
            np.fill_diagonal(norms, _traces(factors))
            return norms

    def place(group: int, first: int, block: np.ndarray) -> None:
        texts, later = order[group : group + _LANES], order[first:]
        norms[np.ix_(texts, later)] = block.T
        norms[np.ix_(later, texts)] = block
        inside = norms[np.ix_(texts, texts)]  # These pairs were computed in both orders; the first value is kept for both.
        norms[np.ix_(texts, texts)] = np.triu(inside) + np.triu(inside, 1).T

    _each_group(ordered, ordered, lambda group: group, place, epsilon)
    return norms


def paired_nuclear_norms(
    factors: Factors, first: Sequence[int], second: Sequence[int], *, regularization: float = 0.0
) -> Float[Tensor, " pair"]:
    """‖F_iF_jᵀ‖_* of the pairs (i, j) = (first[k], second[k]) of one list of texts; see `cross_nuclear_norms`.

    If at least an eighth of all pairs are listed, all pairs are computed. Otherwise, in float32 on a CPU, sixteen pairs of
    similar shape share the lanes, whether or not they share a text. If no two pairs share a text, this is ten times faster
    than one text at a time.

    Args:
        factors: covariance factors (rank_i, d).
        first, second: indices into `factors`; with a regularization, the order inside a pair matters a little.
        regularization: as in `cross_nuclear_norms`.

    Returns:
        Float64 (pairs,), ≥ 0, on the CPU.
    """
    norms = np.zeros(len(first))
    if not len(first):
        return torch.from_numpy(norms)
    left, right = np.asarray(first, dtype=np.int64), np.asarray(second, dtype=np.int64)
    are_many, in_lanes = _DENSE * len(left) >= len(factors) ** 2, _fit_lanes(factors, regularization)
    if are_many and (in_lanes or not regularization):
        norms = _symmetric_norms(factors, regularization)[left, right]
    elif in_lanes:
        norms = _Packed.of(factors, left, right).norms(factors, regularization)
    elif factors[0].device.type == "cuda" and factors[0].dtype == torch.float32 and not regularization:
        from tempscale.second_order.polar import pair_norms

        norms = pair_norms(factors, left, right)
    else:
        for text, places in _by_first(left):
            partners = [factors[j] for j in right[places]]
            norms[places] = cross_nuclear_norms([factors[text]], partners, regularization=regularization)[0].numpy()
    if in_lanes and regularization:
        tails = _Tails.of(factors, regularization)
        norms += tails.after(tails.ranks[left], right)
    return torch.from_numpy(norms)


def _fit_lanes(factors: Factors, epsilon: float) -> bool:
    """Whether norms of these factors are computed in SIMD lanes."""
    return factors[0].dtype == torch.float32 and factors[0].device.type == "cpu" and epsilon <= LARGEST_EPSILON


class _Tails(NamedTuple):
    """What a regularization ε adds where another text's covariance is 0."""

    ranks: np.ndarray
    """The rank of each text's covariance."""
    sums: np.ndarray
    """(texts, largest rank + 1): Σ √(ε(1 + κ)) − √ε over all but the k largest eigenvalues κ of a text's covariance."""

    @classmethod
    def of(cls, factors: Factors, epsilon: float) -> _Tails:
        longest = max(min(factor.shape) for factor in factors)
        ranks, sums = np.zeros(len(factors), np.int64), np.zeros((len(factors), longest + 1))
        for text, factor in enumerate(factors):
            wide = factor.double() if len(factor) <= factor.shape[1] else factor.double().mT
            eigenvalues = torch.linalg.eigvalsh(wide @ wide.mT).clamp_min_(0).numpy()
            ranks[text] = (eigenvalues > _NO_EIGENVALUE * eigenvalues.max(initial=0.0)).sum()
            added = np.cumsum(np.sqrt(epsilon * (1 + eigenvalues)) - np.sqrt(epsilon))  # The smallest first.
            sums[text, : len(added)] = added[::-1]
        return cls(ranks, sums)

    def after(self, ranks: np.ndarray, texts: np.ndarray) -> np.ndarray:
        """The sums of some texts without as many eigenvalues."""
        sums: np.ndarray = self.sums[texts, np.minimum(ranks, self.sums.shape[1] - 1)]
        return sums


def _ranks(factors: Factors) -> np.ndarray:
    return np.array([factor.shape[0] for factor in factors])


def _traces(factors: Factors) -> np.ndarray:
    return np.array([float(factor.double().square().sum()) for factor in factors])


class _Packed(NamedTuple):
    """Pairs in an order in which sixteen consecutive ones, the lanes of one block, need little padding."""

    tall: np.ndarray
    """Each pair's text of larger rank: a block and its transpose have the same norm."""
    narrow: np.ndarray
    order: np.ndarray
    ranks: np.ndarray

    @classmethod
    def of(cls, factors: Factors, first: np.ndarray, second: np.ndarray) -> _Packed:
        ranks = _ranks(factors)
        taller = ranks[first] >= ranks[second]
        tall, narrow = np.where(taller, first, second), np.where(taller, second, first)
        return cls(tall, narrow, np.lexsort((ranks[tall], ranks[narrow])), ranks)

    def work(self) -> float:
        """The cost of all padded blocks, in steps of the reduction."""
        starts = np.arange(0, len(self.order), _LANES)
        sides = (self.ranks[side[self.order]].astype(np.float64) for side in (self.tall, self.narrow))
        rows, columns = (np.maximum.reduceat(side, starts) for side in sides)
        return _LANES * float((rows * columns * (columns + _OF_AN_ELEMENT)).sum()) + _OF_A_PAIR * len(self.order)

    def norms(self, factors: Factors, epsilon: float) -> np.ndarray:
        """Σ√(s² + ε) of each pair."""
        arrays, norms = [factor.detach().numpy() for factor in factors], np.zeros(len(self.order))

        def compute(start: int) -> None:
            pairs = self.order[start : start + _LANES]
            sides = [[arrays[i] for i in side[pairs]] for side in (self.tall, self.narrow)]
            norms[pairs] = _pair_norms(sides[0], sides[1], epsilon)

        _each(compute, range(0, len(self.order), _LANES))
        return norms


def _square_work(ranks: np.ndarray) -> float:
    """Steps of the reduction in `_each_group` over all pairs of texts of these ranks, ascending."""
    work = 0.0
    for group in range(0, len(ranks), _LANES):
        largest, later = float(ranks[group : group + _LANES].max()), ranks[group:].astype(np.float64)
        work += _LANES * float((np.maximum(largest, later) * np.minimum(largest, later) ** 2).sum())
    return work


def principal_rows(factor: Float[Tensor, "rank dim"]) -> Float[Tensor, "rank dim"]:
    """Another factor UᵀF of the same covariance Σ = FᵀF, whose rows are its principal axes, the longest first.

    Without its last rows, P_kF, a factor gives a lower bound of each norm with another text, because no projection makes a
    nuclear norm larger: ‖F_1F_2ᵀ‖_* ≥ ‖P_kF_1(P_kF_2)ᵀ‖_*. Few rows give most of it; see `bounds.d_sigma_bound`.

    Args:
        factor: a covariance factor (rank, d).

    Returns:
        As many rows, in the factor's precision; U is computed in float64.
    """
    wide = factor.double()
    axes = torch.linalg.eigh(wide @ wide.mT).eigenvectors.flip(1)
    rows: Tensor = (axes.mT @ wide).to(factor.dtype)
    return rows


def _by_first(first: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """Each text that is the first of a pair, with the indices of its pairs."""
    order = np.argsort(first, kind="stable")
    texts, starts = np.unique(first[order], return_index=True)
    return list(zip(texts.tolist(), np.split(order, starts[1:]), strict=True))


def _by_rank(factors: Factors) -> np.ndarray:
    """Stable order by rank, so that texts next to each other need little padding."""
    return np.argsort(_ranks(factors), kind="stable")


def _each_group(
    rows: Factors, columns: Factors, first_row: Callable[[int], int], place: Callable[[int, int, np.ndarray], None],
    epsilon: float,
) -> None:  # fmt: skip
    """Call `place` with the norms of every group of up to sixteen columns, for the rows from first_row(group) on."""
    groups = range(0, len(columns), _LANES)
    if _fit_lanes(rows, epsilon):
        stacked = np.concatenate([factor.detach().numpy() for factor in rows])
        starts = np.concatenate([[0], np.cumsum([factor.shape[0] for factor in rows])]).astype(np.int64)
        lists = [factor.detach().numpy() for factor in columns]

        def compute(group: int) -> None:
            first = first_row(group)
            place(group, first, _lane_norms(stacked, starts[first:], lists[group : group + _LANES], epsilon))

        _each(compute, groups)
        return
    if rows[0].device.type == "cuda" and rows[0].dtype == torch.float32:
        from tempscale.second_order.polar import Stacked, polar_norms

        left = Stacked.of(rows)
        right = left if columns is rows else Stacked.of(columns)
        for group in groups:
            first, group_factors = first_row(group), right.part(slice(group, group + _LANES))
            place(group, first, polar_norms(left.part(slice(first, None)), group_factors).cpu().numpy())
        return
    for group in groups:
        first = first_row(group)
        place(group, first, gram_norms(rows[first:], columns[group : group + _LANES]).numpy())


def _each(compute: Callable[[int], None], groups: range) -> None:
    """Call `compute` for every group, on as many threads as torch has."""
    threads = min(torch.get_num_threads(), len(groups))
    if threads == 1:
        for group in groups:
            compute(group)
        return
    # Groups share only their inputs, so the number of threads changes no digit.
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(threads) as pool:
        list(pool.map(compute, groups))


def _pair_norms(tall: list[np.ndarray], narrow: list[np.ndarray], epsilon: float) -> np.ndarray:
    """Σ√(s² + ε) of at most sixteen pairs, each a lane of one padded block."""
    from tempscale.second_order.bidiagonal import nuclear_norms

    rows, columns, dim = max(map(len, tall)), max(map(len, narrow)), tall[0].shape[1]
    if columns == 0:
        return np.full(len(tall), dim * epsilon**0.5)
    if rows * columns > LARGEST_BLOCK:
        singles = zip(map(torch.from_numpy, tall), map(torch.from_numpy, narrow), strict=True)
        return np.array([float(gram_norms([left], [right], epsilon)) for left, right in singles])
    block = np.zeros((rows, columns, _LANES), dtype=np.float32)
    for lane, (left, right) in enumerate(zip(tall, narrow, strict=True)):
        block[: len(left), : len(right), lane] = left @ right.T
    norms = np.empty(_LANES)
    nuclear_norms(block.ravel(), np.array([0, rows], dtype=np.int64), columns, epsilon, norms)
    found: np.ndarray = norms[: len(tall)] + (dim - min(rows, columns)) * epsilon**0.5
    return found


def _lane_norms(stacked: np.ndarray, starts: np.ndarray, group: list[np.ndarray], epsilon: float) -> np.ndarray:
    """(texts, len(group)) sums Σ√(s² + ε), from one product a chunk of rows."""
    from tempscale.second_order.bidiagonal import nuclear_norms

    texts, rank, dim = len(starts) - 1, max(factor.shape[0] for factor in group), stacked.shape[1]
    norms = np.full((texts, _LANES), dim * epsilon**0.5)
    if rank == 0:
        return norms[:, : len(group)]
    # The columns of the product are the rows of the group's texts, with the text innermost: the layout of the lanes.
    lanes = np.zeros((rank, _LANES, dim), dtype=np.float32)
    for lane, factor in enumerate(group):
        lanes[: len(factor), lane] = factor
    width = rank * _LANES
    right = lanes.reshape(width, dim).T
    ranks = np.diff(starts)
    fitting = int(np.searchsorted(ranks, LARGEST_BLOCK // rank, side="right"))
    most_rows = max(_CHUNK_ELEMENTS // width, int(ranks[:fitting].max(initial=1)))
    buffer = np.empty(most_rows * width, dtype=np.float32)
    first = 0
    while first < fitting:
        last = int(np.searchsorted(starts, starts[first] + most_rows, side="right")) - 1
        last = min(max(last, first + 1), fitting)
        rows = stacked[starts[first] : starts[last]]
        product = buffer[: len(rows) * width].reshape(len(rows), width)
        np.dot(rows, right, out=product)
        block_norms = np.empty((last - first) * _LANES)
        nuclear_norms(product.ravel(), starts[first : last + 1] - starts[first], rank, epsilon, block_norms)
        others = dim - np.minimum(ranks[first:last], rank)
        norms[first:last] = block_norms.reshape(-1, _LANES) + others[:, None] * epsilon**0.5
        first = last
    if fitting < texts:
        large = [torch.from_numpy(stacked[starts[k] : starts[k + 1]]) for k in range(fitting, texts)]
        for lane, factor in enumerate(group):  # One at a time: sixteen of the largest would take gigabytes.
            norms[fitting:, lane] = gram_norms(large, [torch.from_numpy(factor)], epsilon)[:, 0].numpy()
    return norms[:, : len(group)]


def gram_norms(factors1: Factors, factors2: Factors, epsilon: float = 0.0) -> Tensor:
    """Σ√(s² + ε) from the eigenvalues, in float64, of the smaller Gram matrix of each cross block."""
    dim, norms = factors1[0].shape[1], torch.zeros(len(factors1), len(factors2), dtype=torch.float64)
    rank1, rank2 = max(f.shape[0] for f in factors1), max(f.shape[0] for f in factors2)
    if rank1 > rank2:
        return gram_norms(factors2, factors1, epsilon).mT
    for row, start, cross, _ in _cross_blocks(factors1, factors2):
        squares = torch.linalg.eigvalsh(cross @ cross.mT).clamp_min_(0)
        total = (squares + epsilon).sqrt_().sum(-1) + (dim - cross.shape[1]) * epsilon**0.5
        norms[row, start : start + len(cross)] = total.cpu()
    return norms


def _regularized_norms(factors1: Factors, factors2: Factors, epsilon: float) -> Tensor:
    """Tr (S Σ_2 S + εI)^½ with S = (Σ_1 + εI)^½, from the eigenvalues of F_2(Σ_1 + εI)F_2ᵀ in float64."""
    dim, norms = factors1[0].shape[1], torch.zeros(len(factors1), len(factors2), dtype=torch.float64)
    for row, start, cross, block in _cross_blocks(factors1, factors2):
        second = block.double()
        squares = torch.linalg.eigvalsh(cross.mT @ cross + epsilon * (second @ second.mT)).clamp_min_(0)
        total = (squares + epsilon).sqrt_().sum(-1) + (dim - cross.shape[2]) * epsilon**0.5
        norms[row, start : start + len(cross)] = total.cpu()
    return norms


def _cross_blocks(factors1: Factors, factors2: Factors) -> Iterator[tuple[int, int, Tensor, Tensor]]:
    """For each text of the first list and some of the second from a place on: F_1F_2ᵀ in float64, and F_2, padded."""
    dim, padded2 = factors1[0].shape[1], torch.nn.utils.rnn.pad_sequence(list(factors2), batch_first=True)
    rank1, rank2 = max(f.shape[0] for f in factors1), padded2.shape[1]
    columns = max(1, GRAM_ELEMENTS // max(1, rank1 * rank2))
    for row, factor in enumerate(factors1):
        for start in range(0, len(factors2), columns):
            block = padded2[start : start + columns]
            cross = (factor @ block.reshape(-1, dim).mT).reshape(len(factor), len(block), rank2).permute(1, 0, 2)
            yield row, start, cross.double(), block
