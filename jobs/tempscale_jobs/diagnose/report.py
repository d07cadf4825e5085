"""Tables of `tempscale diagnose` -> one self-contained HTML page."""

from __future__ import annotations

from typing import Any

import polars as pl

from tempscale_jobs.corpus.rows import mention_rejected
from tempscale_jobs.diagnose import charts as figures
from tempscale_jobs.diagnose import versions
from tempscale_jobs.diagnose import words as sentences
from tempscale_jobs.report.page import Page, page
from tempscale_jobs.report.text import interval_name, labels, with_error

_ROUNDING = 1 + 1e-4
"""A ratio to Theorem 2's bound above this is not explained by float32 rounding."""


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> Page:
    """The report of a run of `diagnose`, from its tables by name and the content of run.json."""
    names, models = _names(tables), of_models(tables, run)
    charts = {f"{m['id']}-{key}": chart for m in models for key, chart in m["charts"].items() if chart is not None}
    steps = {step: record["seconds"] for step, record in run.get("steps", {}).items()}
    side_by_side = _side_by_side(_labelled(tables)) if len(models) > 1 else None
    if side_by_side is not None:
        charts["all-together"] = side_by_side["charts"]["together"]
    return page(
        "diagnose.html.j2", run, charts, steps, models=models, temperatures=names, together=side_by_side,
        left_out=_left_out(run),
    )  # fmt: skip


def _left_out(run: dict[str, Any]) -> str:
    facts = run.get("corpus", {})
    if not facts.get("read"):
        return ""
    return mention_rejected("rows of the corpus", facts["rejected"] / facts["read"], facts.get("rejected_reasons", {}))


def of_models(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> list[dict[str, Any]]:
    """One section per model for a report page: its id, name, sentences, charts and tables."""
    tables = _labelled(tables)
    edges = run["config"]["diagnosis"]["intervals"]
    names = tables["layer_summary"]["model"].unique(maintain_order=True)
    return [_model(place, name, tables, edges) for place, name in enumerate(names)]


def _names(tables: dict[str, pl.DataFrame]) -> dict[str, str]:
    return labels(tables["layer_summary"]["temperature"].unique(maintain_order=True))


def _labelled(tables: dict[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables with a short label in place of each temperature."""
    names = _names(tables)
    return {key: table.with_columns(pl.col("temperature").replace(names)) for key, table in tables.items()}


def _side_by_side(tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
    """The section of the page that compares all models."""
    summary, models = tables["layer_summary"], tables["layer_summary"]["model"].unique(maintain_order=True).to_list()
    last = summary.filter(pl.col("interval").is_null())
    last = last.filter(pl.col("layer") == pl.col("layer").max().over("model"))
    columns = ("within_cosine", "spread", "rho", "lambda", "sigma_a_mean")
    return {
        "id": "all",
        "charts": {"together": figures.together(summary)},
        "sentences": sentences.of_models(tables["findings"], models[0]),
        "texts": int(last["texts"][0]),
        "rows": [
            {"model": row["model"], "temperature": row["temperature"]}
            | {"values": [with_error(row[f"{name}_mean"], row[f"{name}_se"]) for name in columns]}
            for row in last.to_dicts()
        ],
    }


def _model(place: int, name: str, tables: dict[str, pl.DataFrame], edges: list[int]) -> dict[str, Any]:
    """The section of the page for one model."""
    mine = {key: table.filter(pl.col("model") == name) for key, table in tables.items()}
    spectrum, summary = mine["spectrum_by_length"], mine["layer_summary"]
    over_all = summary.filter(pl.col("interval").is_null())
    exceeded = (pl.col("sigma_a") > pl.col("sigma_a_bound")).mean().alias("over")
    heads = mine["heads"].group_by("temperature", maintain_order=True)
    broken = (pl.col("thm2_ratio") > _ROUNDING).sum().alias("broken")
    bounds = heads.agg(pl.col("thm2_ratio").max().alias("worst"), broken, exceeded, pl.len().alias("rows")).to_dicts()
    return {
        "id": f"m{place}",
        "name": name,
        "sentences": sentences.of_model(mine, bounds, edges),
        "texts": int(over_all["texts"][0]),
        "layers": int((over_all["layer"].unique() >= 0).sum()),
        "charts": {
            "filter": figures.filter_by_length(spectrum, edges),
            "parts": figures.parts(summary),
            "resemblance": figures.resemblance(spectrum, edges),
            "repeated": figures.repeated(mine["repeated_tokens"]),
            "contraction": figures.contraction(summary),
            "concentration": figures.concentration(summary),
            "map": figures.text_map(mine["map"], edges),
            "pair": figures.two_texts(mine["two_texts"]) if "two_texts" in mine else None,
        },
        "bounds": bounds,
        "distances": _distances(mine["map"], edges),
    }


def _distances(table: pl.DataFrame, edges: list[int]) -> list[dict[str, Any]]:
    """Mean distance to the map's origin by temperature: per length interval, and of the shortest and longest versions."""
    intervals = sorted(table["interval"].unique())
    rows = []
    for (label,), mine in table.group_by("temperature", maintain_order=True):
        means = dict(mine.group_by("interval").agg(pl.col("origin_distance").mean()).iter_rows())
        means_by_name = [(interval_name(edge, edges), means.get(edge)) for edge in intervals]
        lengths = dict(mine.select("text_id", "tokens").iter_rows())
        documents = dict(mine.filter(pl.col("document").is_not_null()).select("text_id", "document").iter_rows())
        pairs = versions.shortest_and_longest(documents, lengths)
        if pairs:
            distance = dict(mine.select("text_id", "origin_distance").iter_rows())
            for place, name in enumerate(("shortest versions", "longest versions")):
                means_by_name.append((name, sum(distance[pair[place]] for pair in pairs) / len(pairs)))
        rows.append({"temperature": label, "means": means_by_name})
    return rows
