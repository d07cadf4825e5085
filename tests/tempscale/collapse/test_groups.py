"""Groups of texts: what stays in a group, and cosines inside and between groups, against definitions written out."""

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse.exposure import QueryNeighbours, Units
from tempscale.collapse.groups import PARTS, Asking, GroupSums, Spread, Stays, staying, stays_counted
from tempscale.collapse.neighbours import NOBODY

seeds = st.integers(0, 2**32)


def graph(texts, k, seed, queries=None):
    """The nearest texts of each text, or of each query; some slots are empty."""
    random = np.random.default_rng(seed)
    rows = [
        random.permutation([j for j in range(texts) if queries is not None or j != i])[:k]
        for i in range(texts if queries is None else queries)
    ]
    label = np.full((len(rows), k), NOBODY, np.int32)
    for row, near in zip(label, rows, strict=True):
        kept = near[: random.integers(1, k + 1)]
        row[: len(kept)] = kept
    return label


def counted(label, asking, group, units, own, width=1000):
    """The counts of `stays_counted`, over ranges of so many units."""
    near = Asking(QueryNeighbours(units.of_queries(np.arange(len(label)), own), label), asking)
    groups = int(group.max()) + 1
    starts = range(0, units.total, width)
    parts = (range(start, min(start + width, units.total)) for start in starts)
    return reduce(
        Stays.merged,
        (stays_counted([near], group, groups, part, count=units.total, unit=units.texts) for part in parts),
    )


def by_hand(label, asking, group, of_query, of_text):
    """Share and error of each group, from every pair of results that share a unit."""
    found = []
    for g in range(int(group.max()) + 1):
        results = [
            (of_query[q], of_text[j], float(group[j] == g))
            for q in range(len(label))
            for j in label[q]
            if j != NOBODY and asking[q] == g
        ]
        if not results:
            found.append((np.nan, np.nan))
            continue
        share = sum(same for *_, same in results) / len(results)
        e = [(same - share) / len(results) for *_, same in results]
        both = sum(
            e[a] * e[b]
            for a in range(len(results))
            for b in range(len(results))
            if {results[a][0], results[a][1]} & {results[b][0], results[b][1]}
        )
        dyads = {}
        for (one, other, _), value in zip(results, e, strict=True):
            if one != other:
                dyads[frozenset((one, other))] = dyads.get(frozenset((one, other)), 0.0) + value
        only_dyads = sum(value**2 for value in dyads.values())
        found.append((share, both if both > 1e-15 else only_dyads))
    return found


@settings(max_examples=40, deadline=None)
@given(st.integers(4, 16), st.integers(1, 4), st.booleans(), st.booleans(), seeds)
def test_what_stays_and_its_error_are_those_of_results_that_share_units(texts, k, own, in_documents, seed):
    random = np.random.default_rng(seed)
    label = graph(texts, k, seed, None if own else 9)
    group = np.concatenate([np.arange(3), random.integers(0, 3, texts - 3)]).astype(np.int16)
    asking = group if own else random.integers(-1, 3, 9).astype(np.int16)
    documents = random.integers(0, 6, texts) if in_documents else None
    units = Units.of(texts, 0 if own else 9, documents)
    counts = counted(label, asking, group, units, own)
    of_text = np.arange(texts) if documents is None else documents
    of_query = of_text if own else 100 + np.arange(9)
    shares, errors = staying(counts)
    assert counts.queries.tolist() == [int((asking == g).sum()) for g in range(3)]
    for g, (share, variance) in enumerate(by_hand(label, asking, group, of_query, of_text)):
        np.testing.assert_allclose(shares[g], share)
        if not np.isnan(variance) and variance > 1e-12:
            np.testing.assert_allclose(errors[g] ** 2, variance, rtol=1e-9)


def test_what_stays_by_hand():
    # Texts 0, 1 and 2 are of group 0, and ask for two texts each: of six results four stay. Text 3 finds two others.
    label = np.array([[1, 2], [0, 3], [0, 3], [0, 1]])
    shares, errors = staying(counted(label, np.array([0, 0, 0, 1]), np.array([0, 0, 0, 1]), Units.of(4), own=True))
    np.testing.assert_allclose(shares, [4 / 6, 0])
    # e is 1/18 where a result stays, else −1/9. Sums by text: 0: 4/18, 1: 2/18 − 2/18, 2: the same, 3: −4/18; by pair:
    # {0, 1} and {0, 2} twice 1/18, {1, 3} and {2, 3} −1/9.
    np.testing.assert_allclose(errors[0] ** 2, 2 * (4 / 18) ** 2 - 4 * (2 / 18) ** 2)
    assert errors[1] == 0


