"""What --json prints of a finished choice."""

from __future__ import annotations

from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.tune.findings import candidates, decide, of_candidate
from tempscale_jobs.tune.words import answer, then
from tempscale_jobs.urls import masked


def document(run: Run) -> Document:
    """The choice, and what each candidate changes; the findings on the chosen one name what to run."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    found, (rows, figures) = Findings.stored(tables) or decide(tables), candidates(tables)
    (chosen,) = (row for row in rows if row["chosen"])
    commands = [line for line in then(record, masked(run.storage.root)) if line.startswith("tempscale ")]
    next_step = {found.at(of_candidate(figure, chosen), chosen): line for line in commands[:1] for figure in figures}
    answers = {chosen["model"]: answer(record)}
    return Document(run.storage.root, answers, found.with_commands(next_step))
