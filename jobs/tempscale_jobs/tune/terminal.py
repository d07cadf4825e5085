"""What the terminal and --json say of a finished choice."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending
from tempscale_jobs.tune import words
from tempscale_jobs.tune.findings import candidates, decide, of_candidate


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of a choice, from its tables, the content of run.json and the name of its folder."""
    evidence = words.evidence(record, tables)
    commands, to_do = words.then(record, root), ""
    if commands:
        to_do = "Embed queries and the whole index again, together: vectors of the two models do not mix."
        if record["choice"].get("correction"):
            to_do = "Correct the vectors of documents and of queries; no text is embedded again."
    answer = " ".join([words.answer(record, tables), *evidence])
    return Ending([answer], f"report  {root}/report.html", to_do=to_do, commands=commands)


def document(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Document:
    """The choice, and what each candidate changes; the findings on the chosen one name what to run."""
    found, (rows, figures) = Findings.stored(tables, decide), candidates(tables)
    (chosen,) = (row for row in rows if row["chosen"])
    commands = [line for line in words.then(record, root) if line.startswith("tempscale ")]
    next_step = {found.at(of_candidate(figure, chosen), chosen): line for line in commands[:1] for figure in figures}
    answers = {chosen["model"]: words.answer(record, tables)}
    return Document(root, answers, found.with_commands(next_step))
