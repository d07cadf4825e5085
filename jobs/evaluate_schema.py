"""The Arrow schema of what `tempscale evaluate` leaves: see `schema`."""

from __future__ import annotations

import pyarrow as pa

from jobs.schema import KEY, Column, Table

CELLS = "cells"
"""Where the parts of each cell lie: a model under a temperature on a task."""
_TEXT, _INT, _FLOAT = pa.string(), pa.int32(), pa.float64()
_WHERE = (
    Column("task", _TEXT, "", "name of the task"),
    Column("split", _TEXT, "", "split of its data set"),
    Column("subset", _TEXT, "", "subset of its data set, `default` where there is one only"),
)
_ITEM = (
    *_WHERE,
    Column("item", _TEXT, "", "the query's or text's id, or the pair's place"),
    Column("tokens", _INT, "tokens", "of the query or text, or of both texts of a pair together, as the model saw them"),
    Column("value", _FLOAT, "", "this item's part of the score, whose mean over items it is; null for STS"),
    Column("ndcg_at_10", _FLOAT, "", "of a query"),
    Column("ndcg_at_100", _FLOAT, "", "of a query"),
    Column("entropy", _FLOAT, "nats", "of the classifier's output, the mean over experiments"),
    Column("predicted", _FLOAT, "", "cosine of a pair"),
    Column("gold", _FLOAT, "", "the pair's score"),
)
_RELEVANT = (
    *_WHERE,
    Column("query", _TEXT, "", "the query's id"),
    Column("document", _TEXT, "", "id of a document that is relevant to it"),
    Column("tokens", _INT, "tokens", "of the document, as the model saw it"),
    Column("rank", _INT, "", "its place among the documents found, from 1; null if it is not among them"),
    Column("found", _INT, "", "documents found for the query"),
)
_SCORE = (
    *_WHERE,
    Column("type", _TEXT, "", "type of the task, as MTEB names it"),
    Column("metric", _TEXT, "", "its main score"),
    Column("score", _FLOAT, "", "null where the cell is missing"),
    Column("score_se", _FLOAT, "", "its standard error over items, from this test set alone; null where items are not known"),
    Column("items", _INT, "", "queries, texts or pairs"),
    Column("truncated_share", _FLOAT, "", "share of the texts embedded that were cut at the model's window"),
    Column("problem", _TEXT, "", "why the cell is missing; null where it is there"),
)
ITEM_PART = Table("items", "the items of a cell; below cells/", _ITEM)
RELEVANT_PART = Table("relevant", "the relevant documents of a cell; below cells/", _RELEVANT)
EVALUATION = Table("evaluation", "one row a cell, split and subset: a model under a temperature on a task", (*KEY, *_SCORE))
ITEMS = Table("evaluation_items", "one row a query, text or pair of a cell", (*KEY, *_ITEM))
RELEVANT = Table("evaluation_relevant", "one row a relevant document of a query", (*KEY, *_RELEVANT))
