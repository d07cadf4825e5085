"""What is printed when a command is done: the answer of a run in a few lines, and tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tempscale_jobs.errors import visible
from tempscale_jobs.outlets import WIDTH, wrapped
from tempscale_jobs.report.terms import explained
from tempscale_jobs.urls import hidden

_NARROW, _WIDE = 80, 200
_LINES = 8
"""Lines of an ending, besides those of further models."""
_OF_ONE = ((4, 2, True), (4, 2, False), (3, 2, False), (3, 1, False), (2, 1, False), (1, 1, False))
"""Lines of the answer, lines of what to do, and whether there are figures: the first that fits is taken."""
_OF_SEVERAL = ((2, 2, True),)
"""The same, of each of several models."""
_SENTENCE = re.compile(r"(?<=[.?!]) (?=\S)")


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


class Ending(NamedTuple):
    """What a command says when its run is done."""

    answers: Sequence[str]
    """The answer, or one for each of several models, which begins with the model."""
    place: str
    """Where the report is, or what else was made, after its name."""
    figures: Sequence[str] = ()
    """At most four, each with its name."""
    to_do: str = ""
    commands: Sequence[str] = ()
    """What to run for it."""
    gate: str = ""
    is_failed: bool = False
    """Whether the gate failed."""
    annotations: Sequence[str] = ()
    """Lines for the program that runs the command."""


def by_model(answers: Mapping[str, str]) -> list[str]:
    """The answers of several models, each after its model's name; that of a single one as it is."""
    return [answer if len(answers) == 1 else f"{model}: {answer}" for model, answer in answers.items()]


def lines_of(ending: Ending) -> list[tuple[str, str]]:
    """The lines of an ending, each with its style: at most eight for one model, two more for each further one.

    Where there is too much to say, the figures go first, then the last sentences. A failed gate comes before the answer.
    """
    first, last = (ending.gate, "") if ending.is_failed else ("", ending.gate)
    first, *answers, figures, advice, last = explained(
        [first, *ending.answers, ", ".join(ending.figures), ending.to_do, last]
    )
    gates = [(line, "bold red" if ending.is_failed else "green") for line in _fitted(first or last, 3 if first else 1)]
    for of_answer, of_to_do, has_figures in _OF_SEVERAL if len(answers) > 1 else _OF_ONE:
        lines = [
            *(gates if ending.is_failed else []),
            *((line, "bold") for text in answers for line in _fitted(text, of_answer)),
            *((line, "") for line in _fitted(figures * has_figures, 2)),
            *((line, "") for line in _fitted(advice, of_to_do)),
            *((f"  {command}", "cyan") for command in ending.commands),
            *([] if ending.is_failed else gates),
            (ending.place, ""),
        ]
        if len(lines) <= _LINES:
            break
    return lines


def _fitted(text: str, lines: int) -> list[str]:
    """A text in at most so many lines: without its last sentences, or cut where its first one is longer."""
    sentences = _SENTENCE.split(visible(hidden(text)))  # Before lines are broken: both change its length.
    while len(sentences) > 1 and len(wrapped(" ".join(sentences))) > lines:
        sentences.pop()
    fitted = wrapped(" ".join(sentences))
    if len(fitted) <= lines:
        return fitted
    last = fitted[lines - 1]
    return [*fitted[: lines - 1], f"{last if len(last) < WIDTH - 1 else last.rpartition(' ')[0]} …"]


def print_ending(ending: Ending) -> None:
    """Print what a command says when its run is done, on standard output."""
    console = Screen()
    console.print()
    for line, style in lines_of(ending):
        console.print(line, style=style, highlight=False, soft_wrap=True, markup=False)
    for line in ending.annotations:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
