"""docs/tables.md: every table has a question and one line of polars that answers it, which runs on such a table."""

from functools import cache
from pathlib import Path

import generate
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_examples import PLACES, QUESTIONS, example

TABLES = {table.name: table for _, tables in generate.tables_by_section() for table in tables}


def two_of(kind, name):
    """Two values of an Arrow type; texts that name a kind of row are those of `KINDS`."""
    if pa.types.is_string(kind):
        return KINDS.get(name, ["a", "b"])
    if pa.types.is_boolean(kind):
        return [True, False]
    if pa.types.is_fixed_size_list(kind):
        return [two_of(kind.value_type, name)[:1] * kind.list_size] * 2
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [two_of(kind.value_type, name)] * 2
    return [0.25, 0.25] if name.endswith("_se") else [1, 3]


KINDS = {
    "temperature": ["1.0", "0.8"],
    "ranking": ["socm", "same_mean"],
    "kind": ["bin", "pair"],
    "verdict": ["failed", "held"],
    "over": ["type", "tasks"],
    "figure": ["rank", "ndcg_at_100"],
}
NULL = {"layer_summary": "interval", "evaluation_correlations": "task", "evaluation_relevant": "rank"}
"""Columns that a line looks for nulls in."""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """A folder in which a table lies where its page says."""
    monkeypatch.chdir(tmp_path)

    def write(table):
        columns = {column.name: two_of(column.type, column.name) for column in table.columns}
        if table.name in NULL:
            columns[NULL[table.name]] = [columns[NULL[table.name]][0], None]
        place = PLACES.get(table.name, f"RUN/tables/{table.name}.parquet").replace("*", "00000")
        if place.endswith("/"):
            place += "model=one/temperature=0.8/part-00000.parquet"
        Path(place).parent.mkdir(parents=True)
        pq.write_table(table.build(columns), place)

    return write


@cache
def page():
    return generate.tables()


def test_every_table_has_a_question_and_nothing_else_has_one():
    assert set(QUESTIONS) == set(TABLES)
    assert set(PLACES) <= set(TABLES)
    assert len({question for question, _ in QUESTIONS.values()}) == len(QUESTIONS)
    assert all(question.endswith("?") for question, _ in QUESTIONS.values())


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_line_of_a_table_runs_on_such_a_table(name, written):
    question, line = example(name)
    assert f"### {name}\n" in page()
    assert f"\n*{question}*\n\n```python\n{line}\n```\n" in page()
    assert len(line) <= 125
    written(TABLES[name])
    answer = eval(line, {"pl": pl})
    assert isinstance(answer, (pl.DataFrame, pl.Series, float))
    assert isinstance(answer, float) or len(answer) > 0


def test_a_line_that_names_another_column_is_found(written):
    written(TABLES["socm"])
    _, line = example("socm")
    with pytest.raises(pl.exceptions.ColumnNotFoundError, match="socm_average"):
        eval(line.replace("socm_mean", "socm_average"), {"pl": pl})
