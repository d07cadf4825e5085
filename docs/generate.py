"""Write the pages of docs/ that are made from code, docstrings, tests and results: python docs/generate.py."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from table_examples import QUESTIONS, example

from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.evaluate import EvaluateConfig, OwnTask
from tempscale_jobs.config.option import settings
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.tables import audit, diagnose, evaluate, findings, nights, pairs, tune, verify
from tempscale_jobs.tables.columns import KEY, Column, Table

HERE = Path(__file__).parent


def tables_by_section() -> tuple[tuple[str, tuple[Table, ...]], ...]:
    """The headings, and the tables below each."""
    parts = (audit.texts(384), audit.factors(384), audit.NEIGHBOURS, audit.REJECTED, audit.SHARDS)
    return (
        ("The table of every command: `tables/findings.parquet`", findings.TABLES),
        ("Tables of a run: `tables/`", audit.TABLES),
        ("The gate, the record of nights, and `tempscale compare`", nights.TABLES),
        ("Tables of `tempscale verify`: `tables/`", verify.TABLES),
        ("Tables of `tempscale pairs`: `tables/`", pairs.TABLES),
        ("Tables of `tempscale diagnose`: `tables/`", diagnose.TABLES),
        ("Tables of `tempscale evaluate`: `tables/`", evaluate.TABLES),
        ("Tables of `tempscale tune`: `tables/`", tune.TABLES),
        ("Parts of a run", parts),
    )


def tables() -> str:
    """Every table, with a question that it answers and its columns; what several tables share is described in the first."""
    lines = [
        "# Tables",
        "",
        "Which table answers a question, and what each column means. For example, why a night failed:",
        "",
        "```python",
        example("gate")[1],
        "```",
        "",
        "Generated from `jobs/tempscale_jobs/tables/`; a file's column metadata has the same units and meanings.",
        "Every example is one line of polars (`import polars as pl`). RUN is the run's folder, NIGHTS the folder of the",
        "nights, COMPARED the folder given to `--out` of `tempscale compare`; each may be on object storage.",
        "S1 and S2 are [the papers](equations.md), τ is the attention temperature, SOCM second-order collapse, n a",
        "text's number of tokens, w their mean cosine.",
        "",
        "Every table of results begins with four columns:",
        "",
        *(f"- {_named([column])}: {column.meaning}" for column in KEY),
        "",
        "Names in italics are strings; a column without a type is a number; `x_se` after `x` is its standard error. A",
        "figure marked ± has two more:",
        "`…_se`, the error for this corpus (0 when every text was used), and `…_se_superpopulation`, the error for other",
        "texts or, where they come in documents, other documents: use it to compare corpora or nights.",
    ]
    home: dict[Column, str] = {}
    written: set[str] = set()
    for heading, tables in tables_by_section():
        lines += ["", f"## {heading}"]
        for table in tables:
            if table.name in written:
                lines += ["", f"[{table.name}](#{table.name}): the same table as above."]
                continue
            written.add(table.name)
            meaning = f"{table.meaning[0].upper()}{table.meaning[1:]}".rstrip(".")
            lines += ["", f"### {table.name}", "", meaning + ("" if meaning.endswith("?") else "."), ""]
            lines += [f"*{QUESTIONS[table.name][0]}* `{example(table.name)[1]}`", "", *_columns(table, home)]
    return "\n".join(lines) + "\n"


def _columns(table: Table, home: dict[Column, str]) -> list[str]:
    """The columns of a table, as lines; `home` is the table that describes each, and receives those described here."""
    columns = _without_errors(table)
    new = [column for column in columns if column not in home]
    lines = [f"- {_named(alike, table)}: {meaning}" for meaning, alike in _by_meaning(new)]
    elsewhere = []
    for other in dict.fromkeys(home[column] for column in columns if column in home):
        shared = [column for column in columns if home.get(column) == other]
        whole = len(shared) > 1 and len(shared) == sum(of == other for of in home.values())
        names = "all columns" if whole else ", ".join(f"`{column.name}`{_mark(column, table)}" for column in shared)
        elsewhere.append(f"[{other}](#{other}): {names}")
    lines += [f"- as in {'; '.join(elsewhere)}"] * bool(elsewhere)
    for column in columns:
        home.setdefault(column, table.name)
    return lines


def _by_meaning(columns: list[Column]) -> list[tuple[str, list[Column]]]:
    """The columns by meaning: a standard error with its figure, and neighbours of one meaning together."""
    errors = {column.name: column for column in columns if column.name.endswith(_ERRORS)}
    of_figures = {error for column in columns if column.name not in errors for error in _of(column)}
    alike: list[tuple[str, list[Column]]] = []
    for column in columns:
        if column.name in errors and column.name in of_figures:
            continue
        is_mean = column.meaning == f"mean of {_stem(column.name)}"
        meaning = "the mean of the column of that name; each has an error `…_se`" if is_mean else column.meaning
        own = [column]
        for error in (errors[name] for name in _of(column) if name in errors and errors[name] is not column):
            own += [] if is_mean else [error]
            how = error.meaning.removeprefix("its standard error").lstrip(",:; ")
            meaning += f". Error: {how}" if how else ""
        if alike and alike[-1][0] == meaning:
            alike[-1][1].extend(own)
        else:
            alike.append((meaning, own))
    return alike


def _without_errors(table: Table) -> list[Column]:
    """The columns of a table without its key and without the errors of its figures."""
    key = table.columns[: len(KEY)] == KEY
    errors = {f"{_stem(name)}{end}" for name in _figures(table) for end in _ERRORS}
    return [column for column in table.columns[len(KEY) * key :] if column.name not in errors]


_ERRORS = ("_se", "_se_superpopulation")


def _of(figure: Column) -> dict[str, None]:
    """The names that a figure's errors may have."""
    return dict.fromkeys(f"{name}{end}" for name in (_stem(figure.name), figure.name) for end in _ERRORS)


