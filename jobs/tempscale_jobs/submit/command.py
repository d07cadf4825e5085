"""Turn a command into a job: its options are read here first, and it gets a name."""

from __future__ import annotations

import datetime
import glob
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tempscale.correction.variant_names import model_of
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.command import Command
from tempscale_jobs.config.correct import CorrectConfig
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig, task_names
from tempscale_jobs.config.nights import NIGHT, checked_night, filled
from tempscale_jobs.config.option import setting_at
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.errors import UsageError
from tempscale_jobs.submit.packing import FOLDER, Packed, pack
from tempscale_jobs.urls import masked, without_secrets

COMMANDS: dict[str, type[Command]] = {
    kind.command: kind
    for kind in (AuditConfig, VerifyConfig, PairsConfig, DiagnoseConfig, EvaluateConfig, TuneConfig, CorrectConfig)
}
"""The commands that a job may run, with their configurations: they write a run folder and resume."""
_FOUND = f"i.find_spec({FOLDER!r}).submodule_search_locations"
"""The working directory on a node. Ray's own `working_dir` would be unpacked again, while the driver uses it, by each node
that shares a disk with the head; its `py_modules` are not."""
_WRITTEN = ("out", "execution.cache", "record.history")
"""Settings with folders that must outlive a job."""
_READ = ("source", "corpus", "queries", "qrels", "models", "model", "audits", "baseline", "texts", "candidates", "earlier")
"""Settings that may name what a run reads."""


@dataclass(frozen=True)
class Submission:
    """A command as a job."""

    command: str
    arguments: tuple[str, ...]
    night: str
    identifier: str
    """The submission id of the first attempt."""
    packed: Packed | None
    """The files that are sent with it; None if it names no file."""
    image_code: bool
    """Whether the tempscale of the cluster runs it."""

    @property
    def entrypoint(self) -> str:
        """The command for the head's shell."""
        python = ["python", "-P"]  # -P: do not import a folder of this name in the working directory.
        run = shlex.join(["exec", *python, "-m", "tempscale_jobs", self.command, *self.arguments])
        # Without this package Python would end with 1, which means a failed gate.
        if self.packed is None:
            return f"{shlex.join([*python, '-c', 'import tempscale_jobs.cli.app'])} || exit 2; {run}"
        find = shlex.join([*python, "-c", f"import tempscale_jobs.cli.app, importlib.util as i; print(*{_FOUND})"])
        return f'files=$({find}) && cd "$files" || exit 2; {run}'


def read(context: Any, night: str | None, working_dir: Path | None, image_code: bool) -> Submission:
    """The submission of a command whose options are parsed, the context of typer; --night, --working-dir, --image-code."""
    command, parameters = context.info_name, context.params
    if parameters.get("plan"):
        raise UsageError("--plan estimates and stops: give it to the command without submit")
    night = _night(night, parameters.get("night"))
    knows_night = "night" in parameters  # In other commands the date replaces {night} in the arguments.
    dated = (
        parameters | {"night": night} if knows_night else {name: _filled(value, night) for name, value in parameters.items()}
    )
    config = COMMANDS[command].read(dated)
    _check_folders(config, knows_night)
    packed = _packed(parameters, working_dir, image_code)
    _check_files(config.model_dump(mode="json"), packed)

    def as_sent(value: Any) -> str:
        if isinstance(value, Path):
            return _name_in_job(value, packed)
        return str(value) if knows_night else filled(str(value), night)

    arguments = _arguments(context, as_sent)
    for argument in arguments:
        if masked(argument) != argument:
            raise UsageError(
                f"'{masked(argument)}' holds a password or token, and all who see a cluster see the arguments of its jobs; "
                "give the cluster its credentials by environment, or write the address into the configuration file"
            )
    more = ["--night", night] if knows_night and parameters["night"] is None else []
    if parameters.get("address") is None:
        more += ["--address", "auto"]
    return Submission(command, (*arguments, *more), night, _identifier(config, night), packed, image_code)


def _filled(value: Any, night: str) -> Any:
    """A parameter in which the night's date replaces {night}."""
    if isinstance(value, (list, tuple)):
        return [_filled(item, night) for item in value]
    return filled(value, night) if isinstance(value, str) else value


def _night(outer: str | None, inner: str | None) -> str:
    if outer is not None and inner is not None and outer != inner:
        raise UsageError(f"--night {outer} and --night {inner} are two nights; give one")
    night = outer or inner
    try:
        return checked_night(night) or datetime.datetime.now(datetime.UTC).date().isoformat()
    except ValueError:
        raise UsageError(f"--night '{night}' is no date; write it as 2026-11-22") from None


