"""What the terminal and --json say of a finished choice."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending, print_ending
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.tune import words
from tempscale_jobs.tune.findings import candidates, decide, of_candidate
from tempscale_jobs.urls import masked


def close(run: Run) -> None:
    """Print the choice, its evidence, the next step and where the report is, on standard output."""
    print_ending(ending(load_tables(run.storage), run.storage.read_json(DONE), masked(run.storage.root)))


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


def document(run: Run) -> Document:
    """The choice, and what each candidate changes; the findings on the chosen one name what to run."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    found, (rows, figures) = Findings.stored(tables) or decide(tables), candidates(tables)
    (chosen,) = (row for row in rows if row["chosen"])
    commands = [line for line in words.then(record, masked(run.storage.root)) if line.startswith("tempscale ")]
    next_step = {found.at(of_candidate(figure, chosen), chosen): line for line in commands[:1] for figure in figures}
    answers = {chosen["model"]: words.answer(record, tables)}
    return Document(run.storage.root, answers, found.with_commands(next_step))
