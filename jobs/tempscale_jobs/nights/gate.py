"""The checks of a night: thresholds on its figures, and drift from a baseline beyond a size and the noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from tempscale.stats.errors import finite_population
from tempscale_jobs.config.nights import SHARES, Gate, Threshold
from tempscale_jobs.report.text import number
from tempscale_jobs.tables.columns import finite

Row = dict[str, Any]
_LEAST_FREEDOM = 2
_OF = {"collapse_gap": "gap_", "prefix_gap": "prefix_", "exposure_short": "gap_", "exposure_long": "gap_"}
"""How the columns begin with the numbers of texts and documents behind a figure's error, where these are not all."""
ENDS = {
    "collapse_gap": ("gap_shortest", "gap_longest"), "exposure_short": ("gap_shortest",), "exposure_long": ("gap_longest",),
    "prefix_gap": ("prefix_shortest", "prefix_longest"),
}  # fmt: skip
"""The columns with the lengths between which a figure is taken: figures with other ends are not compared."""


@dataclass(frozen=True)
class Baseline:
    """The earlier figures with which one model and temperature of a night is compared."""

    row: Row | None
    """The figures of the earlier run; None where there is no comparable run."""
    label: str
    """The earlier run in words, or the reason why there is none."""
    first: bool = False
    """Whether there is none because nothing was measured before at this temperature."""


@dataclass(frozen=True)
class _Check:
    """One check of a night; it is judged when the number of all checks is known."""

    kind: str
    figure: str
    key: Row
    value: float | None
    limit: str
    excess: float | None
    """How far the value is on the wrong side, or how far it moved; None where that is not known."""
    error: float
    """Standard error of the excess."""
    freedom: int
    """Degrees of freedom of the error."""
    size: float = 0.0
    """The excess fails only above this size and above its noise."""
    baseline: str | None = None
    baseline_value: float | None = None
    refused: str | None = None
    """The reason why it cannot be judged."""


def judge(gate: Gate, rows: Sequence[Row], baselines: Sequence[Baseline]) -> list[Row]:
    """The rows of the table `gate`, from the rows of collapse_summary and the baseline of each.

    A threshold fails if the figure is on the wrong side by more than its noise, a drift if the figure moved from the
    baseline by more than the configured size and more than the noise of both runs, taken as independent.
    """
    # Noise is Student's t of the error at `false_alarms` over the number of checks with noise (Bonferroni): at most that
    # share of nights without any change fails. Runs share texts, so the true noise of a drift is smaller.
    checks: list[_Check] = []
    for row, baseline in zip(rows, baselines, strict=True):
        if gate.holds_for(row["temperature"]):
            checks += [_threshold(row, threshold) for threshold in gate.read_thresholds()]
            if gate.baseline is not None:
                checks += [_drift(row, baseline, figure, size) for figure, size in gate.drift.items()]
    noisy = sum(check.refused is None and check.excess is not None and check.error > 0 for check in checks)
    return [_judged(check, gate.false_alarms / max(1, noisy)) for check in checks]


def verdict(rows: Iterable[Row]) -> tuple[str, list[str]]:
    """`passed`, `failed` or `none`, and the reasons of the failed checks."""
    rows = list(rows)
    failed = [row["reason"] for row in rows if row["verdict"] in ("failed", "not measured")]
    return ("failed" if failed else "passed") if rows else "none", failed


def _threshold(row: Row, threshold: Threshold) -> _Check:
    value = _known(row[threshold.figure])
    limit = str(threshold).removeprefix(f"{threshold.figure} ")
    key = _key(row)
    if value is None:
        return _Check("threshold", threshold.figure, key, None, limit, None, 0.0, 1)
    error = standard_error(row, threshold.figure, of_this_corpus=True)
    excess = 0.0 if threshold.holds(value) else max(threshold.excess(value), math.ulp(0.0))
    return _Check("threshold", threshold.figure, key, value, limit, excess, error or 0.0, _freedom(row, threshold.figure))


def _drift(row: Row, baseline: Baseline, figure: str, size: float) -> _Check:
    value, other, key = _known(row[figure]), baseline.row, _key(row)

    def refused(why: str) -> _Check:
        return _Check("drift", figure, key, value, f"{size:g}", None, 0.0, 1, size, refused=why)

    if other is None:
        return refused(baseline.label)
    before = _known(other[figure])
    if before is None:
        return refused(f"{baseline.label} did not measure it")
    if value is None:
        return _Check("drift", figure, key, None, f"{size:g}", None, 0.0, 1, size, baseline.label, before)
    ends = [(name, other[name], row[name]) for name in ENDS.get(figure, ()) if other[name] != row[name]]
    if ends:
        sentence = ", ".join(f"{name.replace('_', ' ')} was {then} tokens and is {now}" for name, then, now in ends)
        return refused(f"sentence between other lengths than of {baseline.label}: {sentence}")
    errors = (standard_error(other, figure), standard_error(row, figure))
    if figure in SHARES and None not in errors:
        errors = _pooled(other, row, figure)
    if (other.get("documents") is None) != (row.get("documents") is None) and not figure.startswith("socm_"):
        # Only one of the nights knows of documents: the other's error would be that of independent texts.
        errors = (errors[1], errors[1]) if other.get("documents") is None else (errors[0], errors[0])
    if None in errors:
        return refused(f"too few texts to tell the noise of it, here or of {baseline.label}")
    error = math.hypot(*(e for e in errors if e is not None))
    freedom = min(_freedom(other, figure), _freedom(row, figure))
    return _Check(
        "drift", figure, key, value, f"{size:g}", abs(value - before), error, freedom, size, baseline.label, before
    )


