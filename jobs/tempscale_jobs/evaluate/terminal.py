"""What the terminal and --json say of a finished evaluation."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.evaluate import words
from tempscale_jobs.evaluate.findings import decide
from tempscale_jobs.evaluate.report import labelled
from tempscale_jobs.report.findings import Document, Findings, of_each_model
from tempscale_jobs.report.screen import Ending, by_model
from tempscale_jobs.report.text import Edges, count

_MOST = 4


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of an evaluation, from its tables, the content of run.json and the name of its folder."""
    answers, evaluation = _answers(tables, record), labelled(tables)["evaluation"]
    said = Ending(by_model(answers), f"report  {root}/report.html")
    if len(answers) > 1:
        return said
    first = evaluation.filter(pl.col("score").is_not_null()).unique("name", keep="first", maintain_order=True)
    scores = [f"{row['name']} {row['score']:.4f} ({row['metric']})" for row in first.to_dicts()]
    more = [f"and {count(len(scores) - _MOST + 1, 'task')} more"] if len(scores) > _MOST else []
    return said._replace(figures=[*scores[: _MOST - len(more)], *more])


def _answers(tables: dict[str, pl.DataFrame], record: dict[str, Any]) -> dict[str, str]:
    """What temperatures do to each model's scores; how many tasks were scored where there is one temperature alone."""
    edges, answers = Edges.of(record), dict[str, str]()
    for model, mine in of_each_model(labelled(tables), "evaluation").items():
        scored = mine["evaluation"].filter(pl.col("score").is_not_null())
        tasks = f"{count(scored['name'].n_unique(), 'task')} scored at {scored['temperature'].first()}."
        answers[model] = " ".join(words.of_model(mine, edges)) or tasks
    return answers


def document(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Document:
    """The answer for each model and the findings."""
    return Document(root, _answers(tables, record), Findings.stored(tables, decide))
