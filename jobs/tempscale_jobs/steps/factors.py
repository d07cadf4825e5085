"""Write and read covariance factors of texts, which are embedded again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import pieces
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import audit, parts
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import missing

SAMPLED = "factors"
"""The folder of the sample's factors."""
CHUNK, _FEWEST, _PARTS = 32, 8, 16
"""The most texts of a part, which have similar lengths and so similar ranks; the fewest, and the least number of parts, so
that all workers have some.
"""


def collect_sample(scope: Embedded, wanted: Sequence[str]) -> None:
    """Write the covariance factors of a sample of texts, for all of its pairs."""
    with scope.journal.stage(scope.named("covariance factors"), len(wanted)) as stage:
        stage.note = f"{collect(scope, wanted, SAMPLED, stage):,} sampled texts"


def collect(scope: Embedded, wanted: Iterable[str], kind: str, stage: Stage) -> int:
    """Write the covariance factors of the wanted texts, under every temperature, to the folder `kind`; count the texts.

    Unless they are of the sample whose pairs are all computed, the factors have principal rows.
    """
    run, texts = scope.run, scope.texts
    tokens = {text_id: int(texts.tokens[place]) for text_id, place in texts.where(wanted).items()}
    sample = sorted(tokens, key=lambda text_id: (tokens[text_id], text_id))
    size = max(_FEWEST, min(CHUNK, -(-len(sample) // _PARTS)))
    left = missing(run.storage, pieces.of_sample(run, scope.model, sample, size, [kind]))
    stage.advance(len(sample) - sum(piece.size for piece in left))
    left = [piece._replace(cost=sum(tokens[i] for i in piece.arguments[0])) for piece in left]
    work = pieces.with_texts(run.storage, texts.within(scope.index, pieces.ids_of(left)), left, kind)
    for piece, _ in scope.crew.run(write_factors, work):
        stage.advance(piece.size)
    return len(sample)


def write_factors(worker: actor.ModelActor, number: int, work: pa.Table, kind: str) -> None:
    """Embed sampled texts and write one piece's factors to the folder `kind`, one part for each temperature."""
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist())
    padded = worker.encoder.padded(tokens)
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"{kind.rpartition('/')[2]} {number} under τ {temperature.slug}"):
            out = worker.encoder.encode_tokens(tokens, moments=False, factors=True, role=actor.ROLE, padded=padded)
        assert out.factors is not None
        factors = out.factors if kind == SAMPLED else with_principal_rows(out.factors)
        table = factor_table(work.column("text_id"), out.tokens.tolist(), factors)
        worker.storage.write_table(worker.part(kind, temperature, number), table)


def with_principal_rows(moments: Sequence[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The (unit mean, factor) of each text, for bounds from the first rows."""
    from tempscale.second_order.nuclear import principal_rows

    return [(mean, principal_rows(factor)) for mean, factor in moments]


def factor_table(ids: Any, tokens: Sequence[int], moments: Sequence[tuple[Any, Any]]) -> pa.Table:
    """A part from the (unit mean, factor) of each text, as the encoder returns them."""
    means = np.stack([mean.numpy() for mean, _ in moments])
    return audit.factors(means.shape[1]).build(
        {
            "text_id": ids,
            "tokens": np.asarray(tokens, dtype=np.int32),
            "mean": parts.fixed_lists(means),
            "rank": np.array([factor.shape[0] for _, factor in moments], dtype=np.int32),
            "factor": [factor.numpy().ravel() for _, factor in moments],
        }
    )


@lru_cache(maxsize=2)
def read(root: str, names: tuple[str, ...]) -> tuple[list[str], Any, list[Any]]:
    """Ids, unit means and factors of some parts; the last two calls are cached, because the tiles of a row share a group."""
    import torch

    ids, means, factors = list[str](), [], []
    for name in names:
        part = Storage(root).read_table(name)
        means.append(torch.tensor(parts.matrix(part, "mean")))
        factors += [torch.tensor(np.asarray(f.values).reshape(-1, means[0].shape[1])) for f in part.column("factor")]
        ids += part.column("text_id").to_pylist()
    return ids, torch.cat(means), factors


def groups(texts: Sequence[int], rows: Sequence[int], most_texts: int, most_rows: int) -> list[list[int]]:
    """Group consecutive parts within the two limits; a group has at least one part."""
    members: list[list[int]] = []
    group_texts = group_rows = 0
    for part, (size, rank) in enumerate(zip(texts, rows, strict=True)):
        if not members or group_texts + size > most_texts or group_rows + rank > most_rows:
            members.append([])
            group_texts = group_rows = 0
        members[-1].append(part)
        group_texts, group_rows = group_texts + size, group_rows + rank
    return members
