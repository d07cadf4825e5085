"""The Arrow schemas of `tempscale verify`: its tables, and what its steps hand on."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables.columns import BIG, BOOL, FLOAT, INT, KEY, TEXT, Column, Table

_ID = Column("text_id", TEXT, "", "the id of the row, as a string")
_COSINE = Column("cosine", FLOAT, "", "cosine of the stored vector and the model's, of bits of their signs")
_RATIO = Column("norm_ratio", FLOAT, "", "norm of the stored vector over the model's; null where the format keeps no norm")

ROWS = Table(
    "stored",
    "the rows to verify, as read; removed when the run completes",
    (
        _ID,
        Column("text", TEXT, "", "the text, cut at max_characters"),
        Column("content_sha", TEXT, "", "sha256 of the text and the vector"),
        Column("vector", pa.list_(pa.float64()), "", "the numbers of the vector, before their scale"),
        Column("title", TEXT, "", "the title, if the table has one"),
        Column("above", TEXT, "", "the text of the row before it in the source"),
        Column("below", TEXT, "", "the text of the row behind it"),
        Column("groups", pa.list_(TEXT), "", "the values of the columns of --by"),
    ),
)


def compared(dim: int) -> Table:
    """The table of the rows of a piece, each compared with the model's vector; below partials/."""
    return Table(
        "compared",
        "one row a vector that was compared",
        (
            _ID,
            Column("text_sha", TEXT, "", "sha256 of the text"),
            Column("tokens", INT, "tokens", "what the model saw"),
            Column("groups", pa.list_(TEXT), "", "the values of the columns of --by"),
            Column("dimensions", INT, "", "of the stored vector"),
            Column("format", TEXT, "", "the coarsest format that holds its numbers"),
            Column("usable", BOOL, "", "whether it has a direction"),
            _COSINE,
            _RATIO,
            Column("distance", FLOAT, "", "the largest relative distance that computation and storage explain"),
            Column("norm", FLOAT, "", "the norm of the stored vector"),
            Column("model_norm", FLOAT, "", "the norm that the model's stages give"),
            Column("embedding", pa.list_(pa.float32(), dim), "", "the model's vector, of unit norm"),
        ),
    )


EXPLAINED = Table(
    "explained",
    "wrong rows of a piece, each with what explains it; below partials/",
    (_ID, Column("cause", TEXT, "", "what explains it; null where nothing that was tried does")),
)

VERIFIED = Table(
    "verified",
    "one row a vector that was compared with the model's",
    (
        *KEY,
        _ID,
        Column("tokens", INT, "tokens", "what the model sees of its text"),
        _COSINE,
        _RATIO,
        Column("wrong", BOOL, "", "whether it is further from the model's than its format and computation explain"),
        Column(
            "cause", TEXT, "", "what explains a wrong vector; null where nothing that was tried does, and for right ones"
        ),
    ),
)

VERIFY_SUMMARY = Table(
    "verify_summary",
    "how many vectors are wrong, and why, of all rows and of each group",
    (
        *KEY,
        Column("by", TEXT, "", "the column of the group; null for all rows"),
        Column("group", TEXT, "", "the group's value; null for all rows, and for rows without a value"),
        Column("cause", TEXT, "", "what explains these rows; «any» for all wrong ones, «not explained» for those without"),
        Column("sampled", BIG, "", "rows of the group that were compared"),
        Column("wrong", BIG, "", "of them those with this cause"),
        Column("share", FLOAT, "share", "wrong/sampled"),
        Column(
            "low",
            FLOAT,
            "share",
            "lower end of its 95 % confidence interval for all rows (Clopper–Pearson); the share where all were compared",
        ),
        Column("high", FLOAT, "share", "upper end; with 97.5 % no more of all rows are wrong"),
    ),
)  # fmt: skip

TABLES = (VERIFIED, VERIFY_SUMMARY)
