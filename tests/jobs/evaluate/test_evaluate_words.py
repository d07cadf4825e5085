"""What `tempscale evaluate` says of scores, and how ends, best temperatures and its options are told: without a run."""

import math
from types import SimpleNamespace

import numpy as np
import oracles
import polars as pl
import pytest
from golden_words import same
from pages import key

from tempscale_jobs.report.findings import changed

pytest.importorskip("mteb")

from tempscale import Temperature
from tempscale_jobs.config.evaluate import EvaluateConfig, read_backbones, read_tasks
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate import analyses
from tempscale_jobs.evaluate.findings import decide
from tempscale_jobs.evaluate.summary import Part, mean_error, of_cell, score_errors
from tempscale_jobs.evaluate.words import of_model, to_do
from tempscale_jobs.tables.evaluate import ROLES

EDGES = [0, 24, 48]


def ranked(ranks):
    """Relevant documents of ascending length, each of one query: rank and how many were found."""
    rows = [
        {"query": f"q{k}", "document": f"d{k:02}", "tokens": 10, "tokens_whole": 10 + k, "rank": rank, "found": found}
        for k, (rank, found) in enumerate(ranks)
    ]
    return pl.DataFrame(rows, schema_overrides=dict.fromkeys(("rank", "found", "tokens", "tokens_whole"), pl.Int32))


def test_a_document_that_was_not_found_stands_one_behind_the_last():
    own, base = (
        [(4, 100)] * 20 + last for last in ([(None, 100), (10, 100), (None, 7), (1, 100), (2, 100)], [(1, 100)] * 5)
    )
    nothing = pl.DataFrame({"ndcg_at_100": []})
    short, long = analyses.shortest_and_longest(nothing, None, ranked(own), ranked(base))
    assert (short["end"], short["value"], short["not_found"], short["change"]) == ("shortest", 4, 0, 0)
    assert (long["end"], long["items"], long["not_found"]) == ("longest", 5, 2)
    assert long["value"] == pytest.approx((101 + 10 + 8 + 1 + 2) / 5)
    assert long["value_se"] == pytest.approx(oracles.standard_error([101, 10, 8, 1, 2]))
    assert long["change"] == pytest.approx((100 + 9 + 7 + 0 + 1) / 5)


@pytest.mark.parametrize(("documents", "each"), [(20, None), (21, 5), (25, 5), (26, 6)])
def test_a_fifth_of_fewer_than_five_or_of_one_length_is_not_told(documents, each):
    nothing, found = pl.DataFrame({"ndcg_at_100": []}), ranked([(1, 9)] * documents)
    rows = analyses.shortest_and_longest(nothing, None, found, None)
    assert [row["items"] for row in rows] == ([] if each is None else [each, each])
    alike = found.with_columns(pl.lit(512, pl.Int32).alias("tokens_whole"))
    assert analyses.shortest_and_longest(nothing, None, alike, None) == []


def test_equal_values_have_the_earliest_temperature_as_best():
    values = {("a", 1): 0.5, ("a", 2): 0.5, ("a", 3): 0.4, ("b", 1): 0.1, ("b", 2): 0.2, ("b", 3): 0.2}
    alike = {"model": "m", "split": "test", "subset": "default", "interval": 0}
    rows = [alike | {"task": task, "tau": tau, "value": value} for (task, tau), value in values.items()]
    analyses.mark_best(rows)
    assert [(row["task"], row["tau"]) for row in rows if row["best"]] == [("a", 1), ("b", 2)]


KEY = {"model": "m", "tau": None, "split": "test", "subset": "default"}


def under_both(rows):
    """Rows under a first temperature, where nothing has moved, and under another."""
    first, other = KEY | {"temperature": "τ 1.0"}, KEY | {"temperature": "τ 0.5"}
    return [first | row | {"change": 0.0, "change_se": 0.0} for row in rows] + [other | row for row in rows]


def moved(change, error, **where):
    return {"task": "t", "name": "t", "change": change, "change_se": error} | where


def scores(changes, errors):
    """The tables of tasks a, b, … whose scores change so much."""
    rows = [
        moved(change, error, task=name, name=name, score=0.5, score_se=0.1, items=40)
        for name, change, error in zip("abcd", changes, errors, strict=False)
    ]
    return {"evaluation": under_both(rows)}


def over_tasks(change, error):
    mean = {"over": "tasks", "type": None, "tasks": 3, "score": 0.5 + change, "change": change, "change_se": error}
    return {"evaluation_types": [KEY | {"temperature": "τ 0.5", "change_spread_se": None, "relative": change / 0.5} | mean]}


