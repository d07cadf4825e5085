"""The block that ends a run on the screen: where the report is and the figures that matter."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jobs.headline import closing_figures
from jobs.runs import Run
from jobs.summary import load_tables


def close(run: Run) -> None:
    """Print the figures that matter and where the report is, on standard output."""
    console = Console()
    for model, (temperatures, lines) in closing_figures(load_tables(run.storage)).items():
        table = Table(box=None, padding=(0, 2))
        for name in (model, *temperatures):
            table.add_column(Text(name))  # As Text: 'a[/b]' would be read as markup.
        for line in lines:
            table.add_row(*map(Text, line))
        console.print()
        console.print(table)
    places = f"\nreport  {run.storage.root}/report.html\ntables  {run.storage.root}/tables/"
    console.print(places, highlight=False, soft_wrap=True, markup=False)
