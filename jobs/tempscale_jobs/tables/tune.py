"""The Arrow schemas of the tables of `tempscale tune`."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables.columns import KEY, Column, Table

_TEXT, _INT, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.float64(), pa.bool_()
_VERDICT = (
    Column("eligible", _BOOL, "", "whether it may be chosen"),
    Column("chosen", _BOOL, "", "whether it is the one to use; the first temperature's row where none beats it"),
    Column("reason", _TEXT, "", "why, in words"),
)
SCORES = Table(
    "tuning_scores",
    "one row a candidate: its score on the development part, and on the held-out part that chose nothing",
    (
        *KEY,
        Column("correction", _TEXT, "", "what is done to the embeddings of the first temperature; null for a temperature"),
        Column("dev_items", _INT, "", "queries, texts and pairs of the development part, of all tasks"),
        Column("dev_score", _FLOAT, "", "mean over tasks of the score on the development part"),
        Column("dev_change", _FLOAT, "", "against the first temperature"),
        Column("dev_change_se", _FLOAT, "", "its standard error, of differences on the same items"),
        Column("held_items", _INT, "", "of the held-out part"),
        Column("held_score", _FLOAT, "", "mean over tasks of the score on the held-out part"),
        Column("held_change", _FLOAT, "", "against the first temperature"),
        Column("held_change_se", _FLOAT, "", "its standard error, of differences on the same items"),
        Column(
            "held_low",
            _FLOAT,
            "",
            "lower end of the bootstrap's 95 % confidence interval; of the best candidate only",
        ),
        Column("held_high", _FLOAT, "", "its upper end"),
        *_VERDICT,
    ),
)
COLLAPSE = Table(
    "tuning_collapse",
    "one row a candidate: what it does to the collapse of a corpus without labels",
    (
        *KEY,
        Column("correction", _TEXT, "", "what is done to the embeddings of the first temperature; null for a temperature"),
        Column("prefix_gap", _FLOAT, "", "mean cosine of the same texts at the longest prefix minus that at the shortest"),
        Column("prefix_gap_change", _FLOAT, "", "against the first temperature"),
        Column("prefix_gap_change_se", _FLOAT, "", "its standard error, of differences on the same texts"),
        Column("exposure_long", _FLOAT, "", "the longest texts' share of the results ÷ their share of the texts"),
        Column("exposure_long_change", _FLOAT, "", "against the first temperature"),
        Column("exposure_long_change_se", _FLOAT, "", "its standard error, of differences of the same texts' neighbours"),
        Column("rise", _FLOAT, "", "largest rise of an interval's mean cosine, in its standard errors"),
        Column("rise_interval", _INT, "tokens", "lower edge of that interval"),
        Column("short_kept", _FLOAT, "", "share of the shortest texts' nearest at the first temperature that they keep"),
        *_VERDICT,
    ),
)
INTERVALS = Table(
    "tuning_intervals",
    "mean cosine inside each length interval of at least 30 texts under each candidate",
    (
        *KEY,
        Column("interval", _INT, "tokens", "lower edge of the length interval"),
        Column("texts", _INT, "", "texts in it"),
        Column("cosine_mean", _FLOAT, "", "mean cosine over its pairs"),
        Column("change", _FLOAT, "", "against the first temperature"),
        Column("change_se", _FLOAT, "", "its standard error, of differences on the same texts"),
    ),
)
EXPOSURE = Table(
    "tuning_exposure",
    "one row a fifth of a task's documents by length: how often they are among the first ten of held-out queries",
    (
        *KEY,
        Column("correction", _TEXT, "", "what was done to the embeddings of the first temperature; null for nothing"),
        Column("task", _TEXT, "", "name of the task"),
        Column("split", _TEXT, "", "split of its data set"),
        Column("subset", _TEXT, "", "subset of its data set, `default` where there is one only"),
        Column("tokens_from", _INT, "tokens", "of the shortest document of this fifth"),
        Column("tokens_to", _INT, "tokens", "of the longest"),
        Column("documents", _INT, "", "in it"),
        Column("queries", _INT, "", "held-out queries"),
        Column("exposure", _FLOAT, "", "its share of the places ÷ its share of the documents; 1 is fair"),
        Column("exposure_se", _FLOAT, "", "its standard error, over queries"),
    ),
)
TABLES = (SCORES, COLLAPSE, INTERVALS, EXPOSURE)
