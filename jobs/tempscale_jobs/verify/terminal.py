"""What the terminal and --json say of verified vectors."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending, print_ending
from tempscale_jobs.report.text import share
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.urls import masked
from tempscale_jobs.verify.words import answer, missing, whole


def fails(tables: dict[str, pl.DataFrame], record: dict[str, Any]) -> bool:
    """Whether more vectors are wrong than may be."""
    return bool(whole(tables["verify_summary"])[0]["low"] > record["verified"]["max_wrong"])


def failed(run: Run) -> bool:
    """The same of a finished run."""
    return fails(load_tables(run.storage), run.storage.read_json(DONE))


def close(run: Run) -> None:
    """Print how many vectors are wrong and why, and where the report is, on standard output."""
    print_ending(ending(load_tables(run.storage), run.storage.read_json(DONE), masked(run.storage.root)))


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of verified vectors, from their tables, the content of run.json and the name of the folder."""
    total, facts = whole(tables["verify_summary"])[0], record["embeddings"]
    is_failed, limit = fails(tables, record), share(record["verified"]["max_wrong"])
    return Ending(
        [answer(tables["verify_summary"])], f"report  {root}/report.html",
        figures=[f"wrong {share(total['share'])} ({share(total['low'])} to {share(total['high'])})"],
        to_do=" ".join([
            *missing(record), mention_rejected("rows", facts["rejected"] / facts["read"], facts["rejected_reasons"])
        ]).strip(),
        gate=f"More vectors are wrong than the {limit} of --max-wrong." if is_failed else "", is_failed=is_failed,
    )  # fmt: skip


def document(run: Run) -> Document:
    """The answer and the findings."""
    tables, record = load_tables(run.storage), run.storage.read_json(DONE)
    found = Findings.read(tables["findings"])
    more = {"verdict": "failed" if fails(tables, record) else "passed"}
    return Document(run.storage.root, {found.rows[0].model: answer(tables["verify_summary"])}, found, more)
