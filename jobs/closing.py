"""The block that ends a run on the screen: where the report is and the figures that matter."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import polars as pl
from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.evaluate_figures import named
from jobs.headline import closing_figures, labels, share, with_error
from jobs.nights import told as night_told
from jobs.notify import github_lines
from jobs.runs import DONE, Run, RunOf
from jobs.summary import load_tables
from jobs.urls import shown

_WIDE = 200


def close(run: Run) -> None:
    """Print the figures that matter, the gate's verdict and where the report is, on standard output."""
    console, record = Console(), run.storage.read_json(DONE)
    for model, (temperatures, lines) in closing_figures(load_tables(run.storage)).items():
        print_table(console, (model, *temperatures), lines)
    root, judged = shown(run.storage.root), record["gate"]
    if judged["verdict"] != "none":
        reasons = "".join(f"\n        {reason}" for reason in [*judged["failed"], *judged["not_compared"]])
        console.print(f"\ngate    {night_told(judged)}{reasons}", highlight=False, soft_wrap=True, markup=False)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            console.print("\n".join(github_lines(record)), highlight=False, soft_wrap=True, markup=False)
    places = f"\nreport  {root}/report.html\ntables  {root}/tables/"
    console.print(places, highlight=False, soft_wrap=True, markup=False)


def close_pairs(run: RunOf[Any]) -> None:
    """Print what `tempscale pairs` found and where its tables are, on standard output."""
    console = Console()
    summary = load_tables(run.storage)["pairs_summary"]
    names = labels(summary["temperature"].unique(maintain_order=True))
    for model, rows in summary.group_by("model", maintain_order=True):
        each = rows.to_dicts()
        lines = [["mean SOCM", *(with_error(row["socm_mean"], row["socm_se"]) for row in each)]]
        if len(each) > 1:
            change = [with_error(row["socm_change"], row["socm_change_se"]) for row in each]
            lines.append([f"change from {names[each[0]['temperature']]}", *change])
        for label, name in (("mean d_μ", "d_mu_mean"), ("mean d_Σ", "d_sigma_mean")):
            lines.append([label, *(f"{row[name]:.4f}" for row in each)])
        lines.append(["SOCM > 1", *(share(row["socm_over_1_share"]) for row in each)])
        print_table(console, (str(model[0]), *(names[row["temperature"]] for row in each)), lines)
    first = summary.row(0, named=True)
    console.print(
        f"\n{first['pairs']:,} pairs of {first['texts']:,} texts; ± is a 95 % interval that knows which pairs share a text"
        f"\ntables  {shown(run.storage.root)}/tables/",
        highlight=False, soft_wrap=True, markup=False,
    )  # fmt: skip


_FINDINGS = {
    "length": "σ_a, long − short texts",
    "temperature": "σ_a, against the first τ",
    "versions": "σ_a, long − short version",
    "versions_cosine": "cosine between documents, long − short version",
    "model": "within-text cosine, against the first model",
}


def close_diagnose(run: RunOf[Any]) -> None:
    """Print what `tempscale diagnose` found and where its tables are, on standard output."""
    console = Console()
    tables = load_tables(run.storage)
    found = tables["findings"]
    names = labels(found["temperature"].unique(maintain_order=True))
    for model in found["model"].unique(maintain_order=True):
        mine = found.filter(pl.col("model") == model)
        mean = tables["layer_summary"].filter((pl.col("model") == model) & pl.col("interval").is_null())
        taus = mine["temperature"].unique(maintain_order=True).to_list()
        lines = [
            [what, *(_mean_of(mean.filter(pl.col("temperature") == tau), column) for tau in taus)]
            for what, column in (("mean σ_a", "sigma_a_mean_mean"), ("mean HC ratio of a layer", "hc_ratio_mean"))
        ]
        for finding, what in _FINDINGS.items():
            own = {row["temperature"]: row for row in mine.filter(pl.col("finding") == finding).to_dicts()}
            if own:
                lines.append([what, *(with_error(own[t]["change"], own[t]["change_se"]) if t in own else "–" for t in taus)])
        print_table(console, (str(model), *(names[tau] for tau in taus)), lines)
    root = shown(run.storage.root)
    console.print(f"\nreport  {root}/report.html\ntables  {root}/tables/", highlight=False, soft_wrap=True, markup=False)


def close_evaluate(run: RunOf[Any]) -> None:
    """Print each task's score under each temperature, and where the report is, on standard output."""
    console = Console()
    table = named(load_tables(run.storage)["evaluation"])
    names = labels(table["temperature"].unique(maintain_order=True))
    for (model,), own in table.group_by("model", maintain_order=True):
        heads = own["temperature"].unique(maintain_order=True).to_list()
        lines = []
        for (name,), rows in own.group_by("name", maintain_order=True):
            by = {row["temperature"]: row for row in rows.to_dicts()}
            first = next(iter(by.values()))
            cells = [f"{first['score']:.4f}"]
            for tau in heads[1:]:  # A grid's pairs of roles are for some tasks only.
                change = with_error(by[tau]["change"], by[tau]["change_se"]) if tau in by else ""
                cells.append(f"{by[tau]['score']:.4f} ({change})" if tau in by else "–")
            lines.append([f"{name}, {first['metric']}", *cells])
        print_table(console, (str(model), *(names[tau] for tau in heads)), lines)
    root = shown(run.storage.root)
    told = f"\nin brackets the change, with a 95 % interval\nreport  {root}/report.html\ntables  {root}/tables/"
    console.print(told, highlight=False, soft_wrap=True, markup=False)


def _mean_of(rows: pl.DataFrame, column: str) -> str:
    values = rows[column].drop_nulls().to_numpy()
    return f"{values.mean():.4f}" if len(values) else "–"


def screen() -> Console:
    """Standard output; where it is no terminal, wide enough for any table."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def print_table(console: Console, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print lines under their heads; nothing in them is read as markup."""
    table = Table(box=None, padding=(0, 2))
    for name in heads:
        table.add_column(Text(name))  # As Text: 'a[/b]' would be read as markup.
    for line in lines:
        table.add_row(*map(Text, line))
    console.print()
    console.print(table)
