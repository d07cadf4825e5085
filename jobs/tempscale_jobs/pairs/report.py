"""Tables of `tempscale pairs` -> the report."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.report.page import Page, page
from tempscale_jobs.report.provenance import how_made
from tempscale_jobs.report.sections import Figure, Part, Report, Table, subject, tabled
from tempscale_jobs.report.text import count, labels, number, parted, share, signed, with_error

_SHOWN = 20
_FIGURES = {
    "5th percentile of SOCM": "socm_p05", "median": "socm_p50", "95th percentile": "socm_p95", "mean d_μ": "d_mu_mean",
    "mean d_Σ": "d_sigma_mean",
}  # fmt: skip
_SHARES = {"pairs with SOCM above 1": "socm_over_1_share", "truncated texts": "truncated_share"}


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Page:
    """The page of `report_of`."""
    return page(report_of(tables, run), run["config"])


def report_of(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Report:
    """The report of a run of `pairs`, from its tables by name and the content of run.json."""
    names = labels(tables["pairs_summary"]["temperature"].unique(maintain_order=True))
    summary, pairs = (tables[name].with_columns(pl.col("temperature").replace(names)) for name in ("pairs_summary", "pairs"))
    models = summary["model"].unique(maintain_order=True)
    parts = [
        _part(f"m{place}", name, summary.filter(model=name).to_dicts(), pairs.filter(model=name))
        for place, name in enumerate(models)
    ]
    made = how_made(run, "how_pairs", names)
    return Report("Do these pairs collapse?", subject(run, count(summary["pairs"].max(), "pair")), parts, after=[made])


def _part(place: str, name: str, rows: list[dict[str, Any]], pairs: pl.DataFrame) -> Part:
    """What the report says of one model."""
    first = rows[0]
    answer = (
        f"The mean SOCM of {count(first['pairs'], 'pair')} of {count(first['texts'], 'text')} is "
        f"{with_error(first['socm_mean'], first['socm_se'])} at {first['temperature']}."
    )
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
    return Part(place, name, answer, figures, sections=sections)
