"""Texts of one token repeated: two that share no token but the special ones draw together as they grow (S1 App. E.4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from jobs import actor
from jobs.crew import Crew
from jobs.diagnose_config import DiagnoseConfig
from jobs.diagnose_schema import REPEATED_PARTS
from jobs.runs import Model, RunOf
from tempscale.tiles import keyed_hash

_BEGINNINGS = "▁Ġ"
SHORTEST, LONGEST = 8, 512


def measure(run: RunOf[DiagnoseConfig], crew: Crew, model: Model) -> int:
    """Embed pairs of repeated tokens at 8, 16, … 512 tokens under every temperature; returns the number of lengths.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    pairs = run.config.diagnosis.repeated_pairs
    lengths = lengths_up_to(model.max_length)
    if not pairs or not lengths:
        return 0
    missing = [
        k
        for k in range(len(lengths))
        if not all(run.storage.exists(run.part(REPEATED_PARTS, model, t, k)) for t in run.temperatures)
    ]
    asked = {"pairs": [pairs], "seed": [run.config.seed]}
    for _ in crew.work(leave_cosines, {k: pa.table(asked | {"tokens": [lengths[k]]}) for k in missing}):
        pass
    return len(lengths)


def lengths_up_to(window: int) -> list[int]:
    """8, 16, … tokens, up to a model's window and 512."""
    lengths: list[int] = []
    while (length := SHORTEST << len(lengths)) <= min(window, LONGEST):
        lengths.append(length)
    return lengths


def leave_cosines(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """The cosine of each pair at one length, one part a temperature."""
    from tempscale.tokens import Tokens

    worker.note_processor()
    row = work.to_pylist()[0]
    first, last = ends(worker.encoder.tokenizer)
    words = ordinary(worker.encoder.tokenizer, 2 * row["pairs"], row["seed"])
    words = words[: len(words) // 2 * 2]  # A vocabulary without so many words gives fewer pairs.
    inside = row["tokens"] - len(first) - len(last)
    texts = Tokens([[*first, *[word] * inside, *last] for word in words], [False] * len(words))
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        cosine = np.empty(0)
        if words and inside > 0:
            found = worker.encoder.encode_tokens(texts, moments=False, role=actor.ROLE).embeddings.double().numpy()
            cosine = (found[0::2] * found[1::2]).sum(1)
        name = f"{REPEATED_PARTS}/model={worker.model.label}/temperature={temperature.slug}/part-{number:05d}.parquet"
        worker.storage.write_table(name, pa.table({"tokens": np.full(len(cosine), row["tokens"]), "cosine": cosine}))
    return {"number": number, "texts": len(words)}


def ends(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The special tokens before and behind every text."""
    one, other = (tokenizer([word]).ids[0] for word in ("0", "a"))
    shortest = min(len(one), len(other))
    before = next((k for k in range(shortest) if one[k] != other[k]), None)
    after = next((k for k in range(shortest) if one[-1 - k] != other[-1 - k]), None)
    if before is None or after is None:  # A vocabulary that knows neither word.
        return [], []
    return one[:before], one[len(one) - after :]


def ordinary(tokenizer: Any, count: int, seed: int) -> list[int]:
    """Ids of so many ordinary tokens, or of as many as there are: the smallest keyed hashes of the vocabulary's words.

    Where a vocabulary marks the beginning of words, tokens without the mark are parts of words.
    """
    found = tokenizer.vocabulary()
    marked = [token for token in found if token[0:1] in tuple(_BEGINNINGS)]
    words = {token: found[token] for token in (marked or found) if token.lstrip(_BEGINNINGS).isalpha()}
    return [words[token] for token in sorted(words, key=lambda token: (keyed_hash(token, seed), token))[:count]]
