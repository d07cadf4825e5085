"""The settings of a sentence-transformers folder: stages, window, tokenizer, prompts, width and similarity.

Every setting is obeyed or refused by `known_settings`. Imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tempscale.model import known_settings as known
from tempscale.model.checkpoint import ModelError, read_json, stages

_SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
_UNBOUNDED = 10**20
"""A window from this size on means no window: transformers writes 10³⁰ where a tokenizer names none."""

_SHORTEST = 3
"""The shortest window: two special tokens and one of the text."""

Prompts = Literal["default", "model", "none"]
"""The prompts of `SentenceTransformer.encode`, those of `encode_query` and `encode_document`, or none."""


@dataclass(frozen=True)
class Settings:
    """The settings of a model folder; those of a plain transformers folder are the defaults."""

    transformer: Path
    """The folder of the transformer itself."""
    stages: tuple[Mapping[str, Any], ...] = ()
    """The entries of modules.json, the transformer first; none in a plain transformers folder."""
    window: int | None = None
    """Tokens that a text is cut to; None where only the tokenizer or the transformer names a window."""
    truncates: bool = True
    """Whether texts longer than the window are cut."""
    lower_case: bool = False
    """Whether a lower-casing normaliser comes before the tokenizer's own."""
    tokenizer: Mapping[str, Any] = field(default_factory=dict)
    """Arguments for loading the tokenizer."""
    truncate_dim: int | None = None
    """The first dimensions of an embedding that are kept; None for all."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name."""
    default_prompt: str = ""
    """The prompt that `SentenceTransformer.encode` puts before every text."""
    similarity: str = "cosine"
    """How its embeddings are compared: cosine, dot, euclidean or manhattan."""

    @classmethod
    def of(cls, folder: Path) -> Settings:
        """The settings of a model folder; without a modules.json they are the defaults, as in sentence-transformers."""
        modules = stages(folder)
        transformer = folder / modules[0]["path"] if modules else folder
        for name, setting in known.FILES.items():
            if (transformer / name).is_file():
                raise ModelError(f"{transformer} has {name}, which {setting.reason}")
        if not (folder / known.MODULES).is_file():
            return cls(transformer)
        _check_stages(folder, modules)
        config = _table(folder / known.WHOLE)
        known.check(known.WHOLE, config, folder / known.WHOLE)
        prompts, default = _prompts(config, folder)
        similarity = config.get("similarity_fn_name")
        return cls(
            transformer, modules, **_of_stage(transformer), prompts=prompts, default_prompt=default,
            truncate_dim=_number(config, "truncate_dim", folder / known.WHOLE),
            similarity=similarity if similarity in _SIMILARITIES else "cosine",
        )  # fmt: skip

    @property
    def has_prompts(self) -> bool:
        """Whether any of its prompts has a text."""
        return any(self.prompts.values())

    def prompt(self, which: Prompts, role: str) -> str:
        """The prompt before a text of a role, «query» or «document»."""
        if which not in get_args(Prompts):
            raise ValueError(f"prompts can be {', '.join(get_args(Prompts))}, not {which!r}")
        if which == "model":
            return self.prompts.get(role, "")
        return self.default_prompt if which == "default" else ""


def _check_stages(folder: Path, modules: tuple[Mapping[str, Any], ...]) -> None:
    """Raise for an entry of modules.json with unknown keys, and for two entries of one name."""
    names: set[str] = set()
    for module in modules:
        known.check(known.MODULES, module, folder / known.MODULES)
        name = str(module.get("name", len(names)))
        if name in names:
            raise ModelError(f"{folder / known.MODULES} has two stages of the name '{name}', of which only one would run")
        names.add(name)


