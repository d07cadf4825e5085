"""SOCM of listed pairs of some texts: against the equations, the published code, by hand, and in any order."""

import numpy as np
import oracles
import pytest
import torch

from tempscale.second_order import nuclear
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.nuclear import paired_nuclear_norms
from tempscale.second_order.socm import socm_pairs


def embedded(lengths, dim=24):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, dim, generator=generator) + 0.7 for n in lengths]


LENGTHS = [3, 40, 1, 12, 25, 7, 2, 30, 18, 5]
FIRST = [0, 1, 1, 2, 3, 9, 4, 8, 5, 1, 7, 6, 0, 3, 3, 2, 9, 1, 4]
SECOND = [1, 0, 4, 7, 3, 8, 1, 2, 6, 4, 1, 5, 9, 8, 1, 2, 0, 7, 6]


@pytest.mark.parametrize("block", [nuclear.LARGEST_BLOCK, 60])
def test_every_listed_pair_equals_the_equations(monkeypatch, block):
    monkeypatch.setattr(nuclear, "LARGEST_BLOCK", block)  # 60: most blocks are too large for lanes.
    texts = embedded(LENGTHS)
    means, factors = zip(*map(covariance_factor, texts), strict=True)
    found = socm_pairs(torch.stack(means), factors, FIRST, SECOND)
    for k, (i, j) in enumerate(zip(FIRST, SECOND, strict=True)):
        one, other = texts[i].numpy(), texts[j].numpy()
        assert float(found.d_mu[k]) == pytest.approx(oracles.d_mu(one, other), abs=1e-6)
        assert float(found.d_sigma[k]) == pytest.approx(oracles.d_sigma(one, other), abs=1e-5)
        assert float(found.socm[k]) == pytest.approx(oracles.socm(one, other), abs=1e-5)
        if i == j:
            assert float(found.d_sigma[k]) == float(found.socm[k]) == 0.0
    swapped = socm_pairs(torch.stack(means), factors, SECOND, FIRST)
    torch.testing.assert_close(swapped.d_sigma, found.d_sigma, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_listed_pairs_of_the_published_code_and_with_exponents(dtype):
    texts = [text.to(dtype) for text in embedded(LENGTHS)]
    means, factors = zip(*map(covariance_factor, texts), strict=True)
    found = socm_pairs(torch.stack(means), factors, FIRST, SECOND, regularization=1e-3, alpha=2.0, beta=0.5)
    plain = socm_pairs(torch.stack(means), factors, FIRST, SECOND)
    for k, (i, j) in enumerate(zip(FIRST, SECOND, strict=True)):
        one, other = texts[i].numpy(), texts[j].numpy()
        expected = oracles.published_d_sigma(one, other, 1e-3)
        assert float(found.d_sigma[k]) == pytest.approx(expected, abs=1e-5)
        assert float(found.socm[k]) == pytest.approx((1 - oracles.d_mu(one, other)) ** 2 * expected**0.5, abs=1e-4)
        if i != j:
            assert float(found.d_sigma[k]) < float(plain.d_sigma[k])


def test_listed_pairs_by_hand_in_order_and_none():
    factors = [torch.tensor([[3.0, 0, 0], [0, 1, 0]]), torch.tensor([[2.0, 0, 0]]), torch.zeros(0, 3)]
    first, second = [0, 1, 0, 2, 0, 2], [1, 0, 0, 1, 2, 2]
    assert paired_nuclear_norms(factors, first, second).tolist() == pytest.approx([6, 6, 10, 0, 0, 0], abs=1e-6)
    assert paired_nuclear_norms(factors, [], []).shape == (0,)
    many = [covariance_factor(text)[1] for text in embedded(LENGTHS)]
    whole = paired_nuclear_norms(many, FIRST, SECOND)
    order = np.random.default_rng(0).permutation(len(FIRST))
    shuffled = paired_nuclear_norms(many, np.array(FIRST)[order], np.array(SECOND)[order])
    torch.testing.assert_close(shuffled, whole[torch.from_numpy(order)], atol=1e-6, rtol=1e-6)
