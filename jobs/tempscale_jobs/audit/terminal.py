"""A finished audit on the terminal, and as data for other programs."""

from __future__ import annotations

import datetime
import os
from typing import Any

import polars as pl

from tempscale_jobs.audit import verdict
from tempscale_jobs.audit.advice import advice
from tempscale_jobs.audit.again import again
from tempscale_jobs.audit.findings import with_findings
from tempscale_jobs.audit.words import closing_figures, labelled, left_out
from tempscale_jobs.config.audit import QUICK_START, Analysis
from tempscale_jobs.config.sections import QUICK_START_CORPUS
from tempscale_jobs.nights.gate import notes
from tempscale_jobs.nights.night import verdict_in_words
from tempscale_jobs.nights.notify import github_lines
from tempscale_jobs.report.findings import Document, Finding, Findings
from tempscale_jobs.report.screen import Screen, print_table
from tempscale_jobs.report.text import count
from tempscale_jobs.runs.folder import DONE, Run, load_tables
from tempscale_jobs.runs.journal import duration
from tempscale_jobs.steps.expected import START_SECONDS
from tempscale_jobs.urls import masked


def _whole(record: dict[str, Any]) -> str | None:
    """After the quick start: what an audit of all of its texts is, and about how long it takes; None after other runs."""
    corpus, counts, steps = record["config"].get("corpus", {}), record["corpus"], record["steps"]
    quick = QUICK_START["corpus"] | {"source": QUICK_START_CORPUS}
    if any(corpus.get(name) != value for name, value in quick.items()) or counts["usable"] <= counts["analysed"]:
        return None
    seconds = {
        start: sum(timing["seconds"] for name, timing in steps.items() if name.startswith(start))
        for start in ("embed", "SOCM", "worst pairs")
    }
    whole, default = sum(timing["seconds"] for timing in steps.values()), Analysis.model_validate({})
    rest, measured = whole - sum(seconds.values()), record["config"]["analysis"]
    start = min(START_SECONDS, seconds["embed"])
    grown = {
        "embed": counts["usable"] / counts["analysed"],
        "SOCM": default.socm_groups / measured["socm_groups"],
        "worst pairs": (default.socm_ranked / measured["socm_ranked"]) ** 2,
    }
    full_seconds = (
        rest
        + start
        + (seconds["embed"] - start) * grown["embed"]
        + sum(seconds[k] * grown[k] for k in ("SOCM", "worst pairs"))
    )
    # An earlier session, or an earlier run through the cache, did a part of the work: then this one's seconds tell nothing.
    begun, ended = (datetime.datetime.fromisoformat(record[name]) for name in ("started", "finished"))
    alone = (ended - begun).total_seconds() < 1.5 * whole + 30 and record["config"]["execution"].get("cache") is None
    lasts = f", about {duration(full_seconds)}" if alone else ""
    command = again(record, None, "audit", beside="whole", whole=True)
    return (
        f"These were {count(counts['analysed'], 'text')}. All {counts['usable']:,}{lasts}:\n      {command}"
        if command
        else None
    )


def document(run: Run) -> Document:
    """The answer for each model, the gate's verdict and the findings with their commands, for other programs."""
    record, tables = run.storage.read_json(DONE), load_tables(run.storage)
    edges, judged = record["config"]["analysis"]["intervals"], record["gate"]
    tables = with_findings(tables, edges)
    found, commands = Findings.read(tables["findings"]), dict[Finding, str]()
    for row in _first(tables):
        for line in advice(tables, row, record):
            commands |= {found.at(figure, row): line.command for figure in line.figures if line.command}
    named = labelled(tables, edges)
    named_findings = Findings.read(named["findings"])
    answers = {row["model"]: verdict.answer(row, named_findings) for row in _first(named)}
    gate = {"verdict": judged["verdict"], "failed": judged["failed"], "notes": notes(judged)}
    return Document(run.storage.root, answers, found.with_commands(commands), {"gate": gate})


def _first(tables: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Each model's row of collapse_summary at its first temperature."""
    rows: list[dict[str, Any]] = tables["collapse_summary"].unique("model", keep="first", maintain_order=True).to_dicts()
    return rows


def close(run: Run) -> None:
    """Print the figures that matter, the gate's verdict and where the report is, on standard output."""
    console, record, tables = Screen(), run.storage.read_json(DONE), load_tables(run.storage)
    named = labelled(tables, record["config"]["analysis"]["intervals"])
    first = named["collapse_summary"].unique("model", keep="first", maintain_order=True)
    for sentence in left_out(tables, record):
        console.print(sentence, highlight=False, soft_wrap=True, markup=False)
    for row, (model, (temperatures, lines)) in zip(first.to_dicts(), closing_figures(named).items(), strict=True):
        print_table(console, (model, *temperatures), lines)
        console.print()
        for line in advice(named, row, record):
            message = f"  {line.text}" + (f"\n      {line.command}" if line.command else "")
            console.print(message, highlight=False, soft_wrap=True, markup=False)
    if (whole := _whole(record)) is not None:
        console.print(f"\n{whole}", highlight=False, soft_wrap=True, markup=False)
    root, judged = masked(run.storage.root), record["gate"]
    if judged["verdict"] != "none":
        reasons = "".join(f"\n        {reason}" for reason in [*judged["failed"], *notes(judged)])
        console.print(f"\ngate    {verdict_in_words(judged)}{reasons}", highlight=False, soft_wrap=True, markup=False)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            console.print("\n".join(github_lines(record)), highlight=False, soft_wrap=True, markup=False)
    for sentence in judged.get("unreadable_nights", ()) if judged["verdict"] == "none" else ():
        console.print(f"\nnights  {sentence}", highlight=False, soft_wrap=True, markup=False)
    places = f"\nreport  {root}/report.html\ntables  {root}/tables/"
    console.print(places, highlight=False, soft_wrap=True, markup=False)
