"""Shards of texts -> their token ids, by CPU tasks; what tokenised them, and what is done if it was wrong.

The first difference between tokie and the tokenizer, in any process, is written into the run. After that pass
no task asks tokie, and what was embedded from its ids is embedded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tempscale.model.tokens import NOT_ASKED
from tempscale_jobs.runs.folder import AGAIN, TOKENISED, TOKENISING, TOKIE_DIFFERS, Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import late
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece
from tempscale_jobs.workers.marks import MARKS

if TYPE_CHECKING:
    from tempscale.model.sequences import Tokens

OF_THE_SHARD = ("text_id", "content_sha", "document", "source_row", "groups")
"""Columns of texts/ that come from the shard; the last is only there with --by."""
_SPAN = ("sequence", "start", "stop")
"""Columns of a shard whose texts are parts of sequences; see `tempscale.model.sequences.Spans`."""


def tokenise(name: str, storage: Storage, how: actor.Tokenising, notes: str) -> pa.Table:
    """Read and tokenise a shard; a folder of the run gets what tokenised it."""
    shard = storage.read_table(name)
    tokenizer = actor.tokenizer(how)
    texts = shard.column("text").to_pylist()
    tokens = late.tokens(tokenizer, shard) if late.has_windows(shard) else tokenizer(texts, isolate=True)
    if tokenizer.differing_text is not None and not storage.exists(f"{notes}/{TOKIE_DIFFERS}"):
        ids = shard.column("text_id").to_pylist()
        wrong = [text_id for text_id, text in zip(ids, texts, strict=True) if how.prompt + text == tokenizer.differing_text]
        named = f" for text '{wrong[0]}'" if wrong else ""
        storage.write_json(f"{notes}/{TOKIE_DIFFERS}", f"tokie gave other ids{named}")
    elif how.fast and tokenizer.tokenised_by != NOT_ASKED and not storage.exists(f"{notes}/{TOKENISED}"):
        storage.write_json(f"{notes}/{TOKENISED}", tokenizer.tokenised_by)
    truncated = np.array(tokens.truncated, dtype=bool) | shard.column("cut").to_numpy()
    failed = pa.array([tokens.failed.get(k) for k in range(len(tokens))], pa.string())
    columns = {name: shard.column(name) for name in OF_THE_SHARD if name in shard.column_names}
    if tokens.spans is not None:
        columns |= {name: pa.array(getattr(tokens.spans, name)) for name in _SPAN}
    return pa.table(columns | {"ids": _lists(tokens), "truncated": pa.array(truncated), "failed": failed})


def may_be_fast(run: Run, model: Model, pieces: Sequence[Piece]) -> bool:
    """Whether tokie may be asked; after a difference, the parts of pieces that were made before are removed once."""
    storage, notes = run.storage, run.place(TOKENISING, model)
    if not storage.exists(f"{notes}/{TOKIE_DIFFERS}"):
        return True
    if not storage.exists(f"{notes}/{AGAIN}"):
        for piece in pieces:
            for name in piece.files:
                storage.remove(name)
        storage.remove(run.place(MARKS, model))  # They count the sequences of other ids.
        storage.write_json(f"{notes}/{AGAIN}", True)
    return False


def _lists(tokens: Tokens) -> pa.Array:
    """The sequences of each text, as a column."""
    sequences = tokens.sequences
    inner = pa.ListArray.from_arrays(
        np.cumsum([0, *sequences.lengths], dtype=np.int32), pa.array(sequences.flat, pa.int32())
    )
    of_text = np.ones(len(tokens), np.int64) if tokens.text is None else np.bincount(tokens.text, minlength=len(tokens))
    if tokens.spans is not None:  # At the first text of each sequence.
        of_text = np.diff(tokens.spans.sequence, prepend=-1)
    return pa.ListArray.from_arrays(np.cumsum([0, *of_text], dtype=np.int32), inner)


def tokens_of(work: pa.Table) -> Tokens:
    """The tokens of a prepared shard, without Python lists."""
    from tempscale.model.sequences import Sequences, Spans, Tokens

    texts = work.column("ids").combine_chunks()
    inner, of_text = texts.flatten(), texts.value_lengths().to_numpy()
    ids = Sequences(inner.flatten().to_numpy(), inner.value_lengths().to_numpy().astype(np.int64))
    failed = {k: reason for k, reason in enumerate(work.column("failed").to_pylist()) if reason is not None}
    truncated = work.column("truncated").to_pylist()
    if _SPAN[0] in work.column_names:
        return Tokens(ids, truncated, None, failed, spans=Spans(*(work.column(name).to_numpy() for name in _SPAN)))
    text = None if (of_text == 1).all() else np.repeat(np.arange(len(texts)), of_text).tolist()
    return Tokens(ids, truncated, text, failed)
