"""What `tempscale submit` sends: a command, read by our own command line before anything travels, and its name."""

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

from jobs.errors import UsageError
from jobs.night_config import NIGHT, checked_night
from jobs.packing import FOLDER, Packed, pack
from jobs.urls import shown

RUNS = ("audit", "pairs", "diagnose", "evaluate", "tune")
"""Commands that leave a run folder and go on where they stopped: what a job may be."""
_FOUND = f"i.find_spec({FOLDER!r}).submodule_search_locations"
"""Where the working directory lies on a node. Ray's own `working_dir` would be unpacked anew, under the driver's feet, by
each node that shares a disk with the head; its `py_modules` are not."""
_WRITTEN = ("out", "execution.cache", "record.history")
"""Folders that must outlive a job, by their place in a configuration."""
_READ = ("source", "corpus", "queries", "qrels", "models", "audits", "baseline")
"""Where a configuration may name what a run reads."""


@dataclass(frozen=True)
class Submission:
    """A command as a job."""

    command: str
    arguments: tuple[str, ...]
    night: str
    identifier: str
    """The submission id of the first attempt."""
    packed: Packed | None
    """What travels with it; nothing where it names no file."""
    image_code: bool
    """Whether the cluster's own tempscale runs."""

    @property
    def entrypoint(self) -> str:
        """What the head's shell runs."""
        python = ["python", "-P"]  # -P: a folder `jobs` in the working directory is not this package.
        run = shlex.join(["exec", *python, "-m", "jobs", self.command, *self.arguments])
        # Python without this package, or without what it stands on, would end with 1, which is a failed gate's.
        if self.packed is None:
            return f"{shlex.join([*python, '-c', 'import jobs.cli'])} || exit 2; {run}"
        find = shlex.join([*python, "-c", f"import jobs.cli, importlib.util as i; print(*{_FOUND})"])
        return f'files=$({find}) && cd "$files" || exit 2; {run}'


def read(context: Any, night: str | None, working_dir: Path | None, image_code: bool) -> Submission:
    """A submission from a command that was parsed and not yet run.

    Args:
        context: of the command, by typer.
        night: the date that --night of `submit` gives.
        working_dir: the folder that --working-dir gives.
        image_code: whether the cluster's own tempscale is to run.

    Raises:
        UsageError: it cannot run as a job.
        typer.Exit: the command itself has said what is wrong with its options.
    """
    command, given = context.info_name, context.params
    if given.get("plan"):
        raise UsageError("--plan estimates and stops: give it to the command without submit")
    night = _night(night, given.get("night"))
    knows_night = "night" in given

    def plain(value: Any) -> str:
        return str(value) if knows_night else str(value).replace(NIGHT, night)

    def sent(value: Any) -> str:
        return _name_there(value, packed) if isinstance(value, Path) else plain(value)

    more = ["--night", night] if knows_night and given["night"] is None else []
    config = _configuration(context, [*_arguments(context, plain), *more])
    _check_folders(config.model_dump(mode="json"), given)
    packed = _packed(given, working_dir, image_code)
    _check_files(config.model_dump(mode="json"), packed)
    arguments = _arguments(context, sent)
    for argument in arguments:
        if shown(argument) != argument:
            raise UsageError(
                f"'{shown(argument)}' holds a password or token, and all who see a cluster see the arguments of its jobs; "
                "give the cluster its credentials by environment, or write the address into the configuration file"
            )
    if given.get("address") is None:
        more += ["--address", "auto"]
    return Submission(command, (*arguments, *more), night, _identifier(command, config, night), packed, image_code)


def _night(outer: str | None, inner: str | None) -> str:
    if outer is not None and inner is not None and outer != inner:
        raise UsageError(f"--night {outer} and --night {inner} are two nights; give one")
    night = outer or inner
    try:
        return checked_night(night) or datetime.datetime.now(datetime.UTC).date().isoformat()
    except ValueError:
        raise UsageError(f"--night '{night}' is no date; write it as 2026-11-22") from None


def _packed(given: dict[str, Any], working_dir: Path | None, image_code: bool) -> Packed | None:
    """The working directory: the one that is given, else the configuration's."""
    values = [one for value in given.values() for one in (value if isinstance(value, (list, tuple)) else [value])]
    files = [value for value in values if isinstance(value, Path)]
    if working_dir is not None:
        if not working_dir.is_dir():
            raise UsageError(f"--working-dir '{working_dir}' is no folder of this machine")
        return pack(Path(os.path.abspath(working_dir)))
    if image_code:
        if any(not path.is_absolute() for path in files):
            raise UsageError(
                f"'{files[0]}' does not travel with --image-code; give its full path in the image, or --working-dir DIR"
            )
        return None
    if isinstance(given.get("config"), Path):
        return pack(Path(os.path.abspath(given["config"])).parent)
    if files:
        raise UsageError(f"'{files[0]}' has to travel with the job; give --working-dir with a folder that holds it")
    return None


