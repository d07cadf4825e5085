"""What follows from an audit: at most three lines, each with the figure that it rests on and a command."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

import polars as pl

from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.audit.words import finding, unfair
from tempscale_jobs.report.text import estimate, interval_name, share, share_of, with_error
from tempscale_jobs.urls import masked

Row = dict[str, Any]
_MOST = 3
_CUT = 0.02
"""A smaller share of truncated texts is not worth a line."""


class Advice(NamedTuple):
    """One thing to do, or to leave."""

    text: str
    """A sentence with its figure."""
    command: str
    """What to run for it; empty where there is nothing to run."""


def advice(tables: dict[str, pl.DataFrame], row: Row, run: dict[str, Any]) -> list[Advice]:
    """What to do about the corpus and model of a row of collapse_summary, the most urgent first.

    Args:
        tables: those that `labelled` returns.
        row: the model's row at its first temperature.
        run: the content of run.json.
    """
    own = run["config"].get("corpus", {}).get("embedding_column") is not None
    found = [
        _more_texts(row, run), _documents(row, run), None if own else _truncated(row, run), _short_win(tables, row, run),
        None if own else _collapse(row, run),
    ]  # fmt: skip
    lines = [line for line in found if line is not None][:_MOST]
    return lines or [_nothing(row, run)]


def _more_texts(row: Row, run: dict[str, Any]) -> Advice | None:
    states = [finding(row, name) for name in ("collapse_gap", "prefix_gap")]
    if states[0] not in ("absent", "unknown"):
        return None
    analysed, usable = run["corpus"]["analysed"], run["corpus"]["usable"]
    why = (
        f"fewer than two length intervals have {TEXTS_FOR_AN_INTERVAL} of its {row['texts']:,} texts"
        if states[0] == "absent"
        else "its texts are of too few documents"
    )
    if analysed < usable:
        return Advice(
            f"Length was not measured, because {why}: analyse more of the {usable:,} usable texts.",
            _again(run, "audit", sample=min(usable, 10 * analysed)),
        )
    return Advice(
        f"Length was not measured, because {why}: finer length intervals, or a larger corpus, would tell.",
        _again(run, "audit", options=("--intervals", "0,16,32,64,128")),
    )


def _documents(row: Row, run: dict[str, Any]) -> Advice | None:
    order = run.get("models", {}).get(row["model"], {}).get("source_order")
    if row["documents"] is not None or order is None or not order["alike"]:
        return None
    return Advice(
        f"Name the documents that these texts are parts of: neighbours in the source are alike (a cosine of "
        f"{order['cosine_beside']:.2f}, {order['cosine_mean']:.2f} in the mean), so the errors here may be too small by a "
        f"factor of {order['factor']:.1f}.",
        _again(run, "audit", options=("--document-column", "COLUMN")),
    )


def _truncated(row: Row, run: dict[str, Any]) -> Advice | None:
    if row["truncated_share"] < _CUT:
        return None
    model = run.get("models", {}).get(row["model"], {})
    if run["config"].get("embedding", {}).get("long") == "chunk":
        return None
    window = model.get("max_length", "the window")
    return Advice(
        f"Split long texts at {window} tokens before they are embedded: {share_of(row, 'truncated_share')} of them are cut "
        "there, and no search sees the rest. What whole texts would give:",
        _again(run, "audit", options=("--long", "chunk")),
    )


def _short_win(tables: dict[str, pl.DataFrame], row: Row, run: dict[str, Any]) -> Advice | None:
    asked_by = "queries" if "queries" in run else "corpus"
    found = unfair(tables, row, asked_by)
    if not found:
        return None
    most = max(found, key=lambda one: one["exposure"])
    if most["exposure"] <= 1:
        return None
    name = interval_name(most["interval"], run["config"]["analysis"]["intervals"])
    return Advice(
        f"Texts of {name} tokens win searches: they are {share(most['texts_share'])} of the corpus and take "
        f"{share(most['slots_share'])} of all results (exposure "
        f"{with_error(most['exposure'], most['exposure_se_superpopulation'])}). Chunks of one length compete fairly. Does "
        "a temperature make it fairer?",
        _again(run, "tune"),
    )


def _collapse(row: Row, run: dict[str, Any]) -> Advice | None:
    said = {"prefix_gap": "Length itself draws texts together", "collapse_gap": "Long texts lie closer together"}
    for name, what in said.items():
        if finding(row, name) == "up":
            return Advice(
                f"{what}, by {estimate(row, name)} in mean cosine. Whether a temperature lessens it and harms nothing:",
                _again(run, "tune"),
            )
    return None


def _nothing(row: Row, run: dict[str, Any]) -> Advice:
    return Advice(
        f"Nothing needs to be done about length: the collapse gap is {estimate(row, 'collapse_gap')}, and no length takes "
        "more search results than its share. To hear when that changes, every night:",
        _again(run, "audit", options=("--out", "nights/{night}", "--baseline", "latest")),
    )


def _again(run: dict[str, Any], command: str, sample: int | None = None, options: tuple[str, ...] = ()) -> str:
    """A command on the same corpus and model."""
    corpus, embedding = run["config"].get("corpus", {}), run["config"].get("embedding", {})
    words = ["tempscale", command, "--corpus", masked(run["corpus"]["source"])]
    for name in ("id_column", "text_column", "document_column"):
        default = "text" if name == "text_column" else None
        if corpus.get(name) not in (None, default):
            words += [f"--{name.replace('_', '-')}", corpus[name]]
    for model in embedding.get("models", [])[:1]:
        words += ["--model", masked(model)]
    if sample is not None:
        words += ["--sample", str(sample)]
    return shlex.join([*words, *options])
