"""The `tempscale` command. Help and usage errors answer without importing torch or ray."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

import tempscale
from tempscale_jobs import outlets
from tempscale_jobs.cli import records, runs, start, submit
from tempscale_jobs.errors import visible
from tempscale_jobs.urls import hidden


class _Masking(TyperGroup):
    """The group of commands, whose own messages on wrong usage show no secret of an address."""

    def make_context(self, *args: Any, **options: Any) -> Any:
        with _masked_message():
            return super().make_context(*args, **options)

    def invoke(self, ctx: Any) -> Any:
        with _masked_message():
            return super().invoke(ctx)


@contextmanager
def _masked_message() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # typer's own errors have no public class above them.
        if isinstance(message := getattr(error, "message", None), str) and hasattr(error, "format_message"):
            vars(error)["message"] = visible(hidden(message))
        raise


app = typer.Typer(
    name="tempscale",
    cls=_Masking,
    help="Do your text embeddings collapse, and what to do about it: a distributed audit on Ray.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_INTERRUPTED = 130
"""What typer makes of an interrupt outside a command's own work."""


def _print_version(requested: bool) -> None:
    if requested:
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
    outlets.install()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # A polite kill ends as Ctrl-C does.
    try:
        app(prog_name="tempscale")  # However Python was started: `python -m tempscale` is the same command.
        _end(0)
    except KeyboardInterrupt:
        _end(3)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        _end(3 if end.code == _INTERRUPTED else end.code or 0)


def _end(code: int) -> NoReturn:
    """End the process with this code, without the end of the interpreter.

    A thread of pyarrow that still reads ahead through a Python file would abort the process there, after a perfect run.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    if isinstance(sys.stdout, outlets.Outlet) and (problem := sys.stdout.problem) is not None:
        print(f"what is printed here could not be written: {problem}", file=sys.stderr)
        code = code or (0 if start.completed else 3)
    sys.stderr.flush()
    os._exit(code)
