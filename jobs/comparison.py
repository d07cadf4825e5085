"""What finished audits measured, beside downstream scores: rank correlation over models, and models against backbones.

S2 (arXiv 2604.27398) Fig 5 and Table 2: Spearman's ρ of mean SOCM, and of S/‖μ‖², with the mean score of a benchmark over
models. Table 1: each fine-tuned model beside the backbone that it came from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jobs.errors import UsageError
from jobs.runs import BEGUN, DONE
from jobs.storage import Storage
from jobs.urls import shown
from tempscale.correlation import FEWEST, spearman
from tempscale.length import within_error
from tempscale.temperature import Temperature

MEASURES = ("socm_mean", "spread_mean")
"""What is held against scores."""
_FEWEST_TEXTS = 3
"""Fewer texts have no standard error; as in the tables of a run."""
_SUMMARY = "tables/collapse_summary.parquet"


class Measured(NamedTuple):
    """What an audit measured of one model under one temperature; None where it was not asked to, or could not."""

    model: str
    """Its label in that audit."""
    fingerprint: str
    temperature: str
    """Canonical text."""
    socm_mean: float | None
    socm_se_superpopulation: float | None
    spread_mean: float | None
    cosine_mean: float | None
    folder: str
    """As it was given."""


_COLUMNS = [name for name in Measured._fields if name not in ("fingerprint", "folder")]

# ---------------------------------------------------------------------------------------------- reading audits


def measures(folders: Sequence[str]) -> list[Measured]:
    """Every model and temperature of some audits, in the order of the folders and of their tables.

    Args:
        folders: run folders of `tempscale audit`, local or remote.

    Raises:
        UsageError: a folder holds no finished audit of models, or two hold the same model and temperature.
    """
    found: dict[tuple[str, str], Measured] = {}
    for folder in folders:
        storage = Storage(folder)
        storage.check_reachable()
        models = _models(storage, folder)
        for row in storage.read_table(_SUMMARY, _COLUMNS).to_pylist():
            one = Measured(fingerprint=models[row["model"]]["fingerprint"], folder=folder, **row)
            other = found.setdefault((one.fingerprint, one.temperature), one)
            if other is not one:
                raise _given_twice(other, one)
    return list(found.values())


def _models(storage: Storage, folder: str) -> dict[str, Any]:
    """The models that run.json names, by label.

    Raises:
        UsageError: the folder holds something else.
    """
    name = shown(folder)
    if not storage.exists(DONE):
        if storage.exists(BEGUN):
            raise UsageError(f"'{name}' holds a run that is not finished; start its command again, or leave the folder out")
        raise UsageError(f"'{name}' holds no finished run: there is no {DONE} in it; give one that tempscale audit wrote")
    try:
        record = storage.read_json(DONE)
    except ValueError:
        record = None
    command = record.get("command", "audit") if isinstance(record, dict) else None
    if command == "audit" and "models" in record and storage.exists(_SUMMARY):
        models: dict[str, Any] = record["models"]
        if all(model["fingerprint"] for model in models.values()):
            return models
        # All of them share a label and no fingerprint: nothing tells them, or their scores, apart.
        raise UsageError(
            f"'{name}' holds an audit of embeddings of its own, which no model is known for; give audits of models"
        )
    held = "no audit" if command in (None, "audit") else f"a run of tempscale {command} and no audit"
    raise UsageError(f"'{name}' holds {held}; give a folder that tempscale audit wrote")


def _given_twice(first: Measured, second: Measured) -> UsageError:
    if Storage(first.folder).root == Storage(second.folder).root:
        return UsageError(f"'{shown(second.folder)}' is given twice; give each folder once")
    names = f"'{first.model}'" + (f" (also called '{second.model}')" if second.model != first.model else "")
    return UsageError(
        f"'{shown(first.folder)}' and '{shown(second.folder)}' both hold model {names} under temperature "
        f"{first.temperature}; leave one of them out"
    )


# ---------------------------------------------------------------------------------------------- beside scores


def correlations(measured: Sequence[Measured], scores: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Spearman's ρ over models of each measure with each task's score, temperature by temperature (S2 Fig 5, Table 2).

    Args:
        measured: from `measures`.
        scores: fingerprint, temperature (canonical text), task (None: the mean over tasks) and score; at most one each.

    Returns:
        temperature, task, measure, models, rho, p_exact and p_t, wherever at least 3 models have both: in the order in
        which temperatures were measured, then tasks scored.
    """
    by_place = _by_place(scores)
    rows: list[dict[str, Any]] = []
    for temperature in dict.fromkeys(one.temperature for one in measured):
        for task in dict.fromkeys(score["task"] for score in scores):
            for measure in MEASURES:
                pairs = [
                    (getattr(one, measure), by_place.get((one.fingerprint, temperature, task)))
                    for one in measured if one.temperature == temperature
                ]  # fmt: skip
                both = [(value, score) for value, score in pairs if _known(value) and _known(score)]
                if len(both) >= FEWEST:
                    found = spearman(*zip(*both, strict=True))
                    rows.append(
                        {"temperature": temperature, "task": task, "measure": measure, "models": found.n}
                        | {"rho": found.rho, "p_exact": found.p_exact, "p_t": found.p_t}
                    )
    return rows


