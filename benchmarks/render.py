"""results/*.json -> docs/dev/performance.md and its charts; no figure of that page is written by hand."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import charts
from benchmarks.groups import GROUPS, Group
from benchmarks.wording import cells, further, plain

PAGE, CHARTS = "performance.md", "performance"
"""The page and the folder of its charts, in docs/dev/."""
Results = dict[str, Any]
"""The content of one machine's file."""
_ELSEWHERE = ("on", "known_from", "tests", "tempscale")
"""What of a measurement is no version, or has its own place."""

_INTRODUCTION = """
    The main figures are in the [README](../../README.md#how-fast). `make bench` measures everything but the million
    texts; `benchmarks/results/` has every row, this page most.
"""
_READING = """
    A rate is that of the fastest of a few rounds in which the methods take turns, on one thread unless stated; whole stages
    and commands are timed once. A ratio above 1 is faster. A share is that of the group's physical limit; «the GEMM rate» is
    that of one large product in the same precision on as many threads. A date with * and the versions are those of the
    commit that recorded the rows. Slower methods that were tried: [benchmarks/NOTES.md](../../benchmarks/NOTES.md).
"""
_NEVER = """
    Nothing was ever run on a GPU. `make gpu` runs every test of a GPU on a machine that has one, and then measures; it needs
    no Ray.
"""
_NOT_YET = """
    Of a GPU: {parts}. `make gpu` measures it on a machine that has one, and was stopped before.
"""
_RAN = """
    On one H100: `make gpu` in 184 s, 74 of them for every test of a GPU; and on Ray audits of 50,000 paragraphs by one
    actor and by four that shared the card, one of which was killed: [the same
    bytes](../../benchmarks/NOTES.md#a-whole-audit-on-an-h100). Never tried: another card, several cards, and a
    cluster whose GPU nodes come and go, which tests imitate.
"""
_PARTS = {"tokens/s": "embedding beside sentence-transformers", "texts/s": "the layers"}
"""What `make gpu` measures after the pairs of texts, by the unit of its rates."""
_UNSURE = 0.2
"""Standard error of an exponent from which on it says nothing of larger runs."""


def write(results: Path, docs: Path) -> list[Path]:
    """Write the page and its charts into `docs`, remove old charts, and return the written files."""
    machines = read(results)
    folder = docs / CHARTS
    drawn = {
        f"{name}.svg": chart for stem, found in machines.items() for name, chart in charts.of(stem, found["results"]).items()
    }
    for file in folder.glob("*.svg"):
        if file.name not in drawn:
            file.unlink()
    written = []
    for name, chart in drawn.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(charts.svg(chart), "utf-8")
        written.append(folder / name)
    (docs / PAGE).write_text(page(machines), "utf-8")
    return [*written, docs / PAGE]


def read(results: Path) -> dict[str, Results]:
    """Every machine's results by the name of their file."""
    files = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(results.glob("*.json"))}
    return {stem: found for stem, found in files.items() if "results" in found}


def page(machines: dict[str, Results]) -> str:
    """The page as Markdown; only `results` and each row's `benchmark`, `what`, `rate` and `unit` must be there."""
    parts = ["# How fast, against what", _wrapped(_INTRODUCTION), _wrapped(_READING)]
    described: set[str] = set()
    for stem, found in machines.items():
        parts += _machine(stem, found, described)
    units = {row["unit"] for found in machines.values() for row in found["results"] if row["benchmark"] == "gpu"}
    missing = [part for unit, part in _PARTS.items() if unit not in units]
    if missing:
        own = _NOT_YET.format(parts=" and ".join(missing)) if units else _NEVER
        parts += ["## What was never measured", _wrapped(own)]
    if units:
        parts += ["## What ran on a GPU, and what did not", _wrapped(_RAN)]
    return "\n\n".join(parts) + "\n"


# --- a machine --------------------------------------------------------------------------------------------------------


