"""What another model or temperature changes for a search and for a threshold, on the texts that two audits share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from tempscale.collapse.length import interval_of
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.stats.errors import equal_documents
from tempscale.stats.sample import seeded_sample
from tempscale_jobs.nights.finished import Row, Side, documents_of_both
from tempscale_jobs.report.text import count
from tempscale_jobs.steps import calibration, carried
from tempscale_jobs.steps.carried import TEXTS_OF_PAIRS, Compared, Histograms, Pairs
from tempscale_jobs.steps.what_if_tables import mean_kept
from tempscale_jobs.tables.audit import EXCERPTS
from tempscale_jobs.tables.nights import SWAP_EXAMPLES, SWAP_NEIGHBOURS, SWAP_THRESHOLDS

_ASKERS, _EXAMPLES, _SEED = 10_000, 10, 0


class Swap(NamedTuple):
    """What changes."""

    tables: dict[str, list[Row]]
    """The rows of each table without key columns, by its name."""
    notes: list[str]
    """What the figures are of, and what is not known and why."""


def swap(a: Side, b: Side, thresholds: Sequence[float]) -> Swap:
    """Compare the nearest texts and the thresholds of A, or those that 1 % and 0.1 % of its pairs reach, with B's."""
    gone = [name for name, side in (("A", a), ("B", b)) if side.texts is None]
    if gone:
        which = f"the embeddings of {' and '.join(gone)} are gone"
        corpora = {(side.run.record["corpus"]["fingerprint"], side.row["texts"]) for side in (a, b)}
        if len(corpora) > 1:
            return Swap({}, [f"Searches and thresholds are not comparable: {which}, and the corpora differ."])
        rows = {SWAP_THRESHOLDS.name: _thresholds(a, b, None, thresholds)}
        return Swap(rows, [f"Which nearest texts and which pairs stay is not known: {which}."])
    texts = _Texts(a, b)
    if len(texts.both) < TEXTS_FOR_AN_INTERVAL:
        few = f"A and B share {count(len(texts.both), 'unchanged text')}, and it takes {TEXTS_FOR_AN_INTERVAL}"
        return Swap({}, [f"Searches and thresholds are not comparable: {few}."])
    rows, notes = {SWAP_THRESHOLDS.name: _thresholds(a, b, texts, thresholds)}, list[str]()
    if not texts.are_all:
        notes.append(f"Searches and thresholds are compared on the {count(len(texts.both), 'unchanged text')} of both runs.")
    asked = _asked(texts)
    if not asked:
        return Swap(rows, [*notes, "Which nearest texts stay is not known: no text asked for them in both runs."])
    return Swap(rows | {SWAP_NEIGHBOURS.name: _neighbours(texts, asked), SWAP_EXAMPLES.name: _examples(texts, asked)}, notes)


class _Texts:
    """The texts of both runs that are not known to have changed."""

    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b
        columns = ["text_id", "content_sha", "tokens", "document"]
        assert a.texts is not None
        assert b.texts is not None
        both = a.texts.select(columns).join(b.texts.select(columns), on="text_id", suffix="_b").sort("text_id")
        if a.run.has_texts and b.run.has_texts:  # A model's vectors are others, whatever the text.
            both = both.filter(pl.col("content_sha") == pl.col("content_sha_b"))
        self.both = both
        self.are_all = len(both) == len(a.texts) == len(b.texts)
        self.documents = documents_of_both(both)
        self.intervals = tuple(interval_of(both[name].to_numpy(), a.edges) for name in ("tokens", "tokens_b"))

    @property
    def have_one_length(self) -> bool:
        """Whether each text is in the same length interval in both runs."""
        return self.a.edges == self.b.edges and bool((self.intervals[0] == self.intervals[1]).all())

    def units(self, interval: int | None) -> float:
        """The number of texts, or of documents as if of equal size, of one length or of all."""
        here = slice(None) if interval is None else self.intervals[0] == interval
        return len(self.intervals[0][here]) if self.documents is None else equal_documents(self.documents[here])

    def pairs(self) -> Pairs:
        """All pairs of a sample of the texts."""
        chosen = self.both["text_id"].is_in(seeded_sample(self.both["text_id"], TEXTS_OF_PAIRS, _SEED)).to_numpy()
        ids = self.both.filter(chosen).select("text_id")
        vectors = []
        for side in (self.a, self.b):
            assert side.texts is not None
            embedded = ids.join(side.texts.select("text_id", "embedding"), on="text_id", maintain_order="left")
            vectors.append(embedded["embedding"].to_numpy())
        documents = None if self.documents is None else self.documents[chosen]
        return Pairs.of((vectors[0], vectors[1]), self.intervals[0][chosen], documents)


# ---------------------------------------------------------------------------------------------- thresholds


def _thresholds(a: Side, b: Side, texts: _Texts | None, thresholds: Sequence[float]) -> list[Row]:
    """The rows of swap_thresholds, for all pairs and for pairs of one length in A; without texts, of all pairs alone."""
    pairs = None if texts is None else texts.pairs()
    histograms = _of_all_pairs(a, b, texts, None) or (None if pairs is None else pairs.histograms())
    if histograms is None:
        return []
    compared = [Compared(None, histograms, pairs)]
    for interval, inside in () if pairs is None else pairs.by_length():
        of_length = _of_all_pairs(a, b, texts, interval) or inside.histograms()
        compared.append(Compared(a.edges[interval], of_length, inside))
    return carried.rows(compared, thresholds)


