"""What the terminal and --json say of finished pairs."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.pairs.findings import decide
from tempscale_jobs.pairs.report import answer
from tempscale_jobs.report.findings import Document, Findings, labelled
from tempscale_jobs.report.screen import Ending, by_model
from tempscale_jobs.report.text import share


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of pairs, from their tables, the content of run.json and the name of the folder."""
    summary, facts, answers = tables["pairs_summary"], record["pairs"], _answers(tables)
    lost = 1 - summary["pairs"].min() / (facts["pairs"] + facts["pairs_rejected"])  # With what a model rejected.
    rejected = mention_rejected("pairs", lost, facts["rejected_reasons"])
    said = Ending(by_model(answers), f"report  {root}/report.html", to_do=rejected)
    if len(answers) > 1:
        return said
    first = summary.row(0, named=True)
    means = [f"{label} {first[name]:.4f}" for label, name in (("mean d_μ", "d_mu_mean"), ("mean d_Σ", "d_sigma_mean"))]
    return said._replace(figures=[*means, f"SOCM > 1 {share(first['socm_over_1_share'])}"])


def _answers(tables: dict[str, pl.DataFrame]) -> dict[str, str]:
    summary = labelled(tables, tables["pairs_summary"]["temperature"])["pairs_summary"]
    by_model = summary.partition_by("model", maintain_order=True)
    return {rows["model"][0]: answer(rows.to_dicts()) for rows in by_model}


def document(tables: dict[str, pl.DataFrame], _: object, root: str) -> Document:
    """The answer for each model and the findings."""
    return Document(root, _answers(tables), Findings.stored(tables, decide))
