"""What `tempscale diagnose` found, in words: each figure with its error, and nothing claimed that may be noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl
from scipy import stats

from jobs.headline import count, interval_name, share, with_error

Told = Literal["rises", "falls", "noise", "unknown"]
_FEWEST = 5
"""Texts or documents below which nothing is claimed: an error from fewer says little of itself."""
_VERSIONS = {
    "versions": ("σ_a", "with the content held, length makes a {} filter", "weaker", "stronger"),
    "versions_cosine": ("mean cosine between documents", "with the content held, longer texts draw {}", "together", "apart"),
}
_UNKNOWN = "there are too few to tell"


def told(row: dict[str, Any]) -> Told:
    """Whether a finding is more than noise at 95 %, by Student's t on its texts or documents."""
    change, error, n = row["change"], row["change_se"], row["texts"]
    if change is None or error is None or n < _FEWEST:
        return "unknown"
    if abs(change) <= stats.t.ppf(0.975, max(1, n - (2 if row["finding"] == "length" else 1))) * error:
        return "noise"
    return "rises" if change > 0 else "falls"


def of_model(mine: dict[str, pl.DataFrame], bounds: list[dict[str, Any]], edges: Sequence[int]) -> list[str]:
    """What the measurement says of S1's claims and theorems for one model, a temperature after the other.

    Args:
        mine: the model's tables, with the temperatures' labels in place of their texts.
        bounds: by temperature: `worst`, the largest ratio to Theorem 2's bound; `broken`, how many are above 1; `over`, the
            share of σ_a above Theorem 3's curve.
        edges: of the length intervals.
    """
    found = []
    first = mine["findings"].row(0, named=True)
    for row in mine["findings"].to_dicts():
        says = {
            "length": lambda row: _length(row, mine["spectrum_by_length"], edges),
            "temperature": lambda row: _temperature(row, first),
            "versions": _version, "versions_cosine": _version,
        }.get(row["finding"])  # fmt: skip
        sentence = says(row) if says is not None else None
        if sentence is not None:
            found.append(f"{row['temperature']}: {sentence}.")
    return found + [f"{row['temperature']}: {sentence}." for row in bounds for sentence in _theorems(row, mine, edges)]


def of_models(findings: pl.DataFrame, first: str) -> list[str]:
    """How each model differs from the first, temperature by temperature."""
    found = []
    for row in findings.filter(pl.col("finding") == "model").to_dicts():
        change, verdict = with_error(row["change"], row["change_se"]), told(row)
        if verdict in ("rises", "falls"):
            more, sign = ("more", "+") if verdict == "rises" else ("less", "")
            says = f"behind its last layer the tokens of a text are {more} alike in {row['model']} than in {first}"
            found.append(f"{row['temperature']}: {says}: within-text cosine {sign}{change}.")
        else:
            why = "no difference beyond noise" if verdict == "noise" else f"{change}, {_UNKNOWN}"
            says = f"within-text cosine of {row['model']} and {first} behind the last layer"
            found.append(f"{row['temperature']}: {says}: {why}.")
    return found


def _length(row: dict[str, Any], spectrum: pl.DataFrame, edges: Sequence[int]) -> str:
    if row["change"] is None:
        return "whether σ_a changes with length is not to be told: fewer than two length intervals hold 5 texts"
    there = spectrum.filter((pl.col("temperature") == row["temperature"]) & (pl.col("texts") >= _FEWEST)).sort("interval")
    short, long = (interval_name(int(there["interval"][k]), edges) for k in (0, -1))
    change, verdict = with_error(row["change"], row["change_se"]), told(row)
    if verdict in ("noise", "unknown"):
        says = f"whether σ_a changes with length is not to be told: {change} from {short} to {long} tokens"
        return f"{says}; more texts would tell"
    claim = "against what S1 expects" if verdict == "rises" else "as S1 expects"
    by = change.lstrip("−")
    return f"σ_a {verdict} with length here, by {by} from texts of {short} to texts of {long} tokens; {claim}"


def _temperature(row: dict[str, Any], first: dict[str, Any]) -> str | None:
    if row["temperature"] == first["temperature"]:
        return None
    change, verdict, texts = with_error(row["change"], row["change_se"]), told(row), count(row["texts"], "text")
    where = f"against {first['temperature']} on the same {texts}"
    if verdict == "unknown":
        return f"σ_a moves by {change} {where}: {_UNKNOWN}"
    if verdict == "noise":
        return f"σ_a moves by {change} {where}: no more than noise"
    filtered = "a weaker filter" if verdict == "rises" else "a stronger filter"
    says = f"σ_a {verdict} by {change.lstrip('−')} {where}: {filtered}"
    if row["tau"] is None or first["tau"] is None:
        return says
    expected = (row["tau"] < first["tau"]) == (verdict == "rises")
    return f"{says}; it {'rises' if expected else 'falls'} as τ falls, {'as' if expected else 'against what'} S1 expects"


def _version(row: dict[str, Any]) -> str:
    name, says, more, less = _VERSIONS[row["finding"]]
    change, verdict = with_error(row["change"], row["change_se"]), told(row)
    where = f"from the shortest to the longest version of the same {count(row['texts'], 'document')}"
    if verdict in ("noise", "unknown"):
        return f"{name} moves by {change} {where}: {'no more than noise' if verdict == 'noise' else _UNKNOWN}"
    return f"{name} {verdict} by {change.lstrip('−')} {where}: {says.format(more if verdict == 'rises' else less)}"


def _theorems(row: dict[str, Any], mine: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    found = []
    if row["broken"]:
        found.append(
            f"S1's Theorem 2 does not hold in {count(row['broken'], 'head')}: ‖HC[SA(X)]‖ is up to {row['worst']:.4f} of "
            "its bound, which rounding does not explain"
        )
    if row["over"]:
        spectrum = mine["spectrum_by_length"].filter(pl.col("temperature") == row["temperature"]).sort("interval")
        over = spectrum.filter(pl.col("over_bound_share") > 0)["interval"].to_list()
        names = [interval_name(int(edge), edges) for edge in over]
        where = "at every length" if len(names) == len(spectrum) else f"at {', '.join(names)} tokens"
        found.append(
            f"σ_a exceeds Theorem 3's curve in {share(row['over'])} of all heads, layers and texts, {where}: logits of "
            "σ_s ≥ 1 do, Gaussian ones too"
        )
    return found
