"""The Arrow schemas of the tables of `tempscale pairs`."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables.columns import KEY, Column, Table

PARTIALS = "partials/pairs"
"""The folder of the parts of finished chunks."""
_TEXT, _INT, _BIG, _FLOAT, _BOOL = pa.string(), pa.int32(), pa.int64(), pa.float64(), pa.bool_()
_PAIR = Column("pair", _BIG, "", "number of the pair, from 0, in the order of the source")

CHUNK = Table(
    "chunk",
    "the pairs to analyse, as read; removed when the run completes",
    (
        _PAIR,
        Column("pair_id", _TEXT, "", "the row's `id`, else its place"),
        Column("place", _TEXT, "", "where the pair stands: file and row, from 0, and which element of a list"),
        Column("text_id_a", _TEXT, "", "id of the first text"),
        Column("text_id_b", _TEXT, "", "id of the second"),
        Column("text_a", _TEXT, "", "the first text, cut at max_characters"),
        Column("text_b", _TEXT, "", "the second"),
        Column("content_a", _TEXT, "", "sha256 of the first text as it is analysed"),
        Column("content_b", _TEXT, "", "sha256 of the second"),
        Column("cut_a", _BOOL, "", "whether the first was cut by characters"),
        Column("cut_b", _BOOL, "", "whether the second was"),
    ),
)

_FIGURES = (
    Column("tokens_a", _INT, "tokens", "what the model saw of the first text"),
    Column("tokens_b", _INT, "tokens", "what it saw of the second"),
    Column("truncated_a", _BOOL, "", "whether the model saw less than the first text"),
    Column("truncated_b", _BOOL, "", "whether it saw less than the second"),
    Column("d_mu", _FLOAT, "", "d_μ"),
    Column("d_sigma", _FLOAT, "", "d_Σ"),
    Column("socm", _FLOAT, "", "SOCM, or SOCM_{α,β} where α and β are given"),
)

PART = Table(
    "part",
    "the finished pairs of one chunk; below partials/",
    (_PAIR, *_FIGURES),
)

PAIRS = Table(
    "pairs",
    "second-order collapse of every pair",
    (
        *KEY,
        _PAIR,
        Column("pair_id", _TEXT, "", "the row's `id`, else its place; [k] is the k-th of a list, from 0"),
        Column("text_id_a", _TEXT, "", "the first text's `id_a`, else the beginning of its content's sha256"),
        Column("text_id_b", _TEXT, "", "the second text's `id_b`, else the beginning of its content's sha256"),
        *_FIGURES,
    ),
)

PAIRS_SUMMARY = Table(
    "pairs_summary",
    "one row a model and temperature: the pairs together",
    (
        *KEY,
        Column("pairs", _BIG, "pairs", "pairs analysed"),
        Column("texts", _BIG, "texts", "distinct texts in them; texts of equal content are one"),
        Column("truncated_share", _FLOAT, "share", "distinct texts of which the model saw only a part"),
        Column("d_mu_mean", _FLOAT, "", "mean d_μ = (1−cos)/2 of the token means"),
        Column("d_sigma_mean", _FLOAT, "", "mean d_Σ"),
        Column("socm_mean", _FLOAT, "", "mean SOCM"),
        Column("socm_se", _FLOAT, "", "its standard error for pairs of texts drawn like these, clustered on shared texts"),
        Column("socm_p05", _FLOAT, "", "5th percentile"),
        Column("socm_p50", _FLOAT, "", "median"),
        Column("socm_p95", _FLOAT, "", "95th percentile"),
        Column("socm_over_1_share", _FLOAT, "share", "pairs with SOCM > 1"),
        Column("reference", _TEXT, "", "canonical text of the model's first temperature; null for that one itself"),
        Column("socm_change", _FLOAT, "", "mean SOCM minus the reference's, on the same pairs"),
        Column("socm_change_se", _FLOAT, "", "its standard error, from per-pair differences, clustered on shared texts"),
        Column("alpha", _FLOAT, "", "α of SOCM = (1−d_μ)^α·d_Σ^β"),
        Column("beta", _FLOAT, "", "β"),
        Column("regularization", _FLOAT, "", "0: exact; 1e-9: d_Σ as S2's published code has it"),
    ),
)

TABLES = (PAIRS, PAIRS_SUMMARY)
