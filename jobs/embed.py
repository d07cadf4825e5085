"""Shards of texts -> parts of texts/: Ray Data reads and tokenises on CPU tasks, a pool of model actors embeds.

The unit of work and of resuming is one shard under all temperatures of a model: a text is kept only if every
temperature gives it a finite embedding, so that temperatures are compared on the same texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import actor, parts, schema
from jobs.engine import Cluster
from jobs.marks import DEADLY, MARKS, Marks, forget
from jobs.runs import Model, Run
from jobs.storage import Storage


def embed(
    run: Run,
    cluster: Cluster,
    model: Model,
    index: dict[str, Any],
    on_texts: Callable[[int], None],
    found: int = 0,
    worker: type[EmbedActor] | None = None,
) -> dict[str, int]:
    """Embed every shard that has no parts yet, under every temperature.

    Args:
        index: what `corpus.shard` returned, or with the shards that `cache.look_up` leaves.
        found: texts that are there without having been embedded.
        on_texts: told the number of texts of each finished shard, and first, in one call, of those already there.
        worker: `QueryActor` where the texts are queries.

    Returns:
        Texts embedded and texts rejected because an embedding was not finite, over the whole run.
    """
    forget(run.storage, f"{MARKS}/model={model.label}")
    work: dict[int, pa.Table] = {}
    there = found
    for number, shard in enumerate(index["shards"]):
        if all(run.storage.exists(run.part("texts", model, t, number)) for t in run.temperatures):
            there += shard["texts"]
        else:
            work[number] = pa.table({"name": [shard["name"]]})
    on_texts(there)
    arguments = {"storage": run.storage, "folder": model.name, "max_length": model.max_length}
    arguments |= {"long": run.config.embedding.long}
    for report in actor.pool(run, cluster, model, worker or EmbedActor, work, tokenise, arguments):
        on_texts(report["texts"])
    rejected = sum(map(run.storage.rows, run.storage.list(f"rejected/model={model.label}")))
    return {"embedded": index["analysed"] - rejected, "rejected": rejected}


def tokenise(batch: pa.Table, storage: Storage, folder: str, max_length: int, long: str) -> pa.Table:
    """Read and tokenise the shards that a batch names."""
    pieces: dict[int, pa.Table] = {}
    for row in batch.to_pylist():
        shard = storage.read_table(actor.unpack(row["payload"]).column("name")[0].as_py())
        tokens = actor.tokenizer(folder, max_length, long)(shard.column("text").to_pylist(), isolate=True)
        truncated = np.array(tokens.truncated, dtype=bool) | shard.column("cut").to_numpy()
        pieces[row["number"]] = pa.table(
            {
                "text_id": shard.column("text_id"),
                "content_sha": shard.column("content_sha"),
                "ids": pa.array(tokens.chunks(), pa.list_(pa.list_(pa.int32()))),
                "truncated": pa.array(truncated),
                "failed": pa.array([tokens.failed.get(k) for k in range(len(tokens))], pa.string()),
            }
        )
    return actor.rows(pieces)


class EmbedActor(actor.ModelActor):
    """Embeds tokenised shards."""

    role = actor.ROLE

    def process(self, number: int, work: pa.Table) -> dict[str, Any]:
        """Write one shard's parts, one a temperature, and its rejected texts."""
        from tempscale.tokens import Tokens

        self.note_processor()
        failed = {k: reason for k, reason in enumerate(work.column("failed").to_pylist()) if reason is not None}
        tokens = Tokens.of_chunks(work.column("ids").to_pylist(), work.column("truncated").to_pylist(), failed)
        marks = Marks(self.storage, f"{MARKS}/model={self.model.label}/shard-{number:05d}.json")
        batches = marks.begin(self.encoder.batches(tokens))
        encoded = []
        with self.noting(f"shard {number}", marks.halved):
            for temperature in self.temperatures:
                self.encoder.set_temperature(temperature)
                encoded.append(self.encode(tokens, role=self.role, batches=batches, before=marks.before))
                marks.after()
        owner = range(work.num_rows) if tokens.text is None else tokens.text
        reasons = {owner[i]: DEADLY for i in marks.deadly}
        for out in encoded:
            reasons = out.failed | reasons
        finite = np.array([k not in reasons for k in range(work.num_rows)], dtype=bool)
        for out in encoded:
            for column in (out.embeddings, *(out.moments or ())):
                finite &= np.isfinite(column.numpy().reshape(work.num_rows, -1)).all(1)
        self.reject(number, self._lost(number, work, finite, reasons))
        for temperature, out in zip(self.temperatures, encoded, strict=True):
            self.storage.write_table(self._part(temperature, number), _table(work, out, finite))
        marks.done()
        return {"number": number, "texts": work.num_rows}

    def _part(self, temperature: Any, number: int) -> str:
        return f"texts/model={self.model.label}/temperature={temperature.slug}/part-{number:05d}.parquet"

    def _lost(self, number: int, work: pa.Table, finite: np.ndarray, reasons: dict[int, str]) -> list[dict[str, Any]]:
        return [
            {"text_id": text_id, "place": f"shard {number}"}
            | {"reason": f"{self.model.label}: {reasons.get(k, 'it gives no finite embedding')}"}
            for k, (text_id, kept) in enumerate(zip(work.column("text_id").to_pylist(), finite, strict=True))
            if not kept
        ]


class QueryActor(EmbedActor):
    """Embeds tokenised shards of queries."""

    role = "query"


def _table(work: pa.Table, out: Any, finite: np.ndarray) -> pa.Table:
    kept = np.flatnonzero(finite)
    embeddings = out.embeddings.numpy()[kept]
    moments = out.moments._asdict()
    return schema.texts(embeddings.shape[1]).build(
        {
            "text_id": work.column("text_id").take(kept),
            "content_sha": work.column("content_sha").take(kept),
            "tokens": out.tokens.numpy()[kept].astype(np.int32),
            "truncated": work.column("truncated").take(kept),
            "embedding": parts.fixed_lists(embeddings),
            **{name: column.numpy()[kept].astype(np.float32) for name, column in moments.items()},
        }
    )
