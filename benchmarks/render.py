"""results/*.json -> docs/performance.md and its charts; no figure of that page is written by hand."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks import charts
from benchmarks.groups import GROUPS, Group
from benchmarks.wording import cells, further, plain

PAGE, CHARTS = "performance.md", "performance"
"""The page and the folder of its charts, below docs/."""
Results = dict[str, Any]
"""The content of one machine's file."""
_NO_VERSIONS = ("on", "known_from", "tests")

_INTRODUCTION = """
    Written from `benchmarks/results/` by `python -m benchmarks`. `make bench` repeats all measurements except the million
    texts, `python -m benchmarks NAME …` some of them; `python -m benchmarks render` only writes this page again.
"""
_READING = """
    A rate is that of the fastest of a few rounds in which the methods take turns, on one thread unless its row says
    otherwise; whole stages and commands are timed once. A ratio above 1 is faster. A share is relative to a physical limit,
    which each group names. Every group has the date and the versions of its own measurement.
"""
_LOST = """
    Other kernels for d_Σ and for the cosines of all pairs, with their times and errors, and the time of each step for a
    million texts: [benchmarks/NOTES.md](../benchmarks/NOTES.md).
"""
_NEVER = """
    Nothing was ever run on a GPU: neither embedding nor the pairwise engine nor the layers. `make gpu` runs every test of a
    GPU on a machine that has one, and then measures them; it needs no Ray.
"""
_NOT_YET = """
    Of a GPU: {parts}. `make gpu` measures it on a machine that has one, and was stopped before.
"""
_RAN = """
    On one H100 with torch 2.11 and transformers 5.17: `make gpu` as a whole, in 184 s, 74 of them for every test of a GPU;
    and on Ray whole audits of 50,000 paragraphs, by one actor and by four that shared the card, one of which was killed in
    the middle: the same bytes ([benchmarks/NOTES.md](../benchmarks/NOTES.md#a-whole-audit-on-an-h100)). Micro-batches
    of 65,536 tokens by default, packed ones that no padding ends, and super-tiles on the actors that embedded came after
    `make gpu`: the audits and 158 of its tests ran with them, its rates are from before. No other card, not several of them,
    and no cluster whose nodes with GPUs come and go was ever at hand; that is tested with declared GPUs.
"""
_PARTS = {"tokens/s": "embedding beside sentence-transformers", "texts/s": "the layers"}
"""What `make gpu` measures after the pairs of texts, by the unit of its rates."""
_UNSURE = 0.2
"""Standard error of an exponent from which on it says nothing of larger runs."""


def write(results: Path, docs: Path) -> list[Path]:
    """Write the page and its charts into `docs`, remove old charts, and return the written files."""
    machines, soak = read(results)
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
    (docs / PAGE).write_text(page(machines, soak), "utf-8")
    return [*written, docs / PAGE]


def read(results: Path) -> tuple[dict[str, Results], dict[str, Any] | None]:
    """Every machine's results by the name of their file, and the results of the last soak."""
    files = {file.stem: json.loads(file.read_text("utf-8")) for file in sorted(results.glob("*.json"))}
    return {stem: found for stem, found in files.items() if "results" in found}, files.get("soak")


def page(machines: dict[str, Results], soak: dict[str, Any] | None) -> str:
    """The page as Markdown; only `results` and each row's `benchmark`, `what`, `rate` and `unit` must be there."""
    parts = ["# How fast, against what", _wrapped(_INTRODUCTION), _wrapped(_READING)]
    for stem, found in machines.items():
        parts += _machine(stem, found)
    parts += ["## What was tried and lost", _wrapped(_LOST)]
    units = {row["unit"] for found in machines.values() for row in found["results"] if row["benchmark"] == "gpu"}
    missing = [part for unit, part in _PARTS.items() if unit not in units]
    if missing:
        own = _NOT_YET.format(parts=" and ".join(missing)) if units else _NEVER
        parts += ["## What was never measured", _wrapped(own)]
    if units:
        parts += ["## What ran on a GPU, and what did not", _wrapped(_RAN)]
    if soak:
        parts += ["## What it survives", _soak(soak["storms"])]
    return "\n\n".join(parts) + "\n"


# --- a machine --------------------------------------------------------------------------------------------------------


