"""The options of a command: one for each setting of its configuration that has one, and the few that are no settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from rich.markup import escape
from typer.core import TyperCommand
from typing_extensions import override

from tempscale_jobs.cli.start import answer, remember
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.option import Option, Panel, settings

Config = TypeVar("Config", bound=Command)


def option(panel: str, text: str, *flags: str, **more: Any) -> Any:
    """An option of typer in its panel of --help; nothing in its text is markup."""
    return typer.Option(*flags, help=escape(text), rich_help_panel=panel, **more)


def argument(metavar: str, text: str) -> Any:
    """An argument of typer; nothing in its text is markup."""
    return typer.Argument(metavar=metavar, help=escape(text))


def _parameter(name: str, kind: Any, information: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[kind, information], default=default)


CONFIG = _parameter("config", Path | None, argument("CONFIG.toml", "A configuration; options given here win over it."), None)
RESUME = _parameter(
    "resume", bool, option("The run", "Go on with the run in --out, or start it over.", "--resume/--fresh"), True
)
PLAN = _parameter(
    "plan", bool,
    option("The run", "Print the estimated texts, tokens, pairs, time, memory and disk, and stop.", "--plan"), False,
)  # fmt: skip


AS_JSON = option("The run", "Print the verdict and the findings as JSON.", "--json")
JSON = _parameter("as_json", bool, AS_JSON, False)
"""For continuous integration and orchestrators."""


_COMMON = {
    "corpus", "text_column", "document_column", "sample", "queries", "embedding_column", "model", "tau", "out", "workers",
    "quick", "resume", "plan", "as_json", "help_all", "help", "config",
}  # fmt: skip
"""The options that --help shows of a command with many; --help-all shows the others too."""


class ManyOptions(TyperCommand):
    """A command whose --help shows the options that most need. A shell completes all of them."""

    @override
    def format_help(self, ctx: Any, formatter: Any) -> None:
        rare: list[Any] = [parameter for parameter in self.params if parameter.name not in _COMMON]
        for parameter in rare:
            parameter.hidden = True
        super().format_help(ctx, formatter)
        for parameter in rare:
            parameter.hidden = False


def _print_all(context: typer.Context, is_asked: bool) -> None:
    """Print the help with all options, and end."""
    if is_asked:
        TyperCommand.format_help(context.command, context, context.make_formatter())  # type: ignore[arg-type]
        raise typer.Exit


HELP_ALL = _parameter(
    "help_all", bool,
    option("The run", "Show all options, and exit.", "--help-all", is_eager=True, callback=_print_all), False,
)  # fmt: skip


def configured(kind: type[Config], *more: inspect.Parameter) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Make a command of a function that takes a configuration, a console, and of `more` the options that are no settings."""
    parameters = sorted([*_options(kind), *more], key=_place)

    def decorate(function: Callable[..., int]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(**arguments: Any) -> None:
            remember(arguments)
            extra_arguments = {
                parameter.name: arguments[parameter.name] for parameter in more if parameter not in (CONFIG, HELP_ALL)
            }
            answer(lambda console: function(kind.read(arguments), console, **extra_arguments))

        described: Any = command
        described.__signature__ = inspect.Signature(parameters)
        described.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return command

    return decorate


def _place(parameter: inspect.Parameter) -> int:
    """The place of a parameter's panel on the page of --help; arguments are first."""
    panel = get_args(parameter.annotation)[1].rich_help_panel
    return -1 if panel is None else get_args(Panel).index(panel)


def _options(kind: type[Command]) -> Iterator[inspect.Parameter]:
    for setting in settings(kind):
        for spec, field in setting.options:
            value = spec.kind or (bool if spec.sets is not None else _value_type(field))
            names = [spec.flag] if spec.alias is None else [spec.flag, spec.alias]
            information = option(
                spec.panel, _help(spec, field, value), *names, metavar=_metavar(spec, field), show_default=False
            )
            if spec.required:
                yield _parameter(spec.name, value, information, inspect.Parameter.empty)
            else:
                yield _parameter(spec.name, value | None, information, None)


def _value_type(field: FieldInfo) -> Any:
    """The type of an option's value; a Literal is a text, which the configuration checks."""
    kinds = [kind for kind in get_args(field.annotation) if kind is not NoneType]
    kind = kinds[0] if NoneType in get_args(field.annotation) else field.annotation
    return str if get_origin(kind) is Literal else kind


def _metavar(spec: Option, field: FieldInfo) -> str | None:
    if spec.metavar is None and get_origin(field.annotation) is Literal:
        return "|".join(get_args(field.annotation))
    return spec.metavar


def _help(spec: Option, field: FieldInfo, kind: Any) -> str:
    text = spec.help or f"{field.description} {spec.more}".strip()
    if get_origin(kind) is list:
        text += " Repeatable."
    default = _default(spec, field.default, kind)
    return f"{text.removesuffix('.')} (default: {default})." if default else text


def _default(spec: Option, value: Any, kind: Any) -> str:
    """The default of a field as its option would give it; empty where there is none, or none that an option could give."""
    if isinstance(value, bool):
        yes, _, no = spec.flag.partition("/")
        return yes if value else no
    if isinstance(value, list):
        between = {str: ",", list[float]: " "}.get(kind)
        return "" if between is None or any(isinstance(part, dict) for part in value) else between.join(map(str, value))
    return str(value) if isinstance(value, (int, float, str)) and spec.sets is None else ""
