"""The sentences of `tempscale diagnose`: each figure with its error, and no claim that noise could explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import polars as pl
from scipy import stats

from tempscale.stats.enough import VALUES_FOR_A_SENTENCE
from tempscale_jobs.report.text import count, interval_name, share, with_error

Told = Literal["rises", "falls", "noise", "unknown"]
_VERSIONS = {
    "versions": ("σ_a", "with the content held, length makes a {} filter", "weaker", "stronger"),
    "versions_cosine": (
        "mean cosine between documents", "with the content held, longer texts lie {}", "closer together", "further apart",
    ),
}  # fmt: skip
_UNKNOWN = "there are too few to tell"


def direction(row: dict[str, Any]) -> Told:
    """The direction of a finding, if it is more than noise at 95 % by Student's t over its texts or documents."""
    change, error, n = row["change"], row["change_se"], row["texts"]
    if change is None or error is None or n < VALUES_FOR_A_SENTENCE:
        return "unknown"
    if abs(change) <= stats.t.ppf(0.975, max(1, n - (2 if row["finding"] == "length" else 1))) * error:
        return "noise"
    return "rises" if change > 0 else "falls"


def of_model(mine: dict[str, pl.DataFrame], bounds: list[dict[str, Any]], edges: Sequence[int]) -> list[str]:
    """The sentences on S1's claims and theorems for one model, by temperature, from its labelled tables.

    Each of `bounds` has `worst`, the largest ratio to Theorem 2's bound, `broken`, the number of ratios above 1, and
    `over`, the share of σ_a above Theorem 3's curve.
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
    """One sentence per model and temperature on the difference from the first model."""
    found = []
    for row in findings.filter(pl.col("finding") == "model").to_dicts():
        change, verdict = with_error(row["change"], row["change_se"]), direction(row)
        if verdict in ("rises", "falls"):
            more, sign = ("more", "+") if verdict == "rises" else ("less", "")
            says = f"after the last layer the tokens of a text are {more} alike in {row['model']} than in {first}"
            found.append(f"{row['temperature']}: {says}: within-text cosine {sign}{change}.")
        else:
            why = "no difference beyond noise" if verdict == "noise" else f"{change}, {_UNKNOWN}"
            says = f"within-text cosine of {row['model']} and {first} after the last layer"
            found.append(f"{row['temperature']}: {says}: {why}.")
    return found


def _length(row: dict[str, Any], spectrum: pl.DataFrame, edges: Sequence[int]) -> str:
    if row["change"] is None:
        return "it is not known whether σ_a changes with length: fewer than two length intervals have 5 texts"
    known = (pl.col("temperature") == row["temperature"]) & (pl.col("texts") >= VALUES_FOR_A_SENTENCE)
    there = spectrum.filter(known).sort("interval")
    short, long = (interval_name(int(there["interval"][k]), edges) for k in (0, -1))
    change, verdict = with_error(row["change"], row["change_se"]), direction(row)
    if verdict in ("noise", "unknown"):
        says = f"it is not known whether σ_a changes with length: {change} from {short} to {long} tokens"
        return f"{says}; more texts would tell"
    claim = "contrary to what S1 expects" if verdict == "rises" else "as S1 expects"
    by = change.lstrip("−")
    return f"σ_a {verdict} with length here, by {by} from texts of {short} to texts of {long} tokens; {claim}"


def _temperature(row: dict[str, Any], first: dict[str, Any]) -> str | None:
    if row["temperature"] == first["temperature"]:
        return None
    change, verdict, texts = with_error(row["change"], row["change_se"]), direction(row), count(row["texts"], "text")
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
    return f"{says}; it {'rises' if expected else 'falls'} as τ falls, {'as' if expected else 'contrary to what'} S1 expects"


def _version(row: dict[str, Any]) -> str:
    name, says, more, less = _VERSIONS[row["finding"]]
    change, verdict = with_error(row["change"], row["change_se"]), direction(row)
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
            f"σ_a exceeds Theorem 3's curve in {share(row['over'])} of all heads, layers and texts, {where}: so do even "
            "Gaussian logits, from a σ_s of about 0.7 on for 8 to 32 tokens, 0.9 for 128 and 1.05 for 512"
        )
    return found