def _machine(stem: str, found: Results) -> list[str]:
    machine, rows = found.get("machine", {}), found["results"]
    facts = [
        f"{name}: {machine.get(key, 'not recorded')}"
        for name, key in (("cores", "cores"), ("system", "system"), ("GPU", "gpu"))
    ]
    parts = [f"## {plain(machine.get('processor', stem))}", plain(f"The machine: {'; '.join(facts)}.")]
    order = [*GROUPS, *(row["benchmark"] for row in rows)]
    names = sorted({row["benchmark"] for row in rows}, key=order.index)
    drawn = charts.of(stem, rows)
    for name in names:
        own = [row for row in rows if row["benchmark"] == name]
        group = GROUPS.get(name, Group(name, ""))
        parts += [f"### {plain(group.title)}", *filter(None, [_wrapped(group.text)]), table(shown(own), group)]
        parts += filter(None, [_exponents(own)])
        parts += [f"![{plain(chart.alt)}]({CHARTS}/{file}.svg)" for file, chart in drawn.items() if chart.benchmark == name]
        parts.append(_measured(found.get("measured", {}).get(name)))
    return [*parts, *_versions(names, found.get("measured", {}))]


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of a series that grows its ends, since a chart shows the sizes between; of each step of shrunken runs the largest."""
    series: dict[Any, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        series.setdefault(_series(row, number), []).append(row)
    hidden = []
    for one in series.values():
        hidden += one[:-1] if "step" in one[0] else one[1:-1]
    return [row for row in rows if row not in hidden]


def _series(row: dict[str, Any], number: int) -> tuple[Any, ...]:
    """What the sizes of one series have in common; a row of none is alone."""
    if "step" in row:
        return row["step"], row.get("cosine")
    return (row["series"], row["grows"]) if "grows" in row else (number,)


def table(rows: list[dict[str, Any]], group: Group) -> str:
    """The rows of one benchmark as a table, without empty columns."""
    heads = ("what", "rate", group.ratio, group.limit, "other figures")
    lines = [(plain(row["what"]), *cells(row), further(row)) for row in rows]
    kept = [k for k in range(len(heads)) if k < 2 or any(line[k] for line in lines)]
    return "\n".join(
        [
            "| " + " | ".join(heads[k] for k in kept) + " |",
            "| --- |" + " ---: |" * (sum(k in kept for k in (1, 2, 3))) + " --- |" * (4 in kept),
            *("| " + " | ".join(line[k] for k in kept) + " |" for line in lines),
        ]
    )


def _measured(measured: dict[str, str] | None) -> str:
    if measured is None:
        return "The date and the versions of this measurement are not recorded."
    versions = [f"{name} {measured[name]}" for name in ("tempscale", "torch") if name in measured]
    known = f" ({measured['known_from']})" if "known_from" in measured else ""
    tests = f" Before, on the same card: {measured['tests']}." if "tests" in measured else ""
    return _wrapped(
        f"Measured on {measured.get('on', 'an unknown day')} with {', '.join(versions) or 'unknown versions'}{known}.{tests}"
    )


def _versions(names: Iterable[str], measured: dict[str, dict[str, str]]) -> list[str]:
    """One line for each set of versions, with the benchmarks that were measured with it."""
    sets: dict[str, list[str]] = {}
    for name in names:
        own = {package: version for package, version in measured.get(name, {}).items() if package not in _NO_VERSIONS}
        if own:
            sets.setdefault(", ".join(f"{package} {version}" for package, version in own.items()), []).append(name)
    lines = [_wrapped(f"- {', '.join(names)}: {versions}.", "  ") for versions, names in sets.items()]
    return ["### Versions", "\n".join(lines)] if lines else []


def _exponents(rows: list[dict[str, Any]]) -> str:
    """A line for each series, with its fitted exponent."""
    series: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        if "exponent" in row:
            series.setdefault((row["series"], row["grows"]), []).append(row)
    lines = []
    for (name, grows), own in series.items():
        error = own[0].get("exponent_se")
        text = f"{own[0]['exponent']:.2f}" + ("" if error is None else f" ± {error:.2f}")
        span = f"from {own[0]['size']:,} to {own[-1]['size']:,} {grows}"
        unsure = "" if error is None or error < _UNSURE else " (starting takes most of the smaller runs: no growth follows)"
        lines.append(f"- {plain(name)}, {span}: seconds grow as {grows} to the power of {text}{unsure}")
    return "\n".join(lines)


def _soak(soak: dict[str, Any]) -> str:
    """The last soak, in two lines."""
    kinds = ", ".join(f"{number} of {kind}s" for kind, number in soak["of"].items())
    same = (
        "every run ended with the bytes of an undisturbed one" if soak["same_bytes"] else "not every run ended as it should"
    )
    text = f"The last `make soak`: {soak['kills']} kills ({kinds}) in {soak['runs']} runs on {soak['nodes']} nodes; {same}."
    return f"{text}\nMore about it: [reliability.md](reliability.md)."


def _wrapped(text: str, indent: str = "") -> str:
    """A paragraph wrapped into lines; code in backticks is never broken."""
    kept = re.sub(r"`[^`]+`", lambda code: code.group().replace(" ", "\0"), " ".join(text.split()))
    lines = textwrap.fill(kept, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\0", " ")