def _figures(table: Table) -> set[str]:
    """The names of the columns that have both errors."""
    names = {column.name for column in table.columns}
    return {name for name in names if all(f"{_stem(name)}{end}" in names for end in _ERRORS)}


def _stem(name: str) -> str:
    return name.removesuffix("_mean")


def _mark(column: Column, table: Table | None) -> str:
    return "±" * (table is not None and column.name in _figures(table))


def _named(columns: list[Column], table: Table | None = None) -> str:
    """The names of columns of one meaning, with marks, and the first's type, and its unit unless name or meaning has it."""
    kind = str(columns[0].type).replace("[384]", "[d]")
    words = re.split(r"[\W_]+", f"{columns[0].name} {columns[0].meaning}")
    unit = "" if columns[0].unit in words else columns[0].unit
    parts = ", ".join(filter(None, ("" if kind in (*_NUMBERS, "string") else kind, unit)))
    names = ", ".join(f"`{column.name}`{_mark(column, table)}" for column in columns)
    return (f"*{names}*" if kind == "string" else names) + (f" ({parts})" if parts else "")


_NUMBERS = ("double", "float", "int32", "int64")


def configuration() -> str:
    """Every setting of the configurations, with its option; a section that another one repeats names only what differs."""
    lines = [
        "# Configuration",
        "",
        "Every setting is a key of a TOML file, most are options too, and options override the file:",
        "",
        "    tempscale audit nightly.toml --workers 8",
        "",
        "`tempscale evaluate` and `tune` read such a file as well. Unknown keys and wrong types are errors. If `[corpus]`",
        "has no `source`, corpus and sample sizes are those of the quick start (300 texts, 12 groups for SOCM, 48 texts for",
        "the prefix probe). SOCM is second-order collapse, τ the attention temperature; S1 and S2 are",
        "[the papers](equations.md). Each key has its type, =its default unless that is None or empty, and its option.",
        "Generated from `jobs/tempscale_jobs/config/`.",
    ]
    home: dict[Setting, str] = {}
    for config in (AuditConfig, EvaluateConfig, TuneConfig):
        command = f"tempscale {config.command}"
        lines += ["", f"# `{command} CONFIG.toml`", *_top_and_sections(config, command, home)]
        if config is EvaluateConfig:
            flags = {setting.path[0]: f"`{setting.named()}`" for setting in settings(OwnTask)}
            lines += _section(("tasks", f"{command}, `[[tasks]]`"), _settings_of(OwnTask, flags), {})
    return "\n".join(lines) + "\n"


class Setting(NamedTuple):
    """One key of a section as its line says it."""

    key: str
    kind: str
    default: str
    option: str
    meaning: str

    def facts(self) -> list[str]:
        """Its type, default and option."""
        default = f"=`{self.default}`" if self.default not in ("", "[]", "{}", "''") else ""
        return [fact for fact in (f"{self.kind}{default}", self.option) if fact]


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
    lines += [f"- `{one.key}` ({', '.join(one.facts())}): {one.meaning}" for one in new]
    for other in dict.fromkeys(_home(one, home) for one in found if one not in new):
        alike = [one for one in found if one not in new and _home(one, home) == other]
        lacking = [one for one in alike if _lacks_option(one, home)]
        kinds = {"": [one for one in alike if one not in lacking], "without an option ": lacking}
        keys = [words + ", ".join(f"`{one.key}`" for one in some) for words, some in kinds.items() if some]
        lines += [""] * bool(new) + [f"As in {other}: {'; '.join(keys)}."]
    place = f"`{command}`, {'its top level' if name == 'top' else f'`[{name}]`'}"
    for one in new:
        home[one] = home[one._replace(option="")] = place
    return lines


def _lacks_option(setting: Setting, home: dict[Setting, str]) -> bool:
    """Whether the section that describes a setting has an option for it, and this one has none."""
    return not setting.option and any(one.option and one._replace(option="") == setting for one in home)


def _home(setting: Setting, home: dict[Setting, str]) -> str:
    return home.get(setting) or home[setting._replace(option="")]


def _type(annotation: object) -> str:
    """A type as the page writes it: alternatives with «or», and a class by its name."""
    if get_origin(annotation) in (Union, UnionType):
        return " or ".join(_type(part) for part in get_args(annotation) if part is not NoneType)
    if get_origin(annotation) is Literal:
        return "|".join(repr(one) for one in get_args(annotation))
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
    "dev/reliability.md": beside("reliability").page,
    "dev/coverage.md": beside("coverage_page").page,
    "vectors.md": beside("vectors").page,
    "short-texts-win.md": beside("short_texts").page,
    "../jobs/tempscale_jobs/report/templates/vega.js": bundle,
}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), "utf-8")
