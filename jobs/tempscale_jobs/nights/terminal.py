"""What --json prints of a comparison and of the record of nights."""

from __future__ import annotations

import polars as pl

from tempscale_jobs.nights.charts import reason, state
from tempscale_jobs.nights.compare import Compared
from tempscale_jobs.nights.findings import last_run, of_nights
from tempscale_jobs.nights.words import of_pair, of_runs
from tempscale_jobs.report.findings import Document
from tempscale_jobs.report.text import labels
from tempscale_jobs.urls import masked


def document_of_comparison(compared: Compared) -> Document:
    """What changed from run A to run B: `runs` on the runs themselves, then on each model and temperature."""
    answers = {"runs": " ".join(of_runs(compared))}
    for place, (_, row) in enumerate(compared.pairs):
        answers[f"{row['model']}, {labels([row['temperature']])[row['temperature']]}"] = " ".join(of_pair(compared, place))
    return Document(compared.b.storage.root, answers, compared.findings, {"baseline": masked(compared.a.storage.root)})


def document_of_nights(folder: str, nights: pl.DataFrame) -> Document:
    """The state of the last night of each series, its figures, and what changed from its baseline."""
    answers = dict[str, str]()
    for (_,), series in nights.group_by("name", maintain_order=True):
        row = last_run(series).row(0, named=True)
        name = ", ".join(filter(None, (row["name"], f"the night of {row['night']}")))
        answers[name] = ": ".join(filter(None, (state(row), reason(row))))
    return Document(folder, answers, of_nights(nights))
