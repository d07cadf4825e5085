"""Tables of `tempscale diagnose` -> one self-contained HTML page."""

from __future__ import annotations

from typing import Any

import polars as pl

from jobs import diagnose_figures as figures
from jobs.headline import beyond_noise, count, interval_name, labels, share, with_error
from jobs.page import page


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> str:
    """The report as HTML.

    Args:
        tables: the run's tables by name.
        run: the content of run.json.
    """
    names = labels(tables["layer_summary"]["temperature"].unique(maintain_order=True))
    tables = {key: table.with_columns(pl.col("temperature").replace(names)) for key, table in tables.items()}
    edges = run["config"]["diagnosis"]["intervals"]
    models = [
        _model(place, name, tables, edges)
        for place, name in enumerate(tables["layer_summary"]["model"].unique(maintain_order=True))
    ]
    charts = {f"{m['id']}-{key}": chart for m in models for key, chart in m["charts"].items() if chart is not None}
    steps = {step: done["seconds"] for step, done in run.get("steps", {}).items()}
    return page("diagnose.html.j2", run, charts, steps, models=models, temperatures=names)


def _model(place: int, name: str, tables: dict[str, pl.DataFrame], edges: list[int]) -> dict[str, Any]:
    """What the page shows of one model."""
    mine = {key: table.filter(pl.col("model") == name) for key, table in tables.items()}
    spectrum, summary = mine["spectrum_by_length"], mine["layer_summary"]
    over_all = summary.filter(pl.col("interval").is_null())
    exceeded = (pl.col("sigma_a") > pl.col("sigma_a_bound")).mean().alias("over")
    heads = mine["heads"].group_by("temperature", maintain_order=True)
    bounds = heads.agg(pl.col("thm2_ratio").max().alias("worst"), exceeded, pl.len().alias("rows")).to_dicts()
    return {
        "id": f"m{place}",
        "name": name,
        "sentences": _sentences(mine, bounds, edges),
        "texts": int(over_all["texts"][0]),
        "layers": int(over_all["layer"].n_unique()),
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


def _sentences(mine: dict[str, pl.DataFrame], bounds: list[dict[str, Any]], edges: list[int]) -> list[str]:
    """What the measurement says of S1's two claims, each with its error."""
    told = []
    for row in mine["findings"].to_dicts():
        change, label = with_error(row["change"], row["change_se"]), row["temperature"]
        known = row["change"] is not None and beyond_noise(row["change"], row["change_se"])
        up = known and row["change"] > 0
        if row["finding"] == "length":
            there = mine["spectrum_by_length"].filter(pl.col("temperature") == label).sort("interval")
            there = there.filter(pl.col("texts") >= 5)
            ends = [interval_name(int(there["interval"][k]), edges) for k in (0, -1)]
            says = (
                f"σ_a {'rises' if up else 'falls'} with length here, by {change.lstrip('−')} from texts of {ends[0]} to "
                f"texts of {ends[1]} tokens"
                if known
                else f"whether σ_a changes with length is not to be told: {change} from {ends[0]} to {ends[1]} tokens"
            )
            claim = "against what S1 expects" if up else "as S1 expects" if known else "more texts would tell"
            told.append(f"{label}: {says}; {claim}.")
        elif row["change"]:
            says = f"σ_a {'rises' if up else 'falls'} by {change.lstrip('−')}" if known else f"σ_a moves by {change}"
            what = "a weaker filter" if up else "a stronger filter" if known else "no more than noise"
            told.append(f"{label}: {says} against the first temperature on the same {count(row['texts'], 'text')}: {what}.")
    for row in bounds:
        if row["over"]:
            over = f"{share(row['over'])} of all heads, layers and texts"
            told.append(f"{row['temperature']}: in {over} σ_a exceeds Theorem 3's curve, which is for Gaussian logits.")
    return told


def _distances(table: pl.DataFrame, edges: list[int]) -> list[dict[str, Any]]:
    """Mean distance to the map's origin by temperature and length interval."""
    means = table.group_by("temperature", "interval").agg(pl.col("origin_distance").mean())
    found = {(row["temperature"], row["interval"]): row["origin_distance"] for row in means.to_dicts()}
    intervals = sorted(table["interval"].unique())
    return [
        {"temperature": label, "means": [(interval_name(edge, edges), found.get((label, edge))) for edge in intervals]}
        for label in table["temperature"].unique(maintain_order=True)
    ]
