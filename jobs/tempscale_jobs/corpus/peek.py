"""Look at the first rows of a source before Ray starts, so that a mistake in it is answered at once."""

from __future__ import annotations

from typing import Any

from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.reading import Contents
from tempscale_jobs.corpus.rows import Counts, nothing_usable
from tempscale_jobs.corpus.units import Piece, Unit

_ROWS = 100


def first_items(contents: Contents, without: str) -> list[Any]:
    """The usable ones among the first 100 rows; none of a source that can be read only once, which is left alone.

    Raises:
        UsageError: there is no such source, its first file cannot be read, a column is missing, or these are all of its
            rows and none is usable.
    """
    given, counts = contents.corpus, Counts()
    if not sources.is_read_again(given, without):
        return []
    most = min(_ROWS, given.limit or _ROWS)
    found = list(contents.items(Unit(0, (Piece("source"),), most), counts, None))
    if not found and (counts.read < most or most == given.limit):
        raise nothing_usable(given, contents.what, counts.read, dict(counts.reasons))
    return found
