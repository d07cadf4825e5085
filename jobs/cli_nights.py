"""The commands over several finished runs: the record of nights, and what changed between two. See `cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jobs import night_options
from jobs.answering import answer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer()


@app.command(
    epilog="Exit codes: 0 done · 2 the folder holds no record, or the options do not fit.\n\nExamples:\n\n"
    "  tempscale history nights                          every night's figures with their errors, and a page of them\n\n"
    "  tempscale history nights --accept 2026-11-25      that change was meant: later nights are compared with it\n\n"
    "  tempscale history nights --prune --keep 7         embeddings of the last seven nights stay, tables of all"
)
def history(
    folder: night_options.HistoryFolder,
    accept: night_options.Accept = None,
    prune: night_options.Prune = False,
    keep: night_options.KeepNights = None,
    last: night_options.LastNights = 30,
) -> None:
    """Print and draw the record of nights; accept a run as baseline; remove old nights' embeddings."""

    def run(console: Console) -> int:
        from jobs import commands
        from jobs.errors import UsageError

        if prune != (keep is not None):
            raise UsageError("--prune and --keep N belong together: tempscale history FOLDER --prune --keep 7")
        if prune and accept is not None:
            raise UsageError("--accept and --prune are two things; do one after the other")
        return commands.history(folder, accept, keep, last, console)

    answer(run)


@app.command(
    epilog="Exit codes: 0 done · 2 one of the folders holds no finished audit.\n\nExample:\n\n"
    "  tempscale compare nights/2026-11-24 nights/2026-11-25"
)
def compare(run_a: night_options.RunA, run_b: night_options.RunB, out: night_options.CompareOut = None) -> None:
    """Say what changed from one audit to another, whether beyond noise, and what moved it.

    The model, the temperature or the corpus; which lengths; and the texts that moved most.
    """

    def run(console: Console) -> int:
        from jobs import commands

        return commands.compare(run_a, run_b, out, console)

    answer(run)
