"""How large a sample of each length interval is, by hand."""

import numpy as np

from tempscale_jobs.collapse import sample
from tempscale_jobs.collapse.socm_tables import Sample
from tempscale_jobs.embedding.layout import Layout


def laid_out(*sizes):
    """A layout of so many texts in each length interval, all of the corpus."""
    interval = np.repeat(np.arange(len(sizes)), sizes)
    count = np.arange(len(interval))
    ids = np.array([f"t{k}" for k in count], dtype=object)
    return Layout(ids, 10 + 32 * interval, interval, count * 0, count, (0, 32, 64)[: len(sizes)], len(interval))


def test_a_sample_by_length_interval_is_as_large_as_the_error_asks_or_in_proportion():
    """Four long texts are 0.5 from one another and 0, 0.2, 0.4, 0.6 from two short ones, of which too few are known.

    v = 0.2/3 between, so 2v/0.03² = 148.15 texts, 148.15/(1 + 148.15/100) = 59.7 of a hundred.
    """
    value = np.full((6, 6), 0.5)
    value[:4, 4:] = np.array([0, 0.2, 0.4, 0.6])[:, None]
    value[4:, :4] = value[:4, 4:].T
    np.fill_diagonal(value, np.nan)
    interval, ids = np.array([0, 0, 0, 0, 1, 1]), np.array([f"t{k}" for k in range(6)], dtype=object)
    pilot = Sample(ids, interval, interval, value, value, value)
    texts = laid_out(100, 2)
    assert sample.wanted_sizes([pilot], texts, 0.03, 62).tolist() == [60, 2]
    assert sample.wanted_sizes([pilot], texts, 0.03, 31).tolist() == [30, 2]  # Two of each are needed for a pair.
    assert sample.wanted_sizes([pilot], texts, 0.3, 62).tolist() == [40, 2]  # No fewer than in the pilot.
