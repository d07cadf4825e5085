"""Errors of corpora whose texts come in documents: by hand, in their limits, and over corpora drawn again."""

import math

import numpy as np
import pytest
from prepared import laid_out
from scipy import stats

from tempscale.collapse.aggregates import Block
from tempscale.collapse.cosine import cosine_tile
from tempscale.collapse.exposure import exposure
from tempscale.collapse.length import mean_cosines
from tempscale.stats.errors import (
    DocumentSums,
    between_error,
    documents_error,
    enough_documents,
    equal_documents,
    error_of_sums,
    within_error,
)
from tempscale.stats.groups import pairs_of_sets
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.steps.dealing import deal, document_sets, enough, pairs_of
from tempscale_jobs.steps.group_tables import Cells, MeasuredGroups

# ------------------------------------------------------------------------------------------------------------ by hand


def test_two_values_in_each_of_ten_documents_by_hand():
    """Document g has the values g and g + 1: sums of deviations 2g − 9, Σ(2g − 9)² = 330, so √(10/9·330)/20."""
    values = np.array([[g, g + 1.0] for g in range(10)]).ravel()
    expected = math.sqrt(10 / 9 * 330) / 20
    assert documents_error([values], [1.0], [np.repeat(np.arange(10), 2)]) == pytest.approx(expected, rel=1e-12)
    assert documents_error([values], [2.0], [np.repeat(np.arange(10), 2)]) == pytest.approx(2 * expected, rel=1e-12)
    assert np.isnan(documents_error([values[:18]], [1.0], [np.repeat(np.arange(9), 2)]))


def test_documents_of_one_text_change_nothing():
    random = np.random.default_rng(0)
    one, other = random.normal(size=40), random.normal(size=30)
    alone = documents_error([one], [2.0], [np.arange(40)])
    assert alone == pytest.approx(within_error(one.var(ddof=1), 40), rel=1e-12)
    between = documents_error([one, other], [1.0, 1.0], [np.arange(40), np.arange(100, 130)])
    assert between == pytest.approx(between_error(one.var(ddof=1), 40, other.var(ddof=1), 30), rel=1e-12)
    gap = documents_error([one, other], [2.0, -2.0], [np.arange(40), np.arange(100, 130)])
    assert gap == pytest.approx(2 * between, rel=1e-12)


def test_copies_of_each_text_in_its_document_tell_nothing_more():
    values = np.random.default_rng(1).normal(size=25)
    copied = documents_error([np.repeat(values, 4)], [2.0], [np.repeat(np.arange(25), 4)])
    assert copied == pytest.approx(within_error(values.var(ddof=1), 25), rel=1e-12)


def test_what_a_document_moves_at_both_ends_cancels_in_a_gap():
    values, documents = np.random.default_rng(2).normal(size=20), np.arange(20)
    assert documents_error([values, values], [2.0, -2.0], [documents, documents]) == pytest.approx(0, abs=1e-15)
    assert documents_error([values, values], [1.0, 1.0], [documents, documents]) == pytest.approx(
        within_error(values.var(ddof=1), 20), rel=1e-12
    )


def test_pairs_of_sets_by_hand():
    """Set 0: document 7 has texts of strata 0, 0, 1; document 8 one of 1. Set 1: document 9 has 0 and 1."""
    stratum, document = np.array([0, 0, 1, 1, 0, 1]), np.array([7, 7, 7, 8, 9, 9])
    found = pairs_of_sets(stratum, document, np.array([0, 0, 0, 0, 1, 1]), (2, 2))
    # Between documents: the two of stratum 0 with that of 8, and the two of stratum 1; inside: 0-0, 0-1 twice.
    assert found.tolist() == [[0, 2, 1, 1, 2, 0], [0, 0, 0, 0, 1, 0]]


def test_pairs_of_sets_are_those_counted_one_by_one():
    random = np.random.default_rng(3)
    stratum, document = random.integers(0, 3, 60), random.integers(0, 25, 60)
    set_of = (document * 7 % 4).astype(int)
    expected = np.zeros((4, 2, 3, 3))
    for i in range(60):
        for j in range(i):
            if set_of[i] == set_of[j]:
                a, b = sorted((stratum[i], stratum[j]))
                expected[set_of[i], int(document[i] == document[j]), a, b] += 1
    upper = np.triu_indices(3)
    np.testing.assert_array_equal(pairs_of_sets(stratum, document, set_of, (4, 3)), expected[..., *upper].reshape(4, 12))


