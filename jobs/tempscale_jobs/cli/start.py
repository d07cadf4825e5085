"""What every command does around its work: its progress is written, and what ends it early becomes a sentence and a code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, ParamSpec

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tempscale_jobs.config.command import Command
    from tempscale_jobs.runs.folder import Run
    from tempscale_jobs.runs.journal import Journal

EXIT_CODES = (
    "Exit codes: 0 done · 1 done and the gate failed · 2 wrong usage, configuration or input · "
    "3 incomplete: the same command goes on where it stopped."
)
NO_GATE = EXIT_CODES.replace(" · 1 done and the gate failed", "")

_REPEATED = "the last error came from the same place"

Parameters = ParamSpec("Parameters")

addresses: list[str] = []
"""The addresses with secrets that this process's command was given: an unexpected error may quote parts of them."""
completed = False
"""Whether this process has completed a run: what it prints after that is in the run's folder too."""


def answered(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The same command, run by `answer`."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **options: Parameters.kwargs) -> None:
        from tempscale_jobs.errors import Damaged, UsageError

        remember(options)

        def read(_: Console) -> None:
            try:
                command(*args, **options)
            except Damaged as error:  # These commands only read runs, so that they would fail again.
                raise UsageError(f"{error}; the command that made the run makes that file again") from None

        answer(read)

    return run


def remember(parameters: dict[str, Any]) -> None:
    """Remember the addresses with secrets that a command was given."""
    from tempscale_jobs.urls import addresses_in

    addresses[:] = addresses_in(list(parameters.values()))


def answer(command: Callable[[Console], int | None]) -> None:
    """Run a command; what ends it early becomes one sentence and its exit code."""
    from rich.markup import escape

    from tempscale.optional import missing, needs
    from tempscale_jobs.errors import AGAIN, RunError
    from tempscale_jobs.report.screen import Screen
    from tempscale_jobs.urls import lines_hidden, reason

    console = Screen(stderr=True)
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # A thread that outlives Ray must not start another.

    def say(head: str, sentence: str) -> None:
        console.print(f"[bold red]{head}:[/] {escape(sentence)}", highlight=False, soft_wrap=True)

    try:
        code = command(console) or 0
    except RunError as error:
        say(
            "error",
            str(error).replace(AGAIN, "; it came before, and repeating will not help") if _repeats(error) else str(error),
        )
        code = error.exit_code
    except KeyboardInterrupt:
        say("interrupted", "the same command goes on where this one stopped")
        code = 3
    except Exception as error:
        if (module := missing(error)) is not None:
            say("error", needs("this command", module))
            raise typer.Exit(2) from None
        say("error", f"unexpected {type(error).__name__}: {reason(error, *addresses)}")
        if os.environ.get("TEMPSCALE_DEBUG"):
            print(lines_hidden(traceback.format_exc(), addresses), end="", file=sys.stderr)
        else:
            state = "This error came before, and repeating will not help" if _repeats(error) else "The run is incomplete"
            console.print(f"{state}; set TEMPSCALE_DEBUG=1 to see where it stopped.", soft_wrap=True)
        code = 3
    if code:
        raise typer.Exit(code)


def print_end(config: Any, run: Run, as_json: bool) -> None:
    """Print what a finished run found: one JSON document, or its ending; nothing where the log is JSON."""
    from importlib import import_module

    from tempscale_jobs.report.screen import print_ending
    from tempscale_jobs.runs.folder import DONE, load_tables
    from tempscale_jobs.urls import masked

    if as_json or config.execution.log_format == "text":
        terminal = import_module(f"tempscale_jobs.{config.command}.terminal")
        finished = load_tables(run.storage), run.storage.read_json(DONE), masked(run.storage.root)
        if as_json:
            print(terminal.document(*finished).as_json())
        else:
            print_ending(terminal.ending(*finished))


def _note(error: Exception, out: str) -> None:
    """Write into the run's folder where an unexpected error came from; mark one that came from there the last time too."""
    from tempscale_jobs.runs import lock
    from tempscale_jobs.runs.folder import BEGUN, UNEXPECTED
    from tempscale_jobs.runs.storage import Storage

    if isinstance(error, OSError | MemoryError):  # What a disk, a network or a machine lacks, it may have the next time.
        return
    place = _place(error)
    with suppress(Exception):  # The folder may be what fails.
        storage = Storage(out)
        names = storage.names()
        if UNEXPECTED in names and storage.read_json(UNEXPECTED) == place:
            error.add_note(_REPEATED)
        if BEGUN in names or not {*names} - {UNEXPECTED, lock.NAME}:  # Nothing is left in a folder of other things.
            storage.write_json(UNEXPECTED, place, durable=False)


def _forget(out: str) -> None:
    from tempscale_jobs.runs.folder import UNEXPECTED
    from tempscale_jobs.runs.storage import Storage

    with suppress(Exception):
        Storage(out).remove(UNEXPECTED)


def _place(error: BaseException) -> dict[str, str]:
    """The type of an error, and the innermost line of ours that it passed, in a worker too."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = "".join(traceback.format_exception(error, chain=False)).splitlines()
    ours = [line.strip() for line in frames if line.lstrip().startswith('File "') and f"{os.sep}tempscale" in line]
    return {"error": type(error).__name__, "place": ours[-1] if ours else ""}


def _repeats(error: Exception) -> bool:
    return _REPEATED in getattr(error, "__notes__", ())


@contextmanager
def begun(config: Command, source: str, console: Console) -> Iterator[Journal]:
    """Say at once what begins; the journal of its progress, closed at its end."""
    from rich.markup import escape

    from tempscale_jobs.errors import RunError, Unexpected
    from tempscale_jobs.report.screen import Screen
    from tempscale_jobs.runs.journal import Journal
    from tempscale_jobs.runs.observing import JsonLines, Observer, RayMetrics, StatusFile
    from tempscale_jobs.urls import addresses_in, masked, reason

    addresses.extend(addresses_in(config.model_dump(mode="json")))
    title = f"{masked(source)} → {masked(config.out)}"
    observers: list[Observer] = [StatusFile(), RayMetrics()]
    if config.execution.log_format == "json":
        console.quiet = True
        observers.append(JsonLines())
        observers[-1].say("command", f"tempscale {config.command} {title}")
    if config.execution.quiet:  # Errors are printed on the other console.
        console = Screen(stderr=True, quiet=True)
    console.print(f"[bold]tempscale {config.command}[/] {escape(title)}", highlight=False, soft_wrap=True)
    with closing(Journal(console, observers)) as journal:
        try:
            yield journal
        except RunError as error:
            journal.end("incomplete" if error.exit_code == 3 else "failed", str(error))
            if isinstance(error, Unexpected):
                _note(error, config.out)
            raise
        except KeyboardInterrupt:
            journal.end("incomplete", "interrupted: the same command goes on where this one stopped")
            raise
        except Exception as error:
            journal.end("incomplete", f"unexpected {type(error).__name__}: {reason(error, *addresses)}")
            _note(error, config.out)
            raise
        journal.end("complete", journal.outcome)
        _forget(config.out)
        global completed
        completed = True
