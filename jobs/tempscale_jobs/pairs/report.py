"""Tables of `tempscale pairs` -> the report."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.report.findings import labelled
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Figure, Part, Report, Table, subject, tabled
from tempscale_jobs.report.text import count, labels, number, parted, share, signed, with_error

_SHOWN = 20
_FIGURES = {
    "5th percentile of SOCM": "socm_p05", "median": "socm_p50", "95th percentile": "socm_p95", "mean d_μ": "d_mu_mean",
    "mean d_Σ": "d_sigma_mean",
}  # fmt: skip
_SHARES = {"pairs with SOCM above 1": "socm_over_1_share", "truncated texts": "truncated_share"}


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Report:
    """The report of a run of `pairs`, from its tables by name and the content of run.json."""
    temperatures = tables["pairs_summary"]["temperature"]
    tables = labelled(tables, temperatures)
    summary, pairs = tables["pairs_summary"], tables["pairs"]
    models = summary["model"].unique(maintain_order=True)
    parts = [
        _part(f"m{place}", name, summary.filter(model=name).to_dicts(), pairs.filter(model=name))
        for place, name in enumerate(models)
    ]
    made = how_made(run, "how_pairs", labels(temperatures))
    return Report("Do these pairs collapse?", subject(run, count(summary["pairs"].max(), "pair")), parts, after=[made])


def answer(rows: list[dict[str, Any]]) -> str:
    """The mean SOCM of one model under the first temperature, and what the others change."""
    first, *others = rows
    over = f"{count(first['pairs'], 'pair')} of {count(first['texts'], 'text')}"
    socm = f"Mean SOCM {with_error(first['socm_mean'], first['socm_se'])} at {first['temperature']}, over {over}."
    changes = [(row["temperature"], with_error(row["socm_change"], row["socm_change_se"])) for row in others]
    return " ".join([socm, *(f"{temperature} changes it by {change}." for temperature, change in changes)])


def _part(place: str, name: str, rows: list[dict[str, Any]], pairs: pl.DataFrame) -> Part:
    """What the report says of one model."""
    first = rows[0]
    figures = [
        Figure(
            f"mean SOCM, {row['temperature']}",
            *parted(with_error(row["socm_mean"], row["socm_se"])),
            changes=[f"change from {first['temperature']}: {signed(with_error(row['socm_change'], row['socm_change_se']))}"]
            if row["reference"]
            else [],
        )
        for row in rows[:4]
    ]
    cells = [(label, *(number(row[column]) for row in rows)) for label, column in _FIGURES.items()]
    cells += [(label, *(share(row[column]) for row in rows)) for label, column in _SHARES.items()]
    by_temperature = Table(("figure", *(row["temperature"] for row in rows)), cells)
    largest = pairs.filter(temperature=first["temperature"]).sort("socm", "pair", descending=[True, False]).head(_SHOWN)
    worst = [
        (
            row["pair_id"], f"{row['text_id_a']}\n{count(row['tokens_a'], 'token')}",
            f"{row['text_id_b']}\n{count(row['tokens_b'], 'token')}", *(number(row[c]) for c in ("socm", "d_mu", "d_sigma")),
        )
        for row in largest.to_dicts()
    ]  # fmt: skip
    heads = ("pair", "one text", "the other", "SOCM", "d_μ", "d_Σ")
    sections = [*tabled("largest_pairs", Table(heads, worst, words=3)), *tabled("pairs_figures", by_temperature)]
    return Part(place, name, answer(rows), figures, sections=sections)