# ---------------------------------------------------------------------------------------------------- exposure, brute


def brute_exposure_error(label, interval, b, own, documents, asking):
    """Every two slots, and every slot and text: covariance counts where they share a document."""
    texts, slots = len(interval), [(q, t) for q in range(len(label)) for t in label[q]]
    share, taken = (interval == b).mean(), np.mean([interval[t] == b for _, t in slots])
    touched, effect = [], []
    for q, t in slots:
        touched.append({("t", documents[t]), ("t", documents[q]) if own else ("q", asking[q])})
        effect.append(((interval[t] == b) - taken) / (share * len(slots)))
    for t in range(texts):
        touched.append({("t", documents[t])})
        effect.append(-taken / share * ((interval[t] == b) - share) / (share * texts))
    return math.sqrt(
        sum(effect[i] * effect[j] for i in range(len(effect)) for j in range(len(effect)) if touched[i] & touched[j])
    )


@pytest.mark.parametrize("own", [True, False])
def test_errors_of_exposure_are_those_of_all_pairs_of_slots(own):
    random = np.random.default_rng(4)
    vectors = random.normal(size=(40, 6)) + 2 * random.normal(size=(12, 6))[np.arange(40) % 12]
    asked = vectors if own else random.normal(size=(15, 6))
    cosine = asked @ vectors.T / np.linalg.norm(asked, axis=1)[:, None] / np.linalg.norm(vectors, axis=1)
    if own:
        np.fill_diagonal(cosine, -np.inf)
    label = np.argsort(-cosine, axis=1)[:, :3]
    interval, documents, asking = np.arange(40) % 3, np.arange(40) % 12, np.arange(15) % 11
    found = exposure(label, interval, 3, own, documents=documents, query_documents=None if own else asking)
    plain = exposure(label, interval, 3, own)
    for b in range(3):
        expected = brute_exposure_error(label.tolist(), interval, b, own, documents, asking)
        assert found.error[b] == pytest.approx(expected, rel=1e-10)
    np.testing.assert_array_equal(found.corrected, plain.corrected)
    each = exposure(label, interval, 3, own, documents=np.arange(40), query_documents=None if own else np.arange(15))
    np.testing.assert_allclose(each.error, plain.error, rtol=1e-12)
    few = exposure(label, interval, 3, own, documents=np.arange(40) % 9, query_documents=None if own else asking)
    assert np.isnan(few.error).all()
    if not own:
        few = exposure(label, interval, 3, own, documents=documents, query_documents=np.arange(15) % 9)
        assert np.isnan(few.error).all()
        np.testing.assert_array_equal(few.exposure, found.exposure)


# ------------------------------------------------------------------------------------------------------- drawn corpora

DIM, STRATA = 16, 3


