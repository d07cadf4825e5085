"""The Arrow schema of the table that says what a run found."""

from __future__ import annotations

from tempscale_jobs.tables.columns import FLOAT, KEY, TEXT, Column, Table

FINDINGS = Table(
    "findings",
    "what the run found: one row a figure; every sentence of the report, the terminal and the messages follows from these",
    (
        *KEY,
        Column("figure", TEXT, "", "a column of collapse_summary; `change of …` is that against the first temperature"),
        Column("state", TEXT, "", "`absent`: not measured; `unknown`: too few texts to tell; `noise`: no difference beyond "
               "noise; `up`, `down`: beyond noise; `measured`: a figure that is not compared with anything"),
        Column("value", FLOAT, "", "the figure"),
        Column("error", FLOAT, "", "its standard error for other texts, or documents; null where it is not known"),
        Column("rests_on", TEXT, "", "what it was computed from"),
        Column("not_shown", TEXT, "", "what does not follow from it"),
        Column("command", TEXT, "", "what to run about it; empty where there is nothing to run"),
    ),
)  # fmt: skip

TABLES = (FINDINGS,)
