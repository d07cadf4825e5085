"""Read a sample of a corpus for `--plan`, from all of a source of one unit or a few units; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from tempscale.stats.sample import seeded_sample
from tempscale_jobs.corpus import sources, units
from tempscale_jobs.corpus.reading import Contents
from tempscale_jobs.corpus.rows import Counts, sampled
from tempscale_jobs.corpus.units import Unit

_UNITS = 4
"""Units that are read: half a million short texts, or 128 MB."""


class Preview(NamedTuple):
    """A look at a corpus."""

    items: list[Any]
    """A seeded sample of the usable rows, in the corpus's order."""
    usable: int
    """Usable rows: exact for a source of one unit, else extrapolated from a few units by their bytes."""
    left_out: str = ""
    """Files of its folder that are no data, as the end of a sentence."""


def preview(contents: Contents, size: int, seed: int, run_folder: str) -> Preview:
    """Read a sample of `size` usable rows."""
    corpus = contents.corpus
    planned = units.plan(corpus, contents.columns, corpus, run_folder)
    if len(planned) == 1:
        planned = (replace(planned[0], limit=corpus.limit),)
    else:
        contents.begin(None)
    chosen = {planned[int(k)].number for k in seeded_sample(map(str, range(len(planned))), _UNITS, seed)}
    seen, counts = [_without_numbers(unit) for unit in planned if unit.number in chosen], Counts()

    def items() -> Iterator[Any]:
        for unit in seen:
            yield from contents.items(unit, counts, None)

    sample = list(sampled(items(), size, seed))
    if not contents.agrees(counts.widths.items()):
        counts = Counts()
        sample = list(sampled(items(), size, seed))
    read_bytes, all_bytes = (float(np.sum([unit.bytes for unit in group])) for group in (seen, planned))
    usable = counts.usable if len(seen) == len(planned) else round(counts.usable * all_bytes / max(1.0, read_bytes))
    if corpus.limit is not None and counts.read:
        usable = min(usable, round(corpus.limit * counts.usable / counts.read))
    return Preview(sample, usable, sources.left_out(corpus, run_folder))


def _without_numbers(unit: Unit) -> Unit:
    """The unit without line numbers, which would have to be counted and which a preview does not show."""
    return replace(unit, pieces=tuple(piece._replace(row=piece.row or 0) for piece in unit.pieces))
