"""Errors of the summary where there is too little."""

from types import SimpleNamespace

import numpy as np
import oracles
import polars as pl
import pytest

from tempscale_jobs.audit import summary, words
from tempscale_jobs.audit.summary import Replicates, Sampled
from tempscale_jobs.config.given import read_window
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage


class Layout(list):
    """As many texts of two intervals as are asked for."""

    correction, documents = 0.5, None

    def texts_by_interval(self):
        return np.array([len(self) // 2, len(self) - len(self) // 2])


def test_one_text_has_no_error_and_many_have_that_of_their_means():
    values = np.random.default_rng(0).normal(size=40)
    error = oracles.within_error(values)
    assert Sampled([values], None, True, 0.5).errors() == (pytest.approx(error), pytest.approx(error / 2))
    assert Sampled([values[:1]], None, True, 0.5).errors() == (None, None)
    assert Sampled([values, values[:1]], None, True, 0.5).errors() == (None, None)


def test_groups_tell_no_error_where_one_has_no_estimate_or_where_documents_are_torn():
    estimates, layout = np.array([0.5, 0.6, 0.4, 0.55, 0.45, 0.5, 0.52, 0.48, 0.51, 0.49]), Layout(range(100))
    means = np.array([0.5, 0.5])
    elsewhere, here = Replicates(estimates, 100, means, layout, True).errors()
    n = len(estimates)
    jackknife = np.sqrt((n - 1) / n * ((estimates - estimates.mean()) ** 2).sum())
    assert elsewhere == pytest.approx(jackknife)
    assert here == pytest.approx(jackknife)  # Both intervals have one mean: nothing is between them.
    assert Replicates(estimates, 100, means, layout, False).errors() == (None, here)
    lost = np.where(np.arange(n) == 3, np.nan, estimates)
    assert Replicates(lost, 100, means, layout, True).errors() == (None, None)


def test_a_sample_of_one_text_has_socm_of_no_pairs(tmp_path):
    storage = Storage(str(tmp_path))
    run = SimpleNamespace(storage=storage, place=lambda *of: "partials/socm")
    figures = {"way": "all", "texts": 1, "pairs": 0, "socm_mean": None, "socm_over_1_share": None}
    storage.write_json("partials/socm/done.json", figures)
    samples = {}
    found = summary.socm_figures(run, None, None, None, samples)
    assert samples == {}
    assert (found["socm_texts"], found["socm_pairs"], found["socm_freedom"]) == (1, 0, None)


def exposures(**values):
    base = {"model": "m", "temperature": "τ 1", "asked_by": "corpus", "k": 10, "interval": [0, 64], "texts": [90, 90]}
    base |= {"exposure_se_superpopulation": [None, None]}
    return pl.DataFrame(base | values)


def test_what_a_correction_would_change_is_said_as_far_as_it_is_known():
    row = {"model": "m", "temperature": "τ 1"}
    before = exposures(exposure=[1.6, 0.5])
    after = exposures(exposure=[1.1, 0.9], neighbours_kept=[0.75, None])
    tables = {"exposure": before, "exposure_corrected": after}
    assert words.corrected({"exposure": before}, row, "corpus", [0, 64]) == ""
    assert words.corrected(tables, row, "queries", [0, 64]) == ""
    whole = words.corrected(tables, row, "corpus", [0, 64])
    assert all(figure in whole for figure in ("1.6", "1.1", "0.5", "0.9", "75.0 %"))
    unknown = after.with_columns(neighbours_kept=pl.lit(None, pl.Float64))
    part = words.corrected(tables | {"exposure_corrected": unknown}, row, "corpus", [0, 64])
    assert "1.1" in part
    assert "overshoots" not in whole
    moved = after.with_columns(pl.Series("exposure", [0.7, 0.9]))
    past = {"exposure": before, "exposure_corrected": moved}
    past = {name: table.with_columns(exposure_se_superpopulation=pl.lit(0.02)) for name, table in past.items()}
    passed, nearer = words.corrected(past, row, "corpus", [0, 64]).split(". ")[:2]
    assert "beyond the fair 1" in passed
    assert "0–63" in passed
    assert "64+" not in passed  # Which comes nearer to 1, and is not among those that pass it.
    assert "64+" in nearer
    assert "2.5" not in part
    assert "75" not in part


def test_a_window_is_a_number_or_the_limit():
    assert (read_window("64"), read_window("limit")) == (64, "limit")
    with pytest.raises(UsageError, match="'long'"):
        read_window("long")
