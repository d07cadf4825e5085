"""SOCM of explicit pairs: chunks through a pool of model actors -> parts below partials/pairs.

The unit of work and of resuming is one chunk under all temperatures of a model. Its distinct texts are embedded once a
temperature and their factors never leave the actor. A pair is kept only if every temperature gives it finite figures,
so that temperatures are compared on the same pairs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from jobs import actor, schema
from jobs.engine import Cluster
from jobs.pairs_config import PairsConfig
from jobs.pairs_schema import PART, PARTIALS
from jobs.runs import Model, RunOf
from tempscale.temperature import Temperature

_ROLES = ("query", "document")
"""What the texts of column a and of column b are, for a temperature that depends on the role."""


def measure(
    run: RunOf[PairsConfig], cluster: Cluster, model: Model, index: dict[str, Any], on_pairs: Callable[[int], None]
) -> dict[str, int]:
    """Leave the parts of every chunk that has none yet, under every temperature.

    Args:
        index: what `pair_chunks.chunk` returned.
        on_pairs: told the number of pairs of each finished chunk, and first, in one call, of those already there.

    Returns:
        Pairs measured, and pairs rejected because a figure was not finite, over the whole run.
    """
    work: dict[int, pa.Table] = {}
    there = 0
    for number, chunk in enumerate(index["shards"]):
        if all(run.storage.exists(run.part(PARTIALS, model, t, number)) for t in run.temperatures):
            there += chunk["pairs"]
        else:
            work[number] = pa.Table.from_pylist([{"name": chunk["name"], **run.config.socm.model_dump()}])
    on_pairs(there)
    for report in actor.pool(run, cluster, model, PairActor, work):
        on_pairs(report["pairs"])
    rejected = sum(
        run.storage.read_table(name, ["reason"]).num_rows for name in run.storage.list(f"rejected/model={model.label}")
    )
    return {"measured": index["pairs"] - rejected, "rejected": rejected}


class PairActor(actor.ModelActor):
    """Embeds the texts of a chunk and compares them pair by pair."""

    def process(self, number: int, work: pa.Table) -> dict[str, Any]:
        """Write one chunk's parts, one a temperature, and its rejected pairs."""
        mode = work.to_pylist()[0]
        chunk = self.storage.read_table(mode.pop("name"))
        texts, first, second = _distinct(chunk)
        tokens = self.encoder.tokenizer(texts)
        figures = [self._figures(t, tokens, first, second, mode) for t in self.temperatures]
        finite = np.asarray(np.isfinite(np.stack(figures)).all(axis=(0, 1)))
        self._reject(number, chunk, finite)
        lengths, truncated = np.array(tokens.lengths, dtype=np.int32), np.array(tokens.truncated, dtype=bool)
        columns: dict[str, Any] = {"pair": chunk.column("pair").to_numpy()}
        for letter, side in (("a", first), ("b", second)):
            columns[f"tokens_{letter}"] = lengths[side]
            columns[f"truncated_{letter}"] = truncated[side] | chunk.column(f"cut_{letter}").to_numpy()
        for temperature, found in zip(self.temperatures, figures, strict=True):
            values = columns | dict(zip(("d_mu", "d_sigma", "socm"), found, strict=True))
            name = f"{PARTIALS}/model={self.model.label}/temperature={temperature.slug}/part-{number:05d}.parquet"
            self.storage.write_table(name, PART.build({key: value[finite] for key, value in values.items()}))
        return {"number": number, "pairs": chunk.num_rows}

    def _figures(
        self, temperature: Temperature, tokens: Any, first: np.ndarray, second: np.ndarray, mode: dict[str, float]
    ) -> np.ndarray:
        """d_μ, d_Σ and SOCM of every pair, (3, pairs); NaN where the model fails on a text or its mean has no direction."""
        import torch

        from tempscale.socm import socm_pairs

        if not len(first):
            return np.zeros((3, 0))
        self.encoder.set_temperature(temperature)
        everything = np.arange(len(tokens))
        sides = list(zip(_ROLES, (np.unique(first), np.unique(second)), strict=True))
        means: list[torch.Tensor] = []
        factors: list[torch.Tensor] = []
        places = []
        for role, texts in sides if temperature.roles else [(actor.ROLE, everything)]:
            out = self.encoder.encode_tokens(
                tokens.take(texts.tolist()), moments=False, factors=True, role=role, isolate=True
            )
            assert out.factors is not None
            place = np.full(len(everything), -1)
            place[texts] = len(means) + np.arange(len(texts))
            places.append(place)
            means += [mean for mean, _ in out.factors]
            factors += [factor for _, factor in out.factors]
        values = socm_pairs(torch.stack(means), factors, places[0][first], places[-1][second], **mode)
        return np.stack([value.numpy() for value in values])

    def _reject(self, number: int, chunk: pa.Table, finite: np.ndarray) -> None:
        if finite.all():
            return
        lost = chunk.select(["pair_id", "place"]).filter(pa.array(~finite)).to_pylist()
        reason = f"{self.model.label} gives no finite figures"
        rows = [{"text_id": row["pair_id"], "place": row["place"], "reason": reason} for row in lost]
        name = f"rejected/model={self.model.label}/part-{number:05d}.parquet"
        self.storage.write_table(name, schema.REJECTED.build_rows(rows))


def _distinct(chunk: pa.Table) -> tuple[list[str], np.ndarray, np.ndarray]:
    """The distinct texts of a chunk in the order of their coming, and each pair's places in them."""
    place: dict[str, int] = {}
    texts: list[str] = []
    columns = (chunk.column(name).to_pylist() for name in ("content_a", "text_a", "content_b", "text_b"))
    places = []
    for content_a, text_a, content_b, text_b in zip(*columns, strict=True):
        for content, text in ((content_a, text_a), (content_b, text_b)):
            if content not in place:
                place[content] = len(texts)
                texts.append(text)
        places.append((place[content_a], place[content_b]))
    both = np.array(places, dtype=np.int64)
    return texts, both[:, 0], both[:, 1]
