"""docs/tables.md: every table has a question and one line of polars that answers it, which runs on such a table."""

from pathlib import Path

import generate
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from table_examples import PLACES, QUESTIONS, example

TABLES = {table.name: table for _, tables in generate.tables_by_section() for table in tables}
KINDS = {
    "temperature": ["1.0", "0.8"], "ranking": ["socm", "same_mean"], "kind": ["bin", "pair"], "verdict": ["failed", "held"],
    "over": ["type", "tasks"], "state": ["up", "noise"], "figure": ["rank", "ndcg_at_100"],
    "by": ["length", "text_length"],
}  # fmt: skip
"""Texts that name a kind of row."""
NULL = {
    "what_if": "by", "layer_summary": "interval", "evaluation_correlations": "task", "evaluation_relevant": "rank",
    "swap_thresholds": "by", "what_if_thresholds": "by", "query_cosines": "interval",
}  # fmt: skip
"""Columns that a line looks for nulls in."""


def two_of(kind, name):
    """Two values of an Arrow type."""
    if pa.types.is_string(kind):
        return KINDS.get(name, ["a", "b"])
    if pa.types.is_boolean(kind):
        return [True, False]
    if pa.types.is_fixed_size_list(kind):
        return [two_of(kind.value_type, name)[:1] * kind.list_size] * 2
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [two_of(kind.value_type, name)] * 2
    return [0.25, 0.25] if name.endswith("_se") else [1, 3]


def write(table):
    """A small table where its page says that one is."""
    columns = {column.name: two_of(column.type, column.name) for column in table.columns}
    if table.name in NULL:
        columns[NULL[table.name]] = [columns[NULL[table.name]][0], None]
    place = PLACES.get(table.name, f"RUN/tables/{table.name}.parquet").replace("*", "00000")
    place += "model=one/temperature=0.8/part-00000000.parquet" if place.endswith("/") else ""
    Path(place).parent.mkdir(parents=True)
    pq.write_table(table.build(columns), place)


def test_every_table_has_a_question_and_nothing_else_has_one():
    assert set(QUESTIONS) == set(TABLES) >= set(PLACES)


@pytest.mark.parametrize("name", sorted(TABLES))
def test_the_line_of_a_table_runs_on_such_a_table(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(TABLES[name])
    answer = eval(example(name)[1], {"pl": pl})
    assert isinstance(answer, float) or len(answer) > 0
