"""How a command ends: its exit code, and one sentence for what ends it early."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

EXIT_CODES = (
    "Exit codes: 0 done · 1 done and the gate failed · 2 wrong usage, configuration or input · "
    "3 incomplete: the same command goes on where it stopped."
)
NO_GATE = EXIT_CODES.replace(" · 1 done and the gate failed", "")


def answer(command: Callable[[Console], int]) -> None:
    """Run a command; what ends it early becomes one sentence and its exit code."""
    from rich.console import Console

    from jobs.errors import RunError

    console = Console(stderr=True)
    try:
        code = command(console)
    except RunError as error:
        console.print(f"[bold red]error:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        code = error.exit_code
    except KeyboardInterrupt:
        console.print(
            "[bold red]interrupted:[/] the same command goes on where this one stopped", highlight=False, soft_wrap=True
        )
        code = 3
    except Exception as error:
        console.print(
            f"[bold red]error:[/] unexpected {type(error).__name__}: {_plain(error)}", highlight=False, soft_wrap=True
        )
        if os.environ.get("TEMPSCALE_DEBUG"):
            traceback.print_exc()
        else:
            console.print("The run is incomplete; set TEMPSCALE_DEBUG=1 to see where it stopped.", soft_wrap=True)
        code = 3
    raise typer.Exit(code)


def _plain(error: BaseException) -> str:
    """The message with rich's markup characters kept as they are."""
    from rich.markup import escape

    return escape(str(error))
