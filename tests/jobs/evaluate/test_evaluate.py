"""`tempscale evaluate` that is killed, run again, given broken files or unknown names: what is there and what is said."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest import mock

import numpy as np
import oracles
import polars as pl
import pyarrow as pa
import pytest
from command_line import in_process
from score_tasks import EDGES, LONGEST, TAUS, as_toml, one, relevance, results, rows_of, settings, tasks_in, write_tasks
from whole_run import as_lines, digests, evaluated, read_report, read_tables

mteb = pytest.importorskip("mteb")

from tempscale_jobs.errors import IncompleteRun, UsageError  # noqa: E402
from tempscale_jobs.evaluate import cells, tasks  # noqa: E402
from tempscale_jobs.report.text import with_error  # noqa: E402
from tempscale_jobs.runs.folder import Model  # noqa: E402
from tempscale_jobs.runs.storage import Storage  # noqa: E402


@pytest.mark.soak
def test_a_killed_run_goes_on_in_another_order_with_two_workers_to_the_same_bytes(
    finished, tmp_path, task_files, small_model
):
    out = tmp_path / "run"
    data = settings(out, small_model, tasks_in(task_files), execution={"workers": 2, "shuffle_seed": 1})
    (tmp_path / "run.toml").write_text(as_toml(data))
    command = [sys.executable, "-m", "tempscale_jobs", "evaluate", str(tmp_path / "run.toml")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not results(out):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    kept = results(out)
    assert 1 <= len(kept) < 8
    assert not (out / "run.json").exists()
    evaluated(data)
    after = results(out)
    assert len(after) == 8
    assert {file: after[file] for file in kept} == kept, "a finished cell was scored again"
    assert digests(out, "tables") == digests(finished, "tables")


def test_a_complete_run_does_nothing_and_refuses_other_data(finished, task_files, small_model, capsys):
    data, before = settings(finished, small_model, tasks_in(task_files)), results(finished)
    evaluated(data)
    assert "the run is complete: nothing to do" in " ".join(capsys.readouterr().err.split())
    file = task_files / "pairs.jsonl"
    when = file.stat()
    try:
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns + 10**9))
        with pytest.raises(UsageError, match=r"the data of task 'alike' changed since the run in '.*' read it; start over"):
            evaluated(data)
    finally:
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns))
    with pytest.raises(UsageError, match="holds a different run: seed was 3, now 4"):
        evaluated(data | {"seed": 4})
    assert results(finished) == before


MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def broken(tmp_path_factory, ray_session, task_texts, small_model):
    """A run with pairs of roles over files of which three are of no use, as it ended; and its configuration."""
    folder = tmp_path_factory.mktemp("broken")
    write_tasks(folder, task_texts)
    with (folder / "qrels.tsv").open("a") as more:
        more.write(f"q00\t{MARKUP}\t1\n")
    (folder / "labels.jsonl").write_text(as_lines(row | {"label": "one"} for row in rows_of(task_texts)["labels"]))
    (folder / "empty.jsonl").write_text("")
    found, *others = tasks_in(folder)
    unasked = found | {"name": "unasked", "queries": str(folder / "empty.jsonl")}
    data = settings(folder.parent / "broken-run", small_model, [found, *others, unasked], role_grid=True)
    with pytest.raises(IncompleteRun, match="10 of 14 cells are missing: task 'found': the qrels") as told:
        evaluated(data)
    return folder, data, str(told.value)


def test_what_cannot_be_scored_is_told_and_the_rest_is_there(broken):
    folder, _, sentence = broken
    out = folder.parent / "broken-run"
    assert IncompleteRun.exit_code == 3
    assert "task 'sizes'" in sentence
    assert "task 'unasked'" in sentence
    assert sentence.endswith(f"tables and report in '{out}' hold the others, and the same command goes on")
    assert not (out / "run.json").exists()
    tables = read_tables(out)
    evaluation = tables["evaluation"]
    assert len(evaluation) == 14  # Pairs of roles are for tasks with two sides.
    for row in evaluation.to_dicts():
        there = row["task"] in ("alike", "halves")
        assert (row["problem"] is None) is (row["score"] is not None) is there
    problems = dict(evaluation.drop_nulls("problem").select("task", "problem").iter_rows())
    assert f"1 × a document that is not there, such as '{MARKUP}'" in problems["found"]
    assert "has the one label 'one'; classification needs at least two labels" in problems["sizes"]
    assert "queries" in problems["unasked"] or "a query that is not there" in problems["unasked"]
    assert tables["evaluation_types"]["tasks"].unique().to_list() == [2]
    assert not {"evaluation_roles", "evaluation_lengths", "evaluation_ends", "evaluation_relevant"} & set(tables)
    page = (out / "report.html").read_text("utf-8")
    assert "<strong>10 cells are missing</strong>; the run is incomplete" in page
    assert "such as &#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39;" in page
    assert MARKUP not in page
    assert len(list(out.glob("mteb/results/*/*/*.json"))) == 2 * (2 + 1)  # Beside the results what each model is.


@pytest.fixture(scope="module")
def mended(broken, task_texts, tmp_path_factory):
    """The same run after its files were mended, and another task's changed; and when results were left before."""
    folder, data, _ = broken
    out, good = folder.parent / "broken-run", tmp_path_factory.mktemp("good")
    write_tasks(good, task_texts)
    before = results(out)
    for name in ("qrels.tsv", "labels.jsonl"):
        shutil.copyfile(good / name, folder / name)
    shutil.copyfile(good / "queries.jsonl", folder / "empty.jsonl")
    (folder / "halves.jsonl").write_text(as_lines(rows_of(task_texts)["halves"][:20]))
    evaluated(data)
    return out, before


