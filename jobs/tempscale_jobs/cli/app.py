"""The `tempscale` command. Help and usage errors answer without importing torch or ray."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

import tempscale
from tempscale_jobs.cli import records, runs, submit

app = typer.Typer(
    name="tempscale",
    help="Do your text embeddings collapse, and what to do about it: a distributed audit on Ray.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(given: bool) -> None:
    if given:
        print(f"tempscale {tempscale.__version__}")
        raise typer.Exit


@app.callback()
def _tempscale(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and stop.")
    ] = False,
) -> None: ...


app.add_typer(runs.app)
app.add_typer(records.app)
app.add_typer(submit.app)


def main() -> NoReturn:
    """The console command."""
    # A polite kill ends as Ctrl-C does: the folder stays resumable and Ray is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app(prog_name="tempscale")  # However Python was started: `python -m tempscale` is the same command.
        _end(0)
    except KeyboardInterrupt:
        _end(3)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(end.code or 0)


def _end(code: int) -> NoReturn:
    """End the process with this code, without the end of the interpreter.

    A thread of pyarrow that still reads ahead through a Python file would abort the process there, after a perfect run.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
