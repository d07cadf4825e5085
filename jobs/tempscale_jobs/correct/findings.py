"""What a correction of a table of embeddings found: how many rows were corrected, and how many could not be."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.report.findings import Findings, finding, measured
from tempscale_jobs.report.text import count


def decide(record: Mapping[str, Any]) -> Findings:
    """The findings from the content of run.json; the model is the one to whose embeddings the correction was fitted."""
    counts, correction = record["embeddings"], record["correction"]
    temperature = correction.get("temperature", "1.0")
    key = {"model": correction.get("model", "given"), "temperature": temperature, "tau": None}
    with suppress(ValueError):  # What the file says of a model is the user's affair.
        key["tau"] = Temperature.of(temperature).tau
    figures = {"corrected": float(counts["corrected"]), "rejected_share": counts["rejected"] / counts["rows"]}
    rows = count(counts["rows"], "row")
    return Findings(finding(key, name, measured(value), value, rests_on=rows) for name, value in figures.items())