def _packed(parameters: dict[str, Any], working_dir: Path | None, image_code: bool) -> Packed | None:
    """The files of the working directory: the given folder, or the configuration's."""
    values = [item for value in parameters.values() for item in (value if isinstance(value, (list, tuple)) else [value])]
    files = [value for value in values if isinstance(value, Path)]
    if working_dir is not None:
        if not working_dir.is_dir():
            raise UsageError(f"--working-dir '{working_dir}' is no folder of this machine")
        return pack(Path(os.path.abspath(working_dir)))
    if image_code:
        if any(not path.is_absolute() for path in files):
            raise UsageError(
                f"'{files[0]}' is not sent with --image-code; give its full path in the image, or --working-dir DIR"
            )
        return None
    if isinstance(parameters.get("config"), Path):
        return pack(Path(os.path.abspath(parameters["config"])).parent)
    if files:
        raise UsageError(f"'{files[0]}' must be sent with the job; give --working-dir with a folder that contains it")
    return None


def _name_in_job(file: Path, packed: Packed | None) -> str:
    """The name of a file where the job runs; a UsageError if the file is not sent."""
    if packed is None:
        return str(file)
    full = Path(os.path.abspath(file))  # Do not follow links: Kubernetes mounts a file as a link into a hidden folder.
    if not full.is_relative_to(packed.folder):
        raise UsageError(
            f"'{file}' is not below the working directory '{packed.folder}'; give one that holds it: --working-dir"
        )
    name = full.relative_to(packed.folder).as_posix()
    if not packed.holds(name):
        raise packed.unsent(str(file))
    return name


def _arguments(context: Any, as_sent: Callable[[Any], str]) -> tuple[str, ...]:
    """The given arguments with each value as `as_sent` writes it."""
    positional, options = list[str](), list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name]
        if parameter.param_type_name == "argument":
            positional.append(as_sent(value))
        elif isinstance(value, bool):
            options.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for item in value if parameter.multiple else [value]:
                options += [max(parameter.opts, key=len), *map(as_sent, item if isinstance(item, tuple) else [item])]
    return (*positional, *options)


def _check_folders(config: Command, knows_night: bool) -> None:
    """Raise if a folder that must outlive the job would be in the job's directory."""
    data = config.model_dump(mode="json")
    for place in _WRITTEN:
        section, _, name = place.rpartition(".")
        value = ((data.get(section) or {}) if section else data).get(name)
        if not isinstance(value, str):
            continue
        setting = setting_at(type(config), tuple(place.split(".")))
        name = place if setting is None else setting.named()
        if NIGHT in value and not knows_night:
            raise UsageError(f"{name} '{value}': this command fills in {NIGHT} only where --out has it on the command line")
        if _is_relative(value):
            raise UsageError(
                f"{name} '{value}' would be in the job's own directory and be lost with it; give the full path of a folder "
                "that all machines of the cluster share, or object storage such as s3://BUCKET/nights/{night}"
            )


def _check_files(config: dict[str, Any], packed: Packed | None) -> None:
    """Raise if the run reads something that is only on this machine."""
    for path in _read_by(config):
        inside = [] if packed is None else _matches(path, packed.folder)
        if packed is not None and inside:
            if not any(map(packed.holds, inside)):
                raise packed.unsent(path)
        elif _matches(path, Path.cwd()):
            raise UsageError(
                f"'{path}' is on this machine and is not sent with the job; put it on a shared folder or object storage, or "
                "into the working directory (--working-dir), and give its path there"
            )


def _read_by(config: Any, key: str = "") -> Iterator[str]:
    """The sources of the run that are, or may be, relative paths."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _read_by(value, name)
    elif isinstance(config, list):
        for value in config:
            yield from _read_by(value, key)
    elif isinstance(config, str):
        path = model_of(config) if key == "what_if" else config if key in _READ else None
        if path is not None and _is_relative(path):
            yield path


def _is_relative(path: str) -> bool:
    return "://" not in path and not path.startswith(("/", "~", "hf:", "docstrings:"))


def _matches(path: str, folder: Path) -> list[str]:
    """The names in a folder that a relative path or glob matches."""
    if any(magic in path for magic in "*?["):
        return glob.glob(path, root_dir=folder, recursive=True)
    return [os.path.normpath(path)] if (folder / path).exists() else []


def _identifier(config: Command, night: str) -> str:
    """A name that depends on the configuration and the night, without secrets."""
    identity = {"command": config.command, "config": config.identity(), "out": config.out, "night": night}
    digest = hashlib.sha256(json.dumps(without_secrets(identity), sort_keys=True).encode()).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", _title(config, night).lower()).strip("-")[:24].strip("-")
    return f"tempscale-{slug or config.command}-{night}-{digest}"


def _title(config: Command, night: str) -> str:
    """The subject of the run in a few words: the name of its record, or the last word of its source."""
    if name := getattr(getattr(config, "record", None), "name", ""):
        return str(name)
    section = getattr(config, config.reads, None) or getattr(config, "corpus", None)
    if isinstance(section, list):
        return "-".join(task_names(section))
    source = masked(str(getattr(section, "source", ""))).replace(NIGHT, "").replace(night, "")
    if source.startswith("hf:"):
        return source.split(":")[1].rpartition("/")[2]
    words = [word for word in re.split(r"[/:]+", source) if word.strip(".") and "*" not in word]
    return words[-1].split(".")[0] if words else ""
