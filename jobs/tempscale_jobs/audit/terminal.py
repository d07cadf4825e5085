"""A finished audit on the terminal, and as data for other programs."""

from __future__ import annotations

import os
from typing import Any

import polars as pl

from tempscale_jobs.audit import verdict
from tempscale_jobs.audit.advice import Advice, advice
from tempscale_jobs.audit.again import again
from tempscale_jobs.audit.findings import decide
from tempscale_jobs.audit.words import labelled
from tempscale_jobs.nights.gate import notes
from tempscale_jobs.nights.night import verdict_in_words
from tempscale_jobs.nights.notify import github_lines
from tempscale_jobs.nights.record import is_quick
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.screen import Ending, Screen, print_ending
from tempscale_jobs.report.text import estimate
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.urls import masked


def as_data(run: Run) -> dict[str, Any]:
    """The answer for each model, the gate's verdict and the findings, for other programs."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    edges, judged = record["config"]["analysis"]["intervals"], record["gate"]
    named, found = labelled(tables, edges), decide(tables, edges)
    first, named_findings = named["collapse_summary"].unique("model", keep="first", maintain_order=True), named["findings"]
    answers = {row["model"]: verdict.answer(row, Findings.read(named_findings)) for row in first.to_dicts()}
    return {
        "run": masked(run.storage.root),
        "answers": answers,
        "gate": {"verdict": judged["verdict"], "failed": judged["failed"], "notes": notes(judged)},
        "findings": found.as_data(),
    }


def close(run: Run) -> None:
    """Print the answer, the figures, what to do, the gate's verdict and where the report is, on standard output."""
    record = run.storage.read_json(DONE)
    print_ending(ending(load_tables(run.storage), record, masked(run.storage.root)))
    if record["gate"]["verdict"] != "none" and os.environ.get("GITHUB_ACTIONS") == "true":
        Screen().print("\n".join(github_lines(record)), highlight=False, soft_wrap=True, markup=False)


def ending(tables: dict[str, pl.DataFrame], record: dict[str, Any], root: str) -> Ending:
    """What is said of an audit, from its tables, the content of run.json and the name of its folder."""
    named, judged = labelled(tables, record["config"]["analysis"]["intervals"]), record["gate"]
    found = Findings.read(named["findings"])
    rows = named["collapse_summary"].unique("model", keep="first", maintain_order=True).to_dicts()
    answers = [verdict.answer(row, found) for row in rows]
    said = Ending(answers, f"report  {root}/report.html", gate=_gate(judged), is_failed=judged["verdict"] == "failed")
    if len(rows) > 1:
        return said._replace(answers=[f"{row['model']}: {answer}" for row, answer in zip(rows, answers, strict=True)])
    (row,), (answer,), to_do = rows, answers, advice(named, rows[0], record)[0]
    if is_quick(record):
        left_out = "A quick audit measures one temperature, and neither second-order collapse nor prefixes."
        to_do = Advice.to_run(left_out, "The whole audit:", again(record, None, "audit", beside="whole"))
    figures = [(label, estimate(row, name)) for name, label in verdict.TILES if row[name] is not None]
    return said._replace(
        figures=[f"{label} {figure}" for label, figure in figures if figure not in answer],
        to_do=to_do.text, commands=[to_do.command] if to_do.command else [],
    )  # fmt: skip


def _gate(judged: dict[str, Any]) -> str:
    """The gate's verdict in a sentence or two, with the first reason why it failed; empty where nothing was checked."""
    if judged["verdict"] == "none":
        return " ".join(judged.get("unreadable_nights", ()))
    first = f" {judged['failed'][0]}." if judged["failed"] else ""
    return f"The gate {verdict_in_words(judged)}.{first}"
