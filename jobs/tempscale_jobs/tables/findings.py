"""The Arrow schema of the table that says what a run found."""

from __future__ import annotations

from tempscale_jobs.tables.columns import FLOAT, KEY, TEXT, Column, Table

FINDINGS = Table(
    "findings",
    "what the run found: one row a figure; every sentence of the report, the terminal and --json follows from these",
    (
        *KEY,
        Column("figure", TEXT, "", "what was measured, mostly a column of a table; `change of …` is against the first "
               "temperature, or of `compare` against run A"),
        Column("state", TEXT, "", "`absent`: not measured; `unknown`: too few texts to tell; `noise`: no difference beyond "
               "noise; `up`, `down`: beyond noise; `measured`: a figure that is not compared with anything"),
        Column("value", FLOAT, "", "the figure"),
        Column("error", FLOAT, "", "its standard error for other texts, or documents; null where it is not known"),
        Column("rests_on", TEXT, "", "what it was computed from"),
        Column("not_shown", TEXT, "", "what does not follow from it"),
    ),
)  # fmt: skip

TABLES = (FINDINGS,)
