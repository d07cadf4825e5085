"""The sentences of `tempscale tune`: the choice, its evidence and the next steps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import polars as pl

from tempscale.correction.recipes import Recipe
from tempscale.correction.values import KINDS
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate.tasks import slug_of
from tempscale_jobs.report.again import again
from tempscale_jobs.report.shell import folder_for, shell_line
from tempscale_jobs.report.text import count, labels, number, share, with_error
from tempscale_jobs.tune.findings import by_fifth, candidates, overshot


def file_of(recipe: str) -> str:
    """The file of a fitted correction in a run's folder, which `tempscale correct` reads."""
    return f"corrections/{slug_of(recipe)}.json"


def answer(run: dict[str, Any], tables: Mapping[str, pl.DataFrame]) -> str:
    """The choice in one sentence, from the content of run.json, and whether it overshoots."""
    choice = run["choice"]
    label = named(choice["chosen"], choice.get("correction"), labels([choice["chosen"]]))
    if not choice["changed"]:
        what = label if choice["chosen"] != "1.0" else "1"
        return f"Leave it at {what}: of {count(choice['candidates'] - 1, 'other candidate')}, {_none(choice)}."
    passed = overshot(tables, next(row for row in candidates(tables)[0] if row["chosen"]))
    return f"Use {label}: {choice['reason']}." + ("" if passed is None else f" But it {passed}.")


def named(temperature: str, correction: str | None, names: Mapping[str, str]) -> str:
    """How a candidate is called."""
    return names[temperature] if correction is None else f"{correction} at {names[temperature]}"


def _none(choice: dict[str, Any]) -> str:
    if choice["by"] == "scores":
        return "none is best on the development part and better on the held-out part by more than noise"
    return "none reduces the collapse by more than noise without raising it elsewhere"


def evidence(run: dict[str, Any], tables: dict[str, pl.DataFrame]) -> list[str]:
    """The sentences with the figures behind the choice."""
    return (
        _scores(run["choice"], tables["tuning_scores"]) + corrected(run["choice"], tables)
        if run["choice"]["by"] == "scores"
        else _collapse(run["choice"], tables["tuning_collapse"])
    )


def _scores(choice: dict[str, Any], table: pl.DataFrame) -> list[str]:
    first = table.row(0, named=True)
    best = max(table.to_dicts(), key=lambda row: row["dev_score"])
    names = labels(table["temperature"])
    sentences = [
        f"The mean score over {count(len(choice['tasks']), 'task')} is {number(first['dev_score'])} on the development part "
        f"({count(first['dev_items'], 'item')}) and {number(first['held_score'])} on the held-out part "
        f"({count(first['held_items'], 'item')}) at {names[first['temperature']]}."
    ]
    if best == first:
        sentences.append("On the development part no other candidate scores higher.")
    else:
        low, high = number(best["held_low"]), number(best["held_high"])
        name = named(best["temperature"], best["correction"], names)
        sentences.append(
            f"On the development part {name} scores highest, {number(best['dev_score'])}, a change of "
            f"{with_error(best['dev_change'], best['dev_change_se'])}; on the held-out part, not used to choose it, the "
            f"change is {number(best['held_change'])} (paired bootstrap, 95 %: {low} to {high})."
        )
    if choice["left_out"]:
        sentences.append(f"Left out, because too few items have a score each: {', '.join(choice['left_out'])}.")
    return sentences


def corrected(choice: dict[str, Any], tables: dict[str, pl.DataFrame]) -> list[str]:
    """What corrections do to exposure, and what they cost: the fairest, and those left out."""
    exposure = tables.get("tuning_exposure", pl.DataFrame())
    sentences = [f"No correction was tried: {what}, {why}." for what, why in choice["without_correction"].items()]
    if exposure.is_empty() or exposure["correction"].null_count() == len(exposure):
        return sentences[:1]
    if exposure.group_by("task", "split", "subset", "correction").len()["len"].max() == 1:
        return [
            *sentences,
            "All documents are of one length as the model sees them, so length decides nothing.",
        ]
    rows = [row for row in tables["tuning_scores"].to_dicts() if row["correction"] in exposure["correction"]]
    passed = {row["correction"]: overshot(tables, row) for row in rows}
    row = min(rows, key=lambda row: (passed[row["correction"]] is not None, unfairness(exposure, row["correction"])))
    fairest = row["correction"]
    over = "" if passed[fairest] is None or row["chosen"] else f" It {passed[fairest]}."
    sentences.append(
        f"The exposure of each fifth of the documents by length, shortest first, is {shown(exposure, None)} (1 is fair). "
        f"Without embedding again, the correction {fairest} makes it {shown(exposure, fairest)}, and changes the "
        f"held-out score by {with_error(row['held_change'], row['held_change_se'])}: it is in corrections/.{over}"
    )
    return sentences


