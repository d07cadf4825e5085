"""A template, charts and a run's record -> one self-contained HTML page, and its figures as files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from tempscale_jobs.errors import visible
from tempscale_jobs.report.text import count, encoding, number, share, share_of
from tempscale_jobs.runs.folder import REPORT
from tempscale_jobs.runs.storage import Storage

FIGURES = "figures"
BUNDLE = "vega.js"
TEMPLATES = Path(__file__).parent / "templates"
_WIDTH = 820
"""Pixels of a figure in a file; on the page it is as wide as the window."""
_PER_PIXEL = 2
_ON_WHITE = {"background": "white", "font": "sans-serif", "view": {"stroke": None}}


@dataclass(frozen=True)
class Page:
    """A page as HTML, with the specifications of its figures."""

    html: str
    figures: dict[str, dict[str, Any]]
    """The Vega-Lite specification of each figure, by the name of its file."""

    def write_to(self, storage: Storage) -> None:
        """Write the page and, with the extra `figures`, each figure as SVG and PNG below figures/ in place of others."""
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


def page(
    template: str,
    run: dict[str, Any],
    charts: dict[str, Any],
    steps: dict[str, float],
    small: Sequence[str] = (),
    **values: Any,
) -> Page:
    """A page that loads nothing from outside, with all text escaped; equal input gives equal text.

    `charts` are by the id of their element, which begins with the id of one of the `models` in the values; `small` ones are
    not written as files.
    """
    models: Sequence[Mapping[str, Any]] = values.setdefault("models", ())
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {"number": number, "share": share, "share_of": share_of, "count": count, "encoding": encoding}
    specs = {key: shown_in(chart.to_dict(validate=False)) for key, chart in charts.items()}
    html = environment.get_template(template).render(
        run=run,
        steps=steps,
        config=json.dumps(run.get("config", {}), indent=2, ensure_ascii=False),
        specs=safe_json(specs),
        bundle=vega_bundle(),
        **values,
    )
    names = {str(model["id"]): str(model["name"]) for model in models}
    return Page(html, {_file(key, names): spec for key, spec in specs.items() if key not in small})


def _shown(value: Any) -> Any:
    """A text with its control characters as visible escapes; what a template made or marked as safe is left as it is."""
    return visible(value, "\n\t") if isinstance(value, str) and not isinstance(value, markupsafe.Markup) else value


def shown_in(value: Any) -> Any:
    """The same of all texts in a specification."""
    if isinstance(value, dict):
        return {key: shown_in(item) for key, item in value.items()}
    return [shown_in(item) for item in value] if isinstance(value, list) else _shown(value)


def _file(key: str, names: Mapping[str, str]) -> str:
    """The name of a figure's file, which begins with the model's name where there are several."""
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
