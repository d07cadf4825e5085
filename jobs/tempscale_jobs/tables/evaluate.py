"""The Arrow schemas of the tables of `tempscale evaluate`."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables.columns import KEY, Column, Table

CELLS = "cells"
"""The folder of the cells' parts; a cell is a model under a temperature on a task."""
CELL_DOCUMENTS = "cell_documents"
"""The folder of the embeddings of large corpora, until the cells that search them are scored."""
_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_WHERE = (
    Column("task", _TEXT, "", "name of the task"),
    Column("split", _TEXT, "", "split of its data set"),
    Column("subset", _TEXT, "", "subset of its data set, `default` where there is one only"),
)
_CHANGE = (
    Column("change", _FLOAT, "", "against the run's first temperature"),
    Column("change_se", _FLOAT, "", "its standard error, of differences on the same items and draws"),
)
_ITEM = (
    *_WHERE,
    Column("item", _TEXT, "", "the query's or text's id, or the pair's place; a window's names its words: id[first:last]"),
    Column("tokens", _INT, "tokens", "of the query or text, or of both texts of a pair together, as the model saw them"),
    Column("window", _BOOL, "", "whether the text is a window of a longer one; null but for classification"),
    Column("right", pa.list_(_BOOL), "", "whether the text was classified rightly, in each experiment in turn"),
    Column("value", _FLOAT, "", "this item's part of the score, whose mean over items it is; null where it is no mean"),
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
    Column("tokens_whole", _INT, "tokens", "the same before it was cut at the window"),
    Column("rank", _INT, "", "its place in the whole corpus, from 1; null if it is not among those to be reranked"),
    Column("found", _INT, "", "documents that mteb kept for the query, 1,000 at most"),
)
ITEM_PART = Table("items", "the items of a cell; below cells/", _ITEM)
RELEVANT_PART = Table("relevant", "the relevant documents of a cell; below cells/", _RELEVANT)


EXPOSURE_PART = Table(
    "exposure",
    "how often documents of a fifth of all lengths are shown; below cells/",
    (
        *_WHERE,
        Column("tokens_from", _INT, "tokens", "of the shortest document of this fifth"),
        Column("tokens_to", _INT, "tokens", "of the longest"),
        Column("documents", _INT, "", "in it"),
        Column("queries", _INT, "", "held-out queries, of which the first ten documents are counted"),
        Column("exposure", _FLOAT, "", "its share of the places ÷ its share of the documents; 1 is fair"),
        Column("exposure_se", _FLOAT, "", "its standard error, over queries"),
    ),
)


def documents(dim: int) -> Table:
    """The embeddings of one piece of a large corpus."""
    return Table(
        "documents",
        "documents of one piece of a corpus, in its order; below cell_documents/",
        (Column("embedding", pa.binary(4 * dim), "", "as the model's last stage gives it, float32 in little-endian order"),),
    )


