"""What --json prints of a finished evaluation."""

from __future__ import annotations

from tempscale_jobs.evaluate.findings import decide
from tempscale_jobs.evaluate.report import parts_of
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.runs.folder import DONE, Run, load_tables


def document(run: Run) -> Document:
    """The answer for each model, as its report has it, and the findings."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    answers = {part.name: part.answer for part in parts_of(tables, record)}
    return Document(run.storage.root, answers, Findings.stored(tables) or decide(tables))
