"""What --json prints of corrected embeddings."""

from __future__ import annotations

from tempscale_jobs.correct.findings import decide
from tempscale_jobs.report.findings import Document
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import DONE, Run


def document(run: Run) -> Document:
    """How many rows were corrected and how many were not."""
    record = run.storage.read_json(DONE)
    counts, found = record["embeddings"], decide(record)
    answer = f"{counts['corrected']:,} {record['config']['side']} corrected, {count(counts['rejected'], 'row')} rejected"
    return Document(run.storage.root, {found.rows[0].model: answer}, found)
