"""The papers' analyses of one cell's items: by length, for the shortest and the longest fifth, and by role."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from tempscale.collapse.length import interval_of
from tempscale.stats import paired, sharing
from tempscale.stats.enough import VALUES_FOR_A_SENTENCE
from tempscale.stats.sample import keyed_hash
from tempscale.stats.sharing import Sharing

_END = 0.2
"""S1's longest and shortest queries, or relevant documents, are such a share of them."""


def by_length(
    own: pl.DataFrame, base: pl.DataFrame | None, relevant: pl.DataFrame, edges: Sequence[int]
) -> list[dict[str, Any]]:
    """One row per length interval of a cell's items (`own`), with changes from `base`, those at the first temperature.

    `relevant` has the relevant documents of queries.
    """
    if own.is_empty() or own["value"].null_count() or own["tokens"].null_count():
        return []
    interval = np.asarray(edges)[interval_of(own["tokens"].to_numpy().astype(np.int64), edges)]
    table = own.with_columns(pl.Series("interval", interval, dtype=pl.Int32))
    if base is not None:
        first = base.select("item", "value", "entropy", "right")
        table = table.join(first, on="item", suffix="_first", maintain_order="left", validate="1:1")
    rows = []
    for (edge,), group in table.group_by("interval", maintain_order=True):
        row: dict[str, Any] = {"interval": edge, "items": len(group), "best": None}
        row["windows"] = None if group["window"].null_count() else int(group["window"].sum())
        shared = documents_shared(group, relevant)
        for name, change in (("value", "change"), ("entropy", "entropy_change")):
            known = group[name].null_count() == 0
            row[name], row[f"{name}_se"] = _mean(group[name], shared) if known else (None, None)
            row[change] = row[f"{change}_se"] = None
            if known and base is not None and group[f"{name}_first"].null_count() == 0:
                row[change], row[f"{change}_se"] = _mean(group[name] - group[f"{name}_first"], shared)
        if group["right"].null_count() == 0:  # Each experiment of a classification also draws other training texts.
            accuracies = experiments(group["right"])
            row["value_se"] = together(row["value_se"], accuracies)
            if base is not None and group["right_first"].null_count() == 0:
                row["change_se"] = together(row["change_se"], accuracies - experiments(group["right_first"]))
        rows.append(row)
    return sorted(rows, key=lambda row: row["interval"])


def experiments(right: pl.Series) -> np.ndarray:
    """The accuracy of each experiment over these texts, (experiments,)."""
    accuracies: np.ndarray = np.array(right.to_list(), dtype=np.float64).mean(0)
    return accuracies


def together(error: float | None, drawn: np.ndarray) -> float | None:
    """The errors over items and over experiments, which learn from different draws, combined: √(se² + se²)."""
    drawn_error = paired.mean(drawn).se
    return None if error is None or drawn_error is None else math.hypot(error, drawn_error)


def sources(items: pl.DataFrame) -> np.ndarray:
    """The id of each item's text; for a window, of its whole text."""
    names = [row["item"].rpartition("[")[0] if row["window"] else row["item"] for row in items.to_dicts()]
    return np.array(names)


def documents_shared(items: pl.DataFrame, relevant: pl.DataFrame) -> Sharing | None:
    """The relevant documents of queries; None for other items, and where no document is relevant to two queries."""
    if relevant.is_empty() or items.is_empty():
        return None
    places = pl.DataFrame({"query": items["item"], "place": np.arange(len(items))})
    pairs = relevant.select("query", "document").unique(maintain_order=True).join(places, on="query", maintain_order="left")
    if pairs["document"].n_unique() == len(pairs):
        return None
    alone = np.setdiff1d(np.arange(len(items)), pairs["place"].to_numpy())
    _, documents = np.unique(pairs["document"].to_numpy(), return_inverse=True)
    # A query without a relevant document shares with none.
    return Sharing(
        np.concatenate([pairs["place"].to_numpy(), alone]), np.concatenate([documents, -1 - np.arange(len(alone))])
    )


def mean_of(values: pl.Series, items: pl.DataFrame, relevant: pl.DataFrame) -> paired.Error:
    """The mean over items, with the error that shared documents or, of windows, shared texts leave."""
    shared = documents_shared(items, relevant)
    return paired.mean(values.to_numpy(), sources(items)) if shared is None else _mean(values, shared)


def _mean(values: pl.Series, shared: Sharing | None) -> paired.Error:
    return paired.mean(values.to_numpy()) if shared is None else sharing.mean(values.to_numpy(), shared)


