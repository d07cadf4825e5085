"""Read data sets of the hub, and folders in their format, through the library `datasets`.

A data set's README may name data files anywhere: absolute paths, addresses, other data sets. Its author must not decide
which files of this machine are read or which addresses are opened, so such a data set is refused first.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from tempscale_jobs.corpus import folders, states
from tempscale_jobs.corpus.readers import Columns, Record, check_columns
from tempscale_jobs.errors import UsageError
from tempscale_jobs.urls import reason

_CARDS = ("README.md", ".huggingface.yaml", "dataset_infos.json")
"""The files that describe a data set; the first two may name its data files."""
_FORMATS = frozenset({
    "arrow", "audiofolder", "conll", "csv", "imagefolder", "json", "parquet", "pdffolder", "text", "videofolder",
    "webdataset", "xml",
})  # fmt: skip
"""The formats whose files name no other files; HDF5 and Lance may name files anywhere."""


def is_dataset(source: str) -> bool:
    """Whether a source is a data set of the hub, or a folder in its format."""
    return source.startswith("hf:") and not source.startswith("hf://")


def state(source: str) -> dict[str, Any]:
    """The revision of a data set, or the state of a folder's files."""
    name, *_ = _parts(source)
    if not os.path.isdir(name):
        return {"revision": _revision(name)}
    files = sorted(file for file in Path(name).rglob("*") if file.is_file())
    return {str(file): states.of_local(str(file)) for file in files}


def shards(source: str) -> int:
    """The number of shards of a data set."""
    with _loadable(source):
        return int(_stream(source).num_shards)


def records(source: str, columns: Columns, shard: int | None = None) -> Iterator[Record]:
    """The rows of a data set, or of one of its shards, numbered from 0."""
    name = source.removeprefix("hf:")
    with _loadable(source):
        stream, place = _stream(source), name
        if shard is not None:
            stream, place = stream.shard(num_shards=stream.num_shards, index=shard), f"{name}:shard {shard}"
        for number, record in enumerate(stream):
            if number == 0:
                check_columns(list(record), f"hf:{name}", columns)
            yield Record(f"{place}:{number}", record)


def _parts(source: str) -> tuple[str, str | None, str]:
    """Name, configuration and split of a data set."""
    parts = source.removeprefix("hf:").split(":")
    if not 1 <= len(parts) <= 3 or not parts[0]:
        raise UsageError(f"'{source}' is not of the form hf:NAME[:CONFIG][:SPLIT]")
    return parts[0], parts[1] if len(parts) == 3 else None, parts[-1] if len(parts) > 1 else "train"


@cache
def _revision(name: str) -> str:
    """The commit of `main` of a data set; cached, so that a session records the commit that it reads."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return str(HfApi().dataset_info(name).sha)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise UsageError(f"dataset 'hf:{name}' cannot be loaded: {reason(error, name)}") from None


def _stream(source: str) -> Any:
    """The rows of a data set; raises a UsageError unless all its files are below it."""
    import datasets
    from datasets.features.features import require_decoding

    name, config, split = _parts(source)
    folder = Path(name) if os.path.isdir(name) else None
    revision = None if folder is not None else _revision(name)
    cards = _cards_of_folder(name, folder) if folder is not None else _cards_of_hub(name, str(revision))
    for card in cards:
        _check_card(name, card)
    builder = datasets.load_dataset_builder(name, config, revision=revision)
    _check_files(name, builder, None if folder is None else folders.roots(folder), f"hf://datasets/{name}@{revision}/")
    stream: Any = builder.as_streaming_dataset(split=split)
    # A cell of images or sounds may name any file or address, which decoding would open.
    return stream.decode(False) if stream.features and require_decoding(stream.features) else stream


def _cards_of_folder(name: str, folder: Path) -> list[Path]:
    """The files that describe a folder of data; raises a UsageError if an entry leads out of the folder."""
    roots = folders.roots(folder)
    for parent, subfolders, files in os.walk(folder):
        subfolders[:] = [entry for entry in subfolders if not entry.startswith(".")]
        for entry in (*subfolders, *files):
            if not entry.startswith(".") or entry in _CARDS:
                _check_below(name, os.path.join(parent, entry), roots)
    return [folder / card for card in _CARDS[:2] if (folder / card).is_file()]


def _cards_of_hub(name: str, revision: str) -> list[Path]:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    cards = []
    for card in _CARDS[:2]:
        try:
            cards.append(Path(hf_hub_download(name, card, repo_type="dataset", revision=revision)))
        except EntryNotFoundError:
            continue
    return cards


def _check_card(name: str, card: Path) -> None:
    """Raise a UsageError if a file that describes a data set names data files that are not below it."""
    import yaml
    from huggingface_hub import DatasetCard

    data = DatasetCard.load(card).data.to_dict() if card.suffix == ".md" else yaml.safe_load(card.read_text("utf-8"))
    configs = data.get("configs") if isinstance(data, dict) else None
    for config in configs if isinstance(configs, list) else []:
        for pattern in _strings([config.get("data_files"), config.get("data_dir")] if isinstance(config, dict) else []):
            # `datasets` takes exactly the names with a scheme for addresses.
            if urlparse(pattern).scheme or "::" in pattern or os.path.isabs(pattern) or ".." in pattern.split("/"):
                raise UsageError(
                    f"dataset 'hf:{name}': its {card.name} names the data files '{pattern}', which are not below the data "
                    "set; only files below it are read"
                )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _check_files(name: str, builder: Any, roots: list[Path] | None, address: str) -> None:
    """Raise a UsageError unless all data files are below the data set and of a known format."""
    files = [file for split_files in (builder.config.data_files or {}).values() for file in split_files]
    if not files:
        raise UsageError(f"dataset 'hf:{name}' has no data file of its own; give a data set with files")
    for file in files:
        if roots is not None:
            _check_below(name, file, roots)
        elif not file.startswith(address) or ".." in file.split("/"):
            raise UsageError(f"dataset 'hf:{name}': the file '{file}' is not of the data set; only its own files are read")
    form = type(builder).__module__.rpartition(".")[2]
    if form not in _FORMATS:
        raise UsageError(
            f"dataset 'hf:{name}' has files of the format {form}, which may name other files; give its files as Parquet, "
            "JSON, CSV or text"
        )


def _check_below(name: str, file: str, roots: list[Path]) -> None:
    if "://" in file or not folders.is_below(file, roots):
        raise UsageError(
            f"dataset 'hf:{name}': '{file}' leads out of the data set, to '{os.path.realpath(file)}'; only files below it "
            "are read, so put the file itself there or leave it out"
        )


@contextmanager
def _loadable(source: str) -> Iterator[None]:
    import datasets
    import yaml

    name = source.removeprefix("hf:")
    try:
        yield
    except (OSError, ValueError, RuntimeError, TypeError, yaml.YAMLError, datasets.exceptions.DatasetsError) as error:
        raise UsageError(f"dataset 'hf:{name}' cannot be loaded: {reason(error, name)}") from None
