"""What a sentence-transformers folder says about its use: stages, window, lower-casing, prompts and similarity.

Imports neither torch nor transformers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from tempscale.model.checkpoint import ModelError, read_json

Prompts = Literal["default", "model", "none"]
"""Which of a model's prompts are put before texts: `default`, the one that `SentenceTransformer.encode` adds by itself;
`model`, those of its `encode_query` and `encode_document`; or `none`.
"""


@dataclass(frozen=True)
class Settings:
    """The settings of a model folder; those of a plain transformers folder are the defaults."""

    transformer: Path
    """The folder of the transformer itself."""
    stages: tuple[Mapping[str, Any], ...] = ()
    """The entries of modules.json, the transformer first; none in a plain transformers folder."""
    window: int | None = None
    """Tokens that a text is cut to, `max_seq_length`; None where the folder names none."""
    lower_case: bool = False
    """Whether texts are lower-cased before they are tokenised."""
    prompts: Mapping[str, str] = field(default_factory=dict)
    """Prompts by name."""
    default_prompt: str = ""
    """The prompt that `SentenceTransformer.encode` puts before every text."""
    similarity: str = "cosine"
    """How its embeddings are compared: cosine, dot, euclidean or manhattan."""

    @classmethod
    def of(cls, folder: Path) -> Settings:
        """The settings in the files of a model folder.

        Raises:
            ModelError: a file is no JSON, or has another shape.
        """
        stages = _stages(folder)
        transformer = folder / stages[0]["path"] if stages else folder
        own = _table(transformer / "sentence_bert_config.json")
        whole = _table(folder / "config_sentence_transformers.json")
        window = own.get("max_seq_length")
        if window is not None and (not isinstance(window, int) or window < 1):
            raise ModelError(f"{transformer}/sentence_bert_config.json has max_seq_length {window!r}; expected a number")
        prompts = {str(name): text for name, text in (whole.get("prompts") or {}).items() if isinstance(text, str)}
        default = whole.get("default_prompt_name")
        if default is not None and default not in prompts:
            named = ", ".join(prompts) or "none"
            raise ModelError(f"{folder}: its default prompt '{default}' is not among its prompts ({named})")
        return cls(
            transformer, stages, window, bool(own.get("do_lower_case")), prompts, prompts.get(default or "", ""),
            str(whole.get("similarity_fn_name") or "cosine"),
        )  # fmt: skip

    @property
    def has_prompts(self) -> bool:
        """Whether any of its prompts has a text."""
        return any(self.prompts.values())

    def prompt(self, which: Prompts, role: str) -> str:
        """What is put before a text of a role, «query» or «document»."""
        if which not in get_args(Prompts):
            raise ValueError(f"prompts can be {', '.join(get_args(Prompts))}, not {which!r}")
        if which == "model":
            return self.prompts.get(role, "")
        return self.default_prompt if which == "default" else ""


def _stages(folder: Path) -> tuple[dict[str, Any], ...]:
    if not (folder / "modules.json").is_file():
        return ()
    modules = read_json(folder / "modules.json")
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise ModelError(f"{folder}/modules.json is not a list of stages; save the model again with sentence-transformers")
    for module in modules:
        module["path"] = str(module.get("path", ""))
        inside = os.path.normpath(module["path"] or ".")
        if os.path.isabs(inside) or inside.split(os.sep)[0] == "..":
            raise ModelError(f"{folder}/modules.json leads to '{module['path']}', which is outside of the model's folder")
    return tuple(modules)


def _table(file: Path) -> dict[str, Any]:
    """The content of a JSON file; nothing where it is not there."""
    found = read_json(file) if file.is_file() else {}
    if not isinstance(found, dict):
        raise ModelError(f"{file} is not a table of settings; save the model again with sentence-transformers")
    return found