def held_out(names: Iterable[str], share: float, seed: int) -> np.ndarray:
    """Whether each item is held out, to confirm a choice: a share of the items, by their ids alone."""
    # The key has a prefix because the id and the seed alone drew the test texts of a user's classification.
    return np.array([keyed_hash(f"held out {name}", seed) / 2**64 < share for name in names], dtype=bool)


def mark_best(rows: list[dict[str, Any]]) -> None:
    """Set `best` in every row: True for the first temperature with the highest value in its interval."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("model", "task", "split", "subset", "interval"))
        row["best"] = False
        if key not in best or row["value"] > best[key]["value"]:
            best[key] = row
    for row in best.values():
        row["best"] = True


def shortest_and_longest(
    own: pl.DataFrame, base: pl.DataFrame | None, relevant: pl.DataFrame, base_relevant: pl.DataFrame | None
) -> list[dict[str, Any]]:
    """NDCG@100 of the shortest and the longest fifth of queries, and the rank of these fifths of relevant documents."""
    rows = []
    if not own.is_empty() and own["ndcg_at_100"].null_count() == 0:
        values = own.select("item", "tokens", pl.col("ndcg_at_100").alias("value"))
        if base is not None:
            first = base.select("item", pl.col("ndcg_at_100").alias("first"))
            values = values.join(first, on="item", maintain_order="left")
        rows += _ends("ndcg_at_100", values, ["item"], relevant)
    if not relevant.is_empty():
        keys = ["document", "query"]
        values = _ranks(relevant)
        if base_relevant is not None:
            first = _ranks(base_relevant).select(*keys, pl.col("value").alias("first"))
            values = values.join(first, on=keys, maintain_order="left")
        rows += _ends("rank", values, keys, relevant)
    return rows


def _ranks(relevant: pl.DataFrame) -> pl.DataFrame:
    """The rank of each relevant document, one after the last where it is not ranked, and its length before it was cut."""
    # Before it was cut, because windows differ between models.
    lost = pl.col("rank").is_null()
    value = pl.when(lost).then(pl.col("found") + 1).otherwise(pl.col("rank")).cast(pl.Float64)
    whole = pl.col("tokens_whole").alias("tokens")
    return relevant.select("document", "query", whole, value.alias("value"), lost.alias("lost"))


def _of_documents(ranks: pl.DataFrame) -> Sharing:
    """Ranks share their document, and their query."""
    sides = [np.unique(ranks[name].to_numpy(), return_inverse=True)[1] for name in ("document", "query")]
    places = np.arange(len(ranks))
    return Sharing(np.concatenate([places, places]), np.concatenate([sides[0], -1 - sides[1]]))


def _ends(figure: str, values: pl.DataFrame, keys: list[str], relevant: pl.DataFrame) -> list[dict[str, Any]]:
    """One row for each end, over a fifth of the distinct documents (or queries); none where both ends are equally long."""
    lengths = values.select("tokens", pl.col(keys[0])).unique().sort("tokens", keys[0])
    if lengths["tokens"].null_count() or (count := math.ceil(_END * len(lengths))) < VALUES_FOR_A_SENTENCE:
        return []
    if lengths["tokens"][count - 1] >= lengths["tokens"][-count]:
        return []
    rows = []
    for end, chosen in (("shortest", lengths[keys[0]][:count]), ("longest", lengths[keys[0]][-count:])):
        fifth = values.filter(pl.col(keys[0]).is_in(chosen.implode()))
        shared = _of_documents(fifth) if figure == "rank" else documents_shared(fifth, relevant)
        value, error = _mean(fifth["value"], shared)
        change = paired.Error(None, None)
        if "first" in fifth.columns and fifth["first"].null_count() == 0:
            change = _mean(fifth["value"] - fifth["first"], shared)
        lost = int(fifth["lost"].sum()) if "lost" in fifth.columns else None
        rows.append(
            {"figure": figure, "end": end, "items": len(fifth), "tokens_mean": float(fifth["tokens"].to_numpy().mean())}
            | {"value": value, "value_se": error, "change": change.value, "change_se": change.se, "not_found": lost}
        )
    return rows


def case(query: float | None, document: float | None, reference: float | None) -> str:
    """The sides whose temperature a pair changes (S1 Table 2)."""
    if query == document:
        return "neither" if query == reference else "both"
    if document == reference:
        return "query only"
    return "document only" if query == reference else "each its own"
