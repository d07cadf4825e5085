"""What `tempscale evaluate` writes of scores that are all there, and where some are missing."""

import json
import shutil

import polars as pl
import pytest
from golden_words import ending, masked, same
from pages import specs_of
from score_tasks import EDGES, TAUS, one, settings, tasks_in
from whole_run import checked_json, read_report, read_tables

pytest.importorskip("mteb")

from tempscale_jobs.config.evaluate import EvaluateConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.evaluate import summary, tasks
from tempscale_jobs.evaluate.charts import named
from tempscale_jobs.evaluate.findings import score
from tempscale_jobs.evaluate.report import report_of
from tempscale_jobs.evaluate.words import of_model
from tempscale_jobs.report.findings import changed
from tempscale_jobs.report.page import page
from tempscale_jobs.runs.folder import begin


@pytest.fixture
def copied(finished, tmp_path, task_files, small_model):
    """A copy of the finished run, its tasks, and a function that puts its tables together with some cells missing."""
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    config = checked(EvaluateConfig, settings(out, small_model, tasks_in(task_files)))
    units = tasks.expand(config.tasks)

    def without(*cells):
        missing = {("tiny-bert", tau, task): "it was lost" for tau, task in cells}
        edges = tuple(config.analysis.intervals)
        evaluation = tasks.Evaluation(begin(config), tuple(units), config.embedding, edges, config.seed)
        summary.summarise(evaluation, summary.ComparedAudits([], {}), missing)
        summary.write(evaluation, missing)
        return read_tables(out)

    return out, without


def test_nothing_is_compared_with_a_reference_that_is_missing(copied, tables):
    out, without = copied
    found = without(("1.0", "found"))
    assert [row["problem"] for row in found["evaluation"].filter(task="found").to_dicts()] == ["it was lost", None]
    row = one(found["evaluation"], task="found", tau=0.5)
    assert row["score"] == one(tables["evaluation"], task="found", tau=0.5)["score"]
    assert row["change"] is row["change_se"] is row["relative"] is None
    assert set(found["evaluation_types"]["type"]) == {"STS", "Classification", None}
    assert found["evaluation_types"].filter(over="tasks")["tasks"].to_list() == [3, 3]
    lengths = found["evaluation_lengths"].filter(task="found")
    assert lengths["change"].null_count() == len(lengths) > 1
    labelled = {name: table.with_columns(pl.col("temperature").replace({"1.0": "τ 1.0"})) for name, table in found.items()}
    labelled = {name: named(table) if "split" in table.columns else table for name, table in labelled.items()}
    assert not [sentence for sentence in of_model(labelled, EDGES) if "found" in sentence]
    # mteb's tools would take an old result for one of this run.
    assert len(list(out.glob("mteb/results/*/*/found.json"))) == 1
    record = json.loads((out / "run.json").read_text())
    assert "it was lost" in page(report_of(found, record | {"missing": 1}), {}).html


@pytest.mark.proof
def test_tables_of_an_earlier_attempt_go_with_their_cells(copied):
    out, without = copied
    every = [(f"{tau}", task) for tau in TAUS for task in ("found", "sizes", "alike", "halves")]
    assert set(without(*every[:2], *every[4:6])) == {"evaluation", "evaluation_items", "evaluation_types", "findings"}
    left = without(*every)
    assert set(left) == {"evaluation", "findings"}
    html = page(report_of(left, json.loads((out / "run.json").read_text()) | {"missing": 8}), {}).html
    assert "8 cells are missing" in html


def test_it_ends_with_the_scores_and_what_a_temperature_does_to_them(finished, capsys):
    same("evaluate-ending.txt", masked(ending("evaluate", finished, capsys), finished))


def test_the_report_stands_alone_and_is_rendered_again_alike(finished):
    page = read_report(finished)
    assert set(specs_of(page)) == {
        f"m0-{key}" for key in ("types", "changes", "best", "ndcg", "rank", "value0", "value1", "entropy1")
    }


def test_findings_are_printed_as_json(finished, tables):
    data = checked_json("evaluate", finished)
    values = {(row["figure"], row["temperature"]): row for row in data["findings"]}
    for row in tables["evaluation"].filter(tau=0.5).to_dicts():
        moved = values[changed(score(row)), "0.5"]
        assert (moved["value"], moved.get("error")) == (row["change"], row["change_se"])
        assert values[score(row), "0.5"]["value"] == row["score"]
    (answer,) = data["answers"].values()
    assert "over 4 tasks" in answer