def unfairness(exposure: pl.DataFrame, correction: str | None) -> float:
    """The mean distance of ln exposure from 0, over fifths and tasks; a fifth that is never shown counts as 1/100."""
    rows = exposure.filter(pl.col("correction").eq_missing(pl.lit(correction)))
    return float(rows["exposure"].clip(0.01).log().abs().mean())


def shown(exposure: pl.DataFrame, correction: str | None) -> str:
    """The exposures of the fifths, shortest first, the mean over tasks."""
    return " ".join(f"{value:.2f}" for value in by_fifth(exposure, correction)["exposure"])


def _collapse(choice: dict[str, Any], table: pl.DataFrame) -> list[str]:
    rows = table.to_dicts()
    first, names = rows[0], labels(table["temperature"])
    label = names[first["temperature"]]
    exposed = f"the exposure of the longest texts is {number(first['exposure_long'])} (1 is fair)"
    sentences = [f"At {label}, over {count(choice['texts'], 'text')}, {exposed}."]
    if first["prefix_gap"] is None:
        sentences.append("The prefix gap is not known: too few texts are long enough.")
    else:
        sentences.append(f"The prefix gap, over {count(choice['probed'], 'text')}, is {number(first['prefix_gap'])}.")
    barred = [row for row in rows[1:] if not row["eligible"]]
    if barred:
        why = Counter(_barred(row["reason"]) for row in barred)
        reasons = ", ".join(f"{times} because {reason}" for reason, times in why.items())
        sentences.append(f"{len(barred)} of {count(len(rows) - 1, 'other candidate')} may not be chosen: {reasons}.")
    chosen = next(row for row in rows if row["chosen"])
    if chosen is not first:
        sentences.append(
            f"{named(chosen['temperature'], chosen['correction'], names)} changes the prefix gap by "
            f"{with_error(chosen['prefix_gap_change'], chosen['prefix_gap_change_se'])} and the longest texts' exposure by "
            f"{with_error(chosen['exposure_long_change'], chosen['exposure_long_change_se'])}; of the nearest neighbours of "
            f"short texts {share(chosen['short_kept'])} stay the same, and at no length does the mean cosine rise beyond "
            "its error."
        )
    sentences.append(
        "Without labels nothing is known about scores: if you have labels, check the choice with tempscale evaluate."
    )
    return sentences


def _barred(reason: str) -> str:
    """Why a candidate may not be chosen, in the words of a table's reason without its figures; see `collapse._judged`."""
    if reason.startswith("raises"):
        return "the mean cosine of some length interval rises"
    if reason.startswith("short texts keep"):
        return "short texts lose too many of their neighbours"
    return reason


def then(run: dict[str, Any], root: str) -> list[str]:
    """The next steps: shell commands, with a line of Python where a schedule cannot be folded; none without a change."""
    choice = run["choice"]
    if not choice["changed"] or "***" in root:  # A part of its name is a secret.
        return []
    if recipe := choice.get("correction"):
        fitted = shell_line(["tempscale", "correct", "--correction", f"{root}/{file_of(recipe)}"])
        into, asked = (shell_line([folder_for([fitted, side], root, side)]) for side in ("corrected", "corrected-queries"))
        kind = KINDS[Recipe.of(recipe).kind]
        documents, queries = (" --length-column TOKENS" * needed for needed in (kind.needs_tokens, kind.needs_query_tokens))
        return [
            f"{fitted} --embeddings DOCUMENTS.parquet{documents} --out {into}",
            f"{fitted} --embeddings QUERIES.parquet{queries} --side queries --out {asked}",
        ]
    (label,), (model,) = run["models"], run["config"]["embedding"]["models"] or [None]
    temperature = Temperature.of(choice["chosen"])
    if choice["foldable"]:
        words = ["tempscale", "export", *([] if model is None else ["--model", model])]
        constant = temperature.tau is not None  # Which needs no file: that of a remote folder would have to be copied.
        words += ["--tau", str(temperature.tau)] if constant else ["--temperature", f"{root}/temperature.json"]
        return [shell_line([*words, "--out", folder_for(words, root, "checkpoint")])]
    line = f"import tempscale as ts; ts.attach(model, {json.dumps(temperature.as_data())})"
    files = ("--tau", "1.0", "--temperature", f"{root}/temperature.json")
    command = again(run, label, "audit", *files, beside="audit") if "://" not in root else ""
    return [f"{line}  # a schedule by length cannot be folded into weights", *([command] if command else [])]
