"""The base of the configurations of all commands that write a run folder."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import PrivateAttr

from tempscale.model.checkpoint import default_model
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.given import lay_over, read_toml
from tempscale_jobs.config.option import settings
from tempscale_jobs.config.strict import Strict, checked

if TYPE_CHECKING:
    from tempscale_jobs.config.sections import Execution, Models


class Command(Strict):
    """A command's configuration; each command declares the sections itself, with its defaults."""

    command: ClassVar[str]
    reads: ClassVar[str]
    """The section that names the source."""
    runs_models: ClassVar[bool] = True
    """Whether it loads models and has a section [embedding]."""
    outside_identity: ClassVar[frozenset[str]] = frozenset({"out", "execution"})
    """Fields that do not change the tables."""
    files: ClassVar[tuple[str, ...]] = ()
    """Names that only this command's runs write."""
    worth_resuming: ClassVar[tuple[str, ...]] = ()
    """Names that make a run worth resuming, like the record of its source."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Further packages that its results depend on."""
    _command_line: dict[str, Any] | None = PrivateAttr(None)
    if TYPE_CHECKING:
        out: str
        embedding: Models
        execution: Execution

    @classmethod
    def read(cls, parameters: dict[str, Any]) -> Self:
        """The configuration from a command's parameters: options replace the settings of CONFIG.toml, if one is given."""
        config, file = cls.from_data(cls._file_and_options(parameters)), parameters.get("config")
        options = {name: words for setting in settings(cls) for name, words in setting.typed(parameters).items()}
        config._command_line = {"file": None if file is None else str(file), "options": options}
        return config

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """The checked configuration from the data of the file and the options."""
        return checked(cls, data)

    @classmethod
    def _file_and_options(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """The data of the file, with settings replaced by the options."""
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
        """Whether the embeddings are the user's, so that no model runs."""
        return False

    @property
    def verification(self) -> Command | None:
        """The configuration of `verify` by which the run's vectors are verified, if they are."""
        return None

    @property
    def other_models(self) -> Command | None:
        """The configuration whose models the run's are compared with, if there are any."""
        return None

    @property
    def model_names(self) -> list[str]:
        """The models by name or folder; the installed demo model unless one is given."""
        return self.embedding.models or [default_model()]

    @property
    def command_line(self) -> dict[str, Any] | None:
        """The file and the options as they were typed; None if the run was not started by a command line."""
        return self._command_line

    def identity(self) -> dict[str, Any]:
        """All that decides the tables, as plain data."""
        data = self.model_dump(mode="json", exclude=set(self.outside_identity))
        for section in data.values():
            if isinstance(section, dict):  # max_rejected decides whether a run ends, not the content of tables.
                section.pop("max_rejected", None)
        return data

    def temperatures(self) -> list[Temperature]:
        """The temperatures in the order given; the first is the reference."""
        return [Temperature.of(value) for value in self.embedding.temperatures]


def declared(name: str) -> type[Command] | None:
    """The configuration of a command, from the module of its name; None if there is no such command."""
    if name not in {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}:
        return None
    members = vars(importlib.import_module(f"{__package__}.{name}")).values()
    commands = (member for member in members if isinstance(member, type) and issubclass(member, Command))
    return next((command for command in commands if vars(command).get("command") == name), None)