def _of_stage(transformer: Path) -> dict[str, Any]:
    """The settings in the transformer's own file: window, lower-casing and the tokenizer's arguments."""
    file, table = transformer / known.STAGE, dict[str, Any]()
    for name in known.CONFIG_NAMES:
        if table := _table(transformer / name):
            file = transformer / name
            break
    known.check(known.STAGE, table, file)
    modalities = table.get("modality_config")
    if modalities is not None:
        if not isinstance(modalities, Mapping) or "text" not in modalities or table.get("module_output_name") is None:
            raise ModelError(
                f"{file} has a modality_config without texts or without module_output_name; save the model again"
            )
        single = {key: value for key, value in modalities.items() if "+" not in str(key)}  # «+» joins several inputs.
        known.check(known.MODALITIES, single, f"{file}: modality_config")
    known.check(known.MODEL, _either(table, "model_kwargs", "model_args"), f"{file}: model_kwargs")
    tokenizer = _either(table, "processor_kwargs", "tokenizer_args")
    known.check(known.PROCESSOR, tokenizer, f"{file}: processor_kwargs")
    processing = table.get("processing_kwargs") or {}
    known.check(known.PROCESSING, processing, f"{file}: processing_kwargs")
    call: dict[str, Any] = {}
    for part in ("text", "common"):
        known.check(known.TEXT, processing.get(part) or {}, f"{file}: processing_kwargs.{part}")
        call |= processing.get(part) or {}
    of_tokenizer = _number(tokenizer, "model_max_length", f"{file}: processor_kwargs", _SHORTEST)
    if of_tokenizer is None and "model_max_length" in tokenizer:
        of_tokenizer = _UNBOUNDED  # Null means no window, and replaces every other one.
    windows = (
        _number(call, "max_length", f"{file}: processing_kwargs", _SHORTEST),
        of_tokenizer,
        _number(table, "max_seq_length", file, _SHORTEST),
    )
    tokenizer_arguments = {
        key: value for key, value in tokenizer.items() if key not in ("model_max_length", "trust_remote_code", "use_fast")
    }
    window = next((window for window in windows if window is not None), None)
    bounded = window is None or window < _UNBOUNDED
    return {
        "window": window if bounded else None,
        "truncates": bounded and call.get("truncation", True) not in (False, "do_not_truncate"),
        "lower_case": bool(table.get("do_lower_case")),
        "tokenizer": tokenizer_arguments,
    }


def _either(table: Mapping[str, Any], name: str, older: str) -> Mapping[str, Any]:
    """The arguments under the older name or else the newer one, as in sentence-transformers."""
    arguments = table.get(older, table.get(name)) or {}
    return arguments if isinstance(arguments, Mapping) else {name: arguments}


def _prompts(config: Mapping[str, Any], folder: Path) -> tuple[dict[str, str], str]:
    """Prompts by name, and the text of the default prompt."""
    texts = config.get("prompts") or {}
    if not isinstance(texts, Mapping) or not all(text is None or isinstance(text, str) for text in texts.values()):
        raise ModelError(f"{folder / known.WHOLE} has prompts that are no texts by name; save the model again")
    prompts = {str(name): text or "" for name, text in texts.items()}
    default = config.get("default_prompt_name")
    if default is not None and default not in {"query", "document"} | prompts.keys():
        names = ", ".join(prompts) or "none"
        raise ModelError(f"{folder}: its default prompt '{default}' is not among its prompts ({names})")
    return prompts, prompts.get(default or "", "")


def _number(table: Mapping[str, Any], key: str, place: Path | str, least: int = 1) -> int | None:
    """A whole number of at least `least`, or None."""
    value = table.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < least):
        raise ModelError(f"{place} has {key} {value!r}; expected a whole number from {least}")
    return None if value is None else int(value)


def window_of_tokenizer(value: object, folder: Path) -> int | None:
    """The window that a tokenizer names, at least 3 tokens; None where it names none."""
    if isinstance(value, (int, float)) and value >= _UNBOUNDED:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= _SHORTEST or value != int(value):
        raise ModelError(
            f"{folder / 'tokenizer_config.json'} has model_max_length {value!r}; expected a whole number of tokens from 3"
        )
    return int(value)


def _table(file: Path) -> dict[str, Any]:
    """The content of a JSON file; an empty table where the file is missing."""
    content = read_json(file) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a table of settings; save the model again with sentence-transformers")
    return content
