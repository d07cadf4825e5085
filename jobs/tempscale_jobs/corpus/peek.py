"""Look at the first rows of a source before Ray starts, so that a mistake in it is answered at once."""

from __future__ import annotations

from typing import Any

from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.reading import Contents
from tempscale_jobs.corpus.rows import Counts, nothing_usable
from tempscale_jobs.corpus.units import SourcePart, Unit

_ROWS = 100


def first_items(contents: Contents, run_folder: str) -> list[Any]:
    """The usable rows among the first 100, none of a pipe; a UsageError if a column is missing or no row is usable."""
    corpus, counts = contents.corpus, Counts()
    if not sources.is_read_again(corpus, run_folder):
        return []
    most = min(_ROWS, corpus.limit or _ROWS)
    items = list(contents.items(Unit(0, (SourcePart("source"),), most), counts, None))
    if not items and (counts.read < most or most == corpus.limit):
        raise nothing_usable(corpus, contents.what, counts.read, dict(counts.reasons))
    return items
