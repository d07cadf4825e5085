"""The checks of a night: thresholds of its figures, continuation of its series, and drift from the baseline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.special import stdtrit

from tempscale.stats.errors import finite_population
from tempscale_jobs.config.nights import SHARES, Gate, Threshold
from tempscale_jobs.report.text import figure_at, model_at, number
from tempscale_jobs.tables.columns import finite

Row = dict[str, Any]
_LEAST_FREEDOM = 2
_OF = {
    "collapse_gap": "gap_", "prefix_gap": "prefix_", "exposure_short": "gap_", "exposure_long": "gap_",
    "wrong_share": "verified_",
}  # fmt: skip
"""Prefixes of the columns with the numbers of texts and documents behind a figure's error, if it is not of all texts."""
ENDS = {
    "collapse_gap": ("gap_shortest", "gap_longest"), "exposure_short": ("gap_shortest",), "exposure_long": ("gap_longest",),
    "prefix_gap": ("prefix_shortest", "prefix_longest"),
}  # fmt: skip
"""The columns with the lengths that a figure compares: figures of other lengths are not compared."""
_ENDS_IN_WORDS = {
    "gap_shortest": "shortest texts have {} tokens or more", "gap_longest": "longest texts have {} tokens or more",
    "prefix_shortest": "shortest prefixes have {} tokens", "prefix_longest": "longest prefixes have {} tokens",
}  # fmt: skip
FIRST_NIGHT = "first night of this series: nothing to compare with yet"
_FAILED = ("failed", "not measured")


@dataclass(frozen=True)
class Baseline:
    """The earlier figures of one model and temperature, with which a night is compared."""

    row: Row | None
    """The figures of the earlier run; None if no run is comparable."""
    label: str
    """The earlier run in words, or why there is none."""
    first: bool = False
    """Whether this is the first night of its series."""
    other: bool = False
    """Whether the earlier runs are of another model, or were measured in another way."""

    def begins(self, gate: Gate) -> bool:
        """Whether the night is the first of a series."""
        return self.first or (self.other and gate.on_other_model == "new-series")


@dataclass(frozen=True)
class _Check:
    """One check of a night, to be judged when all checks are known."""

    kind: str
    figure: str
    key: Row
    value: float | None
    limit: str
    excess: float | None
    """How far the value is on the wrong side, or how far it moved; None if not known."""
    error: float | None
    """Standard error of the excess; None if not known."""
    freedom: int
    """Degrees of freedom of the error."""
    size: float = 0.0
    """The check fails only if the excess is above this size and above its noise."""
    baseline: str | None = None
    baseline_value: float | None = None
    decided: tuple[str, str] | None = None
    """The verdict and its reason, if no number decides."""


def judge(gate: Gate, rows: Sequence[Row], baselines: Sequence[Baseline]) -> list[Row]:
    """The rows of the table `gate`, from the rows of collapse_summary and the baseline of each."""
    # A threshold fails if the figure is on the wrong side by more than its noise: that of other texts like these, unless it
    # is exact, about this corpus. A drift fails if the figure moved from the baseline by more than the configured size and
    # more than the noise of both runs, taken as independent.
    # Noise is Student's t of the error at `false_alarms` over the number of checks with noise (Bonferroni): at most that
    # share of nights without any change fails. Runs share texts, so the true noise of a drift is smaller.
    checks: list[_Check] = []
    for row, baseline in zip(rows, baselines, strict=True):
        if gate.holds_for(row["temperature"]):
            checks += [_threshold(row, threshold, gate.exact) for threshold in gate.read_thresholds()]
            if gate.baseline is not None:
                checks += _series(gate, row, baseline)
                checks += [_drift(row, baseline, figure, size) for figure, size in gate.drift.items()]
    noisy = sum(check.decided is None and check.excess is not None and bool(check.error) for check in checks)
    return [_judged(check, gate.false_alarms / max(1, noisy), gate.unknown) for check in checks]


def of_vectors(verified: Row, row: Row) -> Row:
    """The row of the table `gate` that says whether more vectors are wrong than [verify] accepts; `row` is the summary's.

    It fails where the lower end of the interval is above the limit, so that 0 accepts no wrong vector.
    """
    held = verified["low"] <= verified["max_wrong"]
    return _key(row) | {
        "check": "threshold", "figure": "wrong_share", "value": row["wrong_share"], "limit": f"<= {verified['max_wrong']:g}",
        "baseline": None, "baseline_value": None, "change": None, "noise": None,
        "verdict": "held" if held else "failed", "reason": verified["answer"].removesuffix("."),
    }  # fmt: skip