def drawn_documents(random, documents):
    """Texts of documents of 1 to 12 texts, half of each text that of its document; lengths lean to one interval each."""
    sizes = 1 + random.negative_binomial(2, 0.35, documents).clip(max=11)
    document = np.repeat(np.arange(documents), sizes)
    lean = random.integers(0, STRATA, documents)
    stratum = np.where(random.random(len(document)) < 0.6, lean[document], random.integers(0, STRATA, len(document)))
    own = random.normal(size=(documents, DIM)) * random.uniform(0.5, 1.5, documents)[:, None]
    vectors = own[document] + random.normal(size=(len(document), DIM)) + np.eye(DIM)[0] * (1 + 0.4 * stratum[:, None])
    return document, stratum, (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def embedded_figures(random, documents=120):
    """Means over pairs, a gap, a share and exposures, with the errors of documents and of independent texts."""
    document, stratum, vectors = drawn_documents(random, documents)
    order = np.argsort(stratum, kind="stable")
    document, stratum, vectors = document[order], stratum[order], vectors[order]
    inside = np.concatenate([mean_cosines(vectors[stratum == a]) for a in range(STRATA)])
    overall = mean_cosines(vectors)
    ends = [stratum == STRATA - 1, stratum == 0]
    found = {
        "mean": (
            overall.mean(),
            documents_error([overall], [2.0], [document]),
            within_error(overall.var(ddof=1), len(overall)),
        ),
        "gap": (
            inside[ends[0]].mean() - inside[ends[1]].mean(),
            documents_error([inside[e] for e in ends], [2.0, -2.0], [document[e] for e in ends]),
            math.hypot(*(within_error(inside[e].var(ddof=1), e.sum()) for e in ends)),
        ),
    }
    held = (vectors[:, 0] > 0.3).astype(float)
    found["share"] = held.mean(), documents_error([held], [1.0], [document]), held.std(ddof=1) / math.sqrt(len(held))
    block = Block(vectors, stratum, np.arange(len(vectors), dtype=np.int32))
    label = cosine_tile(block, block, STRATA, diagonal=True, neighbours=5).rows.label
    by_document, plain = exposure(label, stratum, STRATA, documents=document), exposure(label, stratum, STRATA)
    for b in range(STRATA):
        found["exposure", b] = by_document.exposure[b], by_document.error[b], plain.error[b]
    return found


def covered(figures, draws, freedom, truth=None):
    """How often value ± t·error holds the truth (the mean over draws unless given), for each figure's errors."""
    random = np.random.default_rng(11)
    found = [figures(random) for _ in range(draws)]
    reach, shares = stats.t.ppf(0.975, freedom), {}
    for name in found[0]:
        rows = np.array([one[name] for one in found], dtype=float)
        known = np.isfinite(rows).all(1)
        assert known.mean() > 0.6, name  # A cell needs pairs from ten sets of documents.
        middle = rows[known, 0].mean() if truth is None else truth[name]
        shares[name] = [
            float(np.mean(np.abs(rows[known, 0] - middle) <= reach * rows[known, k])) for k in range(1, rows.shape[1])
        ]
    print(shares)
    return shares


@pytest.mark.proof
def test_errors_of_documents_hold_where_those_of_texts_do_not():
    shares = covered(embedded_figures, 300, 119)
    for name, (by_document, independent) in shares.items():
        assert 0.91 <= by_document <= 0.98, name
        if name in ("mean", "share"):
            assert independent < 0.85, name


def layout_of(document, stratum, seed=3):
    ids = [f"t{k:05d}" for k in range(len(document))]
    return laid_out(ids, 10 + 100 * stratum, stratum, (0, 100, 200), seed, document * 1_000_003)


ANALYSIS = Analysis.model_validate({"socm_groups": 16})


def test_groups_are_dealt_by_document():
    random = np.random.default_rng(5)
    document, stratum, _ = drawn_documents(random, 200)
    layout = layout_of(document, stratum)
    set_of = document_sets(layout, ANALYSIS)
    assert set_of.max() == 15
    names, first = np.unique(document, return_index=True)
    assert (set_of == set_of[first][np.searchsorted(names, document)]).all()  # A document is in one set.
    place = {text: k for k, text in enumerate(layout.ids.tolist())}
    dealt = deal(layout, ANALYSIS, 16)
    for group in dealt:
        assert {int(set_of[place[i]]) for i in group.ids} == {group.drawn}
        assert len(set(group.ids)) == len(group.ids) <= 20
    more = deal(layout, ANALYSIS, 48)
    assert more[: len(dealt)] == dealt
    every = [i for group in more for i in group.ids]
    assert len(set(every)) == len(every)
    assert pairs_of(more) > pairs_of(dealt)
    # In turn, in the order of their keyed hash: documents that come one after the other are in different sets.
    kept = np.unique(layout.documents)
    order = sorted(kept.tolist(), key=lambda own: (keyed_hash(str(own), layout.seed), own))
    assert [int(set_of[np.flatnonzero(layout.documents == own)[0]]) for own in order[:20]] == [k % 16 for k in range(20)]
    few = layout_of(document % 19, stratum)
    assert document_sets(few, ANALYSIS) is None  # Too few documents for an error: dealt from texts.
    assert {group.drawn for group in deal(few, ANALYSIS, 16)} == set(range(16))


@pytest.mark.proof
def test_groups_are_dealt_whatever_the_documents_and_the_seed():
    """As many sets as there can be, none empty; from texts where one document holds most; never all pairs of many texts."""
    for documents, each, count in ((20, 250, 10), (31, 100, 15), (150, 40, 16)):
        for seed in range(40):
            layout = layout_of(np.repeat(np.arange(documents), each), np.zeros(documents * each, dtype=int), seed)
            assert len(np.unique(document_sets(layout, ANALYSIS))) == count
            assert len(deal(layout, ANALYSIS, 64)) == 64
    for seed in range(40):
        giant = layout_of(np.concatenate([np.zeros(5000, dtype=int), np.arange(1, 21)]), np.zeros(5020, dtype=int), seed)
        assert document_sets(giant, ANALYSIS) is None
        assert enough(giant, ANALYSIS)
        assert len(deal(giant, ANALYSIS, 16)) == 16


def test_documents_as_if_of_equal_size():
    assert equal_documents(np.repeat(np.arange(12), 5)) == 12
    assert equal_documents(np.zeros(7, dtype=int)) == 1
    assert equal_documents(np.array([0, 0, 0, 1])) == 16 / 10
    unequal = np.concatenate([np.zeros(500, dtype=int), 1 + np.arange(500) % 100])
    assert equal_documents(unequal) == 1000**2 / (500**2 + 100 * 25)
    assert not enough_documents(unequal)
    assert not enough_documents(np.repeat(np.arange(9), 5))
    assert enough_documents(np.repeat(np.arange(10), 5))
    values = np.random.default_rng(0).standard_normal(1000)
    assert np.isnan(documents_error([values], [1.0], [unequal]))


@pytest.mark.proof
@pytest.mark.parametrize(
    ("documents", "least"),
    [pytest.param(40, 0.81, marks=pytest.mark.soak), (120, 0.9), pytest.param(400, 0.91, marks=pytest.mark.soak)],
)
def test_errors_of_groups_of_documents_hold(documents, least):
    """Over corpora drawn again: the mean over all pairs and every cell, those inside a document in their proportion.

    Cells of 40 documents have pairs in some ten sets of two or three documents, which is few for the error of an error.
    """
    upper = list(zip(*np.triu_indices(STRATA), strict=True))

    def figures(random):
        document, stratum, vectors = drawn_documents(random, documents)
        x = vectors[:, :4].astype(float)
        layout = layout_of(document, stratum, int(random.integers(2**40)))
        dealt = deal(layout, ANALYSIS, 16)
        place = {text: k for k, text in enumerate(layout.ids.tolist())}
        places = np.array([place[i] for group in dealt for i in group.ids])
        group = np.repeat(np.arange(len(dealt)), [len(own.ids) for own in dealt])
        first, second = np.nonzero(np.triu(group[:, None] == group, 1))
        value = np.square(x[places[first]] - x[places[second]]).sum(1)
        nothing = np.zeros(len(places))
        found = MeasuredGroups(
            layout.ids[places], layout.tokens[places], nothing, group[first], first, second, value, value, value
        )
        cells = Cells.of(found, layout, dealt, document_sets(layout, ANALYSIS))
        sums = cells.sums(value)
        every = np.square(x[:, None] - x[None]).sum(2)
        true = {"mean": every[np.triu_indices(len(x), 1)].mean()}
        for k, (a, b) in enumerate(upper):
            block = every[np.ix_(stratum == a, stratum == b)]
            true[k] = block[np.triu_indices(len(block), 1)].mean() if a == b else block.mean()
        estimates = {k: cells.estimate(sums, k) for k in range(len(upper))}
        estimates["mean"] = sums.estimate(cells.weights, range(cells.shape[1]))
        # Away from this corpus's own mean, so that no bias hides in what corpora differ by.
        return {name: (value - true[name], error) for name, (value, error) in estimates.items()}

    shares = covered(figures, 300, 15, truth=dict.fromkeys(["mean", *range(len(upper))], 0.0))
    for name, (share,) in shares.items():
        assert share >= (0.91 if name == "mean" else least), name


def test_sums_by_document_of_any_split_are_those_of_all_texts():
    random = np.random.default_rng(2)
    values, document = random.standard_normal((400, 3)), random.integers(0, 60, 400) * 7 - 90
    whole = DocumentSums.of(values, document)
    order = random.permutation(400)
    own = [DocumentSums.of(values[part], document[part]) for part in np.split(order, [1, 5, 200, 200])]
    merged = own[0].merged(own[1]).merged(own[2].merged(own[3])).merged(own[4])
    assert (merged.documents == whole.documents).all()
    assert (merged.texts == whole.texts).all()
    np.testing.assert_allclose(merged.sums, whole.sums, atol=1e-13)
    for column in range(3):
        expected = documents_error([values[:, column]], [2.0], [document])
        assert error_of_sums([merged], [column], [2.0]) == pytest.approx(expected, rel=1e-12)
    assert np.isnan(error_of_sums([DocumentSums.of(values[:9], np.arange(9))], [0], [2.0]))
