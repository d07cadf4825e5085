"""Write docs/tables.md and docs/configuration.md from the code that decides them: python docs/generate.py."""

from __future__ import annotations

from pathlib import Path
from typing import get_origin

from pydantic import BaseModel

from jobs import diagnose_schema, pairs_schema, schema
from jobs.config import AuditConfig

HERE = Path(__file__).parent


def tables() -> str:
    """Every table with its columns."""
    lines = [
        "# Tables",
        "",
        "Generated from `schema.py`, `pairs_schema.py` and `diagnose_schema.py` of `jobs/` by `python docs/generate.py`.",
        "Each file is Parquet; units and meanings are also in its column metadata. Read one with",
        "`polars.read_parquet('RUN/tables/collapse_summary.parquet')`.",
    ]
    parts = [schema.texts(384), schema.factors(384), schema.REJECTED, schema.SHARDS]
    sections = (
        ("Tables of a run: `tables/`", schema.TABLES),
        ("Tables of `tempscale pairs`: `tables/`", pairs_schema.TABLES),
        ("Tables of `tempscale diagnose`: `tables/`", diagnose_schema.EVERY),
        ("Parts of a run", parts),
    )
    for heading, found in sections:
        lines += ["", f"## {heading}"]
        for table in found:
            lines += ["", f"### {table.name}", "", f"{table.meaning[0].upper()}{table.meaning[1:]}.", ""]
            lines += ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
            lines += [
                f"| {c.name} | {str(c.type).replace('[384]', '[d]')} | {c.unit} | {c.meaning} |" for c in table.columns
            ]
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """Every field of the configuration."""
    lines = [
        "# Configuration",
        "",
        "Generated from `jobs/config.py` by `python docs/generate.py`. `tempscale audit CONFIG.toml` reads this; options",
        "on the command line win over the file. Unknown keys and wrong types are errors.",
    ]
    sections = [("", AuditConfig)] + [
        (name, field.annotation) for name, field in AuditConfig.model_fields.items() if _is_section(field.annotation)
    ]
    for name, model in sections:
        lines += [
            "",
            f"## `[{name}]`" if name else "## Top level",
            "",
            f"{(model.__doc__ or '').strip().splitlines()[0]}",
            "",
        ]
        lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
        for key, field in model.model_fields.items():
            if not _is_section(field.annotation):
                kind = (
                    field.annotation
                    if get_origin(field.annotation)
                    else getattr(field.annotation, "__name__", field.annotation)
                )
                text = str(kind).replace("typing.", "").replace("|", "or")
                lines.append(
                    f"| {key} | {text} | {'' if field.default is None else repr(field.default)} | {field.description} |"
                )
    return "\n".join(lines) + "\n"


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


PAGES = {"tables.md": tables, "configuration.md": configuration}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), "utf-8")
