"""The decomposition of the prefix gap: each mean cosine pair by pair, and an encoder whose pooling and context are known."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempscale.collapse.decomposition import FIGURES, Frame, Readings, decompose, followers, sequences, unit


def cosine(vectors):
    """The mean cosine over all pairs, pair by pair."""
    total = [float(a @ b / np.sqrt((a @ a) * (b @ b))) for a, b in combinations(vectors.astype(np.float64), 2)]
    return sum(total) / len(total)


def readings(seed, texts=12, dim=5):
    generator = np.random.default_rng(seed)
    return Readings(*(generator.normal(size=(texts, dim)) + k for k in range(5)), np.arange(texts))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_each_figure_is_a_difference_of_mean_cosines_pair_by_pair(seed):
    given = readings(seed)
    short, long, apart, repeated, mixed = map(cosine, given[:5])
    expected = long - short, apart - short, long - apart, repeated - short, mixed - long
    found = decompose(given)
    assert tuple(figure.name for figure in found) == FIGURES
    assert [figure.value for figure in found] == pytest.approx(expected, abs=1e-12)
    assert found[0].value == pytest.approx(found[1].value + found[2].value, abs=1e-15)


def test_a_case_by_hand():
    """Two texts: at right angles when short, 60 degrees apart when long, and alike when their segments are averaged."""
    at = {0: [1.0, 0.0], 60: [0.5, 3**0.5 / 2], 90: [0.0, 1.0]}
    given = Readings(*(np.array([at[0], at[angle]]) for angle in (90, 60, 0, 90, 60)), np.arange(2))
    assert [figure.value for figure in decompose(given)] == pytest.approx([0.5, 1.0, -0.5, 0.0, 0.0], abs=1e-12)


def test_neither_scale_nor_order_nor_rotation_changes_a_figure():
    given, generator = readings(3), np.random.default_rng(1)
    rotation = np.linalg.qr(generator.normal(size=(5, 5)))[0]
    order = generator.permutation(12)
    other = Readings(*(7.0 * vectors[order] @ rotation for vectors in given[:5]), given.circle)
    for before, after in zip(decompose(given), decompose(other), strict=True):
        assert after.value == pytest.approx(before.value, abs=1e-12)
        assert after.error == pytest.approx(before.error, abs=1e-12)


def test_errors_are_paired_and_count_documents():
    given = readings(4, texts=60)
    documents = np.repeat(np.arange(20), 3)
    apart = decompose(given, np.arange(60))
    assert [figure.error for figure in apart] == pytest.approx([figure.error for figure in decompose(given)], rel=1e-12)
    twins = Readings(*(np.repeat(vectors[:20], 3, axis=0) for vectors in given[:5]), given.circle)
    for plain, by_document in zip(decompose(twins), decompose(twins, documents), strict=True):
        assert by_document.error > 1.5 * plain.error
    assert np.isnan(decompose(given, np.repeat(np.arange(5), 12))[0].error)
    same = given._replace(long=given.short)
    assert decompose(same)[0].error == 0.0


def test_topic_change_is_over_the_pairs_of_two_circles():
    given = readings(5)._replace(circle=np.arange(12) % 4)
    pairs = [(i, j) for i, j in combinations(range(12), 2) if i % 4 != j % 4]
    one, other = (
        np.mean([unit(rows)[i] @ unit(rows)[j] for i, j in pairs]) for rows in (given.mixed, given.long)
    )  # fmt: skip
    assert decompose(given)[-1].value == pytest.approx(one - other, abs=1e-12)
    fewer = decompose(given._replace(mixed=given.mixed[:8], circle=given.circle[:8]))
    assert [figure.texts for figure in fewer] == [12, 12, 12, 12, 8]
    none = decompose(given._replace(mixed=given.mixed[:0], circle=given.circle[:0]))
    assert [figure.name for figure in none] == list(FIGURES[:-1])


def test_each_text_is_followed_by_those_of_its_circle_and_no_segment_is_used_twice():
    for texts, segments in ((18, 9), (41, 8), (10, 3)):
        whose, circles = followers(texts, segments), texts // segments
        assert whose[:, 0].tolist() == list(range(circles * segments))
        for row in whose.tolist():
            assert sorted(row) == [row[0] % circles + circles * k for k in range(segments)]
        assert all(sorted(column) == list(range(circles * segments)) for column in whose.T.tolist())
    assert followers(17, 9).shape == (0, 9)


def test_sequences_by_hand():
    """Segments of two tokens, up to five tokens, with one special token on each side; six texts in two circles of three."""
    contents = [[10 * k + j for j in range(6)] for k in range(1, 8)]
    found = sequences(contents, Frame([1], [2]), 4, 7)
    assert found.apart[0] == [[1, 10, 11, 2], [1, 12, 13, 2], [1, 14, 2]]
    assert len(found.apart) == len(found.repeated) == 7
    assert found.repeated[1] == [1, 20, 21, 20, 21, 20, 2]
    assert found.mixed[:2] == [[1, 10, 11, 32, 33, 54, 2], [1, 20, 21, 42, 43, 64, 2]]
    assert found.mixed[4] == [1, 50, 51, 12, 13, 34, 2]
    assert found.circle == [0, 1, 0, 1, 0, 1]


def test_no_sequence_is_longer_than_the_shortest_text():
    found = sequences([[10, 11, 12, 13], [20, 21, 22], *[[30, 31, 32, 33]] * 4], Frame([1], [2]), 4, 7)
    assert {len(row) for row in (*found.repeated, *found.mixed)} == {5}
    with pytest.raises(ValueError, match="2 tokens leave no room"):
        sequences([[10]], Frame([1], [2]), 2, 7)


@pytest.mark.parametrize("pull", [0.0, 0.6])
def test_an_encoder_whose_pooling_and_context_are_known(pull):
    """Tokens are fixed vectors; the encoder takes their mean, and for longer sequences goes part of the way to one vector.

    A token is what all texts share, what its text is about, and noise of norm D. Without that pull n tokens of one text have
    the cosine C/(C + T + D/n), those of ten texts C/(C + T/10 + D/n), and a segment repeated that of the segment.
    """
    generator = np.random.default_rng(0)
    texts, dim, short, long = 120, 256, 10, 82
    common, topic, noise = 0.5 * generator.normal(size=dim), 0.5 * generator.normal(size=(texts, 1, dim)), 1.0
    rows = common + topic + noise * generator.normal(size=(texts, 100, dim))
    table = np.concatenate([np.zeros((3, dim)), rows.reshape(-1, dim)])

    def encode(ids):
        mean = table[[token for token in ids if token > 2]].mean(0)
        return mean + pull * (len(ids) > short) * common

    contents = [list(range(3 + 100 * k, 103 + 100 * k)) for k in range(texts)]
    frame = Frame([1], [2])
    every = sequences(contents, frame, short, long)
    prefixes = {n: np.array([encode(frame.around(content[: n - 2])) for content in contents]) for n in (short, long)}
    apart = np.array([np.mean([unit(encode(segment)[None])[0] for segment in own], axis=0) for own in every.apart])
    repeated, mixed = (np.array([encode(ids) for ids in ways]) for ways in (every.repeated, every.mixed))
    given = Readings(prefixes[short], prefixes[long], apart, repeated, mixed, np.array(every.circle))
    found = {figure.name: figure.value for figure in decompose(given)}
    c, t, d = 0.25, 0.25, 1.0

    def at(n, share=1.0, pull=pull):
        return c * (1 + pull) ** 2 / (c * (1 + pull) ** 2 + t * share + d / n)

    alone = at(8, pull=0)
    assert found["prefix_gap"] == pytest.approx(at(80) - alone, abs=0.02)
    assert found["pooling"] == pytest.approx(at(80, pull=0) - alone, abs=0.02)
    assert found["context"] == pytest.approx(at(80) - at(80, pull=0), abs=0.02)
    assert found["fixed_content"] == pytest.approx(at(8) - alone, abs=0.02)
    assert found["topic_change"] == pytest.approx(at(80, 0.1) - at(80), abs=0.02)
    assert found["topic_change"] > 0.1


def drawn(generator, sizes, dim=24, segments=5):
    """Readings of texts of a common direction, a topic that texts of one document share in part, and noise by segment."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    topics = 0.2 * (0.9 * generator.normal(size=(len(sizes), dim))[owner] + 0.4 * generator.normal(size=(len(owner), dim)))
    rows = np.eye(dim)[0] + topics[:, None] + 0.4 * generator.normal(size=(len(owner), segments, dim))
    read = rows.mean(1) + 0.05 * generator.normal(size=(len(owner), dim))
    repeated = rows[:, 0] + 0.05 * generator.normal(size=(len(owner), dim))
    whose = followers(len(owner), segments)
    mixed = np.array([rows[own, range(segments)].mean(0) for own in whose])
    apart = np.stack([unit(own).mean(0) for own in rows])
    return Readings(rows[:, 0], read, apart, repeated, mixed, whose.min(1)), owner


@pytest.mark.proof
@pytest.mark.parametrize("of_one", [1, 4])
def test_in_a_thousand_draws_intervals_hold_the_truth(of_one):
    """Texts alone, or in documents of one to seven. Texts of one circle share segments: topic change is surer than said."""
    found = []
    for seed in range(1000):
        generator = np.random.default_rng(seed)
        readings_, owner = drawn(generator, generator.integers(1, 2 * of_one, 64 // of_one + 8))
        found.append([(figure.value, figure.error) for figure in decompose(readings_, owner if of_one > 1 else None)])
    values, errors = np.moveaxis(np.array(found), 2, 0)
    truth = values.mean(0)
    covered = (np.abs(values - truth) < 1.96 * errors).mean(0)
    assert np.all(covered[:4] > 0.92)
    assert np.all(covered[:4] < 0.98)
    assert covered[4] > 0.93
    assert truth[0] > 10 * values[:, 0].std() / 1000**0.5