def against_backbones(
    measured: Sequence[Measured], scores: Sequence[Mapping[str, Any]], backbones: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Each model and temperature beside its backbone under the same temperature (S2 Table 1).

    Args:
        measured: from `measures`.
        scores: as for `correlations`; the mean over tasks is taken.
        backbones: label of a model -> label of the model it was trained from.

    Returns:
        A row for each of `measured`: model, temperature, backbone, socm_mean, socm_se, spread_mean, score, and model minus
        backbone as socm_change, socm_change_se, spread_change, score_change. None where the model has no backbone or one
        of the two is not known. Errors are for texts drawn like these: that of a change is 2·sd/√n of per-text differences
        where both were measured on the same texts of one audit, else √(se² + se²).

    Raises:
        UsageError: a label is that of no model or of several, or a model is its own backbone.
    """
    _check(measured, backbones)
    by_place = _by_place(scores)
    by_label = {(one.model, one.temperature): one for one in measured}
    rows: list[dict[str, Any]] = []
    for one in measured:
        backbone = backbones.get(one.model)
        base = by_label.get((backbone, one.temperature)) if backbone is not None else None
        score = by_place.get((one.fingerprint, one.temperature, None))
        base_score = by_place.get((base.fingerprint, base.temperature, None)) if base else None
        rows.append(
            {"model": one.model, "temperature": one.temperature, "backbone": backbone}
            | {"socm_mean": one.socm_mean, "socm_se": one.socm_se_superpopulation, "spread_mean": one.spread_mean}
            | {"score": score, "socm_change": _difference(one.socm_mean, base.socm_mean if base else None)}
            | {"socm_change_se": _error(one, base) if base else None}
            | {"spread_change": _difference(one.spread_mean, base.spread_mean if base else None)}
            | {"score_change": _difference(score, base_score)}
        )
    return rows


def _check(measured: Sequence[Measured], backbones: Mapping[str, str]) -> None:
    """Raise unless every label of a map of backbones is that of one model."""
    known: dict[str, set[str]] = {}
    for one in measured:
        known.setdefault(one.model, set()).add(one.fingerprint)
    for model, backbone in backbones.items():
        for label in (model, backbone):
            if label not in known:
                names = ", ".join(f"'{name}'" for name in known) or "none"
                raise UsageError(f"backbones name '{label}', which no audit holds; models that are there: {names}")
            if len(known[label]) > 1:
                raise UsageError(
                    f"backbones name '{label}', and the audits hold {len(known[label])} models of that name; "
                    "leave out the folders of all but one"
                )
        if model == backbone:
            raise UsageError(f"backbones name '{model}' as its own backbone; name the model that it was trained from")


def _by_place(scores: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str, str | None], float]:
    return {(score["fingerprint"], score["temperature"], score["task"]): score["score"] for score in scores}


def _known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _difference(value: float | None, base: float | None) -> float | None:
    return value - base if value is not None and base is not None else None


# ---------------------------------------------------------------------------------------------- errors of a change


def _error(one: Measured, base: Measured) -> float | None:
    """Standard error of the difference of two models' mean SOCM, for texts drawn like these."""
    if one.folder == base.folder:
        own, other = _text_means(one), _text_means(base)
        # The order may differ: it is that of lengths, and each model has its own tokens.
        if own is not None and other is not None and own.keys() == other.keys() and len(own) >= _FEWEST_TEXTS:
            differences = np.array([own[text] - other[text] for text in own])
            return within_error(float(differences.var(ddof=1)), len(differences))
    if one.socm_se_superpopulation is None or base.socm_se_superpopulation is None:
        return None
    return math.hypot(one.socm_se_superpopulation, base.socm_se_superpopulation)


def _text_means(one: Measured) -> dict[str, float] | None:
    """Each sampled text's mean SOCM with all others.

    None where they are not there, or the texts were drawn by length interval: then each model has its own sizes of sample
    and its own weights.
    """
    storage = Storage(one.folder)
    place = f"partials/socm/model={one.model}/temperature={Temperature.of(one.temperature).slug}"
    if not (storage.exists(f"{place}/done.json") and storage.exists(f"{place}/text_means.parquet")):
        return None
    if storage.read_json(f"{place}/done.json")["groups"] is not None:
        return None
    table = storage.read_table(f"{place}/text_means.parquet", ["text_id", "overall"])
    return dict(zip(*(column.to_pylist() for column in table.columns), strict=True))
