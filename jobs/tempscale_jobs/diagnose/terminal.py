"""What --json prints of a finished diagnosis."""

from __future__ import annotations

from tempscale_jobs.diagnose.findings import decide
from tempscale_jobs.diagnose.report import of_models
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.runs.folder import DONE, Run, load_tables


def document(run: Run) -> Document:
    """The sentences on each model, as its report has them, and the findings."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    answers = {model["name"]: " ".join(model["sentences"]) for model in of_models(tables, record)}
    return Document(run.storage.root, answers, Findings.stored(tables) or decide(tables))