def verdict(rows: Iterable[Row]) -> tuple[str, list[str]]:
    """`passed`, `failed` or `none`, and the reasons of the failed checks."""
    rows = list(rows)
    failed = [row["reason"] for row in rows if row["verdict"] in _FAILED]
    return ("failed" if failed else "passed") if rows else "none", failed


def notes(judged: dict[str, Any]) -> list[str]:
    """A night's notes for readers, in addition to failed checks, from its entry in run.json."""
    # Older versions did not write all of these names.
    names = ("unknown_noise", "first_nights", "not_compared", "gone_models", "unreadable_nights")
    return [note for name in names for note in judged.get(name, ())]


def _threshold(row: Row, threshold: Threshold, exact: bool) -> _Check:
    value = _known(row[threshold.figure])
    limit = str(threshold).removeprefix(f"{threshold.figure} ")
    key = _key(row)
    if value is None:
        return _Check("threshold", threshold.figure, key, None, limit, None, None, 0)
    error = standard_error(row, threshold.figure, of_this_corpus=exact)
    excess = 0.0 if threshold.holds(value) else max(threshold.excess(value), math.ulp(0.0))
    return _Check("threshold", threshold.figure, key, value, limit, excess, error or 0.0, _freedom(row, threshold.figure))


def _series(gate: Gate, row: Row, baseline: Baseline) -> list[_Check]:
    """One check if a night begins a series or has another model than the earlier ones, none if it continues a series."""
    named, why = model_at(row), "" if baseline.first else f" ({baseline.label})"
    if baseline.begins(gate):
        decided = ("first night", f"{named}: {FIRST_NIGHT}{why}")
    elif baseline.other:
        mend = 'if that is intended, accept this night (history --accept) or set on_other_model = "new-series" in [gate]'
        decided = ("failed", f"{named} cannot be compared: {baseline.label}; {mend}")
    else:
        return []
    return [_Check("series", "model", _key(row), None, "", None, None, 0, decided=decided)]


def _drift(row: Row, baseline: Baseline, figure: str, size: float) -> _Check:
    value, other, key = _known(row[figure]), baseline.row, _key(row)

    def refused(why: str) -> _Check:
        reason = f"{figure_at(figure, key)} is not compared with an earlier night: {why}"
        return _Check("drift", figure, key, value, f"{size:g}", None, None, 0, size, decided=("not comparable", reason))

    if other is None:
        return refused(baseline.label)
    before = _known(other[figure])
    if before is None:
        return refused(f"{baseline.label} did not measure it")
    if value is None:
        return _Check("drift", figure, key, None, f"{size:g}", None, None, 0, size, baseline.label, before)
    ends = [(name, other[name], row[name]) for name in ENDS.get(figure, ()) if other[name] != row[name]]
    if ends:
        changed = ", ".join(f"its {_ENDS_IN_WORDS[name].format(now)}, not {then}" for name, then, now in ends)
        return refused(f"{changed} as in {baseline.label}")
    errors = (standard_error(other, figure), standard_error(row, figure))
    if figure in SHARES and None not in errors:
        errors = _pooled(other, row, figure)
    if (other.get("documents") is None) != (row.get("documents") is None) and not figure.startswith("socm_"):
        # Only one of the nights has documents: the other's error would be that of independent texts.
        errors = (errors[1], errors[1]) if other.get("documents") is None else (errors[0], errors[0])
    freedom = min(_freedom(other, figure), _freedom(row, figure))
    error = None if None in errors else math.hypot(*(e for e in errors if e is not None))
    if error and freedom < _LEAST_FREEDOM:
        error = None
    return _Check(
        "drift", figure, key, value, f"{size:g}", abs(value - before), error, freedom, size, baseline.label, before
    )


