"""What the terminal and --json say of corrected vectors."""

from __future__ import annotations

from typing import Any

from tempscale_jobs.correct.findings import decide
from tempscale_jobs.report.findings import Document
from tempscale_jobs.report.screen import Ending
from tempscale_jobs.report.shell import folder_for, shell_line
from tempscale_jobs.report.text import count


def ending(_: object, record: dict[str, Any], root: str) -> Ending:
    """What is said of corrected vectors, from the content of run.json and the name of the folder; there are no tables."""
    facts, config = record["embeddings"], record["config"]
    side, name = config["side"], record["correction"]["name"]
    lost = f" {count(facts['rejected'], 'row')} rejected, see rejected/." if facts["rejected"] else ""
    said = Ending([f"{facts['corrected']:,} {side} corrected by {name}.{lost}"], f"vectors  {root}/vectors/")
    if side == "queries":
        return said
    words = ["tempscale", "correct", "--correction", config["correction"], "--side", "queries", "--embeddings"]
    out = folder_for(words, root, "queries")
    return said._replace(
        to_do="Search with corrected queries: correct them by a second call.",
        commands=[f"{shell_line(words)} QUERIES.parquet --out {shell_line([out])}"],
    )


def document(_: object, record: dict[str, Any], root: str) -> Document:
    """How many rows were corrected and how many were not."""
    counts, found = record["embeddings"], decide(record)
    answer = f"{counts['corrected']:,} {record['config']['side']} corrected, {count(counts['rejected'], 'row')} rejected"
    return Document(root, {found.rows[0].model: answer}, found)
