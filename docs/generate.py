"""Write the pages and drawings of docs/ that follow from code, docstrings, tests and results: python docs/generate.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import get_args, get_origin

from pydantic import BaseModel
from table_examples import example

from jobs import diagnose_schema, evaluate_schema, night_schema, pairs_schema, schema, tune_schema
from jobs.columns import Table
from jobs.config import AuditConfig
from jobs.evaluate_config import EvaluateConfig, OwnTask
from jobs.tune_config import TuneConfig

HERE = Path(__file__).parent


def tables_by_section() -> tuple[tuple[str, tuple[Table, ...]], ...]:
    """Headings and the tables below each."""
    parts = (schema.texts(384), schema.factors(384), schema.NEIGHBOURS, schema.REJECTED, schema.SHARDS)
    return (
        ("Tables of a run: `tables/`", schema.TABLES),
        ("The gate, the record of nights, and `tempscale compare`", night_schema.EVERY),
        ("Tables of `tempscale pairs`: `tables/`", pairs_schema.TABLES),
        ("Tables of `tempscale diagnose`: `tables/`", diagnose_schema.EVERY),
        ("Tables of `tempscale evaluate`: `tables/`", evaluate_schema.EVERY),
        ("Tables of `tempscale tune`: `tables/`", tune_schema.EVERY),
        ("Parts of a run", parts),
    )


def tables() -> str:
    """Every table with a question that it answers and its columns."""
    lines = [
        "# Tables",
        "",
        "Generated from the `…schema.py` files of `jobs/` by `python docs/generate.py`.",
        "Each file is Parquet; units and meanings are also in its column metadata. Each table comes with a question that it",
        "answers in one line of polars (`import polars as pl`). RUN is the run's folder, NIGHTS the folder of the nights,",
        "COMPARED what `--out` of `tempscale compare` was told; each may be on object storage.",
    ]
    for heading, found in tables_by_section():
        lines += ["", f"## {heading}"]
        for table in found:
            question, answer = example(table.name)
            lines += ["", f"### {table.name}", "", f"{table.meaning[0].upper()}{table.meaning[1:]}.", ""]
            lines += [f"*{question}*", "", "```python", answer, "```", ""]
            lines += ["| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
            lines += [
                f"| {c.name} | {str(c.type).replace('[384]', '[d]')} | {c.unit} | {c.meaning} |" for c in table.columns
            ]
    return "\n".join(lines) + "\n"


def configuration() -> str:
    """Every field of the configurations."""
    lines = [
        "# Configuration",
        "",
        "Generated from the `…config.py` files of `jobs/` by `python docs/generate.py`. `tempscale audit`, `evaluate` and",
        "`tune` each read one as `CONFIG.toml`; options on the command line win over the file. Unknown keys and wrong types",
        "are errors. Where `[corpus]` names no `source`, the quick start's is read with its sample sizes (2,000 texts, 400",
        "for SOCM, 60 for the prefix probe).",
    ]
    for config in (AuditConfig, EvaluateConfig, TuneConfig):
        lines += ["", f"# `tempscale {config.command} CONFIG.toml`", *_top_and_sections(config)]
        if config is EvaluateConfig:
            lines += _section("## `[[tasks]]`: data of your own", OwnTask)
    return "\n".join(lines) + "\n"


def _top_and_sections(config: type[BaseModel]) -> list[str]:
    lines = _section("## Top level", config)
    for name, field in config.model_fields.items():
        if (section := _section_of(field.annotation)) is not None:
            lines += _section(f"## `[{name}]`", section)
    return lines


def _section(heading: str, model: type[BaseModel]) -> list[str]:
    lines = ["", heading, "", f"{(model.__doc__ or '').strip().splitlines()[0]}", ""]
    lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    for key, field in model.model_fields.items():
        if _section_of(field.annotation) is None:
            plain = getattr(field.annotation, "__name__", field.annotation)
            kind = str(field.annotation if get_origin(field.annotation) else plain).replace("typing.", "").replace("|", "or")
            kind = kind.replace("jobs.evaluate_config.", "")
            default = "" if field.default is None or field.is_required() else repr(field.default)
            lines.append(f"| {key} | {kind} | {default} | {field.description} |")
    return lines


def _section_of(annotation: object) -> type[BaseModel] | None:
    """The model of a section, also of one that may be left out."""
    found = [kind for kind in (annotation, *get_args(annotation)) if _is_section(kind)]
    return found[0] if found and get_origin(annotation) is not list else None


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def beside(name: str) -> ModuleType:
    """A further file of this folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES = {
    "tables.md": tables,
    "configuration.md": configuration,
    "data-flow.svg": beside("data_flow").drawing,
    "operations.md": beside("sizing").page,
    "reliability.md": beside("reliability").page,
    "coverage.md": beside("coverage_page").page,
}

if __name__ == "__main__":
    import api_reference

    for name, page in ({name: page() for name, page in PAGES.items()} | api_reference.pages()).items():
        (HERE / name).parent.mkdir(exist_ok=True)
        (HERE / name).write_text(page, "utf-8")
