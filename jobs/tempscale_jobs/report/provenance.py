"""The last section of every report: what it was made of and with, from run.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tempscale_jobs.report.sections import Section, Table, caption
from tempscale_jobs.report.text import encoding


def how_made(
    run: Mapping[str, Any],
    captioned: str,
    temperatures: Mapping[str, str],
    *,
    corpus: Sequence[str] = (),
    models: Mapping[str, Sequence[str]] | None = None,
    **words: str,
) -> Section:
    """The section «How this was made».

    Args:
        run: the content of run.json.
        captioned: names the caption on how the figures were measured, which `words` fill in.
        temperatures: the label of each.
        corpus: lines on what was read; the first is its source.
        models: more lines on each model.
    """
    seconds = [f"{_labelled(step, temperatures)}: {timing['seconds']:.1f}" for step, timing in run.get("steps", {}).items()]
    rows = {
        "corpus": "\n".join(corpus),
        "corpus fingerprint": run.get("corpus", {}).get("fingerprint", "–") if corpus else "",
    }
    for name, known in run.get("models", {}).items():
        lines = [f"{known.get('fingerprint', '–')}, {encoding(known)}", *(models or {}).get(name, ())]
        if "tokenised_again" in known:
            lines.append(f"tokenised a second time, by the tokenizer: {known['tokenised_again']}")
        elif "tokenised_by" in known:
            lines.append(f"tokenised by {known['tokenised_by']}")
        rows[name] = "\n".join(lines)
    rows |= {
        "temperatures": "\n".join(f"{label}: {text}" if "…" in label else label for text, label in temperatures.items()),
        "versions": ", ".join(f"{name} {version}" for name, version in run.get("versions", {}).items()),
        "processor": run.get("processor", "–"),
        "seconds": "; ".join(seconds),
        "what may differ when it is run again": "; ".join(run.get("byte_identity_exceptions", [])) or "none",
        "workers that were lost": "; ".join(lost["reason"] for lost in run.get("lost_workers", [])),
    }
    table = Table(("", ""), [(name, value) for name, value in rows.items() if value], words=2)
    title, note = caption(captioned, **words)
    return Section(title, note=note, table=table, folded=True)


def _labelled(step: str, names: Mapping[str, str]) -> str:
    """A step's name with the temperature's label instead of its text, which may be hundreds of characters long."""
    for text in sorted(names, key=len, reverse=True):
        step = step.replace(f"τ {text}", names[text])
    return step
