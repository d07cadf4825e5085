"""`tempscale evaluate` that is run again, given broken files or unknown names: what is there, and what is named."""

import os
import re

import numpy as np
import oracles
import polars as pl
import pytest
from score_tasks import TAUS, relevance, results, settings, tasks_in, write_tasks
from whole_run import evaluated, read_tables

pytest.importorskip("mteb")

from tempscale_jobs.errors import IncompleteRun, UsageError
from tempscale_jobs.evaluate import tasks

pytestmark = pytest.mark.proof


def test_a_complete_run_does_nothing_and_refuses_other_data(finished, task_files, small_model, capsys):
    data, before = settings(finished, small_model, tasks_in(task_files)), results(finished)
    evaluated(data)
    assert "the run is complete" in " ".join(capsys.readouterr().err.split())
    file = task_files / "pairs.jsonl"
    rows, when = file.read_bytes(), file.stat()
    try:
        file.write_bytes(rows.replace(b"a", b"b", 1))
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns))
        with pytest.raises(UsageError, match=r"task 'alike' changed .*--fresh"):
            evaluated(data)
    finally:
        file.write_bytes(rows)
    evaluated(data)  # The same content is the same data, whenever it was written.
    with pytest.raises(UsageError, match="seed was 3, now 4"):
        evaluated(data | {"seed": 4})
    assert results(finished) == before


@pytest.mark.parametrize(
    ("name", "near"), [("SciFakt", "mean SciFact or"), ("MTEB(eng,v2)", r"mean MTEB\(eng, v2\) or"), ("zzzzqq", "get_tasks")]
)
def test_an_unknown_name_is_told_with_near_ones(name, near):
    with pytest.raises(UsageError, match=rf"'{re.escape(name)}'.*{near}"):
        tasks.expand([name])


@pytest.fixture(scope="module")
def incomplete(tmp_path_factory, ray_session, task_texts, small_model):
    """A run with pairs of roles, of which one task needs the network, as it ended; and its configuration."""
    folder = tmp_path_factory.mktemp("incomplete")
    write_tasks(folder, task_texts)
    data = settings(folder.parent / "incomplete-run", small_model, [*tasks_in(folder), "SciFact"], role_grid=True)
    with pytest.raises(IncompleteRun, match=r"4 of 14 cells .* task 'SciFact' needs the network") as caught:
        evaluated(data)
    return folder, data, str(caught.value)


def test_what_cannot_be_scored_is_told_and_the_rest_is_there(incomplete):
    folder, _, sentence = incomplete
    out = folder.parent / "incomplete-run"
    assert IncompleteRun.exit_code == 3
    assert str(out) in sentence
    assert not (out / "run.json").exists()
    tables = read_tables(out)
    evaluation = tables["evaluation"]
    assert len(evaluation) == 14  # Pairs of roles are for tasks with two sides.
    for row in evaluation.to_dicts():
        there = row["task"] != "SciFact"
        assert (row["problem"] is None) is (row["score"] is not None) is there
    assert tables["evaluation_types"]["tasks"].unique().sort().to_list() == [1, 2, 4]
    assert "4 cells are missing" in (out / "report.html").read_text("utf-8")
    assert len(list(out.glob("mteb/results/*/*/*.json"))) == 2 * (4 + 1) + 2 * (1 + 1)  # Beside the results what each is.


@pytest.mark.soak
def test_each_pair_of_roles_is_that_of_plain_cosines(incomplete, searched, tables):
    found = read_tables(incomplete[1]["out"])
    first, _ = searched(1.0, 1.0)
    cases = {(1.0, 1.0): "neither", (0.5, 0.5): "both", (0.5, 1.0): "query only", (1.0, 0.5): "document only"}
    rows = found["evaluation_roles"].filter(task="found").to_dicts()
    assert {(row["query_tau"], row["document_tau"]): row["case"] for row in rows} == cases
    for row in rows:
        values, _ = searched(row["query_tau"], row["document_tau"])
        own, base = (np.array([v[query, 10] for query in relevance()]) for v in (values, first))
        assert row["score"] == pytest.approx(own.mean(), abs=1e-5)
        assert row["change"] == pytest.approx(own.mean() - base.mean(), abs=2e-5)
        assert row["change_se"] == pytest.approx(oracles.standard_error(own - base), rel=1e-9, abs=1e-12)
        assert row["tau"] == (row["query_tau"] if row["query_tau"] == row["document_tau"] else None)
    assert len({row["score"] for row in rows}) == 4
    assert set(found["evaluation_roles"]["task"]) == {"found"}
    # One temperature for both gives the same with a grid and without.
    plain = found["evaluation"].filter(pl.col("tau").is_not_null() & (pl.col("task") == "found"))
    assert plain.equals(tables["evaluation"].filter(task="found"))
    assert set(found["evaluation"].filter(task="alike")["tau"]) == set(TAUS)