def _machine(stem: str, found: Results, described: set[str]) -> list[str]:
    """The groups of one machine; `described` are those whose text is on the page, and receives these."""
    machine, rows = found.get("machine", {}), found["results"]
    facts = [f"{name}: {machine.get(name.lower(), 'not recorded')}" for name in ("cores", "system", "GPU")]
    order = [*GROUPS, *(row["benchmark"] for row in rows)]
    names = sorted({row["benchmark"] for row in rows}, key=order.index)
    facts += _versions([found.get("measured", {}).get(name, {}) for name in names])
    parts = [f"## {plain(machine.get('processor', stem))}", _wrapped(plain(f"The machine: {'; '.join(facts)}."))]
    drawn = charts.of(stem, rows)
    for name in names:
        own, group = [row for row in rows if row["benchmark"] == name], GROUPS.get(name, Group(name, ""))
        if not (visible := shown(own, group)):
            continue
        again = name in described
        text = "As above, on this machine." if again else _wrapped(group.text)
        described.add(name)
        lines = table(_with_exponents(visible), group, whole=not again)
        parts += [f"### {plain(group.title)}", *filter(None, [text]), lines]
        parts += [f"![{plain(chart.alt)}]({CHARTS}/{file}.svg)" for file, chart in drawn.items() if chart.benchmark == name]
        parts.append(_measured(found.get("measured", {}).get(name)))
    return parts


def shown(rows: list[dict[str, Any]], group: Group) -> list[dict[str, Any]]:
    """The ends of a growing series, since a chart shows the rest; of shrunken steps the largest; none that a group hides."""
    series: dict[Any, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        series.setdefault(_series(row, number), []).append(row)
    hidden = []
    for one in series.values():
        hidden += one[:-1] if "step" in one[0] else one[1:-1]
    return [row for row in rows if row not in hidden and not any(re.search(one, row["what"]) for one in group.hidden)]


def _series(row: dict[str, Any], number: int) -> tuple[Any, ...]:
    """What the sizes of one series have in common; a row of none is alone."""
    if "step" in row:
        return row["step"], row.get("cosine")
    return (row["series"], row["grows"]) if "grows" in row else (number,)


def table(rows: list[dict[str, Any]], group: Group, whole: bool = True) -> str:
    """The rows of one benchmark as a table, without empty columns; `whole` has the column of other figures."""
    heads = ("what", "rate", group.ratio, group.limit, "other figures")
    lines = [(plain(_name(row["what"], group)), *cells(row), further(row) if whole else "") for row in rows]
    kept = [k for k in range(len(heads)) if k < 2 or any(line[k] for line in lines)]
    return "\n".join(
        [
            "| " + " | ".join(heads[k] for k in kept) + " |",
            "| --- |" + " ---: |" * (sum(k in kept for k in (1, 2, 3))) + " --- |" * (4 in kept),
            *("| " + " | ".join(line[k] for k in kept) + " |" for line in lines),
        ]
    )


def _name(what: str, group: Group) -> str:
    """The name of a row without what its group's text says."""
    for piece in group.said:
        what = re.sub(piece, "", what)
    return what


def _measured(measured: dict[str, str] | None) -> str:
    if measured is None:
        return "The date and the versions of this measurement are not recorded."
    version = f"tempscale {measured['tempscale']}" if "tempscale" in measured else "unknown versions"
    known = "*" if "known_from" in measured else ""
    tests = f" Before, on the same card: {measured['tests']}." if "tests" in measured else ""
    return _wrapped(f"Measured on {measured.get('on', 'an unknown day')}{known} with {version}.{tests}")


def _versions(measured: list[dict[str, str]]) -> list[str]:
    """Each package with its version, or its versions where measurements of one machine had several."""
    found: dict[str, dict[str, None]] = {}
    for one in measured:
        for package, version in sorted(one.items(), key=lambda item: item[0] != "torch"):
            if package not in _ELSEWHERE and version != "not installed":
                found.setdefault(package, {})[version] = None
    return [f"{package} {' or '.join(versions)}" for package, versions in found.items()]


def _with_exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, the last of each growing series with the fitted exponent in words."""
    last = {(row["series"], row["grows"]): number for number, row in enumerate(rows) if "exponent" in row}
    return [row | {"growth": _exponent(row)} if number in last.values() else row for number, row in enumerate(rows)]


def _exponent(row: dict[str, Any]) -> str:
    error = row.get("exponent_se")
    unsure = "" if error is None or error < _UNSURE else ": Ray's start takes most of the smaller runs"
    return f"exponent {row['exponent']:.2f}" + ("" if error is None else f" ± {error:.2f}") + unsure


def _wrapped(text: str, indent: str = "") -> str:
    """A paragraph wrapped into lines; code in backticks is never broken."""
    kept = re.sub(r"`[^`]+`", lambda code: code.group().replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.fill(kept, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")
