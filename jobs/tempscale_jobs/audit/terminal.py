"""What the terminal says of a finished audit, and what --json prints of it."""

from __future__ import annotations

import os
from typing import Any

import polars as pl

from tempscale_jobs.audit import verdict
from tempscale_jobs.audit.advice import Advice, advice
from tempscale_jobs.audit.findings import with_findings
from tempscale_jobs.audit.words import labelled, left_out
from tempscale_jobs.nights.gate import notes
from tempscale_jobs.nights.night import failure_in_words, verdict_in_words
from tempscale_jobs.nights.notify import github_lines
from tempscale_jobs.nights.record import is_quick
from tempscale_jobs.report.again import again
from tempscale_jobs.report.findings import Document, Finding, Findings
from tempscale_jobs.report.screen import Ending, by_model
from tempscale_jobs.report.text import FIGURES, Edges, estimate

Tables = dict[str, pl.DataFrame]


def document(tables: Tables, record: dict[str, Any], root: str) -> Document:
    """The answer for each model, the gate's verdict and the findings with their commands, for other programs."""
    edges, judged = Edges.of(record), record["gate"]
    tables = with_findings(tables, edges)
    found, commands = Findings.read(tables["findings"]), dict[Finding, str]()
    for row in _first(tables):
        for line in advice(tables, row, record):
            commands |= {found.at(figure, row): line.command for figure in line.figures if line.command}
    named = labelled(tables, edges)
    named_findings = Findings.read(named["findings"])
    answers = {row["model"]: verdict.answer(row, named_findings, edges) for row in _first(named)}
    if (verified := record.get("verified")) is not None:
        answers = {verified["model"]: verified["answer"]} | answers
    gate = {"verdict": judged["verdict"], "failed": judged["failed"], "notes": notes(judged)}
    return Document(root, answers, found.with_commands(commands), {"gate": gate})


def _first(tables: Tables) -> list[dict[str, Any]]:
    """Each model's row of collapse_summary at its first temperature."""
    rows: list[dict[str, Any]] = tables["collapse_summary"].unique("model", keep="first", maintain_order=True).to_dicts()
    return rows


def ending(tables: Tables, record: dict[str, Any], root: str) -> Ending:
    """What is said of an audit, from its tables, the content of run.json and the name of its folder."""
    edges, judged = Edges.of(record), record["gate"]
    named = labelled(tables, edges)
    found = Findings.read(named["findings"])
    rows = _first(named)
    answers = {row["model"]: verdict.answer(row, found, edges) for row in rows}
    said = Ending(
        by_model(answers), f"report  {root}/report.html", gate=_gate(judged), is_failed=judged["verdict"] == "failed",
        annotations=github_lines(record) if os.environ.get("GITHUB_ACTIONS") == "true" else (),
    )  # fmt: skip
    if len(rows) > 1:
        return said
    (row,), (answer,), to_do = rows, answers.values(), advice(named, rows[0], record)[0]
    if is_quick(record):
        partial = "A quick audit measures one temperature, and neither second-order collapse nor prefixes."
        to_do = Advice.to_run("socm_mean", partial, "The whole audit:", again(record, None, "audit", beside="whole"))
    figures = [(label, estimate(row, name)) for name, label in FIGURES.items() if row[name] is not None]
    said_first = f"Collapse by length? {answer}"
    if (verified := record.get("verified")) is not None and verified["low"] <= verified["max_wrong"]:
        said_first = f"Are the vectors the model's? {verified['answer']} {said_first}"  # Otherwise the gate says so.
    return said._replace(
        answers=[said_first],
        figures=[f"{label} {figure}" for label, figure in figures if figure not in answer],
        to_do=" ".join([*left_out(tables, record), to_do.text]), commands=[to_do.command] if to_do.command else [],
    )  # fmt: skip


def _gate(judged: dict[str, Any]) -> str:
    """The gate's verdict in a sentence or two, with the first reason why it failed; empty where nothing was checked."""
    if judged["verdict"] == "none":
        return " ".join(judged.get("unreadable_nights", ()))
    return failure_in_words(judged) or f"The gate {verdict_in_words(judged)}."
