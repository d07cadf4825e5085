"""Tables -> one self-contained HTML page that works offline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import polars as pl

from tempscale_jobs.audit import charts as figures
from tempscale_jobs.audit import verdict
from tempscale_jobs.audit.advice import Advice, advice
from tempscale_jobs.audit.words import NOTE, corrected, headline, labelled, left_out, protocol, thresholds
from tempscale_jobs.nights import charts as night_figures
from tempscale_jobs.nights.gate import notes
from tempscale_jobs.nights.night import notes_in_brief
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.page import Page, page
from tempscale_jobs.report.text import count, estimate, interval_name, labels, number
from tempscale_jobs.steps import calibration
from tempscale_jobs.tables.audit import EXCERPTS, TABLES

_SHOWN = 5


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any], sections: Sequence[dict[str, Any]] = ()) -> Page:
    """The report of an audit, from its tables by name (`excerpts` may be absent) and the content of run.json.

    `sections` are made from `diagnose` and `evaluate` runs of the same models.
    """
    # A run of an older version lacks the newer tables.
    known = {t.name: pl.DataFrame(pl.from_arrow(t.schema().empty_table())) for t in TABLES if t is not EXCERPTS}
    tables = known | tables
    names = labels(tables["collapse_summary"]["temperature"].unique(maintain_order=True))
    edges = run["config"]["analysis"]["intervals"]
    tables = labelled(tables, edges)
    trend = pl.DataFrame(run.get("trend", []), infer_schema_length=None)
    if not trend.is_empty():
        trend = trend.with_columns(pl.col("temperature").replace(names))
    sentences_of = headline(tables, edges)
    models = [_model(place, name, _Given(tables, edges, trend, run)) for place, name in enumerate(sentences_of)]
    chunked = run["config"].get("embedding", {}).get("long") == "chunk"
    for model in models:
        model["notes"] = protocol(run.get("models", {}).get(model["name"], {}), edges, chunked)
    charts = {f"{m['id']}-{key}": chart for m in models for key, chart in m["charts"].items() if chart is not None}
    small = {tile["id"]: tile["chart"] for model in models for tile in model["tiles"] if tile["chart"] is not None}
    charts |= {
        f"{section['id']}-{key}": chart
        for section in sections
        for key, chart in section["charts"].items()
        if chart is not None
    }
    return page(
        "report.html.j2",
        run,
        charts | small,
        {_relabelled(step, names): timing["seconds"] for step, timing in run.get("steps", {}).items()},
        models=models,
        small=list(small),
        sentences={m: [sentence.replace(" ± ", "\u00a0±\u00a0") for sentence in lines] for m, lines in sentences_of.items()},
        note=NOTE,
        left_out=left_out(tables, run),
        gate=tables["gate"].to_dicts() if "gate" in tables else [],
        gate_notes=notes(run["gate"]) if "gate" in run else [],
        gate_in_brief=_gate_in_brief(run["gate"]) if run.get("gate", {}).get("failed") is not None else [],
        analysed=_analysed(run, models),
        temperatures=names,
        layers=[section for section in sections if section["kind"] == "layers"],
        downstream=[section for section in sections if section["kind"] == "downstream"],
        nights=trend["night"].n_unique() if not trend.is_empty() else 0,
    )


def _gate_in_brief(judged: dict[str, Any]) -> list[str]:
    """The first failed check, or how many there were and what else is to be known."""
    failed, checks = judged["failed"], judged["checks"]
    return [*failed[:1]] if failed else [*([count(checks, "check")] if checks else []), *notes_in_brief(judged)]


class _Given(NamedTuple):
    """What the section of a model is made of."""

    tables: dict[str, pl.DataFrame]
    edges: list[int]
    trend: pl.DataFrame
    """The nights of the record."""
    run: dict[str, Any]


def _model(place: int, name: str, inputs: _Given) -> dict[str, Any]:
    """The section of the page for one model."""
    tables, edges, trend, run = inputs
    model_tables = {key: table.filter(pl.col("model") == name) for key, table in tables.items() if "model" in table.columns}
    excerpts = {r["text_id"]: r for r in tables["excerpts"].to_dicts()} if "excerpts" in tables else None
    first, found = model_tables["collapse_summary"].row(0, named=True), Findings.read(tables["findings"])
    shown_trend = trend if trend.is_empty() else trend.filter(pl.col("temperature") == first["temperature"])
    if (
        tables["collapse_summary"]["model"].n_unique() > 1
    ):  # With one model in the run, the nights of an earlier model stay in the chart and are marked.
        shown_trend = shown_trend if shown_trend.is_empty() else shown_trend.filter(pl.col("model") == name)
    nights = verdict.TILES if not shown_trend.is_empty() and shown_trend["night"].n_unique() > 1 else ()
    model_trend = shown_trend if shown_trend.is_empty() else shown_trend.filter(pl.col("model") == name)
    cells = model_tables["cosine_histogram"].filter(pl.col("temperature") == first["temperature"])
    card = calibration.card(cells)
    asked_by = "queries" if "queries" in run else "corpus"
    return {
        "id": f"m{place}",
        "name": name,
        "advice": [
            Advice(line.text.replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%"), line.command)
            for line in advice(tables, first, run)
        ],
        "verdict": verdict.answer(first, found).replace(" ± ", "\u00a0±\u00a0"),
        "tiles": verdict.tiles(first, found, model_trend, f"m{place}"),
        "temperature": first["temperature"],
        "texts": model_tables["collapse_summary"]["texts"][0],
        "summary": [_strip(row) for row in model_tables["collapse_summary"].to_dicts()],
        "charts": {
            "cosine": figures.cosine_by_length(model_tables["length_collapse"], edges),
            "heatmap": figures.heatmap(model_tables["length_collapse"], edges),
            "probe": figures.prefix_probe(model_tables["prefix_probe"]),
            "exposure": figures.exposure_by_length(model_tables["exposure"], edges, "corpus"),
            "queries": figures.exposure_by_length(model_tables["exposure"], edges, "queries"),
            "thresholds": figures.percentiles(card, edges),
            "corrected": figures.exposure_corrected(
                model_tables["exposure"], model_tables["exposure_corrected"], edges, asked_by
            ),
            "effects": figures.effects(model_tables["temperature_effect"]),
            "scatter": figures.scatter(model_tables["socm_scatter"]),
            "socm": figures.socm_by_length(model_tables["socm"], edges),
        }
        | {f"nights-{key}": night_figures.chart(shown_trend, key, label) for key, label in nights},
        "nights": [(f"nights-{key}", label) for key, label in nights],
        "collapsed": _first(model_tables["collapsed_texts"], "nearness", "hub"),
        "pairs": _first(model_tables["socm_pairs"], "socm", "same_mean"),
        "search": model_tables["socm_search"].to_dicts(),
        "duplicates": model_tables["near_duplicates"].filter(pl.col("rank") <= _SHOWN).to_dicts(),
        "excerpts": excerpts,
        "several": model_tables["collapse_summary"].height > 1,
        "thresholds": thresholds(card, edges),
        "percentiles": _percentiles(card, edges),
        "corrected": corrected(tables, first, asked_by, edges),
    }


def _percentiles(card: Sequence[dict[str, Any]], edges: Sequence[int]) -> list[list[str]]:
    """The 99th percentile of random pairs by the length of both: the head, then a row for each length."""
    known = {(row["interval_a"], row["interval_b"]): row["percentiles"]["99"] for row in card[1:]}
    shown_edges = [edge for edge in edges if any(edge in pair for pair in known)]
    head = ["", *(interval_name(edge, edges) for edge in shown_edges)]
    return [head] + [
        [interval_name(b, edges), *("" if a > b else number(known.get((a, b))) for a in shown_edges)] for b in shown_edges
    ]  # fmt: skip


def _first(table: pl.DataFrame, *rankings: str) -> dict[str, list[dict[str, Any]]]:
    """The first rows of each ranking."""
    first = table.filter(pl.col("rank") <= _SHOWN)
    return {ranking: first.filter(pl.col("ranking") == ranking).to_dicts() for ranking in rankings}


def _analysed(run: dict[str, Any], models: list[dict[str, Any]]) -> str:
    """How many texts the figures are computed from: fewer than were read where a model rejected some."""
    taken = run["corpus"]["analysed"]
    fewest, most = min(m["texts"] for m in models), max(m["texts"] for m in models)
    if fewest == taken:
        return count(taken, "text")
    texts = f"{fewest:,}" if fewest == most else f"{fewest:,} to {most:,}"
    return f"{texts} of {count(taken, 'text')} ({'by model, ' if fewest < most else ''}the rest rejected by the model)"


def _relabelled(step: str, names: dict[str, str]) -> str:
    """A step's name with the temperature's label instead of its text, which may be hundreds of characters long."""
    for text in sorted(names, key=len, reverse=True):
        step = step.replace(f"τ {text}", names[text])
    return step


def _strip(row: dict[str, Any]) -> dict[str, Any]:
    figure_texts = {
        f"{figure}_text": estimate(row, figure)
        for figure in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean", "exposure_short", "exposure_long")
    }
    return row | figure_texts
