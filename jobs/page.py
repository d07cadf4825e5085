"""A template, charts and a run's record -> one self-contained HTML page."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import vl_convert

from jobs.headline import count, number, share

_TEMPLATES = Path(__file__).parent / "templates"


def page(template: str, run: dict[str, Any], charts: dict[str, Any], steps: dict[str, float], **values: Any) -> str:
    """One page that asks for nothing from outside; all text in it is escaped. Equal input gives equal text.

    Args:
        template: a file below templates/ that extends base.html.j2.
        run: the content of run.json.
        charts: altair charts by the id of the element that shows them.
        steps: seconds of each step.
        values: what the template names.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": number, "share": share, "count": count}
    return environment.get_template(template).render(
        run=run,
        steps=steps,
        config=json.dumps(run.get("config", {}), indent=2, ensure_ascii=False),
        specs=_safe_json({key: chart.to_dict(validate=False) for key, chart in charts.items()}),
        bundle=_bundle(),
        **values,
    )


def _safe_json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@lru_cache(maxsize=1)
def _bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")).replace("</script", "<\\/script")
