"""How far one model's vectors are apart when they are computed in another precision, measured on texts of the sample."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.folder import Model, place
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.workers import actor

if TYPE_CHECKING:
    from tempscale.model.encoder import Encoder
    from tempscale.model.sequences import Tokens

PRECISIONS = ("float32", "float16", "bfloat16")
TEXTS = 32
"""Texts on which each precision is compared with float64."""
MARGIN = 4.0
"""A vector may be so many times as far away as the farthest of these texts: other programs add in another order."""
_AMONG = 2000
_LEAST = 2.0**-20
"""The least relative distance that counts: some roundings of float32, as one more operation of another program makes."""


def name_of(model: Model) -> str:
    """The file with the distances."""
    return f"{place('partials/computed', model)}.json"


def measure(worker: actor.ModelActor, texts: Sequence[str]) -> None:
    """Write the largest ‖u' − u‖/‖u‖ of these texts for u in float64 and u' in each precision."""
    temperature = worker.temperatures[0]
    exact = vectors(in_precision(worker.encoder, "float64", temperature), texts)
    norms = np.linalg.norm(exact, axis=1)
    distances = {}
    for precision in PRECISIONS:
        apart = np.linalg.norm(vectors(in_precision(worker.encoder, precision, temperature), texts) - exact, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            known = (apart / norms)[np.isfinite(exact).all(1) & (norms > 0)]
        distances[precision] = float(known.max(initial=0.0))  # NaN where the model fails in this precision.
    worker.storage.write_json(name_of(worker.model), distances)


def allowed(distances: dict[str, float]) -> dict[str, float]:
    """The relative distance that computing in each precision explains."""
    return {precision: max(MARGIN * distance, _LEAST) for precision, distance in distances.items()}


def spread(storage: Storage, index: Index) -> list[str]:
    """Texts of the sample, of all lengths alike."""
    texts = list[str]()
    for shard in index.shards:
        texts += storage.read_table(shard.name, ["text"]).column("text").to_pylist()
        if len(texts) >= _AMONG:
            break
    texts.sort(key=len)
    places = np.unique(np.linspace(0, len(texts) - 1, TEXTS).round().astype(int))
    return [texts[k] for k in places]


def in_precision(encoder: Encoder, precision: str, temperature: Any) -> Encoder:
    """An encoder with a copy of the model whose weights and arithmetic have a precision, under a temperature."""
    import torch

    from tempscale.model.encoder import Encoder

    encoder.set_temperature(1.0)  # A model is copied as it is on the disk.
    other = Encoder(
        copy.deepcopy(encoder.model).to(getattr(torch, precision)), encoder.tokenizer, encoder.head, encoder.token_budget
    )
    for each in (encoder, other):
        each.set_temperature(temperature)
    return other


def vectors(encoder: Encoder, texts: Sequence[str], **options: Any) -> np.ndarray:
    """The vectors of texts, as `SentenceTransformer.encode` gives them, as float64 (texts, dim); NaN where it fails."""
    return of_tokens(encoder, encoder.tokenizer(texts, isolate=True, **options))


def of_tokens(encoder: Encoder, tokens: Tokens) -> np.ndarray:
    """The same of tokenised texts."""
    out = encoder.encode_tokens(tokens, moments=False, isolate=True, role=actor.ROLE)
    vectors: np.ndarray = (out.embeddings.double() * out.norms.double()[:, None]).numpy()
    return vectors
