"""Options of the command line, declared at the fields of their settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Panel = Literal["Tasks", "Pairs", "Texts", "Model and temperature", "What is measured", "The gate", "The run"]
"""The panels of a command's --help, in their order."""


@dataclass(frozen=True)
class Option:
    """An option of the command line; its help is the description of its field, unless it has a `help`."""

    flag: str
    """Its name, such as --sample or --text/--no-text."""
    panel: Panel
    metavar: str | None = None
    kind: Any = None
    """The type of its value on the command line, if it is not the field's."""
    help: str | None = None
    more: str = ""
    """An addition to the field's description, for the help."""
    alias: str | None = None
    excludes: str | None = None
    """A setting of the same section in the file that the option removes."""
    sets: Any = None
    """The field's value if the option, a flag, is given."""
    required: bool = False

    @property
    def name(self) -> str:
        """The parameter of the command with its value."""
        return self.typed.removeprefix("--").replace("-", "_")

    @property
    def typed(self) -> str:
        """Its name in a sentence: of --text/--no-text the first."""
        return self.flag.split("/")[0]


@dataclass(frozen=True)
class ReadBy:
    """The function that makes the field's value from the values of its options, in order; None where not given."""

    function: Callable[..., Any]


class Setting(NamedTuple):
    """A field of a configuration that has options."""

    path: tuple[str, ...]
    """Its place, such as ("corpus", "sample")."""
    options: tuple[tuple[Option, FieldInfo], ...]
    """Each option with the field that describes it: this field, or one of its elements' fields."""
    field: FieldInfo

    def named(self) -> str:
        """Its options in a sentence: "--tau or --temperature"; empty if no option can have a wrong value."""
        return " or ".join(option.typed for option, field in self.options if field is self.field and option.sets is None)

    def typed(self, parameters: dict[str, Any]) -> dict[str, list[str]]:
        """The given options as words of a command line, by option, from the parameters of a command."""
        words: dict[str, list[str]] = {}
        for option, _ in self.options:
            value = parameters.get(option.name)
            if isinstance(value, bool):
                if value or "/" in option.flag:
                    words[option.typed] = [option.flag.split("/")[0 if value else -1]]
            elif value is not None and (values := list(value) if isinstance(value, (list, tuple)) else [value]):
                words[option.typed] = [word for item in values for word in (option.typed, str(item))]
        return words

    def value(self, parameters: dict[str, Any]) -> Any:
        """Its value from the parameters of a command; None if none of its options is given."""
        values = [parameters.get(option.name) for option, _ in self.options]
        # typer gives several values as a list or a tuple, which is empty if the option was not given.
        values = [(list(value) or None) if isinstance(value, (list, tuple)) else value for value in values]
        if all(value is None for value in values):
            return None
        for reader in self.field.metadata:
            if isinstance(reader, ReadBy):
                return reader.function(*values)
        constant = self.options[0][0].sets
        return values[0] if constant is None or not values[0] else constant


def settings(config: type[BaseModel]) -> list[Setting]:
    """The fields of a configuration, and of its sections, that have options."""
    all_settings = []
    for name, field in config.model_fields.items():
        inner = [
            one._replace(path=(name, *one.path)) for section in _sections(field.annotation) for one in settings(section)
        ]
        options = [(option, field) for option in field.metadata if isinstance(option, Option)]
        if options:  # Options of a list's elements belong to the list.
            all_settings.append(Setting((name,), (*options, *(pair for one in inner for pair in one.options)), field))
        else:
            all_settings += inner
    without: frozenset[str] = getattr(config, "without_option", frozenset())
    return [setting for setting in all_settings if ".".join(setting.path) not in without]


def setting_at(config: type[BaseModel], path: tuple[str, ...]) -> Setting | None:
    """The setting that contains a path."""
    return next((setting for setting in settings(config) if path[: len(setting.path)] == setting.path), None)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections in a type, also in a list or a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]
