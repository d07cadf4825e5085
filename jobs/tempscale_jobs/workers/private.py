"""Keep Ray private to a run: a token, addresses of this machine only, a separate folder, no imports from this folder."""

from __future__ import annotations

import importlib
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

from tempscale_jobs.errors import UsageError

_MODE, _TOKEN, _TOKEN_PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
_MODES = ("", "disabled", "token", "k8s")
_NO_HOOK = {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}
"""Below `uv run` Ray would send the current folder to its workers, and they would import from it."""
_OVERRIDE = "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"
"""Whether Ray changes CUDA_VISIBLE_DEVICES for tasks without a GPU; it warns if this is not set."""
_THIS_MACHINE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes Ray listen on 127.0.0.1 only, as it does on Windows and macOS; on Linux it would choose another address."""
_TEMPORARY = ("RAY_TMPDIR", "TMPDIR")
"""The variables that may name the folder of temporary files, in their order."""
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - only for a link in a folder with a random name and mode 0700
_LONGEST_BYTES = 36
"""The name of a socket has 103 bytes, of which `/r/session_…/sockets/plasma_store` takes 66."""
_REMOVAL_SECONDS = 5.0


@contextmanager
def surroundings(joined: bool) -> Iterator[str]:
    """Set up the environment of a Ray that is started here, or joined: yield its session's folder, empty if joined."""
    with environment(variables(joined)), nullcontext("") if joined else folder() as path:
        yield path


def variables(joined: bool) -> dict[str, str]:
    """The environment variables of a Ray that is started here, or joined, in addition to those that the user has set."""
    path, given_token = os.environ.get(_TOKEN_PATH), os.environ.get(_TOKEN, "").strip()
    auth_mode = os.environ.get(_MODE, "").lower()
    if auth_mode not in _MODES:
        raise UsageError(f"{_MODE} '{os.environ[_MODE]}' is no mode of Ray's; set it to token or disabled, or not at all")
    if path and auth_mode != "disabled" and not given_token:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise UsageError(
                f"{_TOKEN_PATH} '{path}' cannot be read: {error.strerror}; name the file of Ray's token"
            ) from None
    has_token = bool(path or given_token)
    mode = {_MODE: "token"} if not auth_mode and (has_token or not joined) else {}
    if joined:
        return mode | _NO_HOOK
    token = {} if has_token or auth_mode == "disabled" else {_TOKEN: secrets.token_hex(32)}
    override = {} if _OVERRIDE in os.environ else {_OVERRIDE: "0"}
    return mode | token | override | _THIS_MACHINE | _NO_HOOK


@contextmanager
def environment(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables, let Ray read them again, and restore them at the end."""
    try:
        with variables_set(changes):
            _read_anew()
            yield
    finally:
        _read_anew()


@contextmanager
def variables_set(changes: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore them at the end."""
    previous = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _read_anew() -> None:
    """Let Ray read its mode and token again, which it caches."""
    if "ray" in sys.modules:
        core: Any = importlib.import_module("ray._raylet")
        core.Config.initialize("")
        core.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def folder() -> Iterator[str]:
    """A folder for Ray's sockets, logs and spilled objects that only this user can open; it is removed at the end."""
    name = next((name for name in _TEMPORARY if os.environ.get(name)), None)
    place = os.path.abspath(os.environ[name]) if name else "/tmp"  # noqa: S108 - what is made there has mode 0700
    try:
        folders = [tempfile.mkdtemp(prefix="tempscale-", dir=place)]
    except OSError as error:
        raise UsageError(
            f"{name or 'the folder for temporary files'} '{place}' cannot be used: {error.strerror}; "
            "set TMPDIR to a folder that exists and that you may write"
        ) from None
    try:
        session = os.path.join(folders[0], "r")
        os.mkdir(session)
        if len(os.fsencode(folders[0])) > _LONGEST_BYTES:
            folders.append(_short_folder(place))
            os.symlink(session, os.path.join(folders[1], "r"))
        yield os.path.join(folders[-1], "r")
    finally:
        for path in reversed(folders):
            _remove(path)


def _short_folder(place: str) -> str:
    for short in _SHORT:
        try:
            return tempfile.mkdtemp(prefix="tempscale-", dir=short)
        except OSError:
            continue
    raise UsageError(
        f"the name of the folder for temporary files '{place}' is too long for Ray's sockets, and {', '.join(_SHORT)} take "
        f"no link to it; set TMPDIR to a folder whose name has at most {_LONGEST_BYTES - len('/tempscale-12345678')} bytes"
    )


def _remove(path: str) -> None:
    """Remove a folder, again and again while processes that are about to end write to it."""
    end = time.monotonic() + _REMOVAL_SECONDS
    while os.path.lexists(path):
        shutil.rmtree(path, ignore_errors=True)
        if time.monotonic() > end:
            return
        time.sleep(0.02)


def close_folders(path: str) -> None:
    """Close the folders of a session to other users, since Ray creates them with mode 0777."""
    for inside, _, _ in os.walk(path):
        with suppress(FileNotFoundError):
            os.chmod(inside, 0o700)


def job() -> Any:
    """Ray's configuration of this job: workers import installed packages only."""
    from ray.job_config import JobConfig

    class Installed(JobConfig):  # type: ignore[misc, unused-ignore]
        def _runtime_env_has_working_dir(self) -> bool:
            """Say yes: otherwise workers would also import from the current folder and the script's."""
            return True

    return Installed()
