"""The option of the command line that gives a setting, declared at the setting's field."""

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
    """An option of the command line; its help is the description of its field, unless it has its own."""

    flag: str
    """Its name, such as --sample or --text/--no-text."""
    panel: Panel
    metavar: str | None = None
    kind: Any = None
    """The type of its value on the command line, where it is not the field's."""
    help: str | None = None
    more: str = ""
    """What its help adds to the field's description."""
    alias: str | None = None
    excludes: str | None = None
    """A setting of the same section that the option replaces where the file has it."""
    sets: Any = None
    """The value of the field that the option, a flag, stands for."""
    required: bool = False

    @property
    def name(self) -> str:
        """The parameter of the command that holds its value."""
        return self.typed.removeprefix("--").replace("-", "_")

    @property
    def typed(self) -> str:
        """Its name as a sentence writes it: of --text/--no-text the first."""
        return self.flag.split("/")[0]


@dataclass(frozen=True)
class ReadBy:
    """The function that makes the field's value of the values of its options, in their order; None where not given."""

    function: Callable[..., Any]


class Setting(NamedTuple):
    """A field of a configuration that has options."""

    path: tuple[str, ...]
    """Its place, such as ("corpus", "sample")."""
    options: tuple[tuple[Option, FieldInfo], ...]
    """Each option with the field that describes it: this one, or one of its elements' own."""
    field: FieldInfo

    def named(self) -> str:
        """Its options as a sentence names them: "--tau or --temperature"; nothing where none can be wrong."""
        return " or ".join(option.typed for option, field in self.options if field is self.field and option.sets is None)

    def typed(self, parameters: dict[str, Any]) -> dict[str, list[str]]:
        """Its options as words of a command line, by option, from the parameters of a command; without those not given."""
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
        """Its value from the parameters of a command; None where none of its options is given."""
        values = [parameters.get(option.name) for option, _ in self.options]
        # typer gives several values as a list or a tuple; an empty one is an option that was not given.
        values = [(list(value) or None) if isinstance(value, (list, tuple)) else value for value in values]
        if all(value is None for value in values):
            return None
        for reader in self.field.metadata:
            if isinstance(reader, ReadBy):
                return reader.function(*values)
        constant = self.options[0][0].sets
        return values[0] if constant is None or not values[0] else constant


def settings(config: type[BaseModel]) -> list[Setting]:
    """The fields of a configuration that a command has options for, those of sections by their path."""
    all_settings = []
    for name, field in config.model_fields.items():
        inner = [
            one._replace(path=(name, *one.path)) for section in _sections(field.annotation) for one in settings(section)
        ]
        options = [(option, field) for option in field.metadata if isinstance(option, Option)]
        if options:  # The options of a list's elements are given with those of the list.
            all_settings.append(Setting((name,), (*options, *(pair for one in inner for pair in one.options)), field))
        else:
            all_settings += inner
    without: frozenset[str] = getattr(config, "without_option", frozenset())
    return [setting for setting in all_settings if ".".join(setting.path) not in without]


def setting_at(config: type[BaseModel], path: tuple[str, ...]) -> Setting | None:
    """The setting that holds what is at a path."""
    return next((setting for setting in settings(config) if path[: len(setting.path)] == setting.path), None)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a type names, in a list or a union too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [section for part in get_args(annotation) for section in _sections(part)]
