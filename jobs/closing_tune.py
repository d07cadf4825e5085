"""The block that ends `tempscale tune` on the screen: the choice, why, and what to run."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from jobs import runs
from jobs import tune_sentences as sentences
from jobs.runs import RunOf
from jobs.summary import load_tables
from jobs.urls import shown


def close_tune(run: RunOf[Any]) -> None:
    """Print the choice and where the report is, on standard output."""
    record, root = run.storage.read_json(runs.DONE), shown(run.storage.root)
    told = sentences.evidence(record, load_tables(run.storage), record["config"]["choosing"]["intervals"])
    lines = ["", sentences.verdict(record), *(f"  {sentence}" for sentence in told)]
    if steps := sentences.then(record, root):
        lines += ["", "next", *(f"  {step}" for step in steps)]
        lines.append("  embed queries and the whole index again, together: vectors of the two models do not mix")
    lines += ["", f"report       {root}/report.html", f"temperature  {root}/temperature.json"]
    Console().print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