def lengths(errors, items=30):
    rows = [moved(0.04, error, interval=edge, items=items, value=0.5) for edge, error in zip((0, 24), errors, strict=True)]
    return {"evaluation_lengths": under_both(rows)}


def ends(change, error):
    return {"evaluation_ends": under_both([moved(change, error, figure="rank", end="longest", items=8, value=30.0)])}


CHANGED, KNOWN = (0.04, -0.1, 0.03), (0.01, 0.02, 0.02)
SAID = {
    "tasks rise and fall, and their mean is noise": scores(CHANGED, KNOWN) | over_tasks(-0.01, 0.02),
    "their mean falls": scores(CHANGED, KNOWN) | over_tasks(-0.01, 0.005),
    "no task changes": scores((0.01, -0.02), (0.01, 0.02)) | over_tasks(-0.005, None),
    "no error is known, as of clustering": scores((0.3, -0.02), (None, None)) | over_tasks(0.14, None),
    "one error is not known": scores((0.3, -0.02), (0.2, None)) | over_tasks(0.14, None),
    "one length changes": lengths((0.01, 0.03)), "no length changes": lengths((0.03, 0.03)),
    "no error by length is known": lengths((None, None)), "29 items of each length": lengths((0.01, 0.03), items=29),
    "an end rises": ends(12.0, 2.0), "an end falls": ends(-12.0, 2.0), "an end is noise": ends(3.0, 2.0),
    "an end of no known error": ends(3.0, None),
}  # fmt: skip


SCORE = KEY | {
    "temperature": "τ 1.0", "task": "t", "score": 0.5, "score_se": 0.1, "items": 40, "change": 0.0, "change_se": 0.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "by_length", "expected"),
    [
        ([(0.05, 0.01)], (0.0, 0.01), [("τ 0.9", "tune")]),
        ([(0.05, 0.01)], (-0.2, 0.01), [("τ 0.9", "tune"), ("0–23", "")]),
        ([(0.05, 0.01)], (-0.2, 0.2), [("τ 0.9", "tune")]), ([(0.05, 0.01), (0.09, 0.01)], (0.0, 0.01), [("τ 0.8", "tune")]),
        ([(0.01, 0.01), (0.09, 0.01)], (0.0, 0.01), [("τ 0.8", "tune")]), ([(-0.05, 0.01)], (-0.2, 0.01), [("stay", "")]),
        ([(0.01, 0.01)], (0.2, 0.01), [("stay", "")]), ([(0.05, None)], (0.0, 0.01), [("stay", "")]),
        ([], (0.0, 0.01), [("--tau", "")]),
    ],
)  # fmt: skip
def test_what_to_do_follows_from_the_mean_score(changes, by_length, expected):
    """Another temperature is advised only where it raises the mean score beyond noise, with the length that it harms."""
    over = {"model": "m", "tau": None, "over": "tasks", "type": None, "tasks": 3, "relative": None, "change_spread_se": None}
    types = [over | {"temperature": "τ 1.0", "score": 0.5, "change": 0.0, "change_se": 0.0}]
    labels = ("τ 0.9", "τ 0.8")
    for label, (change, error) in zip(labels, changes, strict=False):
        types.append(over | {"temperature": label, "score": 0.5 + change, "change": change, "change_se": error})
    rows = [SCORE] + [SCORE | {"temperature": label} for label in labels[: len(changes)]]
    change, error = by_length
    lengths = [
        row | {"interval": edge, "value": 0.5, "change": change * (row is not SCORE) * (edge == 0), "change_se": error}
        for row in rows for edge in (0, 24)
    ]  # fmt: skip
    tables = {"evaluation": as_named(rows), "evaluation_types": pl.DataFrame(types), "evaluation_lengths": as_named(lengths)}
    run = {
        "command": "evaluate", "config": {"out": "o", "analysis": {"intervals": EDGES}}, "models": {"m": {}},
        "command_line": {"file": None, "options": {"--task": ["--task", "SciFact"]}},
    }  # fmt: skip
    steps = to_do(tables | {"findings": decide(tables).frame()}, run, EDGES)
    assert [command.split()[1] if command else "" for _, command in steps] == [command for _, command in expected]
    for (text, command), (named, _) in zip(steps, expected, strict=True):
        assert ("Leave the temperature at τ 1.0" if named == "stay" else named) in text
        assert "--task SciFact" in command or not command


def as_named(rows):
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(pl.col("task").alias("name"))


