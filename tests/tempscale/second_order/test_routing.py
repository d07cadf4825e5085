"""Where SOCM is computed, with the properties of cards that are not here; and the pairs that a GPU iterates together."""

from unittest import mock

import numpy as np
import pytest
import torch

from tempscale.second_order import nuclear, polar
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.nuclear import paired_nuclear_norms
from tempscale.second_order.routing import float64_rate, moved, socm_device

CARDS = {
    "P100": (6, 0, True), "GTX 1080": (6, 1, False), "V100": (7, 0, True), "T4": (7, 5, False), "A100": (8, 0, True),
    "A10": (8, 6, False), "Orin": (8, 7, False), "L4": (8, 9, False), "H100": (9, 0, True), "B200": (10, 0, True),
    "B300": (10, 3, False), "RTX 5090": (12, 0, False), "one of next year": (14, 0, False),
}  # fmt: skip


@pytest.mark.parametrize("card", CARDS)
def test_a_card_computes_socm_where_its_float64_is_worth_it(monkeypatch, card):
    major, minor, able = CARDS[card]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))
    gpu = torch.device("cuda", 0)
    assert socm_device(gpu) == (gpu if able else torch.device("cpu"))
    assert float64_rate(gpu) == (0.5 if able else 1 / 64)
    assert socm_device(gpu, 1e-6).type == "cpu"  # The published code's regularization needs eigenvalues.


def test_a_processor_computes_its_own():
    assert socm_device(torch.device("cpu")).type == "cpu"
    assert float64_rate(torch.device("cpu")) == 0.5


def test_what_is_moved_is_the_same_by_one_copy_each(monkeypatch):
    means, factors = torch.randn(3, 4), [torch.randn(n, 4) for n in (2, 0, 5)]
    assert moved(means, factors, torch.device("cpu")) == (means, factors)
    there, rest = moved(means.to("meta"), [own.to("meta") for own in factors], torch.device("meta"))
    assert there.device.type == "meta"
    copies = []

    def to(own, device):
        copies.append(device.type)
        return own.clone()

    monkeypatch.setattr(torch.Tensor, "to", to)
    found, split = moved(means, factors, torch.device("cuda", 0))
    monkeypatch.undo()
    assert copies == ["cuda", "cuda"]
    assert torch.equal(found, means)
    assert [own.shape for own in rest] == [own.shape for own in split] == [own.shape for own in factors]
    for own, expected in zip(split, factors, strict=True):
        assert torch.equal(own, expected)


@pytest.fixture(scope="module")
def texts(token_embeddings):
    """Factors of real texts of many lengths, of one token and of none, and a text twice."""
    tokens = [*token_embeddings[:24], token_embeddings[0][:1], token_embeddings[3]]
    factors = [covariance_factor(x)[1] for x in tokens]
    return [*factors, torch.zeros(0, factors[0].shape[1])]


@pytest.mark.proof
@pytest.mark.parametrize("elements", [60_000, *(pytest.param(n, marks=pytest.mark.soak) for n in (1, 1 << 26))])
def test_pairs_of_any_shapes_are_iterated_together(monkeypatch, texts, elements):
    random = np.random.default_rng(0)
    first, second = random.integers(0, len(texts), (2, 70))
    monkeypatch.setattr(polar, "BATCH_ELEMENTS", elements)
    with mock.patch.object(polar, "nuclear_norms", wraps=polar.nuclear_norms) as iterated:
        found = polar.pair_norms(texts, first, second)
    batches = [call.args[0].shape for call in iterated.call_args_list]
    assert all(n * rows * columns <= elements or n == 1 for n, rows, columns in batches)
    assert len(batches) == 1 if elements == 1 << 26 else len(batches) > 5
    exact = [
        float(torch.linalg.svdvals(texts[i].double() @ texts[j].double().mT).sum())
        if min(len(texts[i]), len(texts[j]))
        else 0.0
        for i, j in zip(first, second, strict=True)
    ]
    np.testing.assert_allclose(found, exact, atol=2e-6)
    assert max(exact) > 0.1


def test_listed_pairs_on_a_gpu_take_this_way(texts):
    """The tensors say that they are on a GPU; what is computed is computed here."""

    class Placed(torch.Tensor):
        @property
        def device(self):
            return torch.device("cuda", 0)

    placed = [own.as_subclass(Placed) for own in texts]
    first, second = [0, 5, 9], [1, 6, 2]
    with mock.patch.object(polar, "pair_norms", side_effect=lambda f, i, j: np.arange(len(i)) + 0.5) as taken:
        assert paired_nuclear_norms(placed, first, second).tolist() == [0.5, 1.5, 2.5]
        assert taken.call_count == 1
        paired_nuclear_norms(texts, first, second)
        assert taken.call_count == 1
    assert nuclear.paired_nuclear_norms is paired_nuclear_norms
