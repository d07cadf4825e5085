"""Tables on the terminal, for the closing lines of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tempscale_jobs.errors import visible
from tempscale_jobs.urls import hidden

_NARROW, _WIDE = 80, 200


class Screen(Console):
    """A console that shows what a corpus or a path says and does not do it: control characters are visible escapes, and
    addresses have no secrets.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if self.width < 1:  # COLUMNS=0, at which nothing at all is printed.
            self.width = _NARROW

    def print(self, *objects: Any, **options: Any) -> None:
        """See `rich.console.Console.print`."""
        super().print(*(visible(hidden(item), "\n\t") if isinstance(item, str) else item for item in objects), **options)


def screen() -> Console:
    """A console on standard output; if that is no terminal, it is wide enough for any table."""
    console = Screen()
    return console if console.is_terminal else Screen(width=_WIDE)


def print_table(console: Console, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print lines below their heads, as plain text without markup."""
    table = Table(box=None, padding=(0, 2))
    for name in heads:
        table.add_column(Text(visible(name)))  # As Text, since rich reads 'a[/b]' in a string as markup.
    for line in lines:
        table.add_row(*(Text(visible(hidden(cell))) for cell in line))
    console.print()
    console.print(table)
