"""A report and a run's record -> one self-contained HTML page, and its charts as files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from tempscale_jobs.errors import visible
from tempscale_jobs.report.sections import Report
from tempscale_jobs.runs.folder import REPORT
from tempscale_jobs.runs.storage import Storage

FIGURES = "figures"
BUNDLE = "vega.js"
TEMPLATES = Path(__file__).parent / "templates"
_WIDTH = 820
"""Pixels of a chart in a file; on the page it is as wide as the window."""
_PER_PIXEL = 2
_ON_WHITE = {"background": "white", "font": "sans-serif", "view": {"stroke": None}}


@dataclass(frozen=True)
class Page:
    """A page as HTML, with the specifications of its charts."""

    html: str
    figures: dict[str, dict[str, Any]]
    """The Vega-Lite specification of each chart, by the name of its file."""

    def write_to(self, storage: Storage) -> None:
        """Write the page and, with the extra `figures`, each chart as SVG and PNG below figures/ in place of others."""
        storage.write(REPORT, self.html.encode())
        storage.remove(FIGURES)
        try:
            import vl_convert
        except ImportError:
            return
        for figure, spec in self.figures.items():
            wide = spec | ({"width": _WIDTH} if spec.get("width") == "container" else {})
            svg = vl_convert.vegalite_to_svg(wide, config=_ON_WHITE)
            storage.write(f"{FIGURES}/{figure}.svg", svg.encode(), durable=False)
            storage.write(f"{FIGURES}/{figure}.png", vl_convert.svg_to_png(svg, scale=_PER_PIXEL), durable=False)


def page(report: Report, config: Mapping[str, Any]) -> Page:
    """A page that loads nothing from outside, with all text escaped; equal input gives equal text.

    `config` is the run's configuration, which the page ends with.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    figures = {s.key: s.drawing.chart for s in report.walk() if s.drawing is not None}
    trends = {f.key: f.trend.chart for part in report.parts for f in part.figures if f.trend is not None}
    specs = {key: shown_in(chart.to_dict(validate=False)) for key, chart in (figures | trends).items()}
    html = environment.get_template("report.html.j2").render(
        report=report,
        config=json.dumps(config, indent=2, ensure_ascii=False) if config else "",
        specs=safe_json(specs),
        bundle=vega_bundle() if specs else "",
    )
    names = {part.id: part.name for part in report.parts}
    return Page(html, {_file(key, names): specs[key] for key in figures})


def _shown(value: Any) -> Any:
    """A text with its control characters as visible escapes; what a template made or marked as safe is left as it is.

    A value and its error stay on one line.
    """
    if not isinstance(value, str) or isinstance(value, markupsafe.Markup):
        return value
    return visible(value, "\n\t").replace("τ ", "τ\u00a0").replace(" ± ", "\u00a0±\u00a0").replace(" %", "\u00a0%")


def shown_in(value: Any) -> Any:
    """All texts in a specification with their control characters as visible escapes."""
    if isinstance(value, dict):
        return {key: shown_in(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown_in(item) for item in value]
    return visible(value, "\n\t") if isinstance(value, str) else value


def _file(key: str, names: Mapping[str, str]) -> str:
    """The name of a chart's file, which begins with the model's name where there are several."""
    place, _, figure = key.partition("-")
    if len(names) < 2 or place not in names:
        return figure
    # Two names may become equal here; the place makes them distinct.
    return f"{re.sub(r'[^A-Za-z0-9._-]+', '-', names[place])[:60]}-{place}-{figure}"


def safe_json(value: Any) -> str:
    """JSON that cannot end the script element around it."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@lru_cache(maxsize=1)
def vega_bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script, which `python docs/generate.py` writes."""
    return (TEMPLATES / BUNDLE).read_text("utf-8").replace("</script", "<\\/script")
