"""Which tenth of a text a vector follows: by hand, and an encoder whose weights are known."""

import numpy as np
import pytest

from tempscale.collapse.decomposition import unit
from tempscale.collapse.positions import TENTHS, by_tenth, replaced


def test_tenths_by_hand():
    """Twelve tokens: the tenths end at 1, 2, 3, 4, 6, 7, 8, 9, 10 and 12; the other text is as long as it needs to be."""
    own, other = list(range(12)), list(range(100, 120))
    whole, *copies = replaced(own, other)
    assert whole == own
    ends = [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 12]
    for copy, start, end in zip(copies, ends, ends[1:], strict=False):
        assert copy == [*own[:start], *other[start:end], *own[end:]]
    assert len(copies) == TENTHS
    assert replaced(other, own)[0] == other[:12]
    assert replaced(own[:9], other) == []


@pytest.mark.parametrize("tokens", [10, 25, 37])
def test_an_encoder_whose_weights_are_known(tokens):
    """An average of orthonormal tokens with weights w: replacing a tenth leaves 1 − Σ_tenth w²/Σw²."""
    generator = np.random.default_rng(tokens)
    texts, weights = 4, generator.uniform(0.1, 1, tokens)
    table = np.linalg.qr(generator.normal(size=(texts * tokens, texts * tokens)))[0]
    contents = [list(range(k * tokens, (k + 1) * tokens)) for k in range(texts)]
    rows = [
        [unit((weights @ table[copy])[None])[0] for copy in replaced(own, contents[k - 1])]
        for k, own in enumerate(contents)
    ]  # fmt: skip
    cosines = np.array([[float(whole @ copy) for copy in copies] for whole, *copies in rows])
    found = by_tenth(cosines)
    squares = weights**2
    for tenth, start, end in zip(found, range(TENTHS), range(1, TENTHS + 1), strict=True):
        expected = 1 - squares[start * tokens // 10 : end * tokens // 10].sum() / squares.sum()
        assert tenth.cosine == pytest.approx(expected, abs=1e-12)
        assert tenth.error == pytest.approx(0, abs=1e-12)
        assert (tenth.number, tenth.texts) == (end, texts)


def test_errors_are_those_of_a_mean_and_count_documents():
    cosines = np.random.default_rng(0).uniform(size=(60, 10))
    plain = by_tenth(cosines)
    assert plain[3].error == pytest.approx(cosines[:, 3].std(ddof=1) / 60**0.5, rel=1e-12)
    twins, documents = np.repeat(cosines[:20], 3, axis=0), np.repeat(np.arange(20), 3)
    assert by_tenth(twins, documents)[0].error == pytest.approx(by_tenth(cosines[:20])[0].error, rel=1e-12)
    assert np.isnan(by_tenth(cosines, np.repeat(np.arange(5), 12))[0].error)


def test_replacing_a_text_by_itself_changes_nothing():
    own = list(range(40))
    assert all(copy == own for copy in replaced(own, own))
