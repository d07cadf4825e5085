"""What every command does around its work: its progress is written, and what ends it early becomes a sentence and a code."""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, ParamSpec

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tempscale_jobs.config.command import Command
    from tempscale_jobs.runs.journal import Journal

EXIT_CODES = (
    "Exit codes: 0 done · 1 done and the gate failed · 2 wrong usage, configuration or input · "
    "3 incomplete: the same command goes on where it stopped."
)
NO_GATE = EXIT_CODES.replace(" · 1 done and the gate failed", "")

Parameters = ParamSpec("Parameters")

completed = False
"""Whether this process has completed a run: what it prints after that is in the run's folder too."""


def answered(command: Callable[Parameters, None]) -> Callable[Parameters, None]:
    """The same command, run by `answer`."""

    @functools.wraps(command)
    def run(*args: Parameters.args, **given: Parameters.kwargs) -> None:
        from tempscale_jobs.errors import Damaged, UsageError

        def read(_: Console) -> None:
            try:
                command(*args, **given)
            except Damaged as error:  # These commands only read runs, so that they would fail again.
                raise UsageError(f"{error}; the command that made the run makes that file again") from None

        answer(read)

    return run


def answer(command: Callable[[Console], int | None]) -> None:
    """Run a command; what ends it early becomes one sentence and its exit code."""
    from rich.markup import escape

    from tempscale_jobs.errors import RunError
    from tempscale_jobs.report.screen import Screen

    console = Screen(stderr=True)
    os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")  # A thread that outlives Ray must not start another.

    def say(head: str, sentence: str) -> None:
        console.print(f"[bold red]{head}:[/] {escape(sentence)}", highlight=False, soft_wrap=True)

    try:
        code = command(console) or 0
    except RunError as error:
        say("error", str(error))
        code = error.exit_code
    except KeyboardInterrupt:
        say("interrupted", "the same command goes on where this one stopped")
        code = 3
    except Exception as error:
        say("error", f"unexpected {type(error).__name__}: {error}")
        if os.environ.get("TEMPSCALE_DEBUG"):
            traceback.print_exc()
        else:
            console.print("The run is incomplete; set TEMPSCALE_DEBUG=1 to see where it stopped.", soft_wrap=True)
        code = 3
    if code:
        raise typer.Exit(code)


@contextmanager
def begun(config: Command, source: str, console: Console) -> Iterator[Journal]:
    """Say at once what begins; the journal of its progress, closed at its end."""
    from rich.markup import escape

    from tempscale_jobs.errors import RunError
    from tempscale_jobs.runs.journal import Journal
    from tempscale_jobs.runs.observing import JsonLines, Observer, RayMetrics, StatusFile
    from tempscale_jobs.urls import masked, reason

    title = f"{masked(source)} → {masked(config.out)}"
    observers: list[Observer] = [StatusFile(), RayMetrics()]
    if config.execution.log_format == "json":
        console.quiet = True
        observers.append(JsonLines())
        observers[-1].say("command", f"tempscale {config.command} {title}")
    console.print(f"[bold]tempscale {config.command}[/] {escape(title)}", highlight=False, soft_wrap=True)
    with closing(Journal(console, observers)) as journal:
        try:
            yield journal
        except RunError as error:
            journal.end("incomplete" if error.exit_code == 3 else "failed", str(error))
            raise
        except KeyboardInterrupt:
            journal.end("incomplete", "interrupted: the same command goes on where this one stopped")
            raise
        except Exception as error:
            journal.end("incomplete", f"unexpected {type(error).__name__}: {reason(error, config.out)}")
            raise
        journal.end("complete", journal.outcome)
        global completed
        completed = True
