"""Whether a night holds what it was held to: thresholds on its figures, and drift from a baseline beyond size and noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from jobs.headline import number
from jobs.night_config import SHARES, Gate, Threshold
from tempscale.length import finite_population

Row = dict[str, Any]
_LEAST_FREEDOM = 2
_TEXTS = {"collapse_gap": "gap_texts", "prefix_gap": "prefix_texts", "socm_mean": "socm_texts",
          "exposure_short": "gap_texts", "exposure_long": "gap_texts"}  # fmt: skip
"""How many texts a figure's error was told from, where that is not all of them."""
ENDS = {
    "collapse_gap": ("gap_shortest", "gap_longest"), "exposure_short": ("gap_shortest",), "exposure_long": ("gap_longest",),
    "prefix_gap": ("prefix_shortest", "prefix_longest"),
}  # fmt: skip
"""Between which lengths a figure is told: it is another figure where these are others."""


@dataclass(frozen=True)
class Baseline:
    """What one model and temperature of a night is compared with."""

    row: Row | None
    """The figures of an earlier run; None where there is none to compare with."""
    label: str
    """Which run that is, in words; where there is none, why."""


@dataclass(frozen=True)
class _Check:
    """One thing a night is held to, before it is known how many such things there are."""

    kind: str
    figure: str
    key: Row
    value: float | None
    limit: str
    excess: float | None
    """How far the value lies on the wrong side, or how far it moved; None where that cannot be told."""
    error: float
    """Standard error of that."""
    freedom: int
    """Degrees of freedom of the error."""
    size: float = 0.0
    """What the excess must exceed besides its noise."""
    baseline: str | None = None
    baseline_value: float | None = None
    refused: str | None = None
    """Why it cannot be judged."""


def judge(gate: Gate, rows: Sequence[Row], baselines: Sequence[Baseline]) -> list[Row]:
    """The rows of the table `gate`.

    A threshold fails where the figure, as of this very corpus, lies on the wrong side of it by more than its noise: where
    every text was used there is none, and any excess fails. A drift fails where the figure moved from the baseline by more
    than the stated size and by more than the noise of both runs, taken as of corpora drawn apart; that they share texts only
    makes the noise smaller than it is taken for. Noise is Student's t of the error, with as many degrees of freedom as there
    were texts in the smaller group less one, at `gate.false_alarms` divided by how many checks have any (Bonferroni): of
    nights on which nothing changed at most that share fails, over all checks together.

    Args:
        gate: what the night is held to.
        rows: the rows of its collapse_summary.
        baselines: what each row is compared with; asked for only where `gate.baseline` is set.
    """
    checks: list[_Check] = []
    for row, baseline in zip(rows, baselines, strict=True):
        if gate.holds_for(row["temperature"]):
            checks += [_threshold(row, threshold) for threshold in gate.read_thresholds()]
            if gate.baseline is not None:
                checks += [_drift(row, baseline, figure, size) for figure, size in gate.drift.items()]
    noisy = sum(check.refused is None and check.excess is not None and check.error > 0 for check in checks)
    return [_judged(check, gate.false_alarms / max(1, noisy)) for check in checks]


def verdict(rows: Iterable[Row]) -> tuple[str, list[str]]:
    """`passed`, `failed` or `none`, and what failed in words."""
    rows = list(rows)
    failed = [row["reason"] for row in rows if row["verdict"] in ("failed", "not measured")]
    return ("failed" if failed else "passed") if rows else "none", failed


def _threshold(row: Row, threshold: Threshold) -> _Check:
    value = _finite(row[threshold.figure])
    limit = str(threshold).removeprefix(f"{threshold.figure} ")
    key = _key(row)
    if value is None:
        return _Check("threshold", threshold.figure, key, None, limit, None, 0.0, 1)
    error = standard_error(row, threshold.figure, of_this_corpus=True)
    excess = 0.0 if threshold.holds(value) else max(threshold.excess(value), math.ulp(0.0))
    return _Check("threshold", threshold.figure, key, value, limit, excess, error or 0.0, _freedom(row, threshold.figure))


