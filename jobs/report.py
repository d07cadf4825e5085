"""Tables -> one self-contained HTML page that works offline."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import polars as pl
import vl_convert

from jobs import figures
from jobs.headline import NOTE, headline, number, with_error

_TEMPLATES = Path(__file__).parent / "templates"
_SHOWN_PAIRS = 10


def render(tables: dict[str, pl.DataFrame], run: dict[str, Any]) -> str:
    """The report as HTML.

    Args:
        tables: the run's tables by name; `excerpts` may be absent.
        run: the content of run.json.

    Returns:
        One page that asks for nothing from outside; all text in it is escaped. Equal input gives equal text.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "share": lambda v: "–" if v is None else f"{100 * v:.1f} %"}
    summary = tables["collapse_summary"]
    models = [_model(name, tables) for name in summary["model"].unique(maintain_order=True)]
    charts = {f"{m['id']}-{key}": chart for m in models for key, chart in m["charts"].items() if chart is not None}
    return environment.get_template("report.html.j2").render(
        sentences=[sentence.replace(" ± ", "\u00a0±\u00a0") for sentence in headline(tables)],
        note=NOTE,
        models=models,
        run=run,
        config=json.dumps(run.get("config", {}), indent=2, ensure_ascii=False),
        specs=_safe_json({key: chart.to_dict(validate=False) for key, chart in charts.items()}),
        bundle=_bundle(),
    )


def _model(name: str, tables: dict[str, pl.DataFrame]) -> dict[str, Any]:
    """What the page shows of one model."""
    mine = {key: table.filter(pl.col("model") == name) for key, table in tables.items() if "model" in table.columns}
    excerpts = {r["text_id"]: r for r in tables["excerpts"].to_dicts()} if "excerpts" in tables else None
    pairs = {
        ranking: mine["socm_pairs"].filter((pl.col("ranking") == ranking) & (pl.col("rank") <= _SHOWN_PAIRS)).to_dicts()
        for ranking in ("socm", "same_mean")
    }
    return {
        "id": f"m{abs(hash_of(name)):x}",
        "name": name,
        "summary": [_strip(row) for row in mine["collapse_summary"].to_dicts()],
        "charts": {
            "cosine": figures.cosine_by_length(mine["length_collapse"]),
            "heatmap": figures.heatmap(mine["length_collapse"]),
            "probe": figures.prefix_probe(mine["prefix_probe"]),
            "effects": figures.effects(mine["temperature_effect"]),
            "scatter": figures.scatter(mine["socm_scatter"]),
            "socm": figures.socm_by_length(mine["socm"]),
        },
        "pairs": pairs,
        "excerpts": excerpts,
        "several": mine["collapse_summary"].height > 1,
    }


def hash_of(name: str) -> int:
    """A stable small number for an element's id."""
    return sum((place + 1) * byte for place, byte in enumerate(name.encode()))


def _strip(row: dict[str, Any]) -> dict[str, Any]:
    named = {
        f"{figure}_text": with_error(row[figure], row[f"{figure.removesuffix('_mean')}_se_superpopulation"])
        for figure in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean")
    }
    return row | named


def _safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@lru_cache(maxsize=1)
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")
