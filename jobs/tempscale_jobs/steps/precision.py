"""The effect of bfloat16 on embeddings: a sample of texts embedded in both precisions, in the same micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tempscale_jobs.corpus import shards
from tempscale_jobs.runs.folder import Model, place
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece

if TYPE_CHECKING:
    from tempscale.model.encoder import Encoder

SAMPLE, CHUNK = 256, 64


def measure(scope: Embedded) -> None:
    """Write the least and the mean cosine of a sample's embeddings to those in float32, over all temperatures."""
    if scope.encoding.precision == "float32":
        return
    with scope.journal.stage(scope.named("precision"), min(len(scope.texts), SAMPLE)) as stage:
        result = _cosine_to_float32(scope, stage)
        stage.note = f"cosine to float32: at least {result['cosine_least']:.6f}, on average {result['cosine_mean']:.6f}"


def _cosine_to_float32(scope: Embedded, stage: Stage) -> dict[str, Any]:
    run, model, layout, index = scope.run, scope.model, scope.texts, scope.index
    if run.storage.exists(result_name(model)):
        result: dict[str, Any] = run.storage.read_json(result_name(model))
        return result
    sample = sorted(layout.ids[layout.sample(SAMPLE)].tolist())
    texts = shards.texts_of(run.storage, layout.within(index, sample), set(sample))
    chunks = [[texts[i] for i in sample[k : k + CHUNK]] for k in range(0, len(sample), CHUNK)]
    work = [Piece(k, (k, chunk), f"piece {k} of the precision", size=len(chunk)) for k, chunk in enumerate(chunks)]
    of_piece = dict[int, tuple[float, float]]()
    for piece, cosines in scope.crew.run(cosines_to_float32, work):
        stage.advance(piece.size)
        of_piece[piece.number] = cosines
    least, total = min(lowest for lowest, _ in of_piece.values()), 0.0
    for k in range(len(work)):
        total += of_piece[k][1]
    result = {"precision": scope.encoding.precision, "texts": len(sample), "cosine_least": least}
    result["cosine_mean"] = total / (len(sample) * len(run.temperatures))
    run.storage.write_json(result_name(model), result)
    return result


def result_name(model: Model) -> str:
    """The file of a model's result."""
    return f"{place('partials/precision', model)}.json"


@contextmanager
def in_float32(worker: actor.ModelActor) -> Iterator[Encoder]:
    """A worker's encoder in float32: the same one or, if its weights are rounded, a temporary one."""
    import torch

    from tempscale.model.encoder import Encoder

    encoder = worker.encoder
    if next(encoder.model.parameters()).dtype == torch.float32:
        previous, encoder.precision = encoder.precision, "float32"
        try:
            yield encoder
        finally:
            encoder.precision = previous
        return
    device, tokenizer = next(encoder.model.parameters()).device, encoder.tokenizer
    yield Encoder.load(
        worker.model.name, max_length=tokenizer.max_length, token_budget=encoder.token_budget, device=device,
        long=tokenizer.long, prompt=tokenizer.prompt,
    )  # fmt: skip


def cosines_to_float32(worker: actor.ModelActor, number: int, texts: list[str]) -> tuple[float, float]:
    """The least cosine of some texts' embeddings to those in float32, and the sum of these cosines."""
    tokens = worker.encoder.tokenizer(texts)
    padded, least, total = worker.encoder.padded(tokens), 1.0, 0.0
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"precision {number} under τ {temperature.slug}"):
            embeddings = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE, padded=padded).embeddings
        with in_float32(worker) as encoder:
            encoder.set_temperature(temperature)
            exact = encoder.encode_tokens(tokens, moments=False, role=actor.ROLE, padded=padded).embeddings
        cosines = (embeddings.double() * exact.double()).sum(1)
        least, total = min(least, float(cosines.min())), total + float(cosines.sum())
    return least, total
