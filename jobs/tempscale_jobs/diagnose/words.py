"""The sentences of `tempscale diagnose`: each figure with its error, and no claim that noise could explain."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from tempscale.stats.enough import VALUES_FOR_A_SENTENCE
from tempscale_jobs.diagnose.findings import figure
from tempscale_jobs.report.again import again
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.text import count, interval_name, share, with_error

_OVER = {"last": "σ_a of the last layer", "all": "the mean of σ_a over all layers", None: "σ_a"}
_UNKNOWN = "there are too few to tell"


_MOVES = {"up": "rises", "down": "falls", "noise": "noise"}


def with_directions(tables: dict[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """The rows of `diagnose_findings`, each with the direction of its finding: `rises`, `falls`, `noise` or `unknown`."""
    found = Findings.read(tables["findings"])
    return [
        row | {"direction": _MOVES.get(found.at(figure(row), row).state, "unknown")}
        for row in tables["diagnose_findings"].to_dicts()
    ]


def of_model(mine: dict[str, pl.DataFrame], bounds: list[dict[str, Any]], edges: Sequence[int]) -> list[str]:
    """The sentences on S1's claims and theorems for one model, by temperature, from its labelled tables.

    Each of `bounds` has `worst`, the largest ratio to Theorem 2's bound, `broken`, the number of ratios above 1, and
    `over`, the share of σ_a above Theorem 3's curve.
    """
    sentences, rows = [], with_directions(mine)
    every = {(row["finding"], row["temperature"]): row for row in rows if row["layers"] == "all"}
    last = {(row["finding"], row["temperature"]) for row in rows if row["layers"] == "last"}
    for row in rows:
        key = row["finding"], row["temperature"]
        if row["layers"] == "all" and key in last:
            continue  # Told in the sentence on the last layer, which is the one in print.
        says = {
            "length": lambda row: _length(row, mine["spectrum_by_length"], edges),
            "temperature": lambda row: _temperature(row, rows[0]),
            "versions": _version, "versions_cosine": _versions_cosine,
        }.get(row["finding"])  # fmt: skip
        sentence = says(row) if says is not None else None
        if sentence is not None:
            beside = _beside(every[key]) if row["layers"] == "last" and key in every else ""
            sentences.append(f"{row['temperature']}: {sentence}{beside}.")
    sentences += [f"{row['temperature']}: {sentence}." for row in bounds for sentence in _theorems(row, mine, edges)]
    norms = mine["equal_norms"].to_dicts() if "equal_norms" in mine else []
    sentences += [f"{row['temperature']}: {sentence}." for row in norms if (sentence := _equal_norms(row))]
    return sentences or ["Nothing is known of what length or temperature changes."]


def to_do(mine: dict[str, pl.DataFrame], run: dict[str, Any]) -> list[tuple[str, str]]:
    """What follows for one model, each with a command or none, from its labelled tables."""
    rows = [row for row in with_directions(mine) if row["layers"] == "last"]
    first = next((row for row in rows if row["finding"] == "length"), None)
    if first is None:
        return []
    model, change = first["model"], with_error(first["change"], first["change_se"])
    if first["direction"] == "unknown":
        looked, analysed = first["texts"], run["corpus"]["analysed"]
        more = str(min(analysed, 5000, 4 * looked))
        command = again(run, model, "diagnose", "--texts", more, beside="more") if analysed > looked else ""
        return [(f"Too few texts to tell: look into {'more of them' if command else 'a larger corpus'}.", command)]
    if first["direction"] != "falls":
        text = f"Attention does not filter longer texts more strongly beyond noise (σ_a of the last layer: {change})"
        command = again(run, model, "audit", "--probe", "decomposition", beside="probe")
        how = "; to tell whether pooling or context draws them together:" if command else "."
        return [(f"{text}, so do not expect a temperature to help{how}", command)]
    command = again(run, model, "tune", beside="tune")
    how = " To find a temperature that weakens that, and harms nothing:" if command else ""
    steps = [(f"Attention filters longer texts more strongly (σ_a of the last layer: {change}).{how}", command)]
    weaker = [row for row in rows if row["finding"] == "temperature" and row["direction"] == "rises"]
    if weaker:
        most = max(weaker, key=lambda row: row["change"])
        by = with_error(most["change"], most["change_se"])
        text = f"{most['temperature']} weakens the filter by {by}; whether search gets better only scores tell"
        steps.append((f"{text}: score a task of yours under both with tempscale evaluate.", ""))
    return steps


def of_models(tables: dict[str, pl.DataFrame], first: str) -> list[str]:
    """One sentence per model and temperature on the difference from the first model."""
    sentences = []
    for row in with_directions(tables):
        if row["finding"] != "model":
            continue
        change, verdict = with_error(row["change"], row["change_se"]), row["direction"]
        if verdict in ("rises", "falls"):
            more, sign = ("more", "+") if verdict == "rises" else ("less", "")
            says = f"after the last layer the tokens of a text are {more} alike in {row['model']} than in {first}"
            sentences.append(f"{row['temperature']}: {says}: within-text cosine {sign}{change}.")
        else:
            why = "no difference beyond noise" if verdict == "noise" else f"{change}, {_UNKNOWN}"
            says = f"within-text cosine of {row['model']} and {first} after the last layer"
            sentences.append(f"{row['temperature']}: {says}: {why}.")
    return sentences


def _length(row: dict[str, Any], spectrum: pl.DataFrame, edges: Sequence[int]) -> str:
    name = _OVER[row["layers"]]
    if row["change"] is None:
        return f"it is not known whether {name} changes with length: fewer than two length intervals have 5 texts"
    known = (pl.col("temperature") == row["temperature"]) & (pl.col("texts") >= VALUES_FOR_A_SENTENCE)
    intervals = spectrum.filter(known).sort("interval")
    short, long = (interval_name(int(intervals["interval"][k]), edges) for k in (0, -1))
    change, verdict = with_error(row["change"], row["change_se"]), row["direction"]
    if verdict in ("noise", "unknown"):
        says = f"it is not known whether {name} changes with length: {change} from {short} to {long} tokens"
        return f"{says}; more texts would tell"
    claim = "contrary to what S1 expects" if verdict == "rises" else "as S1 expects"
    by = change.lstrip("−")
    return f"{name} {verdict} with length here, by {by} from texts of {short} to texts of {long} tokens, {claim}"


def _temperature(row: dict[str, Any], first: dict[str, Any]) -> str | None:
    if row["temperature"] == first["temperature"]:
        return None
    change, verdict, texts = with_error(row["change"], row["change_se"]), row["direction"], count(row["texts"], "text")
    name, where = _OVER[row["layers"]], f"against {first['temperature']} on the same {texts}"
    if verdict in ("noise", "unknown"):
        return f"{name} moves by {change} {where}: {_UNKNOWN if verdict == 'unknown' else 'no more than noise'}"
    filtered = "a weaker filter" if verdict == "rises" else "a stronger filter"
    says = f"{name} {verdict} by {change.lstrip('−')} {where}: {filtered}"
    if row["tau"] is None or first["tau"] is None:
        return says
    expected = (row["tau"] < first["tau"]) == (verdict == "rises")
    return f"{says}; it {'rises' if expected else 'falls'} as τ falls, {'as' if expected else 'contrary to what'} S1 expects"


def _version(row: dict[str, Any]) -> str:
    says = "with the content held, length makes a {} filter"
    return _of_versions(row, _OVER[row["layers"]], says.format("weaker"), says.format("stronger"))


def _versions_cosine(row: dict[str, Any]) -> str:
    says = "with the content held, longer texts lie {}"
    return _of_versions(row, "mean cosine between documents", says.format("closer together"), says.format("further apart"))


def _of_versions(row: dict[str, Any], name: str, rises: str, falls: str) -> str:
    change, verdict = with_error(row["change"], row["change_se"]), row["direction"]
    where = f"from the shortest to the longest version of the same {count(row['texts'], 'document')}"
    if verdict in ("noise", "unknown"):
        return f"{name} moves by {change} {where}: {'no more than noise' if verdict == 'noise' else _UNKNOWN}"
    return f"{name} {verdict} by {change.lstrip('−')} {where}: {rises if verdict == 'rises' else falls}"


def _beside(row: dict[str, Any]) -> str:
    """What the mean over all layers does, behind what the last layer does; empty where nothing is known of it."""
    if row["change"] is None:
        return ""
    change, verdict = with_error(row["change"], row["change_se"]), row["direction"]
    if verdict in ("noise", "unknown"):
        return f"; {_OVER['all']} moves by {change}: {'no more than noise' if verdict == 'noise' else _UNKNOWN}"
    return f"; {_OVER['all']} {verdict} by {change.lstrip('−')}"


def _equal_norms(row: dict[str, Any]) -> str | None:
    if row["norm_variation_mean"] is None or row["agree_share"] is None:
        return None
    return (
        f"S2's Appendix J takes the tokens of a text as equally long; here their norms vary by "
        f"{with_error(row['norm_variation_mean'], row['norm_variation_se'])} of their mean, and its condition for "
        f"tr Σ ≤ 2 is right for {share(row['agree_share'])} of {count(row['texts'], 'text')}"
    )


def _theorems(row: dict[str, Any], mine: dict[str, pl.DataFrame], edges: Sequence[int]) -> list[str]:
    sentences = []
    if row["broken"]:
        sentences.append(
            f"S1's Theorem 2 does not hold in {count(row['broken'], 'head')}: ‖HC[SA(X)]‖ is up to {row['worst']:.4f} of "
            "its bound, which rounding does not explain"
        )
    if row["over"]:
        spectrum = mine["spectrum_by_length"].filter(pl.col("temperature") == row["temperature"]).sort("interval")
        over = spectrum.filter(pl.col("over_bound_share") > 0)["interval"].to_list()
        names = [interval_name(int(edge), edges) for edge in over]
        where = "at every length" if len(names) == len(spectrum) else f"at {', '.join(names)} tokens"
        sentences.append(
            f"σ_a exceeds Theorem 3's curve in {share(row['over'])} of all heads, layers and texts, {where}: so do even "
            "Gaussian logits, from a σ_s of about 0.7 on for 8 to 32 tokens, 0.9 for 128 and 1.05 for 512"
        )
    return sentences
