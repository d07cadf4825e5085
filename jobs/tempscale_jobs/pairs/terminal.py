"""What the terminal and --json say of finished pairs."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.pairs.findings import decide
from tempscale_jobs.report.findings import Document, Findings
from tempscale_jobs.report.screen import Ending, by_model, print_ending
from tempscale_jobs.report.text import count, labels, share, with_error
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.urls import masked


def close(run: Run) -> None:
    """Print the mean SOCM, the main figures and where the report is, on standard output."""
    summary, record = load_tables(run.storage)["pairs_summary"], run.storage.read_json(DONE)
    print_ending(ending(summary, record["pairs"], masked(run.storage.root)))


def ending(summary: pl.DataFrame, facts: dict[str, Any], root: str) -> Ending:
    """What is said of pairs, from their summary, the entry `pairs` of run.json and the name of the folder."""
    names = labels(summary["temperature"].unique(maintain_order=True))
    models = [rows.to_dicts() for _, rows in summary.group_by("model", maintain_order=True)]
    lost = 1 - summary["pairs"].min() / (facts["pairs"] + facts["pairs_rejected"])  # With what a model rejected.
    answers = by_model([rows[0]["model"] for rows in models], [_answer(rows, names) for rows in models])
    rejected = mention_rejected("pairs", lost, facts["rejected_reasons"])
    said = Ending(answers, f"report  {root}/report.html", to_do=rejected)
    if len(models) > 1:
        return said
    first = models[0][0]
    means = [f"{label} {first[name]:.4f}" for label, name in (("mean d_μ", "d_mu_mean"), ("mean d_Σ", "d_sigma_mean"))]
    return said._replace(figures=[*means, f"SOCM > 1 {share(first['socm_over_1_share'])}"])


def _answer(rows: list[dict[str, Any]], names: dict[str, str]) -> str:
    """The mean SOCM under the first temperature, and what the others change."""
    first, *others = rows
    change = [
        f"{names[row['temperature']]} changes it by {with_error(row['socm_change'], row['socm_change_se'])}."
        for row in others
    ]
    socm = with_error(first["socm_mean"], first["socm_se"])
    over = f"{count(first['pairs'], 'pair')} of {count(first['texts'], 'text')}"
    return " ".join([f"Mean SOCM {socm} at {names[first['temperature']]}, over {over}.", *change])


def document(run: Run) -> Document:
    """The mean SOCM of each model under each temperature, and the findings."""
    tables = load_tables(run.storage)
    found, summary = Findings.stored(tables) or decide(tables), tables["pairs_summary"]
    names, answers = labels(summary["temperature"].unique(maintain_order=True)), dict[str, str]()
    for model in summary["model"].unique(maintain_order=True).to_list():
        means = (f"{mean} at {names[mean.temperature]}" for mean in found.named("socm_mean", model))
        answers[model] = f"mean SOCM {', '.join(means)}"
    return Document(run.storage.root, answers, found)