EVALUATION = Table(
    "evaluation",
    "one row a cell, split and subset: a model under a temperature on a task",
    (
        *KEY,
        *_WHERE,
        Column("type", _TEXT, "", "type of the task, as MTEB names it"),
        Column("metric", _TEXT, "", "its main score"),
        Column("score", _FLOAT, "", "null where the cell is missing"),
        Column(
            "score_se",
            _FLOAT,
            "",
            "its standard error over items and draws to learn from; null where not known",
        ),
        *_CHANGE,
        Column("relative", _FLOAT, "", "the change over the first temperature's score"),
        Column("items", _INT, "", "queries, texts or pairs; null where they are not known"),
        Column("truncated_share", _FLOAT, "", "share of the texts embedded that were cut at the model's window"),
        Column("query_tau", _FLOAT, "", "temperature of queries where roles have one each"),
        Column("document_tau", _FLOAT, "", "temperature of documents where roles have one each"),
        Column("problem", _TEXT, "", "why the cell is missing; null where it is there"),
    ),
)
ITEMS = Table("evaluation_items", "one row a query, text or pair of a cell", (*KEY, *_ITEM))
RELEVANT = Table("evaluation_relevant", "one row a relevant document of a query", (*KEY, *_RELEVANT))
TYPES = Table(
    "evaluation_types",
    "mean scores over tasks, of those tasks that have a score under every temperature (S1 Table 1)",
    (
        *KEY,
        Column("over", _TEXT, "", "`type`: the tasks of one type; `types`: the mean of those means; `tasks`: all tasks"),
        Column("type", _TEXT, "", "the type; null for the means over all"),
        Column("tasks", _INT, "", "how many"),
        Column("score", _FLOAT, "", "the mean of their main scores"),
        *_CHANGE,
        Column(
            "change_spread_se",
            _FLOAT,
            "",
            "sd of the tasks' changes/√tasks; null for one task, and over types",
        ),
        Column("relative", _FLOAT, "", "the change over the first temperature's mean"),
    ),
)
LENGTHS = Table(
    "evaluation_lengths",
    "score and output entropy by length interval of the texts or queries (S1 Fig 1a, 6 and 8)",
    (
        *KEY,
        *_WHERE,
        Column("interval", _INT, "tokens", "lower edge of the length interval"),
        Column("items", _INT, "", "texts or queries in it"),
        Column("windows", _INT, "", "how many of them are windows of longer texts"),
        Column("value", _FLOAT, "", "the mean of their parts of the score: accuracy for classification"),
        Column("value_se", _FLOAT, "", "its standard error over texts like these"),
        *_CHANGE,
        Column("entropy", _FLOAT, "nats", "mean entropy of the classifier's output; null but for classification"),
        Column("entropy_se", _FLOAT, "nats", "its standard error"),
        Column("entropy_change", _FLOAT, "nats", "against the run's first temperature"),
        Column("entropy_change_se", _FLOAT, "nats", "its standard error, of differences on the same texts"),
        Column("best", _BOOL, "", "whether no temperature has a higher value here; the earliest of equal ones"),
    ),
)
ENDS = Table(
    "evaluation_ends",
    "retrieval for the shortest and the longest fifth of queries and of relevant documents, if those differ in length "
    "(S1 Fig 7, Table 3)",
    (
        *KEY,
        *_WHERE,
        Column("figure", _TEXT, "", "`ndcg_at_100` of queries, or `rank` of relevant documents"),
        Column("end", _TEXT, "", "`shortest` or `longest` fifth, by tokens (of documents before they are cut), then by id"),
        Column("items", _INT, "", "queries, or pairs of a query and a relevant document"),
        Column("tokens_mean", _FLOAT, "tokens", "their mean length"),
        Column(
            "value",
            _FLOAT,
            "",
            "the mean, of ranks over the whole corpus; one that is not to be reranked counts as behind the last",
        ),
        Column("value_se", _FLOAT, "", "its standard error over queries, or clustered on documents"),
        *_CHANGE,
        Column("not_found", _INT, "", "relevant documents that have no rank; null for queries"),
    ),
)
ROLES = Table(
    "evaluation_roles",
    "query temperature against document temperature (S1 Fig 9, Table 2)",
    (
        *KEY,
        *_WHERE,
        Column("query_tau", _FLOAT, "", "temperature of queries"),
        Column("document_tau", _FLOAT, "", "temperature of documents"),
        Column("case", _TEXT, "", "`neither`, `both` alike, `query only`, `document only`, or `each its own`"),
        Column("score", _FLOAT, "", "the task's main score"),
        *_CHANGE,
    ),
)
CORRELATIONS = Table(
    "evaluation_correlations",
    "Spearman correlation over models between what an audit measured and a score (S2 Fig 5, Table 2)",
    (
        Column("temperature", _TEXT, "", "canonical text of the temperature schedule, of audit and score alike"),
        Column("task", _TEXT, "", "name of the task; null for the mean over tasks"),
        Column("measure", _TEXT, "", "`socm_mean`, or `spread_mean`: S/‖μ‖²"),
        Column("models", _INT, "", "how many models have both"),
        Column("rho", _FLOAT, "", "Spearman's rank correlation"),
        Column("p_exact", _FLOAT, "", "two-sided, over all permutations; null beyond 14 models"),
        Column("p_t", _FLOAT, "", "two-sided, by the t approximation that S2 prints"),
    ),
)
MODELS = Table(
    "evaluation_models",
    "models side by side, with differences to their backbones (S2 Table 1)",
    (
        *KEY,
        Column("backbone", _TEXT, "", "the model that it is compared with; null where there is none"),
        Column("score", _FLOAT, "", "mean over tasks"),
        Column("score_change", _FLOAT, "", "against the backbone"),
        Column("socm_mean", _FLOAT, "", "of the audit"),
        Column("socm_se", _FLOAT, "", "its standard error, for comparing with another corpus"),
        Column("socm_change", _FLOAT, "", "against the backbone"),
        Column("socm_change_se", _FLOAT, "", "its standard error, from differences on the same texts where there are such"),
        Column("spread_mean", _FLOAT, "", "of the audit: mean S/‖μ‖²"),
        Column("spread_change", _FLOAT, "", "against the backbone"),
    ),
)
TABLES = (EVALUATION, TYPES, LENGTHS, ENDS, ROLES, CORRELATIONS, MODELS, ITEMS, RELEVANT)
