"""What the terminal and --json say of verified vectors."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending
from tempscale_jobs.report.text import share
from tempscale_jobs.verify.words import answer, missing, whole


def fails(tables: dict[str, pl.DataFrame], record: dict[str, Any]) -> bool:
    """Whether more vectors are wrong than may be."""
    return bool(whole(tables["verify_summary"])[0]["low"] > record["verified"]["max_wrong"])


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of verified vectors, from their tables, the content of run.json and the name of the folder."""
    total, facts = whole(tables["verify_summary"])[0], record["embeddings"]
    is_failed, limit = fails(tables, record), share(record["verified"]["max_wrong"])
    limits = "" if total["low"] == total["high"] else f" ({share(total['low'])} to {share(total['high'])})"
    return Ending(
        [answer(tables["verify_summary"])], f"report  {root}/report.html",
        figures=[f"wrong {share(total['share'])}{limits}"],
        to_do=" ".join([
            *missing(record), mention_rejected("rows", facts["rejected"] / facts["read"], facts["rejected_reasons"])
        ]).strip(),
        gate=f"More vectors are wrong than the {limit} of --max-wrong." if is_failed else "", is_failed=is_failed,
    )  # fmt: skip


def document(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Document:
    """The answer and the findings."""
    found = Findings.read(tables["findings"])
    more = {"verdict": "failed" if fails(tables, record) else "passed"}
    return Document(root, {found.rows[0].model: answer(tables["verify_summary"])}, found, more)
