"""What --json prints of a finished run of pairs."""

from __future__ import annotations

from tempscale_jobs.pairs.findings import decide
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.text import labels
from tempscale_jobs.runs.folder import Run, load_tables


def document(run: Run) -> Document:
    """The mean SOCM of each model under each temperature, and the findings."""
    tables = load_tables(run.storage)
    found, summary = Findings.stored(tables) or decide(tables), tables["pairs_summary"]
    names, answers = labels(summary["temperature"].unique(maintain_order=True)), dict[str, str]()
    for model in summary["model"].unique(maintain_order=True).to_list():
        means = (f"{mean} at {names[mean.temperature]}" for mean in found.named("socm_mean", model))
        answers[model] = f"mean SOCM {', '.join(means)}"
    return Document(run.storage.root, answers, found)
