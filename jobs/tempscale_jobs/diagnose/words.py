"""The sentences of `tempscale diagnose`: each figure with its error, and no claim that noise could explain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

from tempscale.stats.enough import VALUES_FOR_A_SENTENCE
from tempscale_jobs.diagnose.findings import figure
from tempscale_jobs.report.again import again
from tempscale_jobs.report.findings import Finding, Findings
from tempscale_jobs.report.text import count, interval_name, share, with_error

_OVER = {"last": "σ_a of the last layer", "all": "the mean of σ_a over all layers", None: "σ_a"}
_MOVES = {"up": "rises", "down": "falls"}
_MEANINGS = {
    "length": {"up": "a weaker filter, contrary to what S1 expects", "down": "a stronger filter, as S1 expects"},
    "temperature": {"up": "a weaker filter", "down": "a stronger filter"},
    "versions": {
        "up": "with the content held, length makes a weaker filter",
        "down": "with the content held, length makes a stronger filter",
    },
    "versions_cosine": {
        "up": "with the content held, longer texts are closer together",
        "down": "with the content held, longer texts are further apart",
    },
    "model": {"up": "the tokens of a text are more alike", "down": "the tokens of a text are less alike"},
}
_UNSURE = {"noise": "no more than noise", "unknown": "there are too few to tell"}


def with_findings(tables: dict[str, pl.DataFrame]) -> list[tuple[dict[str, Any], Finding]]:
    """The rows of `diagnose_findings`, each with its finding."""
    found = Findings.read(tables["findings"])
    return [(row, found.at(figure(row), row)) for row in tables["diagnose_findings"].to_dicts()]


def of_model(mine: dict[str, pl.DataFrame], bounds: list[dict[str, Any]], edges: Sequence[int]) -> list[str]:
    """The sentences on S1's claims and theorems for one model, by temperature, from its labelled tables.

    Each of `bounds` has `worst`, the largest ratio to Theorem 2's bound, `broken`, the number of ratios above 1, and
    `over`, the share of σ_a above Theorem 3's curve.
    """
    sentences, rows = [], with_findings(mine)
    all_layers = {(row["finding"], row["temperature"]): found for row, found in rows if row["layers"] == "all"}
    last = {(row["finding"], row["temperature"]) for row, _ in rows if row["layers"] == "last"}
    for row, found in rows:
        key = row["finding"], row["temperature"]
        if row["layers"] == "all" and key in last:
            continue  # It is in the sentence on the last layer, which is the one in print.
        says = _says(row, found, mine["spectrum_by_length"], edges, rows[0][0])
        if says:
            beside = all_layers.get(key) if row["layers"] == "last" else None
            sentences.append(f"{row['temperature']}: {says}{_beside(beside)}.")
    sentences += [f"{row['temperature']}: {sentence}." for row in bounds for sentence in _theorems(row, mine, edges)]
    norms = mine["equal_norms"].to_dicts() if "equal_norms" in mine else []
    sentences += [f"{row['temperature']}: {sentence}." for row in norms if (sentence := _equal_norms(row))]
    return sentences or ["Nothing is known of what length or temperature changes."]


def _says(row: dict[str, Any], found: Finding, spectrum: pl.DataFrame, edges: Sequence[int], first: dict[str, Any]) -> str:
    """A difference in words; empty for what is said elsewhere or of the first temperature against itself."""
    kind = row["finding"]
    name = "mean cosine between documents" if kind == "versions_cosine" else _OVER[row["layers"]]
    if kind == "length":
        if found.state == "absent":
            return f"it is not known whether {name} changes with length: fewer than two length intervals have 5 texts"
        known = (pl.col("temperature") == row["temperature"]) & (pl.col("texts") >= VALUES_FOR_A_SENTENCE)
        intervals = spectrum.filter(known).sort("interval")
        short, long = (interval_name(int(intervals["interval"][k]), edges) for k in (0, -1))
        return _moved(name, found, f"from texts of {short} to texts of {long} tokens", _MEANINGS[kind])
    if kind == "temperature" and row["temperature"] != first["temperature"]:
        meanings = _MEANINGS[kind]
        if row["tau"] is not None and first["tau"] is not None:  # S1 expects a weaker filter of a lower τ.
            weaker = row["tau"] < first["tau"]
            expects = {"up": "as" if weaker else "contrary to what", "down": "contrary to what" if weaker else "as"}
            meanings = {state: f"{meaning}, {expects[state]} S1 expects" for state, meaning in meanings.items()}
        return _moved(name, found, f"against {first['temperature']} on the same {count(row['texts'], 'text')}", meanings)
    if kind.startswith("versions"):
        where = f"from the shortest to the longest version of the same {count(row['texts'], 'document')}"
        return _moved(name, found, where, _MEANINGS[kind])
    return ""


def _moved(name: str, found: Finding, where: str, meanings: Mapping[str, str]) -> str:
    """How a figure moves, and what that means."""
    return f"{name} {_by(found)} {where}: {(_UNSURE | dict(meanings))[found.state]}"


def _by(found: Finding) -> str:
    if found.state in _MOVES:
        return f"{_MOVES[found.state]} by {str(found).removeprefix('−')}"
    return f"moves by {found}"


def _beside(found: Finding | None) -> str:
    """What the mean over all layers does, behind what the last layer does; empty where nothing is known of it."""
    if found is None or found.state == "absent":
        return ""
    return f"; {_OVER['all']} {_by(found)}{f', {_UNSURE[found.state]}' if found.state in _UNSURE else ''}"


def to_do(mine: dict[str, pl.DataFrame], run: dict[str, Any]) -> list[tuple[str, str]]:
    """What follows for one model, each with a command or none, from its labelled tables."""
    rows = [(row, found) for row, found in with_findings(mine) if row["layers"] == "last"]
    first, change = next(((row, found) for row, found in rows if row["finding"] == "length"), (None, None))
    if first is None or change is None:
        return []
    model = first["model"]
    if change.state in ("absent", "unknown"):
        looked, analysed = first["texts"], run["corpus"]["analysed"]
        more = str(min(analysed, 5000, 4 * looked))
        command = again(run, model, "diagnose", "--texts", more, beside="more") if analysed > looked else ""
        return [(f"Too few texts to tell: look into {'more of them' if command else 'a larger corpus'}.", command)]
    if change.state != "down":
        text = f"Attention does not filter longer texts more strongly beyond noise (σ_a of the last layer: {change})"
        command = again(run, model, "audit", "--probe", "decomposition", beside="probe")
        how = "; to tell whether pooling or context draws them together:" if command else "."
        return [(f"{text}, so do not expect a temperature to help{how}", command)]
    command = again(run, model, "tune", beside="tune")
    how = " To find a temperature that weakens that, and harms nothing:" if command else ""
    steps = [(f"Attention filters longer texts more strongly (σ_a of the last layer: {change}).{how}", command)]
    weaker = [found for row, found in rows if row["finding"] == "temperature" and found.state == "up"]
    if weaker:
        most = max(weaker, key=lambda found: found.value or 0.0)
        text = f"{most.temperature} weakens the filter by {most}; whether search gets better only scores tell"
        steps.append((f"{text}: score a task of yours under both with tempscale evaluate.", ""))
    return steps


def of_models(tables: dict[str, pl.DataFrame], first: str) -> list[str]:
    """One sentence per model and temperature on the difference from the first model."""
    return [
        f"{row['temperature']}: {_moved('within-text cosine after the last layer', found, where, _MEANINGS['model'])}."
        for row, found in with_findings(tables)
        if row["finding"] == "model"
        for where in [f"in {row['model']} against {first}"]
    ]


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