def _judged(check: _Check, alpha: float) -> Row:
    """The row of a check that fails by noise alone with probability `alpha`."""
    # A threshold has one wrong side, a drift two.
    tail = alpha if check.kind == "threshold" else alpha / 2
    noise = -float(stdtrit(max(_LEAST_FREEDOM, check.freedom), tail)) * check.error
    row = check.key | {
        "check": check.kind, "figure": check.figure, "value": check.value, "limit": check.limit, "baseline": check.baseline,
        "baseline_value": check.baseline_value, "change": None, "noise": None,
    }  # fmt: skip
    if check.refused is not None:
        return row | {"verdict": "not comparable", "reason": f"{_of(check)} is not compared: {check.refused}"}
    if check.excess is None:
        before = "" if check.baseline_value is None else f"; it was {number(check.baseline_value)} in {check.baseline}"
        return row | {"verdict": "not measured", "reason": f"{_of(check)} was not measured, so that it cannot hold{before}"}
    assert check.value is not None
    failed = check.excess > max(check.size, noise)
    row |= {"noise": noise, "verdict": "failed" if failed else "held"}
    if check.baseline_value is not None:
        row["change"] = check.value - check.baseline_value
    return row | {
        "reason": _drift_reason(check, noise, failed) if check.kind == "drift" else _threshold_reason(check, noise, failed)
    }


def _threshold_reason(check: _Check, noise: float, failed: bool) -> str:
    value = f"{_of(check)} is {number(check.value)}"
    if not check.excess:
        return f"{value}, held to {check.limit}"
    missed = f"{value} and should be {check.limit}"
    if failed:
        return missed if not noise else f"{missed}: missed by more than its noise of {number(noise)}"
    return f"{missed}, missed by {number(check.excess)}, no more than its noise of {number(noise)}"


def _drift_reason(check: _Check, noise: float, failed: bool) -> str:
    assert check.value is not None
    assert check.baseline_value is not None
    moved = check.value - check.baseline_value
    way = "rose" if moved > 0 else "fell"
    sentence = (
        f"{_of(check)} {way} by {number(abs(moved))}, from {number(check.baseline_value)} in {check.baseline} "
        f"to {number(check.value)}"
    )
    if failed:
        return f"{sentence}: more than {check.limit} and more than its noise of {number(noise)}"
    if abs(moved) <= check.size:
        return f"{sentence}: no more than {check.limit}"
    return f"{sentence}: no more than its noise of {number(noise)}"


def _of(check: _Check) -> str:
    return f"{check.figure} of {check.key['model']} at {check.key['temperature']}"


def _key(row: Row) -> Row:
    return {name: row[name] for name in ("model", "temperature", "tau", "schema_version")}


def standard_error(row: Row, figure: str, of_this_corpus: bool = False) -> float | None:
    """Standard error of a figure of collapse_summary, binomial for a share; None where it is not known."""
    if figure in SHARES and (of_this_corpus or row.get("documents") is None):
        texts = row[SHARES[figure]]
        factor = finite_population(texts, row["corpus_texts"]) if of_this_corpus else 1.0
        return math.sqrt(row[figure] * (1 - row[figure]) / texts) * float(factor)
    name = f"{figure.removesuffix('_mean')}_se" + ("" if of_this_corpus else "_superpopulation")
    found = row.get(name)
    return None if found is None or not math.isfinite(found) else float(found)


def _pooled(before: Row, after: Row, figure: str) -> tuple[float, float]:
    """Errors of two shares under the assumption that they are equal, so that a share of 0 has an error, too.

    Where texts come in documents, each is that of its documents if that is larger.
    """
    rows = (before, after)
    texts = [row[SHARES[figure]] for row in rows]
    share = sum(n * row[figure] for n, row in zip(texts, rows, strict=True)) / sum(texts)
    pooled = [math.sqrt(share * (1 - share) / n) for n in texts]
    own = [0.0 if row.get("documents") is None else standard_error(row, figure) or 0.0 for row in rows]
    return max(pooled[0], own[0]), max(pooled[1], own[1])


def _freedom(row: Row, figure: str) -> int:
    if figure.startswith("socm_"):
        known = row.get("socm_freedom")  # Groups are fewer than their texts.
        return max(1, int(known) if known is not None else int(row.get("socm_texts") or 0) - 1)
    begins = _OF.get(figure, "")
    drawn = row.get(f"{begins}documents")
    return max(1, int((row.get(f"{begins}texts") if drawn is None else drawn) or 0) - 1)


def _known(value: float | None) -> float | None:
    return None if value is None else finite(value)