@pytest.mark.soak
def test_mended_files_complete_the_run_and_a_changed_one_is_scored_again(mended):
    out, before = mended
    after = results(out)
    assert {file.parent.name for file in before} == {"task=alike", "task=halves"}
    for file, when in before.items():
        assert (after[file] == when) is (file.parent.name == "task=alike"), file
    assert len(after) == 14
    assert (out / "run.json").exists()
    tables = read_tables(out)
    assert tables["evaluation"]["problem"].null_count() == len(tables["evaluation"]) == 14
    assert set(tables["evaluation"].filter(task="halves")["items"]) == {20}
    assert "missing" not in re.sub(r"<script.*?</script>", "", (out / "report.html").read_text("utf-8"), flags=re.DOTALL)
    both = (tables["evaluation"].filter(task=task).drop("task") for task in ("found", "unasked"))
    assert next(both).equals(next(both))


@pytest.mark.soak
def test_each_pair_of_roles_is_that_of_plain_cosines(mended, searched, tables):
    found = read_tables(mended[0])
    assert "<h3>Queries and documents apart</h3>" in read_report(mended[0])
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
    assert set(found["evaluation_roles"]["task"]) == {"found", "unasked"}
    # One temperature for both gives the same with a grid and without.
    plain = found["evaluation"].filter(pl.col("tau").is_not_null() & (pl.col("task") == "found"))
    assert plain.equals(tables["evaluation"].filter(task="found"))
    assert set(found["evaluation"].filter(task="alike")["tau"]) == set(TAUS)


def test_a_task_of_the_hub_without_network_is_a_sentence_for_each_cell():
    """As a worker works; it has the driver's environment."""
    work = {"unit": tasks.expand(["SciFact"])[0]._asdict(), "temperatures": ["1.0", "0.5"], "state": None, "seed": 0,
            "prompts": "none", "edges": EDGES, "lengths_by": "sentence-transformers/all-MiniLM-L6-v2",
            "settings_of_lengths": "", "max_length": LONGEST, "piece_texts": tasks.PIECE_TEXTS}  # fmt: skip
    worker = SimpleNamespace(storage=Storage("unused"), model=Model("m", "m", "f", LONGEST))
    with mock.patch("tempscale_jobs.workers.actor.tokenizer"):
        report = cells.write_cells(worker, 0, pa.table({"spec": [json.dumps(work)]}))
    assert set(report["wrong"]) == {"1.0", "0.5"}
    for sentence in report["wrong"].values():
        assert sentence.startswith("task 'SciFact' needs the network, which does not answer (")
        assert sentence.endswith("or give the data as a task of your own")


def test_the_command_line_tells_each_score_of_a_complete_run_and_where_its_report_is(
    finished, tables, tmp_path, task_files, small_model
):
    (tmp_path / "run.toml").write_text(as_toml(settings(finished, small_model, tasks_in(task_files))))
    code, told, err = in_process("evaluate", str(tmp_path / "run.toml"))
    assert code == 0, err
    for task in ("found", "alike", "halves", "sizes"):
        first, other = (one(tables["evaluation"], task=task, tau=tau) for tau in TAUS)
        change = with_error(other["change"], other["change_se"])
        line = rf"{task}, {first['metric']} +{first['score']:.4f} +{other['score']:.4f} \({re.escape(change)}\)"
        assert re.search(line, told), told
    assert f"{finished}/report.html" in told.replace("\n", "")


def test_an_unknown_name_is_a_sentence_with_near_ones_and_blocks_no_folder(tmp_path, small_model):
    for name, words in (
        ("SciFakt", r"no task or benchmark 'SciFakt'; did you mean SciFact or"),
        ("MTEB(eng,v2)", r"did you mean MTEB\(eng, v2\) or"),
        ("zzzzqq", r"'zzzzqq'; mteb.get_tasks\(\) lists its names"),
    ):
        with pytest.raises(UsageError, match=words):
            evaluated(settings(tmp_path / "run", small_model, [name]))
    assert not (tmp_path / "run" / "begun.json").exists()
