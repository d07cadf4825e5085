"""Bounds and exact values of listed pairs of texts, from factors in durable parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.steps import factors as factor_parts
from tempscale_jobs.steps.socm_tables import Named, PairValues, best
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Piece, run_tasks

_GROUP_TEXTS, _GROUP_ROWS = 2048, 1 << 16
"""Most texts of one side of a task, and most rows of their factors together: 100 MB at 384 dimensions."""
_TASK_PAIRS = 1 << 16
"""Most pairs of a task."""
_AT_ONCE = 4096
"""Pairs whose means are in memory together."""
_ROWS = (64, 128, 256)
"""Rows of a factor that bound its pairs, round by round. Of texts of 512 tokens they leave 31, 3 and 0.3 % (all-MiniLM)."""
_FEW = 4
"""Up to so many times the wanted pairs are measured without bounds."""


@dataclass(frozen=True)
class FactorFiles:
    """Parts of factors, and the place of each text in them."""

    root: str
    names: list[str]
    part: dict[str, tuple[int, int]]
    """(part, row) of every id."""
    ranks: list[int]
    """Rows of all factors of each part."""

    @classmethod
    def of(cls, run: Run, model: Model, temperature: Temperature, kind: str) -> FactorFiles:
        """Read the ids and ranks of the parts in the folder `kind`."""
        names = run.storage.list(run.place(kind, model, temperature))
        part, ranks = {}, []
        for number, name in enumerate(names):
            table = run.storage.read_table(name, ["text_id", "rank"])
            part.update({text_id: (number, row) for row, text_id in enumerate(table.column("text_id").to_pylist())})
            ranks.append(int(np.sum(table.column("rank").to_numpy())))
        return cls(run.storage.root, names, part, ranks)

    def groups(self) -> np.ndarray:
        """The group of consecutive parts that each part belongs to."""
        texts = np.bincount([part for part, _ in self.part.values()], minlength=len(self.names)).tolist()
        members = factor_parts.groups(texts, self.ranks, _GROUP_TEXTS, _GROUP_ROWS)
        return np.repeat(np.arange(len(members)), [len(group) for group in members])


class PairPlaces(NamedTuple):
    """Pairs of texts, as places in a list of ids."""

    ids: np.ndarray
    first: np.ndarray
    second: np.ndarray

    def some(self, chosen: np.ndarray) -> PairPlaces:
        """Some of the pairs."""
        return PairPlaces(self.ids, self.first[chosen], self.second[chosen])


def pair_values(
    cluster: Cluster, files: FactorFiles, wanted: PairPlaces, analysis: Analysis, rows: int | None = None
) -> PairValues:
    """d_μ, d_Σ and SOCM of listed pairs; with `rows`, upper bounds of d_Σ and SOCM from the first rows of each factor."""
    import torch

    from tempscale.second_order.socm import socm_value

    d_mu, d_sigma = np.empty(len(wanted.first)), np.empty(len(wanted.first))
    for places, (mu, sigma) in _by_group(cluster, files, wanted, rows, analysis.socm_regularization):
        d_mu[places], d_sigma[places] = mu, sigma
    value = socm_value(torch.from_numpy(d_mu), torch.from_numpy(d_sigma), analysis.socm_alpha, analysis.socm_beta).numpy()
    return PairValues(wanted.first, wanted.second, d_mu, d_sigma, value)


class Candidates(NamedTuple):
    """The candidates of a ranking."""

    pairs: np.ndarray
    """Whether each pair is one, as booleans."""
    threshold: float = 0.0
    """A value that enough pairs are known to reach."""


class Ranked(NamedTuple):
    """The pairs that no bound rules out."""

    places: np.ndarray
    """Their places among the pairs that were asked for."""
    values: PairValues
    remaining: dict[str, np.ndarray]
    """Whether each is still a candidate of a ranking, as booleans."""

    def scores(self, ranking: str) -> np.ndarray:
        """The values of the candidates of a ranking."""
        scores: np.ndarray = self.values.by(ranking)[self.remaining[ranking]]
        return scores

    def best(self, ranking: str, cosine: np.ndarray, texts: Named, size: int) -> list[dict[str, Any]]:
        """The rows of a ranking; `cosine` is that of all pairs that were asked for."""
        chosen = self.remaining[ranking]
        return best(self.values.some(chosen), cosine[self.places][chosen], self.scores(ranking), texts, size)


def most_collapsed(
    cluster: Cluster, files: FactorFiles, wanted: PairPlaces, candidates: dict[str, Candidates], analysis: Analysis
) -> Ranked:
    """Measure the pairs of each ranking that bounds do not rule out; its `worst_pairs` best ones are among them.

    The factors in `files` have principal rows. In each round more of their rows decide: the best pairs by their bounds are
    measured, which may raise the threshold, and other pairs whose bound is below it are no candidates any more.
    """
    remaining = {ranking: candidate.pairs.copy() for ranking, candidate in candidates.items()}
    thresholds = {ranking: candidate.threshold for ranking, candidate in candidates.items()}
    for rows in _ROWS:
        places = np.flatnonzero(np.logical_or.reduce(list(remaining.values())))
        if len(places) <= _FEW * analysis.worst_pairs:
            break
        bounds = pair_values(cluster, files, wanted.some(places), analysis, rows)
        best_by_bound = {
            ranking: _largest(bounds.by(ranking), mask[places], analysis.worst_pairs) for ranking, mask in remaining.items()
        }
        measured = np.unique(np.concatenate(list(best_by_bound.values())))
        values = pair_values(cluster, files, wanted.some(places[measured]), analysis)
        for ranking, chosen in best_by_bound.items():
            if len(chosen) == analysis.worst_pairs:
                reached = values.by(ranking)[np.searchsorted(measured, chosen)].min()
                thresholds[ranking] = max(thresholds[ranking], float(reached))
            kept = bounds.by(ranking) >= thresholds[ranking]
            kept[chosen] = True
            remaining[ranking][places] &= kept
    places = np.flatnonzero(np.logical_or.reduce(list(remaining.values())))
    values = pair_values(cluster, files, wanted.some(places), analysis)
    return Ranked(places, values, {ranking: mask[places] for ranking, mask in remaining.items()})


def _largest(values: np.ndarray, mask: np.ndarray, count: int) -> np.ndarray:
    """The places of the largest of the values that a mask allows, at most `count`."""
    allowed = np.flatnonzero(mask)
    if len(allowed) <= count:
        return allowed
    return np.asarray(allowed[np.argpartition(values[allowed], -count)[-count:]])


def _by_group(
    cluster: Cluster, files: FactorFiles, pairs: PairPlaces, rows: int | None, epsilon: float
) -> Iterator[tuple[np.ndarray, Any]]:
    """Run tasks for every two groups of parts that have a pair; yield the pairs' places and results."""
    ids, first, second = pairs
    if not len(first):
        return
    located = np.array([files.part[text_id] for text_id in ids.tolist()], dtype=np.int64).reshape(-1, 2)
    group = files.groups()
    first_group, second_group = group[located[first, 0]], group[located[second, 0]]
    cell = first_group * (int(group.max()) + 1) + second_group
    order = np.argsort(cell, kind="stable")
    _, starts = np.unique(cell[order], return_index=True)
    cells = np.split(order, starts[1:])
    members = [places for own in cells for places in np.array_split(own, -(-len(own) // _TASK_PAIRS))]

    def pieces() -> Iterator[Piece]:
        """Pairs of two groups each; their ids are collected when the piece is submitted."""
        for k in cluster.ordered(sorted(range(len(members)), key=lambda k: -len(members[k]))):
            places = members[k]
            a, b = int(first_group[places[0]]), int(second_group[places[0]])
            names = [tuple(files.names[p] for p in np.flatnonzero(group == g)) for g in (a, b)]
            arguments = (files.root, tuple(names), (ids[first[places]], ids[second[places]]), rows, epsilon)
            yield Piece(k, arguments, f"pairs of factors {k}", cost=float(len(places)))

    for piece, values in run_tasks(cluster, _work, pieces()):
        yield members[piece.number], values


def _work(
    root: str, groups: tuple[tuple[str, ...], ...], pairs: tuple[np.ndarray, np.ndarray], rows: int | None, epsilon: float
) -> tuple[np.ndarray, np.ndarray]:
    """d_μ, and d_Σ or its bound from `rows` rows, of pairs of ids of two groups of parts."""
    import torch

    from tempscale.second_order.bounds import d_sigma_bound
    from tempscale.second_order.socm import socm_pairs

    torch.set_num_threads(1)
    place, means, factors = dict[str, int](), list[Any](), list[Any]()
    for names in dict.fromkeys(groups):
        group_ids, group_means, group_factors = factor_parts.read(root, names)
        place.update({text_id: len(factors) + k for k, text_id in enumerate(group_ids)})
        means.append(group_means)
        factors += group_factors
    i, j = (np.array([place[text_id] for text_id in side.tolist()]) for side in pairs)
    # Stack only the texts that occur in a pair.
    used, inverse = np.unique(np.concatenate([i, j]), return_inverse=True)
    used_factors = [factors[k] for k in used]
    i, j = inverse[: len(i)], inverse[len(i) :]
    mean = torch.cat(means)[torch.from_numpy(used)]
    if rows is None:
        values = socm_pairs(mean, used_factors, i.tolist(), j.tolist(), regularization=epsilon)
        return values.d_mu.numpy(), values.d_sigma.numpy()
    unit = mean.double().numpy()
    cuts = [slice(start, start + _AT_ONCE) for start in range(0, len(i), _AT_ONCE)]
    d_mu = np.minimum(np.concatenate([_squares(unit[i[cut]] - unit[j[cut]]) for cut in cuts]) / 4, 1.0)
    return d_mu, d_sigma_bound(used_factors, i, j, rows)


def _squares(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.einsum("nd,nd->n", rows, rows))
