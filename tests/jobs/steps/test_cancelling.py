"""Texts whose token embeddings cancel: under any temperature they are rejected, and the reason says so."""

import math

import numpy as np
import torch

from tempscale.model.gathering import Encoded
from tempscale.second_order.moments import TokenMoments
from tempscale_jobs.steps.embed import NO_MEAN, not_unit, without_direction

NAN = math.nan


def encoded(spread, mean_norm):
    moments = TokenMoments(torch.tensor(mean_norm), torch.tensor(spread), torch.ones(len(spread)))
    counts = torch.ones(len(spread), dtype=torch.long)
    return Encoded(torch.ones(len(spread), 2), torch.ones(len(spread)), counts, counts.bool(), moments, None)


def test_a_spread_that_is_no_number_of_a_mean_that_is_one_means_that_tokens_cancel():
    one, other = encoded([1.0, NAN, NAN, 2.0], [1.0, 1e-9, NAN, 1.0]), encoded([1.0, 1.0, NAN, NAN], [1.0, 1.0, NAN, 0.0])
    assert without_direction([one, other]) == {1: NO_MEAN, 3: NO_MEAN}


def test_without_moments_nothing_is_known():
    out = encoded([NAN], [1.0])
    assert without_direction([Encoded(out.embeddings, out.norms, out.tokens, out.truncated, None, None)]) == {}


def test_embeddings_that_are_no_unit_vectors_are_found():
    found = np.array([[0.6, 0.8], [0, 0], [NAN, 1], [0.6, 0.79], [1, 1e-4], [2, 0], [1, 2e-2]], np.float32)
    assert not_unit(found) == [1, 3, 5]