def _judged(check: _Check, alpha: float, unknown: str) -> Row:
    """The row of a check that fails by noise alone with probability `alpha`; `unknown` says what unknown noise does."""
    row = check.key | {
        "check": check.kind, "figure": check.figure, "value": check.value, "limit": check.limit, "baseline": check.baseline,
        "baseline_value": check.baseline_value, "change": None, "noise": None,
    }  # fmt: skip
    if check.decided is not None:
        return row | dict(zip(("verdict", "reason"), check.decided, strict=True))
    of = figure_at(check.figure, check.key)
    if check.excess is None:
        before = "" if check.baseline_value is None else f"; it was {number(check.baseline_value)} in {check.baseline}"
        return row | {"verdict": "not measured", "reason": f"{of} was not measured, so the check fails{before}"}
    assert check.value is not None
    if check.baseline_value is not None:
        row["change"] = check.value - check.baseline_value
    if check.error is None and check.excess > check.size:
        verdict = "failed" if unknown == "fail" else "unknown noise"
        return row | {"verdict": verdict, "reason": f"{_moved(check)}: more than {check.limit}, and its noise is not known"}
    noise = None if check.error is None else _noise(check, alpha)
    failed = check.excess > max(check.size, noise or 0.0)
    row |= {"noise": noise, "verdict": "failed" if failed else "held"}
    return row | {"reason": (_drift_reason if check.kind == "drift" else _threshold_reason)(check, noise or 0.0, failed)}


def _noise(check: _Check, alpha: float) -> float:
    """The excess that noise alone reaches with probability `alpha`."""
    # A threshold has one wrong side, a drift two.
    tail = alpha if check.kind == "threshold" else alpha / 2
    return -float(stdtrit(max(_LEAST_FREEDOM, check.freedom), tail)) * (check.error or 0.0)


def _threshold_reason(check: _Check, noise: float, failed: bool) -> str:
    value = f"{figure_at(check.figure, check.key)} is {number(check.value)}"
    if not check.excess:
        return f"{value}, within your limit: {check.limit}"
    beyond = f"{value}, beyond your limit ({check.limit}) by {number(check.excess)}"
    if failed and not noise:
        return beyond
    return f"{beyond}, {'more' if failed else 'no more'} than the {number(noise)} that noise explains"


def _drift_reason(check: _Check, noise: float, failed: bool) -> str:
    sentence = _moved(check)
    if failed:
        return f"{sentence}: more than the {check.limit} allowed, and more than its noise of {number(noise)}"
    if (check.excess or 0.0) <= check.size:
        return f"{sentence}: no more than {check.limit}"
    return f"{sentence}: no more than its noise of {number(noise)}"


def _moved(check: _Check) -> str:
    """The change from the baseline as a sentence."""
    assert check.value is not None
    assert check.baseline_value is not None
    moved = check.value - check.baseline_value
    return (
        f"{figure_at(check.figure, check.key)} {'rose' if moved > 0 else 'fell'} by {number(abs(moved))}, "
        f"from {number(check.baseline_value)} in {check.baseline} to {number(check.value)}"
    )


def _key(row: Row) -> Row:
    return {name: row[name] for name in ("model", "temperature", "tau", "schema_version")}


def standard_error(row: Row, figure: str, of_this_corpus: bool = False) -> float | None:
    """Standard error of a figure of collapse_summary, binomial for a share; None if not known."""
    if figure in SHARES and (of_this_corpus or row.get("documents") is None):
        texts = row[SHARES[figure]]
        factor = finite_population(texts, row["corpus_texts"]) if of_this_corpus else 1.0
        return math.sqrt(row[figure] * (1 - row[figure]) / texts) * float(factor)
    name = f"{figure.removesuffix('_mean')}_se" + ("" if of_this_corpus else "_superpopulation")
    error = row.get(name)
    return None if error is None or not math.isfinite(error) else float(error)


def _pooled(before: Row, after: Row, figure: str) -> tuple[float, float]:
    """Errors of two shares taken as equal, so that a share of 0 has an error too; those of documents where larger."""
    rows = (before, after)
    texts = [row[SHARES[figure]] for row in rows]
    share = sum(n * row[figure] for n, row in zip(texts, rows, strict=True)) / sum(texts)
    pooled = [math.sqrt(share * (1 - share) / n) for n in texts]
    errors = [0.0 if row.get("documents") is None else standard_error(row, figure) or 0.0 for row in rows]
    return max(pooled[0], errors[0]), max(pooled[1], errors[1])


def _freedom(row: Row, figure: str) -> int:
    """Degrees of freedom of a figure's error; below `_LEAST_FREEDOM` there are too few texts for an error."""
    if figure.startswith("socm_"):
        known = row.get("socm_freedom")  # Groups are fewer than their texts.
        return int(known) if known is not None else int(row.get("socm_texts") or 0) - 1
    prefix = _OF.get(figure, "")
    documents = row.get(f"{prefix}documents")
    return int((row.get(f"{prefix}texts") if documents is None else documents) or 0) - 1


def _known(value: float | None) -> float | None:
    return None if value is None else finite(value)