def _name_there(file: Path, packed: Packed | None) -> str:
    """What a file is called where the job runs.

    Raises:
        UsageError: it does not travel.
    """
    if packed is None:
        return str(file)
    full = Path(os.path.abspath(file))  # Links are kept: Kubernetes mounts a file as a link into a hidden folder.
    if not full.is_relative_to(packed.folder):
        raise UsageError(
            f"'{file}' is not below the working directory '{packed.folder}'; give one that holds it: --working-dir"
        )
    name = full.relative_to(packed.folder).as_posix()
    if not packed.holds(name):
        raise packed.unsent(str(file))
    return name


def _arguments(context: Any, sent: Callable[[Any], str]) -> tuple[str, ...]:
    """The arguments that were given, written anew, each value as `sent` writes it."""
    positional, options = list[str](), list[str]()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name)
        if source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[parameter.name]
        if parameter.param_type_name == "argument":
            positional.append(sent(value))
        elif isinstance(value, bool):
            options.append((parameter.opts if value else parameter.secondary_opts)[0])
        else:
            for one in value if parameter.multiple else [value]:
                options += [max(parameter.opts, key=len), *map(sent, one if isinstance(one, tuple) else [one])]
    return (*positional, *options)


def _configuration(context: Any, arguments: list[str]) -> Any:
    """The configuration that a command would run.

    Raises:
        typer.Exit: the command has said what is wrong with it.
    """
    import typer

    from jobs import commands

    name, found = context.info_name, list[Any]()

    def hold(config: Any, *_: Any, **__: Any) -> int:
        found.append(config)
        return 0

    # The command itself reads its options, up to where the run would begin: a second reading would drift from it.
    begin = getattr(commands, name)
    setattr(commands, name, hold)
    try:
        with context.command.make_context(name, arguments, parent=context.parent) as again:
            context.command.invoke(again)
    except typer.Exit:
        if not found:
            raise
    finally:
        setattr(commands, name, begin)
    return found[0]


def _check_folders(config: dict[str, Any], options: dict[str, Any]) -> None:
    """Raise where a folder that must outlive the job would lie in the job's own directory."""
    for place in _WRITTEN:
        section, _, name = place.rpartition(".")
        value = ((config.get(section) or {}) if section else config).get(name)
        if not isinstance(value, str):
            continue
        told = f"--{name}" if name in options else place
        if NIGHT in value and "night" not in options:
            raise UsageError(f"{told} '{value}': this command fills in {NIGHT} only where --out has it on the command line")
        if _is_relative(value):
            raise UsageError(
                f"{told} '{value}' would lie in the job's own directory and be lost with it; give the full path of a folder "
                "that all machines of the cluster share, or object storage such as s3://BUCKET/nights/{night}"
            )


def _check_files(config: dict[str, Any], packed: Packed | None) -> None:
    """Raise where what the run reads lies on this machine and does not travel."""
    for path in _read_by(config):
        inside = [] if packed is None else _matches(path, packed.folder)
        if packed is not None and inside:
            if not any(map(packed.holds, inside)):
                raise packed.unsent(path)
        elif _matches(path, Path.cwd()):
            raise UsageError(
                f"'{path}' lies on this machine and does not travel; put it on a shared folder or object storage, or into "
                "the working directory (--working-dir) and call it as it is called there"
            )


def _read_by(config: Any, key: str = "") -> Iterator[str]:
    """Relative paths, or what may be one, of what the run reads."""
    if isinstance(config, dict):
        for name, value in config.items():
            yield from _read_by(value, name)
    elif isinstance(config, list):
        for value in config:
            yield from _read_by(value, key)
    elif isinstance(config, str) and key in _READ and _is_relative(config):
        yield config


def _is_relative(path: str) -> bool:
    return "://" not in path and not path.startswith(("/", "~", "hf:", "docstrings:"))


def _matches(path: str, folder: Path) -> list[str]:
    """What a relative path or glob stands for in a folder, as names there."""
    if any(magic in path for magic in "*?["):
        return glob.glob(path, root_dir=folder, recursive=True)
    return [os.path.normpath(path)] if (folder / path).exists() else []


def _identifier(command: str, config: Any, night: str) -> str:
    """One name for a corpus, what is done with it and a night; no secret goes into it."""
    identity = {"command": command, "config": config.identity(), "out": config.out, "night": night}
    digest = hashlib.sha256(json.dumps(_without_secrets(identity), sort_keys=True).encode()).hexdigest()[:8]
    slug = re.sub(r"[^a-z0-9]+", "-", _title(config, night).lower()).strip("-")[:24].strip("-")
    return f"tempscale-{slug or command}-{night}-{digest}"


def _title(config: Any, night: str) -> str:
    """What the run is about in a few words: the name of its record, or the last word of its source."""
    if name := getattr(getattr(config, "record", None), "name", ""):
        return str(name)
    section = getattr(config, config.reads, None) or getattr(config, "corpus", None)
    if isinstance(section, (list, tuple)):
        return "-".join(task if isinstance(task, str) else task.name for task in section)
    source = shown(str(getattr(section, "source", ""))).replace(NIGHT, "").replace(night, "")
    if source.startswith("hf:"):
        return source.split(":")[1].rpartition("/")[2]
    words = [word for word in re.split(r"[/:]+", source) if word.strip(".") and "*" not in word]
    return words[-1].split(".")[0] if words else ""


def _without_secrets(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner) for inner in value]
    return shown(value) if isinstance(value, str) else value
