"""The figures of docs/short-texts-win.md: `python docs/short_texts.py NAME=RUN …` reads finished runs of `tempscale tune`
with labels into benchmarks/results/corrections.json, in place of earlier ones of the same names, and `docs/generate.py`
renders them.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import NormalDist
from typing import Any

import polars as pl

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results" / "corrections.json"


def page() -> str:
    """docs/short-texts-win.md with the recorded figures."""
    found = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.exists() else []
    text = (HERE / "short-texts-win.md").read_text("utf-8")
    pattern = re.compile(r"(<!-- figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)
    return pattern.sub(lambda marks: f"{marks[1]}{_table(found)}{marks[2]}", text)


def _table(found: list[dict[str, Any]]) -> str:
    if not found:
        return ""
    candidates = list(dict.fromkeys(row["candidate"] for run in found for row in run["rows"]))
    rows = [{row["candidate"]: row for row in run["rows"]} for run in found]
    heads = [
        f"| {what} | {' | '.join(names)} |\n| --- |{' ---: |' * len(found)}"
        for what, names in {
            "NDCG@10, change": [run["name"] for run in found],
            "exposure": [_short(run["name"]) for run in found],
        }.items()
    ]
    changes = [row for run in found for row in run["rows"][1:]]
    z = NormalDist().inv_cdf(1 - 0.025 / len(changes))
    moved = [row["change"] for row in changes if abs(row["change"]) > z * row["se"]]
    gains = sum(change > 0 for change in moved)
    scores = [_cells(name, [_score(own.get(name), z, first=name == candidates[0]) for own in rows]) for name in candidates]
    shown = [name for name in candidates if any(name in own and own[name]["exposure"] for own in rows)]
    exposures = [_cells(name, [_exposure(own.get(name)) for own in rows]) for name in shown]
    lines = [
        "\nHalf of the queries choose; the figures are of the other half: NDCG@10 of the first line, its change by each "
        "candidate, ± 1.96 standard errors of paired differences, where queries that share a document are not independent; "
        "then the exposure of fifths of the documents by length, shortest first, among the first ten (1 is fair). "
        f"**Of {len(changes)} changes {gains} {'is a gain' if gains == 1 else 'are gains'} and {len(moved) - gains} are "
        "losses beyond the noise of all together** (bold; Bonferroni).\n",
        heads[0], *scores, "", heads[1], *exposures,
    ]  # fmt: skip
    return "\n".join([*lines, ""]).replace("-0.", "−0.") + "\n"


def _short(name: str) -> str:
    """The data set and the model, for the second table of the same columns."""
    return ", ".join(name.split(", ")[:2])


def _cells(name: str, cells: list[str]) -> str:
    return f"| {name} | {' | '.join(cells)} |"


def _score(row: dict[str, Any] | None, z: float, *, first: bool) -> str:
    if row is None:
        return "–"
    change = f"{row['change']:+.4f} ± {1.96 * row['se']:.4f}"
    return f"{row['score']:.4f}" if first else f"**{change}**" if abs(row["change"]) > z * row["se"] else change


def _exposure(row: dict[str, Any] | None) -> str:
    return "–" if row is None or not row["exposure"] else " ".join(f"{value:.2f}" for value in row["exposure"])


def read(name: str, folder: Path) -> dict[str, Any]:
    """The rows of one finished run: its first temperature, the others, and the corrections."""
    scores, exposure = (pl.read_parquet(folder / "tables" / f"tuning_{kind}.parquet") for kind in ("scores", "exposure"))
    rows = []
    for k, row in enumerate(scores.to_dicts()):
        own = exposure.filter(pl.col("correction").eq_missing(pl.lit(row["correction"])))
        candidate = f"τ {row['temperature']}" if row["correction"] is None else row["correction"]
        shown = own["exposure"].to_list() if row["correction"] is not None or k == 0 else []
        rows.append(
            {"candidate": candidate, "score": row["held_score"], "change": row["held_change"], "se": row["held_change_se"]}
            | {"exposure": shown, "queries": row["held_items"]}
        )
    return {"name": f"{name}, {rows[0]['queries']:,} held-out queries", "rows": rows}


if __name__ == "__main__":
    given = [argument.partition("=") for argument in sys.argv[1:]]
    found = [read(name, Path(folder)) for name, _, folder in given]
    before = json.loads(RESULTS.read_text("utf-8"))["runs"] if RESULTS.exists() else []
    named = {run["name"] for run in found}
    found += [run for run in before if run["name"] not in named]
    RESULTS.write_text(json.dumps({"runs": found}, indent=2, ensure_ascii=False) + "\n", "utf-8")
