"""The token budget of a micro-batch: the encoder's default, the user's value, or the fastest of several.

The run folder keeps it for workers, so that a run that is resumed on the same kind of device has the same micro-batches. The
encoder's default depends on the device, so the first actor that embeds writes it.
"""

from __future__ import annotations

import time

from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.steps.scope import Scope
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece

_TRIED = {False: (256, 512, 1024, 2048, 4096), True: (8192, 16_384, 32_768, 65_536, 131_072, 262_144)}
_ROUNDS = 3
_CPU_TEXTS = 128
"""Texts that a CPU is timed with; a whole shard would take minutes."""
_CLOSE = 0.02
"""The smallest budget within this share of the fastest is chosen, because it needs less memory."""


def with_budget(scope: Scope) -> Embedding:
    """The scope's `encoding` with the model's token budget, measured on the first shard if configured."""
    if not scope.encoding.tune_batches:
        return stored(scope)
    with scope.journal.stage(scope.named("micro-batches")) as stage:
        name = actor.budget_name(scope.model)
        if not scope.run.storage.exists(name):
            first = Piece(0, (scope.index.shards[0].name, bool(scope.cluster.gpus)), "micro-batches")
            try:
                # The crew's first actor measures and uses the result; later actors read it.
                for _ in scope.crew.run(measure, [first]):
                    pass
            except IncompleteRun as error:  # Embedding itself will find the text that kills workers.
                scope.crew.dismiss()
                stage.note = f"not measured: {error}"
        encoding = stored(scope)
        # Unchanged if the run folder has no budget for this kind of device.
        if encoding is not scope.encoding and (rates := scope.run.storage.read_json(name)["tokens_per_second"]):
            tried = ", ".join(f"{int(budget):,}: {rate:,}" for budget, rate in rates.items())
            stage.note = f"{encoding.token_budget:,} padded tokens at once (tokens/s by budget {tried})"
    return encoding


def stored(scope: Scope) -> Embedding:
    """The scope's `encoding` with the budget in the run folder, where a user's budget is written first."""
    storage, encoding, name = scope.run.storage, scope.encoding, actor.budget_name(scope.model)
    if not storage.exists(name):
        if encoding.token_budget is None:
            return encoding
        storage.write_json(name, actor.budget_to_keep(encoding.token_budget, None))
    budget = actor.budget_kept(storage.read_json(name), "cuda" if scope.cluster.gpus else "cpu")
    # None if the run has moved to another kind of device.
    return encoding if budget is None else encoding.model_copy(update={"token_budget": budget})


def measure(worker: actor.ModelActor, shard: str, on_gpu: bool) -> None:
    """Choose the fastest budget by the tokens per second of a shard, write it to the run folder, and use it."""
    rates = _tokens_per_second(worker, shard, on_gpu)
    if rates:
        best = min(k for k, rate in rates.items() if rate >= (1 - _CLOSE) * max(rates.values()))
        device = "cuda" if on_gpu else "cpu"
        record = actor.budget_to_keep(best, device, {str(k): round(rate) for k, rate in rates.items()})
        worker.storage.write_json(actor.budget_name(worker.model), record)
        worker.encoder.token_budget = best


def _tokens_per_second(worker: actor.ModelActor, shard: str, on_gpu: bool) -> dict[int, float]:
    """Tokens per second of a shard under each budget: the best of three rounds over all budgets."""
    import torch

    texts = worker.storage.read_table(shard, ["text"]).column("text").to_pylist()
    tokens = worker.encoder.tokenizer(texts, isolate=True)
    if not on_gpu:
        tokens = tokens.take(range(min(len(tokens), _CPU_TEXTS)))
    tokens = tokens.take([k for k in range(len(tokens)) if k not in tokens.failed])
    if not len(tokens):
        return {}
    worker.encoder.set_temperature(worker.temperatures[0])
    previous, best = worker.encoder.token_budget, dict.fromkeys(_TRIED[on_gpu], 0.0)
    try:
        for _ in range(_ROUNDS):
            for budget in best:
                worker.encoder.token_budget = budget
                begun = time.perf_counter()
                out = worker.encoder.encode_tokens(tokens, role=actor.ROLE, isolate=True)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                if not out.halved:  # A budget that does not fit in memory gets no rate.
                    best[budget] = max(best[budget], sum(tokens.lengths) / (time.perf_counter() - begun))
    finally:
        worker.encoder.token_budget = previous
    return {budget: rate for budget, rate in best.items() if rate}
