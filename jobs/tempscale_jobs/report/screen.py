"""Tables on the terminal, for the closing lines of a run."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 200


def screen() -> Console:
    """A console on standard output; if that is no terminal, it is wide enough for any table."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def print_table(console: Console, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    """Print lines below their heads, as plain text without markup."""
    table = Table(box=None, padding=(0, 2))
    for name in heads:
        table.add_column(Text(name))  # As Text, since rich reads 'a[/b]' in a string as markup.
    for line in lines:
        table.add_row(*map(Text, line))
    console.print()
    console.print(table)
