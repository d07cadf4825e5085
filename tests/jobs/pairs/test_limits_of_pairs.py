"""Pairs of which none is left, sources that were read before, and what is printed of little."""

import numpy as np
import polars as pl
from whole_run import as_lines

from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus import sources
from tempscale_jobs.pairs import chunks, socm, terminal
from tempscale_jobs.runs.storage import Storage


def test_a_source_that_was_read_is_not_read_again(tmp_path, monkeypatch):
    source = tmp_path / "pairs.jsonl"
    source.write_text(as_lines([{"text_a": f"a {k}", "text_b": f"b {k}"} for k in range(5)]))
    config = checked(PairsConfig, {"out": str(tmp_path / "run"), "pairs": {"source": str(source)}})
    first = chunks.chunk(Storage(config.out), config.pairs, config.out)
    monkeypatch.setattr(sources, "unchanged", None)  # Nothing is read.
    assert chunks.chunk(Storage(config.out), config.pairs, config.out) == first
    assert first.pairs == 5


def test_a_chunk_whose_pairs_are_all_lost_has_no_figures():
    nothing = np.zeros(0, dtype=np.int64)
    chunk = socm._Chunk([], nothing, nothing, None, {0: "no finite embedding"})
    assert socm._figures(None, None, chunk, {}).shape == (3, 0)


def said(temperatures, rejected):
    rows = [
        {
            "model": "tiny", "temperature": tau, "pairs": 90 - rejected, "texts": 50, "socm_mean": 0.4 - k / 10,
            "socm_se": 0.01, "socm_change": None if k == 0 else -0.1, "socm_change_se": None if k == 0 else 0.005,
            "d_mu_mean": 0.3, "d_sigma_mean": 0.6, "socm_over_1_share": 0.0,
        }
        for k, tau in enumerate(temperatures)
    ]  # fmt: skip
    facts = {"pairs": 90 - rejected, "pairs_rejected": rejected, "rejected_reasons": {"empty": rejected}}
    return terminal.ending(pl.DataFrame(rows), facts, "runs/pairs")


def test_a_change_is_said_where_there_are_two_temperatures_and_rejected_pairs_where_there_are_many():
    one, two = said(["1.0"], 0), said(["1.0", "0.8"], 30)
    assert "0.400 ± 0.020" in one.answers[0]
    assert "−0.1000 ± 0.0098" not in one.answers[0]
    assert "−0.1000 ± 0.0098" in two.answers[0]
    assert "33.3 %" in two.to_do
    assert one.to_do == ""
