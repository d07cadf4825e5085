"""What the terminal and --json say of a finished diagnosis."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.diagnose import words
from tempscale_jobs.diagnose.findings import decide
from tempscale_jobs.diagnose.report import labelled
from tempscale_jobs.report.findings import Document, Findings, of_each_model
from tempscale_jobs.report.screen import Ending, by_model
from tempscale_jobs.report.text import Edges

_FIGURES = (("mean σ_a", "sigma_a_mean_mean"), ("what a layer keeps of token differences (HC ratio)", "hc_ratio_mean"))


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of a diagnosis, from its tables, the content of run.json and the name of its folder."""
    answers, summary = _answers(tables, record), labelled(tables)["layer_summary"]
    said = Ending(by_model(answers), f"report  {root}/report.html")
    if len(answers) > 1:
        return said
    mean = summary.filter(pl.col("interval").is_null())
    first = mean.filter(pl.col("temperature") == mean["temperature"].first())
    means = [(label, first[column].drop_nulls().mean()) for label, column in _FIGURES]
    return said._replace(figures=[f"{label} {value:.4f}" for label, value in means if value is not None])


def _answers(tables: dict[str, pl.DataFrame], record: dict[str, Any]) -> dict[str, str]:
    """The sentences on each model's findings, without those on the theorems."""
    edges, models = Edges.of(record, "diagnosis"), of_each_model(labelled(tables), "layer_summary")
    return {model: " ".join(words.of_model(mine, [], edges)) for model, mine in models.items()}


def document(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Document:
    """The answer for each model and the findings."""
    return Document(root, _answers(tables, record), Findings.stored(tables, decide))
