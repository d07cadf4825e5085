"""Write the pages of docs/ that are made from code, docstrings, tests and results: python docs/generate.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from table_examples import example

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.evaluate import EvaluateConfig, OwnTask
from tempscale_jobs.config.option import settings
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.tables import audit, diagnose, evaluate, findings, nights, pairs, tune
from tempscale_jobs.tables.columns import KEY, Column, Table

HERE = Path(__file__).parent


def tables_by_section() -> tuple[tuple[str, tuple[Table, ...]], ...]:
    """The headings, and the tables below each."""
    parts = (audit.texts(384), audit.factors(384), audit.NEIGHBOURS, audit.REJECTED, audit.SHARDS)
    return (
        ("The table of every command: `tables/findings.parquet`", findings.TABLES),
        ("Tables of a run: `tables/`", audit.TABLES),
        ("The gate, the record of nights, and `tempscale compare`", nights.TABLES),
        ("Tables of `tempscale pairs`: `tables/`", pairs.TABLES),
        ("Tables of `tempscale diagnose`: `tables/`", diagnose.TABLES),
        ("Tables of `tempscale evaluate`: `tables/`", evaluate.TABLES),
        ("Tables of `tempscale tune`: `tables/`", tune.TABLES),
        ("Parts of a run", parts),
    )


def tables() -> str:
    """Every table, with a question that it answers and its columns; a column of several tables is described in the first."""
    lines = [
        "# Tables",
        "",
        "Generated from the schemas in `jobs/tempscale_jobs/tables/` by `python docs/generate.py`.",
        "Each file is Parquet; units and meanings are also in its column metadata. Each table has a question that it",
        "answers in one line of polars (`import polars as pl`). RUN is the run's folder, NIGHTS the folder of the nights,",
        "COMPARED the folder given to `--out` of `tempscale compare`; each may be on object storage.",
        "",
        "Every table of results begins with four columns:",
        "",
        *(_line(column) for column in KEY),
        "",
        "A figure marked ± has two more: `…_se`, its standard error for this corpus (0 when every text was used), and",
        "`…_se_superpopulation`, that for other texts or, where they come in documents, other documents: use it to compare",
        "corpora or nights.",
    ]
    home: dict[Column, str] = {}
    for heading, tables in tables_by_section():
        lines += ["", f"## {heading}"]
        for table in tables:
            question, answer = example(table.name)
            lines += ["", f"### {table.name}", "", f"{table.meaning[0].upper()}{table.meaning[1:]}.", ""]
            lines += [f"*{question}*", "", "```python", answer, "```", "", *_columns(table, home)]
    return "\n".join(lines) + "\n"


def _columns(table: Table, home: dict[Column, str]) -> list[str]:
    """The columns of a table, as lines; `home` is the table that describes each, and receives those described here."""
    columns = _without_errors(table)
    lines = [_line(column, table) for column in columns if column not in home]
    for other in dict.fromkeys(home[column] for column in columns if column in home):
        names = [f"`{column.name}`{_mark(column, table)}" for column in columns if home.get(column) == other]
        lines.append(f"- as in [{other}](#{other}): {', '.join(names)}")
    for column in columns:
        home.setdefault(column, table.name)
    return lines


def _without_errors(table: Table) -> list[Column]:
    """The columns of a table without its key and without the errors of its figures."""
    key = table.columns[: len(KEY)] == KEY
    errors = {f"{_stem(name)}{end}" for name in _figures(table) for end in _ERRORS}
    return [column for column in table.columns[len(KEY) * key :] if column.name not in errors]


_ERRORS = ("_se", "_se_superpopulation")


def _figures(table: Table) -> set[str]:
    """The names of the columns that have both errors."""
    names = {column.name for column in table.columns}
    return {name for name in names if all(f"{_stem(name)}{end}" in names for end in _ERRORS)}


def _stem(name: str) -> str:
    return name.removesuffix("_mean")


def _mark(column: Column, table: Table) -> str:
    return " ±" * (column.name in _figures(table))


def _line(column: Column, table: Table | None = None) -> str:
    """A column as a line of a list: name, mark, type, unit, meaning."""
    mark = "" if table is None else _mark(column, table)
    kind = ", ".join(filter(None, (str(column.type).replace("[384]", "[d]"), column.unit)))
    return f"- `{column.name}`{mark} ({kind}): {column.meaning}"


def configuration() -> str:
    """Every setting of the configurations, with its option; a section that another one repeats names only what differs."""
    lines = [
        "# Configuration",
        "",
        "Generated from the sections in `jobs/tempscale_jobs/config/` by `python docs/generate.py`. `tempscale audit`,",
        "`evaluate` and `tune` each read one as `CONFIG.toml`; options on the command line override the file. Unknown keys",
        "and wrong types are errors. If `[corpus]` names no `source`, the corpus and the sample sizes are those of the",
        "quick start (300 texts, 12 groups for SOCM, 48 texts for the prefix probe). The column *option* names the option",
        "of the command line that sets a key.",
    ]
    home: dict[Setting, str] = {}
    for config in (AuditConfig, EvaluateConfig, TuneConfig):
        command = f"tempscale {config.command}"
        lines += ["", f"# `{command} CONFIG.toml`", *_top_and_sections(config, command, home)]
        if config is EvaluateConfig:
            flags = {setting.path[0]: setting.named() for setting in settings(OwnTask)}
            lines += _section(("tasks", f"{command}, `[[tasks]]`"), _settings_of(OwnTask, flags), {})
    return "\n".join(lines) + "\n"


class Setting(NamedTuple):
    """One key of a section as its row says it."""

    key: str
    kind: str
    default: str
    option: str
    meaning: str


def _settings_of(model: type[BaseModel], options: dict[str, str]) -> list[Setting]:
    """The settings of a section, without the sections in it."""
    return [
        Setting(
            key, _type(field.annotation), "" if field.default is None or field.is_required() else repr(field.default),
            options.get(key, ""), field.description or "",
        )
        for key, field in model.model_fields.items() if _section_of(field.annotation) is None
    ]  # fmt: skip


def _top_and_sections(config: type[BaseModel], command: str, home: dict[Setting, str]) -> list[str]:
    options = {
        setting.path: " ".join(f"`{option.flag}`" for option, field in setting.options if field is setting.field)
        for setting in settings(config)
    }
    top = _settings_of(config, {key: flags for (key, *rest), flags in options.items() if not rest})
    lines = _section(("top", command), top, home)
    for name, field in config.model_fields.items():
        if (section := _section_of(field.annotation)) is not None:
            flags = {path[1]: flags for path, flags in options.items() if path[0] == name}
            lines += _section((name, command), _settings_of(section, flags), home)
    return lines


def _section(names: tuple[str, str], found: list[Setting], home: dict[Setting, str]) -> list[str]:
    """The rows of a section; of settings that an earlier section describes, only their names."""
    name, command = names
    heading = {"top": "Top level", "tasks": "`[[tasks]]`: data of your own"}.get(name, f"`[{name}]`")
    lines = ["", f"## {heading}", ""]
    # The option is no part of a setting's meaning: that of another section has its own, or none.
    new = [one for one in found if one not in home and one._replace(option="") not in home]
    if new:
        lines += ["| key | type | default | option | meaning |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(one)} |" for one in new]
    for other in dict.fromkeys(_home(one, home) for one in found if one not in new):
        alike = [one for one in found if one not in new and _home(one, home) == other]
        keys = [f"`{one.key}`{f' ({one.option})' * bool(one.option)}" for one in alike]
        lines += ["", f"As in {other}: {', '.join(keys)}."]
    place = f"`{command}`, {'its top level' if name == 'top' else f'`[{name}]`'}"
    for one in new:
        home[one] = home[one._replace(option="")] = place
    return lines


def _home(setting: Setting, home: dict[Setting, str]) -> str:
    return home.get(setting) or home[setting._replace(option="")]


def _type(annotation: object) -> str:
    """A type as the page writes it: alternatives with «or», and a class by its name."""
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type(part) for part in get_args(annotation))
    if annotation is NoneType:
        return "None"
    plain = annotation if get_origin(annotation) else getattr(annotation, "__name__", annotation)
    return str(plain).replace("typing.", "").replace("|", "or").replace("tempscale_jobs.config.evaluate.", "")


def _section_of(annotation: object) -> type[BaseModel] | None:
    """The model of a section, also of an optional one."""
    found = [kind for kind in (annotation, *get_args(annotation)) if _is_section(kind)]
    return found[0] if found and get_origin(annotation) is not list else None


def _is_section(annotation: object) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def beside(name: str) -> ModuleType:
    """Another file of this folder, as a module: the folder is not a package."""
    spec = importlib.util.spec_from_file_location(name, HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def bundle() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script for the reports, from vl-convert, which is too large to be installed."""
    import vl_convert

    licence = (
        "/*! Vega, Vega-Lite and Vega-Embed: BSD-3-Clause, https://github.com/vega; with their dependencies, as bundled. */"
    )
    return f"{licence}\n{vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')}\n"


PAGES = {
    "api.md": beside("api_reference").page,
    "tables.md": tables,
    "configuration.md": configuration,
    "operations.md": beside("sizing").page,
    "reliability.md": beside("reliability").page,
    "coverage.md": beside("coverage_page").page,
    "vectors.md": beside("vectors").page,
    "short-texts-win.md": beside("short_texts").page,
    "../jobs/tempscale_jobs/report/templates/vega.js": bundle,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), "utf-8")