def test_what_is_said_of_each_change():
    """tests/golden/evaluate-sentences.txt has every sentence."""
    lines = []
    for name, rows in SAID.items():
        tables = {key: pl.DataFrame(own, infer_schema_length=None) for key, own in (scores([0.0], [0.0]) | rows).items()}
        lines += [f"# {name}", *of_model(tables | {"findings": decide(tables).frame()}, EDGES)]
    same("evaluate-sentences.txt", "\n".join(lines) + "\n")


def test_texts_whose_ids_come_again_are_called_by_their_places():
    from datasets import Dataset

    from tempscale_jobs.evaluate import scored
    from tempscale_jobs.evaluate.grid_model import EncodedTexts

    for ids, expected in ((["a", "b", "c"], ["a", "b", "c"]), (["a", "b", "a"], ["0", "1", "2"])):
        data = Dataset.from_list([{"id": own} for own in ids])
        own = EncodedTexts("document", "test", "default", ids, [5, 6, 7], [5, 6, 7], 0, None)
        items = scored.text_rows({}, own, data, [(np.array([True, False, True]), np.zeros(3))], "accuracy")
        assert [row["item"] for row in items] == expected
        assert [(row["tokens"], row["value"]) for row in items] == [(5, 1), (6, 0), (7, 1)]


@pytest.mark.parametrize("address", ["s3://key:secret@bucket", "https://host/bucket?token=a/secret"])
def test_a_task_of_the_command_line_is_called_by_its_file_without_secrets(address):
    (task,) = read_tasks([f"sts:{address}"], None, None)
    assert (task["name"], task["source"]) == ("bucket", address)


def test_tasks_of_the_command_line(tmp_path):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels.tsv", "pairs.jsonl", "labels.jsonl"):
        (tmp_path / name).write_text("")
    given = [
        f"retrieval:{tmp_path}/",
        f"sts:{tmp_path}/pairs.jsonl",
        f"classification:{tmp_path}/labels.jsonl",
        "MTEB(eng, v2)",
    ]
    found, alike, sizes, hub = read_tasks(given, 50, True)
    sides = {name: f"{tmp_path}/{name}.jsonl" for name in ("corpus", "queries")} | {"qrels": f"{tmp_path}/qrels.tsv"}
    assert found == {"name": tmp_path.name, "type": "retrieval"} | sides
    assert alike == {"name": "pairs", "type": "sts", "source": f"{tmp_path}/pairs.jsonl"}
    assert (sizes["texts_per_interval"], sizes["windows"], hub) == (50, True, "MTEB(eng, v2)")
    checked(EvaluateConfig, {"tasks": [found, alike, sizes, hub]})
    with pytest.raises(UsageError, match="--task classification:FILE"):
        read_tasks([given[1]], 50, None)
    (tmp_path / "corpus.csv").write_text("")
    with pytest.raises(UsageError, match=r"corpus\.\* .* 2 of them"):
        read_tasks([given[0]], None, None)
    for name in ("corpus.csv", "queries.jsonl"):
        (tmp_path / name).unlink()
    with pytest.raises(UsageError, match=r"queries\.\* .* no such file"):
        read_tasks([given[0]], None, None)


def test_backbones_are_pairs():
    assert read_backbones(["a=b", "./tuned=org/base=1"]) == {"a": "b", "./tuned": "org/base=1"}
    for text in ("a", "a=", "=b"):
        with pytest.raises(UsageError, match=f"'{text}'.*MODEL=BACKBONE"):
            read_backbones([text])


def part(values=None, predicted=None, drawn=None):
    """One split of a cell with items of a value each, or of predictions and gold scores 0, 1, …"""
    n = len(values or predicted or [])
    columns = {"item": [f"i{k}" for k in range(n)], "window": [None] * n, "value": values or [None] * n}
    columns |= {"predicted": predicted or [None] * n, "gold": [float(k) for k in range(n)]}
    schema = {"item": pl.String, "window": pl.Boolean, "value": pl.Float64, "predicted": pl.Float64, "gold": pl.Float64}
    return Part(0.5, pl.DataFrame(columns, schema=schema), pl.DataFrame(), None if drawn is None else np.array(drawn))


def test_where_a_score_has_no_error_or_that_of_its_items_alone():
    values, first, drawn = [0.1, 0.4, 0.9, 0.2], [0.2, 0.2, 0.5, 0.3], [0.3, 0.6, 0.5]
    assert score_errors(part(values), None, 0) == (pytest.approx(oracles.standard_error(values)), None)
    # The first temperature tells no experiments: the items alone.
    _, change = score_errors(part(values, drawn=drawn), part(first), 0)
    assert change == pytest.approx(oracles.standard_error(np.subtract(values, first)))
    for unknown in (part(), part(predicted=[None, 0.2, 0.4])):  # The first as of a clustering.
        assert score_errors(unknown, None, 0) == (None, None)
    error, change = score_errors(part(predicted=[0.1, 0.3, 0.2, 0.5, 0.4, 0.9]), None, 0)
    assert 0 < error < 1
    assert change is None


