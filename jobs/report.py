"""Tables -> one self-contained HTML page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from jobs import figures, night_figures, schema, verdict
from jobs.headline import NOTE, count, estimate, headline, labelled, labels
from jobs.page import Page, page

_SHOWN = 5


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any], beside: Sequence[dict[str, Any]] = ()) -> Page:
    """The report as HTML.

    Args:
        tables: the run's tables by name; `excerpts` may be absent.
        run: the content of run.json.
        beside: what runs of `diagnose` and `evaluate` found of the same models, as `beside.read` gives it.

    Returns:
        One page that asks for nothing from outside; all text in it is escaped. Equal input gives equal text.
    """
    # An older version's run lacks what came later.
    known = {
        t.name: pl.DataFrame(pl.from_arrow(t.schema().empty_table())) for t in schema.TABLES if t is not schema.EXCERPTS
    }
    tables = known | tables
    names = labels(tables["collapse_summary"]["temperature"].unique(maintain_order=True))
    tables, edges = labelled(tables), run["config"]["analysis"]["intervals"]
    trend = pl.DataFrame(run.get("trend", []), infer_schema_length=None)
    if not trend.is_empty():
        trend = trend.with_columns(pl.col("temperature").replace(names))
    told = headline(tables, edges)
    models = [_model(place, name, tables, edges, trend) for place, name in enumerate(told)]
    charts = {f"{m['id']}-{key}": chart for m in models for key, chart in m["charts"].items() if chart is not None}
    small = {tile["id"]: tile["chart"] for model in models for tile in model["tiles"] if tile["chart"] is not None}
    charts |= {f"{part['id']}-{key}": chart for part in beside for key, chart in part["charts"].items() if chart is not None}
    return page(
        "report.html.j2",
        run,
        charts | small,
        {_relabelled(step, names): done["seconds"] for step, done in run.get("steps", {}).items()},
        models=models,
        small=list(small),
        sentences={m: [sentence.replace(" ± ", "\u00a0±\u00a0") for sentence in each] for m, each in told.items()},
        note=NOTE,
        gate=tables["gate"].to_dicts() if "gate" in tables else [],
        analysed=_analysed(run, models),
        temperatures=names,
        layers=[part for part in beside if part["kind"] == "layers"],
        downstream=[part for part in beside if part["kind"] == "downstream"],
        nights=trend["night"].n_unique() if not trend.is_empty() else 0,
    )


def _model(place: int, name: str, tables: dict[str, pl.DataFrame], edges: list[int], trend: pl.DataFrame) -> dict[str, Any]:
    """What the page shows of one model."""
    mine = {key: table.filter(pl.col("model") == name) for key, table in tables.items() if "model" in table.columns}
    excerpts = {r["text_id"]: r for r in tables["excerpts"].to_dicts()} if "excerpts" in tables else None
    first, effects = mine["collapse_summary"].row(0, named=True), mine["temperature_effect"].to_dicts()
    own = trend if trend.is_empty() else trend.filter(pl.col("temperature") == first["temperature"])
    if (
        tables["collapse_summary"]["model"].n_unique() > 1
    ):  # Of a run of one model, what it was before stays in sight, and is marked.
        own = own if own.is_empty() else own.filter(pl.col("model") == name)
    nights = verdict.TILES if not own.is_empty() and own["night"].n_unique() > 1 else ()
    same = own if own.is_empty() else own.filter(pl.col("model") == name)
    return {
        "id": f"m{place}",
        "name": name,
        "verdict": verdict.verdict(first, effects).replace(" ± ", "\u00a0±\u00a0"),
        "tiles": verdict.tiles(first, effects, same, f"m{place}"),
        "temperature": first["temperature"],
        "texts": mine["collapse_summary"]["texts"][0],
        "summary": [_strip(row) for row in mine["collapse_summary"].to_dicts()],
        "charts": {
            "cosine": figures.cosine_by_length(mine["length_collapse"], edges),
            "heatmap": figures.heatmap(mine["length_collapse"], edges),
            "probe": figures.prefix_probe(mine["prefix_probe"]),
            "exposure": figures.exposure_by_length(mine["exposure"], edges, "corpus"),
            "queries": figures.exposure_by_length(mine["exposure"], edges, "queries"),
            "effects": figures.effects(mine["temperature_effect"]),
            "scatter": figures.scatter(mine["socm_scatter"]),
            "socm": figures.socm_by_length(mine["socm"], edges),
        }
        | {f"nights-{key}": night_figures.chart(own, key, label) for key, label in nights},
        "nights": [(f"nights-{key}", label) for key, label in nights],
        "collapsed": _first(mine["collapsed_texts"], "nearness", "hub"),
        "pairs": _first(mine["socm_pairs"], "socm", "same_mean"),
        "search": mine["socm_search"].to_dicts(),
        "duplicates": mine["near_duplicates"].filter(pl.col("rank") <= _SHOWN).to_dicts(),
        "excerpts": excerpts,
        "several": mine["collapse_summary"].height > 1,
    }


def _first(table: pl.DataFrame, *rankings: str) -> dict[str, list[dict[str, Any]]]:
    """The first rows of each ranking."""
    shown = table.filter(pl.col("rank") <= _SHOWN)
    return {ranking: shown.filter(pl.col("ranking") == ranking).to_dicts() for ranking in rankings}


def _analysed(run: dict[str, Any], models: list[dict[str, Any]]) -> str:
    """How many texts the figures stand on: fewer than were taken where a model rejected some."""
    taken = run["corpus"]["analysed"]
    fewest, most = min(m["texts"] for m in models), max(m["texts"] for m in models)
    if fewest == taken:
        return count(taken, "text")
    kept = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{kept} of {count(taken, 'text')} ({'by model, ' if fewest < most else ''}the rest rejected by the model)"


def _relabelled(step: str, names: dict[str, str]) -> str:
    """A step's name with the temperature's label for its text, which may be hundreds of characters long."""
    for text in sorted(names, key=len, reverse=True):
        step = step.replace(f"τ {text}", names[text])
    return step


def _strip(row: dict[str, Any]) -> dict[str, Any]:
    named = {
        f"{figure}_text": estimate(row, figure)
        for figure in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean", "exposure_short", "exposure_long")
    }
    return row | named
