"""Compare finished audits with downstream scores, over models (S2 Fig 5, Table 2) and with backbones (S2 Table 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tempscale.stats.correlation import spearman
from tempscale.stats.enough import VALUES_FOR_AN_ERROR
from tempscale.stats.errors import documents_error, within_error
from tempscale.stats.groups import jackknife_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import finished_audit, means_by_text, place
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.tables.parts import DOCUMENT
from tempscale_jobs.urls import masked

MEASURES = ("socm_mean", "spread_mean")
"""The figures that are correlated with scores."""
_SUMMARY = "tables/collapse_summary.parquet"


class AuditFigures(NamedTuple):
    """The figures of one model under one temperature in an audit; None where they were not measured."""

    model: str
    """The model's label in that audit."""
    fingerprint: str
    temperature: str
    """Its canonical text."""
    socm_mean: float | None
    socm_se_superpopulation: float | None
    spread_mean: float | None
    cosine_mean: float | None
    folder: str
    """The audit's folder, as the user gave it."""


_COLUMNS = [name for name in AuditFigures._fields if name not in ("fingerprint", "folder")]


def measures(folders: Sequence[str]) -> list[AuditFigures]:
    """Every model and temperature of these audits, in the order of the folders and of their tables."""
    measured: dict[tuple[str, str], AuditFigures] = {}
    for folder in folders:
        storage, models = _audited(folder)
        for row in storage.read_table(_SUMMARY, _COLUMNS).to_pylist():
            entry = AuditFigures(fingerprint=models[row["model"]]["fingerprint"], folder=folder, **row)
            earlier = measured.setdefault((entry.fingerprint, entry.temperature), entry)
            if earlier is not entry:
                raise _given_twice(earlier, entry)
    return list(measured.values())


def _audited(folder: str) -> tuple[Storage, dict[str, Any]]:
    """The storage of a finished audit of models, and the models in its run.json by label."""
    storage, record = finished_audit(folder, mend="; give a folder that tempscale audit wrote")
    models: dict[str, Any] = record["models"]
    if all(model["fingerprint"] for model in models.values()):
        return storage, models
    # Such audits have no fingerprint, so they cannot be matched with scores.
    raise UsageError(
        f"'{masked(folder)}' holds an audit of user-supplied embeddings, whose model is not known; give audits of models"
    )


def _given_twice(first: AuditFigures, second: AuditFigures) -> UsageError:
    if Storage(first.folder).root == Storage(second.folder).root:
        return UsageError(f"'{masked(second.folder)}' is given twice; give each folder once")
    names = f"'{first.model}'" + (f" (also called '{second.model}')" if second.model != first.model else "")
    return UsageError(
        f"'{masked(first.folder)}' and '{masked(second.folder)}' both hold model {names} under temperature "
        f"{first.temperature}; leave one of them out"
    )