def _of_all_pairs(a: Side, b: Side, texts: _Texts | None, interval: int | None) -> Histograms | None:
    """All pairs of both runs by cosine, or those inside a length; None where these are not the same pairs, or not known."""
    tables = [side.histograms for side in (a, b)]
    alike = texts is None or (texts.are_all and (interval is None or texts.have_one_length))
    if not alike or any(table.is_empty() for table in tables):
        return None
    if interval is not None:
        tables = [table.filter(interval_a=a.edges[interval], interval_b=a.edges[interval]) for table in tables]
    old, new = map(calibration.histogram, tables)
    return Histograms((old, new), True, a.row["texts"] if texts is None else texts.units(interval))


# ---------------------------------------------------------------------------------------------- neighbours


class _Asked(NamedTuple):
    """A text that asks for its nearest texts in both runs."""

    place: int
    """Among the texts of both runs."""
    old: list[str]
    new: list[str]
    cosines: list[float]
    """Those of `old`."""

    @property
    def lost(self) -> list[str]:
        return [text_id for text_id in self.old if text_id not in self.new]

    @property
    def gained(self) -> list[str]:
        return [text_id for text_id in self.new if text_id not in self.old]

    @property
    def kept(self) -> float:
        return 1 - len(self.lost) / len(self.old)

    @property
    def nearest_lost(self) -> float:
        """The cosine under A of the nearest text that is lost."""
        return max((c for text_id, c in zip(self.old, self.cosines, strict=True) if text_id not in self.new), default=-1.0)


def _asked(texts: _Texts) -> list[_Asked]:
    """A sample of the texts that asked in both runs, each with as many nearest texts of both runs as both lists give."""
    sides = texts.a, texts.b
    if not all(side.graph for side in sides):
        return []
    ids = [
        pl.concat([pl.DataFrame({"text_id": pl.Series(values=column)}) for (column,) in columns])
        for columns in (side.run.storage.columns(side.graph, ["text_id"]) for side in sides)
    ]
    known = texts.both.select("text_id").with_row_index("place")
    asking = known.join(ids[0], on="text_id", how="semi").join(ids[1], on="text_id", how="semi")
    chosen = asking.filter(pl.col("text_id").is_in(seeded_sample(asking["text_id"], _ASKERS, _SEED)))
    old, new = (_nearest(side, chosen, None if texts.are_all else known) for side in sides)
    both = old.join(new, on="text_id", suffix="_b").sort("place")
    found = list[_Asked]()
    for row in both.iter_rows(named=True):
        k = min(len(row["neighbours"]), len(row["neighbours_b"]))
        if k:
            found.append(_Asked(row["place"], row["neighbours"][:k], row["neighbours_b"][:k], row["cosines"][:k]))
    return found


def _nearest(side: Side, asking: pl.DataFrame, among: pl.DataFrame | None) -> pl.DataFrame:
    """The nearest texts of those that ask, nearest first; `among` are the texts that may be found, if not all."""
    parts = (pl.DataFrame(pl.from_arrow(side.run.storage.read_table(name))) for name in side.graph)
    lists = pl.concat([part.join(asking, on="text_id") for part in parts])
    if among is None:
        return lists
    rows = lists.explode("neighbours", "cosines")
    shared = rows.join(among, left_on="neighbours", right_on="text_id", how="semi", maintain_order="left")
    return shared.group_by("text_id", "place", maintain_order=True).agg("neighbours", "cosines")


def _neighbours(texts: _Texts, asked: Sequence[_Asked]) -> list[Row]:
    """The rows of swap_neighbours: of all that ask, and by their length in A."""
    kept, places = np.array([one.kept for one in asked]), np.array([one.place for one in asked], dtype=np.int64)
    interval = texts.intervals[0][places]
    rows, k = list[Row](), max(len(one.old) for one in asked)
    for b in (None, *np.unique(interval).tolist()):
        here = np.ones(len(kept), dtype=bool) if b is None else interval == b
        documents = None if texts.documents is None else texts.documents[places[here]]
        of = {"by": None, "group": None} if b is None else {"by": "length", "group": str(texts.a.edges[b])}
        rows.append(of | {"k": k, "askers": int(here.sum())} | mean_kept(kept[here], documents))
    return rows


def _examples(texts: _Texts, asked: Sequence[_Asked]) -> list[Row]:
    """The rows of swap_examples: the texts that keep fewest neighbours, those that lose the nearest ones first."""
    tables = [side.run.tables[EXCERPTS.name] for side in (texts.a, texts.b) if EXCERPTS.name in side.run.tables]
    excerpts = dict[str, str]()
    if len(tables) == 2:  # Under --no-text a run has none.
        excerpts = dict(pl.concat(tables).select("text_id", "excerpt").iter_rows())
    ids = texts.both["text_id"]
    most = sorted((one for one in asked if one.lost), key=lambda one: (one.kept, -one.nearest_lost, ids[one.place]))
    return [
        {"rank": rank, "text_id": ids[one.place], "excerpt": excerpts.get(ids[one.place]), "k": len(one.old)}
        | {"kept": len(one.old) - len(one.lost), "lost": one.lost, "gained": one.gained}
        for rank, one in enumerate(most[:_EXAMPLES], start=1)
    ]
