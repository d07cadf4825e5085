"""The tables of a finished run as this version knows them: a column that an earlier version did not write is null."""

from __future__ import annotations

import pyarrow as pa

from tempscale_jobs.tables import audit, diagnose, evaluate, findings, nights, pairs, tune, verify

_KNOWN = {
    table.name: table
    for module in (audit, diagnose, evaluate, findings, nights, pairs, tune, verify)
    for table in module.TABLES
}  # fmt: skip


_RENAMED = {"socm_search": {"kept_by_frobenius": "kept_by_factors"}}
"""Columns that had other names in an earlier version, by table."""


def current_name(name: str, table: pa.Table) -> str:
    """The name of a table in this version: up to 0.2 `diagnose_findings` was `findings`, which every command has now."""
    return diagnose.FINDINGS.name if name == findings.FINDINGS.name and "finding" in table.column_names else name


def completed(name: str, table: pa.Table) -> pa.Table:
    """The table with all columns of its schema, in their order; columns that the schema does not have stay behind them."""
    if name not in _KNOWN:
        return table
    names = _RENAMED.get(name, {})
    table = table.rename_columns([names.get(column, column) for column in table.column_names])
    fields = _KNOWN[name].schema()
    absent = [field for field in fields if field.name not in table.column_names]
    for field in absent:
        table = table.append_column(field, pa.nulls(table.num_rows, field.type))
    if not absent:
        return table
    others = [column for column in table.column_names if column not in fields.names]
    return table.select([*fields.names, *others])