def correlations(measured: Sequence[AuditFigures], scores: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Spearman's ρ over models of each measure with each task's score, for each temperature (S2 Fig 5, Table 2)."""
    # A score has fingerprint, temperature (canonical text), task (None for the mean over tasks) and score.
    by_place = _by_place(scores)
    rows: list[dict[str, Any]] = []
    for temperature in dict.fromkeys(entry.temperature for entry in measured):
        for task in dict.fromkeys(score["task"] for score in scores):
            for measure in MEASURES:
                pairs = [
                    (getattr(entry, measure), by_place.get((entry.fingerprint, temperature, task)))
                    for entry in measured if entry.temperature == temperature
                ]  # fmt: skip
                both = [(value, score) for value, score in pairs if _known(value) and _known(score)]
                if len(both) >= VALUES_FOR_AN_ERROR:
                    correlation = spearman(*zip(*both, strict=True))
                    rows.append(
                        {"temperature": temperature, "task": task, "measure": measure, "models": correlation.n}
                        | {"rho": correlation.rho, "p_exact": correlation.p_exact, "p_t": correlation.p_t}
                    )
    return rows


def against_backbones(
    measured: Sequence[AuditFigures], scores: Sequence[Mapping[str, Any]], backbones: Mapping[str, str]
) -> list[dict[str, Any]]:
    """One row per model and temperature with its change from its backbone (`backbones`: label by label; S2 Table 1)."""
    _check(measured, backbones)
    by_place = _by_place(scores)
    by_label = {(entry.model, entry.temperature): entry for entry in measured}
    rows: list[dict[str, Any]] = []
    for entry in measured:
        backbone = backbones.get(entry.model)
        base = by_label.get((backbone, entry.temperature)) if backbone is not None else None
        score = by_place.get((entry.fingerprint, entry.temperature, None))
        base_score = by_place.get((base.fingerprint, base.temperature, None)) if base else None
        rows.append(
            {"model": entry.model, "temperature": entry.temperature, "backbone": backbone}
            | {"socm_mean": entry.socm_mean, "socm_se": entry.socm_se_superpopulation, "spread_mean": entry.spread_mean}
            | {"score": score, "socm_change": _difference(entry.socm_mean, base.socm_mean if base else None)}
            | {"socm_change_se": _error(entry, base) if base else None}
            | {"spread_change": _difference(entry.spread_mean, base.spread_mean if base else None)}
            | {"score_change": _difference(score, base_score)}
        )
    return rows


def _check(measured: Sequence[AuditFigures], backbones: Mapping[str, str]) -> None:
    """Raise unless every label in `backbones` belongs to exactly one model."""
    known: dict[str, set[str]] = {}
    for entry in measured:
        known.setdefault(entry.model, set()).add(entry.fingerprint)
    for model, backbone in backbones.items():
        for label in (model, backbone):
            if label not in known:
                names = ", ".join(f"'{name}'" for name in known) or "none"
                raise UsageError(f"backbones name '{label}', which is in no audit; models of the audits: {names}")
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


def _error(entry: AuditFigures, base: AuditFigures) -> float | None:
    """Standard error of the difference of two models' mean SOCM: paired if one audit measured both, else √(se² + se²)."""
    if entry.folder == base.folder:
        means, base_means = _text_means(entry), _text_means(base)
        # The texts may be in another order: they are sorted by length in each model's tokens.
        if (
            means is not None
            and base_means is not None
            and means.keys() == base_means.keys()
            and len(means) >= VALUES_FOR_AN_ERROR
        ):
            differences = np.array([means[text][0] - base_means[text][0] for text in means])
            documents = [document for _, document in means.values()]
            if None in documents:
                return within_error(float(differences.var(ddof=1)), len(differences))
            return finite(documents_error([differences], [2.0], [np.array(documents)]))
        replicates, base_replicates = _replicates(entry), _replicates(base)
        known = entry.socm_se_superpopulation is not None and base.socm_se_superpopulation is not None
        if known and replicates is not None and base_replicates is not None and replicates.drawn == base_replicates.drawn:
            return replicates.error_of_change(base_replicates)
    if entry.socm_se_superpopulation is None or base.socm_se_superpopulation is None:
        return None
    return math.hypot(entry.socm_se_superpopulation, base.socm_se_superpopulation)


def _text_means(entry: AuditFigures) -> dict[str, tuple[float, int | None]] | None:
    """Each sampled text's mean SOCM with all others, and its document; None if SOCM is not of a random sample."""
    storage, at, record = _measured_socm(entry)
    if record is None or record.get("way") == "groups" or isinstance(record.get("groups"), dict):
        return None  # An earlier version drew texts by length interval, which differ between models.
    if not storage.exists(means_by_text(at)):
        return None
    table = storage.read_table(means_by_text(at), ["text_id", "overall"], DOCUMENT)
    return {text: (mean, document) for text, mean, document in zip(*(c.to_pylist() for c in table.columns), strict=True)}


class _Replicates(NamedTuple):
    """The jackknife replicates of mean SOCM, and the terms of its error for another corpus."""

    drawn: str
    """A digest of the groups' texts."""
    values: np.ndarray
    interval_means: np.ndarray
    """The mean of a text of each interval with all texts; NaN where it is not known."""
    covariance: np.ndarray
    """The covariance of the intervals' shares (see covariance_of_shares)."""

    def error_of_change(self, other: _Replicates) -> float:
        """The standard error of the difference of two means from the same groups."""
        differences = self.interval_means - other.interval_means
        known = np.where(np.isfinite(differences), differences, np.nanmean(differences))
        return math.sqrt(jackknife_error(self.values - other.values) ** 2 + max(0.0, float(known @ self.covariance @ known)))


def _replicates(entry: AuditFigures) -> _Replicates | None:
    """The jackknife replicates; None if SOCM is not measured on groups."""
    storage, at, record = _measured_socm(entry)
    if record is None or record.get("way") != "groups":
        return None
    values = storage.read_table(f"{at}/replicates.parquet").column("socm_mean").to_numpy()
    means = np.array(record["interval_means"]["socm_mean"], dtype=float)
    return _Replicates(record["drawn"], values, means, np.array(record["interval_covariance"]))


def _measured_socm(entry: AuditFigures) -> tuple[Storage, str, dict[str, Any] | None]:
    """The storage and folder of an audit's SOCM, and its record; None without one."""
    storage = Storage(entry.folder)
    at = place("partials/socm", entry.model, Temperature.of(entry.temperature))
    return storage, at, storage.read_json(f"{at}/done.json") if storage.exists(f"{at}/done.json") else None