@settings(max_examples=20, deadline=None)
@given(st.integers(5, 20), st.integers(1, 7), seeds)
def test_what_stays_does_not_depend_on_ranges_or_on_the_names_of_groups(texts, width, seed):
    random = np.random.default_rng(seed)
    label, group = graph(texts, 3, seed), np.concatenate([[0, 1, 2], random.integers(0, 3, texts - 3)])
    documents, turn = random.integers(0, 4, texts), random.permutation(3)
    for units in (Units.of(texts), Units.of(texts, documents=documents)):
        whole = counted(label, group, group, units, own=True)
        parts = counted(label, group, group, units, own=True, width=width)
        renamed = counted(label, turn[group], turn[group], units, own=True)
        for name in ("queries", "results", "same", "units", "pairs"):
            assert (getattr(whole, name) == getattr(parts, name)).all()
            assert (getattr(whole, name) == getattr(renamed, name)[turn]).all()
        assert [*staying(whole).error] == [*staying(renamed).error[turn]]


def vectors(texts, seed=0, dim=12):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(texts, dim)) + 0.3
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


@settings(max_examples=20, deadline=None)
@given(st.integers(4, 14), seeds)
def test_mean_cosines_are_those_of_all_pairs(texts, seed):
    rows, group = vectors(texts, seed), np.concatenate([[0, 1, 2, 0], np.random.default_rng(seed).integers(0, 4, texts - 4)])
    sums = GroupSums.of(rows, group, 3)  # Texts of group 3 are left out.
    exact = rows.astype(np.float64)
    for a in range(3):
        for b in range(3):
            cosines = [
                exact[i] @ exact[j] for i in range(texts) for j in range(texts) if i != j and (group[i], group[j]) == (a, b)
            ]
            assert sums.pairs()[a, b] * (2 if a == b else 1) == len(cosines)
            np.testing.assert_allclose(sums.means()[a, b], np.mean(cosines) if cosines else np.nan, atol=1e-10)
    here = group < 3
    means = sums.text_means(rows[here], group[here])
    for i, row in zip(np.flatnonzero(here), means, strict=True):
        for b in range(3):
            others = [exact[i] @ exact[j] for j in range(texts) if j != i and group[j] == b]
            np.testing.assert_allclose(row[b], np.mean(others) if others else np.nan, atol=1e-10)
    variance = Spread.of(means, group[here], sums).variance()
    for a in range(3):
        for b in range(3):
            known = means[group[here] == a, b]
            if len(known) > 1 and not np.isnan(known).any():
                np.testing.assert_allclose(variance[a, b], known.var(ddof=1), atol=1e-10)


def test_mean_cosines_by_hand():
    # Not of unit norm: a pair of (3, 4) and (1, 0) counts its product 3.
    sums = GroupSums.of(np.array([[3, 4], [1, 0], [0, 2]], np.float32), np.array([0, 0, 1]), 2)
    assert sums.means()[0].tolist() == [3.0, (8 + 0) / 2]
    assert np.isnan(sums.means()[1, 1])
    assert sums.pairs().tolist() == [[1, 2], [2, 0]]


def test_equal_vectors_have_a_cosine_of_one_and_no_spread():
    rows, group = np.tile(np.array([[0.6, 0.8]]), (6, 1)), np.array([0, 0, 0, 1, 1, 1])
    sums = GroupSums.of(rows, group, 2)
    np.testing.assert_allclose(sums.means(), 1, atol=1e-9)
    np.testing.assert_allclose(Spread.of(sums.text_means(rows, group), group, sums).variance(), 0, atol=1e-9)


@pytest.mark.parametrize("cuts", [[], [1], [40], [7, 8, 61]])
def test_any_order_and_division_and_other_names_of_groups_give_the_same_bytes(cuts):
    rows, group = vectors(90, 3), np.random.default_rng(4).integers(0, 3, 90)
    order, turn = np.random.default_rng(5).permutation(90), np.array([2, 0, 1])
    whole = GroupSums.of(rows, group, 3)
    pieces = np.split(order, cuts)
    sums = reduce(GroupSums.merged, (GroupSums.of(rows[piece], turn[group[piece]], 3) for piece in pieces))
    assert (sums.vectors[turn] == whole.vectors).all()
    assert (sums.squares[turn] == whole.squares).all()
    assert sums.means()[np.ix_(turn, turn)].tobytes() == whole.means().tobytes()
    one = Spread.of(whole.text_means(rows, group), group, whole)
    spread = reduce(
        Spread.merged,
        (Spread.of(sums.text_means(rows[p], turn[group[p]]), turn[group[p]], sums) for p in pieces),
    )
    assert spread.variance()[np.ix_(turn, turn)].tobytes() == one.variance().tobytes()
    assert whole.squares / PARTS == pytest.approx(np.bincount(group), abs=1e-5)
