"""What the terminal and --json say of a finished diagnosis."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.diagnose import words
from tempscale_jobs.diagnose.findings import decide
from tempscale_jobs.diagnose.report import labelled, parts_of
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending, by_model, print_ending
from tempscale_jobs.report.text import Edges
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.urls import masked

_FIGURES = (("mean σ_a", "sigma_a_mean_mean"), ("what a layer keeps of token differences (HC ratio)", "hc_ratio_mean"))


def close(run: Run) -> None:
    """Print what length and temperature do to the attention filter, and where the report is, on standard output."""
    print_ending(ending(load_tables(run.storage), run.storage.read_json(DONE), masked(run.storage.root)))


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of a diagnosis, from its tables, the content of run.json and the name of its folder."""
    tables = labelled(tables)
    models = tables["layer_summary"]["model"].unique(maintain_order=True).to_list()
    answers = [" ".join(_sentences(tables, model, Edges.of(record, "diagnosis"))) for model in models]
    said = Ending(by_model(models, answers), f"report  {root}/report.html")
    if len(models) > 1:
        return said
    mean = tables["layer_summary"].filter(pl.col("interval").is_null())
    first = mean.filter(pl.col("temperature") == mean["temperature"].first())
    means = [(label, first[column].drop_nulls().mean()) for label, column in _FIGURES]
    return said._replace(figures=[f"{label} {value:.4f}" for label, value in means if value is not None])


def _sentences(tables: dict[str, pl.DataFrame], model: str, edges: Edges) -> list[str]:
    """The sentences on the findings of one model, without those on the theorems."""
    return words.of_model({key: table.filter(pl.col("model") == model) for key, table in tables.items()}, [], edges)


def document(run: Run) -> Document:
    """The answer for each model, as its report has it, and the findings."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    answers = {part.name: part.answer for part in parts_of(tables, record)}
    return Document(run.storage.root, answers, Findings.stored(tables) or decide(tables))
