"""The texts as an earlier audit had them: which were edited since, and the vectors that they had then."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.verify import VerifyConfig
from tempscale_jobs.corpus.stored import StoredRow
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import DONE, Model, finished, parts_of_texts, place
from tempscale_jobs.tables import parts
from tempscale_jobs.urls import masked


class Earlier(NamedTuple):
    """What an earlier audit knows of some rows, by their ids."""

    digests: dict[str, str]
    """sha256 of each text."""
    vectors: dict[str, np.ndarray]
    """The unit vector of each text; empty unless the audit had the same model, window, prompts and temperature."""

    def is_edited(self, row: StoredRow) -> bool:
        """Whether the audit had another text under the row's id."""
        digest = self.digests.get(row.text_id)
        return digest is not None and digest != hashlib.sha256(row.text.encode()).hexdigest()


def check(config: VerifyConfig) -> None:
    """Raise a UsageError unless the earlier run, if one is named, is an audit whose texts can be compared with these."""
    if config.earlier is None:
        return
    storage = finished(config.earlier, "--earlier ")
    record, named = storage.read_json(DONE), f"--earlier '{masked(config.earlier)}'"
    if (command := record.get("command", "audit")) != "audit":
        raise UsageError(f"{named} holds a run of tempscale {command}; give an audit of the texts")
    corpus = record["config"]["corpus"]
    if corpus.get("embedding_column") is not None:
        raise UsageError(f"{named} holds an audit of vectors, which does not know the texts; give an audit of the texts")
    if not parts_of_texts(storage):
        raise UsageError(f"{named} no longer has its texts: they were pruned; give an audit that has them")
    if corpus["max_characters"] != config.embeddings.max_characters:
        raise UsageError(
            f"{named} has texts cut at {corpus['max_characters']:,} characters, and these are cut at "
            f"{config.embeddings.max_characters:,}; set max_characters of [embeddings] to the same"
        )


def read(folder: str, model: Model, temperature: Temperature, ids: Sequence[str]) -> Earlier:
    """Read what the audit in a folder knows of these rows."""
    storage = finished(folder)
    earlier, wanted = Earlier({}, {}), pa.array(ids, pa.string())
    same = [
        label for label, facts in storage.read_json(DONE)["models"].items()
        if {name: facts[name] for name in ("fingerprint", "max_length", "prompts") if name in facts} == model.identity()
    ]  # fmt: skip
    own = [name for label in same for name in storage.list(place("texts", label, temperature), ".parquet")]
    for name in own or parts_of_texts(storage):
        table = storage.read_table(name, ["text_id", "content_sha", *(["embedding"] if own else [])])
        table = table.filter(pc.is_in(table.column("text_id"), wanted)).combine_chunks()
        known = table.column("text_id").to_pylist()
        earlier.digests.update(zip(known, table.column("content_sha").to_pylist(), strict=True))
        if own and known:
            earlier.vectors.update(zip(known, parts.matrix(table, "embedding").astype(np.float64), strict=True))
    return earlier
