"""The texts as an earlier audit had them: which were edited since, and the vectors that they had then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, finished_audit, parts_of_texts, place
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables import parts
from tempscale_jobs.urls import masked


class EarlierTexts(NamedTuple):
    """What an earlier audit knows of the compared rows, by their ids."""

    known: frozenset[str]
    """Those that it has."""
    edited: frozenset[str]
    """Those of them for which it has another text."""
    vectors: dict[str, np.ndarray]
    """The unit vectors of edited rows; empty unless the audit had the same model, window, prompts and temperature."""


def check(config: VerifyConfig) -> None:
    """Raise a UsageError unless the earlier run, if one is named, is an audit whose texts can be compared with these."""
    if config.earlier is None:
        return
    of_audit = config.embeddings.kind == "corpus"
    option = "earlier in [verify] " if of_audit else "--earlier "
    storage, record = finished_audit(config.earlier, option, "; give an audit of the texts")
    named, corpus = f"{option}'{masked(config.earlier)}'", record["config"]["corpus"]
    if corpus.get("embedding_column") is not None:
        raise UsageError(f"{named} holds an audit of vectors, which does not know the texts; give an audit of the texts")
    if not parts_of_texts(storage):
        raise UsageError(f"{named} no longer has its texts: they were pruned; give an audit that has them")
    longest, here = corpus["max_characters"], config.embeddings.max_characters
    if longest != here:
        section = "corpus" if of_audit else "embeddings"
        raise UsageError(
            f"{named} has texts cut at {longest:,} characters, and these are cut at {here:,}; set max_characters of "
            f"[{section}] to the same"
        )


def read(folder: str, model: Model, temperature: Temperature, digests: Mapping[str, str]) -> EarlierTexts:
    """Read what the audit in a folder knows of these rows; `digests` are their texts' own."""
    (storage, record), known, edited = finished_audit(folder), set[str](), dict[str, tuple[str, int]]()
    same = [label for label, facts in record["models"].items() if _identity(facts) == model.identity()]
    of_model = [name for label in same for name in storage.list(place("texts", label, temperature), ".parquet")]
    names = of_model or parts_of_texts(storage)
    for name, columns in zip(names, storage.columns(names, ["text_id", "content_sha"]), strict=True):
        for row, (text_id, digest) in enumerate(zip(*(column.to_pylist() for column in columns), strict=True)):
            if text_id not in digests:
                continue
            known.add(text_id)
            if digests[text_id] != digest:
                edited[text_id] = name, row
    return EarlierTexts(frozenset(known), frozenset(edited), _vectors(storage, edited) if of_model else {})


def _identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a model's facts in run.json that decide its vectors, as of `Model.identity`."""
    return {name: facts[name] for name in ("fingerprint", "max_length", "prompts") if name in facts}


def _vectors(storage: Storage, places: Mapping[str, tuple[str, int]]) -> dict[str, np.ndarray]:
    """The vectors of some texts, by the file and row of each."""
    by_file = dict[str, list[str]]()
    for text_id, (name, _) in places.items():
        by_file.setdefault(name, []).append(text_id)
    rows: Sequence[np.ndarray] = [np.array([places[text_id][1] for text_id in ids]) for ids in by_file.values()]
    vectors = dict[str, np.ndarray]()
    for ids, table in zip(by_file.values(), storage.taken([*by_file], ["embedding"], rows), strict=True):
        vectors |= zip(ids, parts.matrix(table, "embedding").astype(np.float64), strict=True)
    return vectors