def test_a_mean_over_tasks_has_an_error_only_where_each_of_them_has_one():
    errors = {"a": [0.3], "b": [0.4], "c": [None]}
    assert mean_error(errors, [["a", "b"]]) == pytest.approx(math.hypot(0.3, 0.4) / 2)
    assert mean_error(errors, [["a"], ["b", "c"]]) is None
    assert mean_error({}, []) is None


def test_what_was_learned_from_counts_only_where_both_temperatures_tell_it():
    items = pl.DataFrame(
        {"item": ["i0", "i1", "i2"], "tokens": [5] * 3, "window": [False] * 3, "value": [0.5, 1.0, 0.5],
         "entropy": [None] * 3, "right": [[True, False], [True, True], [False, True]]},
        schema_overrides={"entropy": pl.Float64, "right": pl.List(pl.Boolean)},
    )  # fmt: skip
    untold = items.with_columns(right=pl.lit(None, dtype=pl.List(pl.Boolean)), value=pl.Series([0.0, 1.0, 0.0]))
    (alone,) = analyses.by_length(items, untold, pl.DataFrame(), EDGES)
    assert alone["change_se"] == pytest.approx(oracles.standard_error([0.5, 0.0, 0.5]))


def test_a_schedule_has_no_place_in_the_grid_of_roles():
    assert analyses.case(0.5, 0.8, 1.0) == "each its own"
    embedding, run = SimpleNamespace(role_grid=True), SimpleNamespace(temperatures=[Temperature(1.0)])
    evaluation = SimpleNamespace(run=run, edges=EDGES, seed=0, embedding=embedding)
    unit = SimpleNamespace(name="t", sides=True)
    result = {"type": "Retrieval", "metric": "ndcg_at_10", "truncated_share": 0.0}
    cell = SimpleNamespace(result=result, parts=lambda: {("test", "default"): part()})
    (row,) = of_cell(evaluation, Temperature(0.5), unit, cell, None)[ROLES]
    assert (row["query_tau"], row["document_tau"], row["case"], row["score"]) == (0.5, 0.5, "both", 0.5)
    assert of_cell(evaluation, Temperature.of({"log_length": 64}), unit, cell, None)[ROLES] == []


# --- findings ---------------------------------------------------------------------------------------------------------


TASK = {"task": "t", "split": "test", "subset": "default"}


def frame(rows):
    return pl.DataFrame(rows, infer_schema_length=None)


def cell(change, error, score=0.5, **where):
    moved = {"score": score, "score_se": 0.1, "items": 40, "change": change, "change_se": error}
    return TASK | moved | where


def state(tables, figure, temperature="0.5"):
    return decide(tables).of(figure, "MiniLM", temperature).state


def test_splits_and_subsets_have_findings_of_their_own():
    rows = [key(1.0) | cell(0.0, 0.0), key(0.5) | cell(0.1, 0.01), key(0.5) | cell(-0.1, 0.01, subset="en")]
    tables = {"evaluation": frame(rows)}
    assert [state(tables, changed(f"score, {name}")) for name in ("t/test", "t/test/en")] == ["up", "down"]


@pytest.mark.parametrize(
    ("errors", "expected"), [((0.01, 0.5), "up"), ((0.5, 0.01), "noise"), ((None, 0.01), "up"), ((None, None), "unknown")]
)
def test_a_mean_over_tasks_has_the_error_of_items_or_else_of_tasks(errors, expected):
    mean = {"over": "type", "type": "STS", "tasks": 3, "score": 0.6, "change": 0.04}
    mean |= dict(zip(("change_se", "change_spread_se"), errors, strict=True))
    tables = {"evaluation": frame([key(1.0) | cell(0.0, 0.0)]), "evaluation_types": frame([key(0.5) | mean])}
    assert state(tables, changed("mean score, STS")) == expected
    found = decide(tables).of(changed("mean score, STS"), "MiniLM", "0.5")
    assert ("spread" in found.rests_on) == (errors[0] is None)
    other = {"evaluation_types": frame([key(0.5) | mean | {"over": "tasks", "type": None}])}
    assert state(tables | other, changed("mean score")) == expected
