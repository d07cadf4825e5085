"""What the terminal and --json say of a finished evaluation."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.evaluate import words
from tempscale_jobs.evaluate.findings import decide
from tempscale_jobs.evaluate.report import labelled, parts_of
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending, by_model, print_ending
from tempscale_jobs.report.text import Edges, count, labels
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.urls import masked

_MOST = 4


def close(run: Run) -> None:
    """Print what a temperature does to the scores, and where the report is, on standard output."""
    print_ending(ending(load_tables(run.storage), run.storage.read_json(DONE), masked(run.storage.root)))


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of an evaluation, from its tables, the content of run.json and the name of its folder."""
    names, edges = labels(tables["evaluation"]["temperature"].unique(maintain_order=True)), Edges.of(record)
    tables = labelled(tables, names)
    models = tables["evaluation"]["model"].unique(maintain_order=True).to_list()
    answers = [
        _answer({key: table.filter(model=model) for key, table in tables.items() if "model" in table.columns}, edges)
        for model in models
    ]
    said = Ending(by_model(models, answers), f"report  {root}/report.html")
    if len(models) > 1:
        return said
    first = tables["evaluation"].filter(pl.col("score").is_not_null()).unique("name", keep="first", maintain_order=True)
    scores = [f"{row['name']} {row['score']:.4f} ({row['metric']})" for row in first.to_dicts()]
    more = [f"and {count(len(scores) - _MOST + 1, 'task')} more"] if len(scores) > _MOST else []
    return said._replace(figures=[*scores[: _MOST - len(more)], *more])


def _answer(tables: dict[str, pl.DataFrame], edges: Edges) -> str:
    """What temperatures do to one model's scores; how many tasks were scored where there is one temperature alone."""
    scored = tables["evaluation"].filter(pl.col("score").is_not_null())
    tasks = f"{count(scored['name'].n_unique(), 'task')} scored at {scored['temperature'].first()}."
    return " ".join(words.of_model(tables, edges)) or tasks


def document(run: Run) -> Document:
    """The answer for each model, as its report has it, and the findings."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    answers = {part.name: part.answer for part in parts_of(tables, record)}
    return Document(run.storage.root, answers, Findings.stored(tables) or decide(tables))
