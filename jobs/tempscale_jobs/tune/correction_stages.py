"""Write a fitted correction as stages that sentence-transformers has: Normalize, Dense, Normalize.

A correction that is linear in the embedding is x ↦ (x − m)W for each side, so it is a Dense stage of weight Wᵀ and bias −mW.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from tempscale.correction.values import Centre, Correction, Linear
from tempscale_jobs.errors import UsageError

_TYPES = "sentence_transformers.models"
_DENSE = {"activation_function": "torch.nn.modules.linear.Identity", "bias": True}


class Stage(NamedTuple):
    """x ↦ (x − mean)·matrix, then scaled to unit norm or not."""

    mean: np.ndarray
    matrix: np.ndarray
    unit: bool


def sides(correction: Correction) -> dict[str, Stage | None]:
    """The stage of each side, by folder («»: one for both; None: no stage); a UsageError if no stage can express it."""
    if isinstance(correction, Centre):
        identity = np.eye(correction.dim)
        documents = Stage(correction.of_documents, identity, True) if correction.unit else None
        return {"documents": documents, "queries": Stage(correction.of_queries, identity, correction.unit)}
    if isinstance(correction, Linear):
        documents, queries = (Stage(m, correction.matrix, True) for m in (correction.of_documents, correction.of_queries))
        same = np.array_equal(documents.mean, queries.mean)
        return {"": documents} if same else {"documents": documents, "queries": queries}
    reason = "on the lengths of texts" if correction.needs_tokens else "on the texts that ask"
    if correction.recipe.column is not None:
        reason = f"on the documents' values of '{correction.recipe.column}'"
    raise UsageError(
        f"{correction.canonical} depends {reason} and not on the embedding alone, so it is no stage of a model; tempscale "
        "correct applies it to embeddings"
    )


def add(folder: Path, stage: Stage, hidden: int) -> None:
    """Add a stage to a checkpoint, which has token embeddings of the width `hidden`."""
    file = folder / "modules.json"
    modules: list[dict[str, Any]] = json.loads(file.read_text("utf-8")) if file.is_file() else _plain(folder, hidden)
    kinds = [str(module["type"]).rsplit(".", 1)[-1] for module in modules]
    if kinds[-1] != "Normalize":
        _append(folder, modules, "Normalize", {})
    place = _append(
        folder, modules, "Dense", _DENSE | dict(zip(("in_features", "out_features"), stage.matrix.shape, strict=True))
    )
    weight = torch.from_numpy(np.ascontiguousarray(stage.matrix.T, np.float32))
    bias = torch.from_numpy(np.asarray(-stage.mean @ stage.matrix, np.float32))
    save_file({"linear.weight": weight, "linear.bias": bias}, place / "model.safetensors")
    if stage.unit:
        _append(folder, modules, "Normalize", {})
    file.write_text(json.dumps(modules, indent=2) + "\n", "utf-8")


def _plain(folder: Path, hidden: int) -> list[dict[str, Any]]:
    """The stages of a checkpoint without modules.json: the mean of its tokens."""
    pooling = folder / "1_Pooling"
    pooling.mkdir()
    config = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (pooling / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    stages = (("", "Transformer"), ("1_Pooling", "Pooling"))
    return [{"idx": k, "name": str(k), "path": path, "type": f"{_TYPES}.{kind}"} for k, (path, kind) in enumerate(stages)]


def _append(folder: Path, modules: list[dict[str, Any]], kind: str, config: dict[str, Any]) -> Path:
    """Add a stage after the others; return its folder."""
    number = len(modules)
    place = folder / f"{number}_{kind}"
    place.mkdir()
    if config:
        (place / "config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    modules.append({"idx": number, "name": str(number), "path": place.name, "type": f"{_TYPES}.{kind}"})
    return place