def _drift(row: Row, baseline: Baseline, figure: str, size: float) -> _Check:
    value, other, key = _finite(row[figure]), baseline.row, _key(row)

    def refused(why: str) -> _Check:
        return _Check("drift", figure, key, value, f"{size:g}", None, 0.0, 1, size, refused=why)

    if other is None:
        return refused(baseline.label)
    before = _finite(other[figure])
    if before is None:
        return refused(f"{baseline.label} did not measure it")
    if value is None:
        return _Check("drift", figure, key, None, f"{size:g}", None, 0.0, 1, size, baseline.label, before)
    ends = [(name, other[name], row[name]) for name in ENDS.get(figure, ()) if other[name] != row[name]]
    if ends:
        told = ", ".join(f"{name.replace('_', ' ')} was {then} tokens and is {now}" for name, then, now in ends)
        return refused(f"told between other lengths than of {baseline.label}: {told}")
    errors = (standard_error(other, figure), standard_error(row, figure))
    if figure in SHARES:
        errors = _pooled(other, row, figure)
    if None in errors:
        return refused(f"too few texts to tell the noise of it, here or of {baseline.label}")
    error = math.hypot(*(e for e in errors if e is not None))
    freedom = min(_freedom(other, figure), _freedom(row, figure))
    return _Check(
        "drift", figure, key, value, f"{size:g}", abs(value - before), error, freedom, size, baseline.label, before
    )


def _judged(check: _Check, alpha: float) -> Row:
    """The row of a check, of which noise alone may fail a share `alpha`."""
    # A threshold has one wrong side, a drift two.
    tail = alpha if check.kind == "threshold" else alpha / 2
    noise = float(stats.t.isf(tail, max(_LEAST_FREEDOM, check.freedom))) * check.error
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
    return row | {"reason": _drift_told(check, noise, failed) if check.kind == "drift" else _told(check, noise, failed)}


def _told(check: _Check, noise: float, failed: bool) -> str:
    value = f"{_of(check)} is {number(check.value)}"
    if not check.excess:
        return f"{value}, held to {check.limit}"
    missed = f"{value} and should be {check.limit}"
    if failed:
        return missed if not noise else f"{missed}: missed by more than its noise of {number(noise)}"
    return f"{missed}, missed by {number(check.excess)}, no more than its noise of {number(noise)}"


def _drift_told(check: _Check, noise: float, failed: bool) -> str:
    assert check.value is not None
    assert check.baseline_value is not None
    moved = check.value - check.baseline_value
    way = "rose" if moved > 0 else "fell"
    told = (
        f"{_of(check)} {way} by {number(abs(moved))}, from {number(check.baseline_value)} in {check.baseline} "
        f"to {number(check.value)}"
    )
    if failed:
        return f"{told}: more than {check.limit} and more than its noise of {number(noise)}"
    if abs(moved) <= check.size:
        return f"{told}: no more than {check.limit}"
    return f"{told}: no more than its noise of {number(noise)}"


def _of(check: _Check) -> str:
    return f"{check.figure} of {check.key['model']} at {check.key['temperature']}"


def _key(row: Row) -> Row:
    return {name: row[name] for name in ("model", "temperature", "tau", "schema_version")}


def standard_error(row: Row, figure: str, of_this_corpus: bool = False) -> float | None:
    """Standard error of a figure of collapse_summary, a share's from its binomial; None where it is not known."""
    if figure in SHARES:
        texts = row[SHARES[figure]]
        factor = finite_population(texts, row["corpus_texts"]) if of_this_corpus else 1.0
        return math.sqrt(row[figure] * (1 - row[figure]) / texts) * float(factor)
    name = f"{figure.removesuffix('_mean')}_se" + ("" if of_this_corpus else "_superpopulation")
    found = row.get(name)
    return None if found is None or not math.isfinite(found) else float(found)


def _pooled(before: Row, after: Row, figure: str) -> tuple[float, float]:
    """Errors of two shares if both are one: a share of 0 then has the error that the other's texts tell."""
    texts = [row[SHARES[figure]] for row in (before, after)]
    share = sum(n * row[figure] for n, row in zip(texts, (before, after), strict=True)) / sum(texts)
    first, second = (math.sqrt(share * (1 - share) / n) for n in texts)
    return first, second


def _freedom(row: Row, figure: str) -> int:
    known = row.get(f"{figure.removesuffix('_mean')}_freedom")  # Of a sample drawn by interval, where each has its own.
    return max(1, int(known) if known is not None else int(row.get(_TEXTS.get(figure, "texts")) or 0) - 1)


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
