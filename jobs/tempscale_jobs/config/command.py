"""What the configurations of all commands that write a run folder have in common."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.given import lay_over, read_toml
from tempscale_jobs.config.option import settings
from tempscale_jobs.config.strict import Strict, checked

if TYPE_CHECKING:
    from tempscale_jobs.config.sections import Execution, Models


class Command(Strict):
    """A command's configuration; each command declares these sections itself, with its own defaults."""

    command: ClassVar[str]
    reads: ClassVar[str]
    """The section that names the source."""
    runs_models: ClassVar[bool] = True
    """Whether it loads models; without, there is no section [embedding]."""
    outside_identity: ClassVar[frozenset[str]] = frozenset({"out", "execution"})
    """Fields that decide no table."""
    files: ClassVar[tuple[str, ...]] = ()
    """Names that only this command's runs write; in the folder of another command's run they belong to somebody else."""
    worth_resuming: ClassVar[tuple[str, ...]] = ()
    """Names below these that make a run worth resuming, besides what has been read of its source."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Further packages on which its results depend."""
    _command_line: dict[str, Any] | None = PrivateAttr(None)
    if TYPE_CHECKING:
        out: str
        embedding: Models
        execution: Execution

    @classmethod
    def read(cls, parameters: dict[str, Any]) -> Self:
        """The configuration that a command's parameters give: CONFIG.toml, if it is given, with the options laid over it."""
        config, file = cls.from_data(cls._file_and_options(parameters)), parameters.get("config")
        options = {name: words for setting in settings(cls) for name, words in setting.typed(parameters).items()}
        config._command_line = {"file": None if file is None else str(file), "options": options}
        return config

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The checked configuration from what the file and the options say."""
        return checked(cls, data)

    @classmethod
    def _file_and_options(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """The data of the file with the options laid over it."""
        file = parameters.get("config")
        data = {} if file is None else read_toml(str(file))
        overrides = [(setting, value) for setting in settings(cls) if (value := setting.value(parameters)) is not None]
        for setting, _ in overrides:
            for option, _ in setting.options:
                if option.excludes is not None and isinstance(section := data.get(setting.path[0]), dict):
                    section.pop(option.excludes, None)
        for setting, value in overrides:
            lay_over(data, setting.path, value)
        return data

    @property
    def takes_embeddings(self) -> bool:
        """Whether the user gives the embeddings, so that no model runs."""
        return False

    @property
    def command_line(self) -> dict[str, Any] | None:
        """The file that the command was given and its options as they were typed, by option; None if it was not typed."""
        return self._command_line

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""
        data = self.model_dump(mode="json", exclude=set(self.outside_identity))
        for section in data.values():
            if isinstance(section, dict):  # It decides whether there are tables, not what is in them.
                section.pop("max_rejected", None)
        return data

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given; the first is the reference."""
        return [Temperature.of(value) for value in self.embedding.temperatures]


def declared(name: str) -> type[Command] | None:
    """The configuration of a command, which the module of its name declares; None if there is no such command."""
    if name not in {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}:
        return None
    members = vars(importlib.import_module(f"{__package__}.{name}")).values()
    commands = (member for member in members if isinstance(member, type) and issubclass(member, Command))
    return next((command for command in commands if vars(command).get("command") == name), None)
