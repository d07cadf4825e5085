"""How many padded tokens run together: a constant of the device, what the user says, or the fastest of some that are tried.

It is settled once, before the pool starts, and kept in the run folder: a run that goes on uses the same micro-batches.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from jobs import actor
from jobs.crew import Crew
from jobs.engine import Cluster
from jobs.errors import IncompleteRun
from jobs.runs import Model, Run

_TRIED = {False: (256, 512, 1024, 2048, 4096), True: (4096, 8192, 16_384, 32_768, 65_536, 131_072)}
_ROUNDS = 3
_CPU_TEXTS = 128
"""Of the shard, where a pass over all of it would take minutes."""
_CLOSE = 0.02
"""A smaller budget within this share of the fastest is taken: it needs less memory."""


def settle(
    run: Run, cluster: Cluster, model: Model, index: dict[str, Any], on_measured: Callable[[str], None] = lambda text: None
) -> Run:
    """The run with the token budget of one model.

    Args:
        index: what `corpus.shard` returned; its first shard is what is measured on.
        on_measured: told what was measured.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    embedding = run.config.embedding
    if run.storage.exists(name(model)):
        found = run.storage.read_json(name(model))
    else:
        found = {"token_budget": embedding.token_budget or actor.TOKEN_BUDGETS[bool(cluster.gpus)], "tokens_per_second": {}}
        if embedding.tune_batches:
            work = {0: pa.table({"name": [index["shards"][0]["name"]], "gpu": [bool(cluster.gpus)]})}
            rates: dict[int, float] = {}
            try:
                with Crew(run, cluster, model) as crew:
                    (rates,) = (report["rates"] for report in crew.work(measure, work))
            except IncompleteRun as error:  # A text that kills is found later, where it is looked for.
                on_measured(f"not measured: {error}")
            if rates:
                best = min(k for k, rate in rates.items() if rate >= (1 - _CLOSE) * max(rates.values()))
                found = {"token_budget": best, "tokens_per_second": {str(k): round(rate) for k, rate in rates.items()}}
        run.storage.write_json(name(model), found)
    if found["tokens_per_second"]:
        tried = ", ".join(f"{int(k):,}: {rate:,}" for k, rate in found["tokens_per_second"].items())
        on_measured(f"{found['token_budget']:,} padded tokens at once (tokens/s by budget {tried})")
    settled = embedding.model_copy(update={"token_budget": found["token_budget"]})
    return dataclasses.replace(run, config=run.config.model_copy(update={"embedding": settled}))


def name(model: Model) -> str:
    """Where what was settled is kept."""
    return f"partials/budget/model={model.label}.json"


def measure(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Tokens a second of a shard under each budget, the fastest of some rounds that take turns."""
    import torch

    row = work.to_pylist()[0]
    texts = worker.storage.read_table(row["name"], ["text"]).column("text").to_pylist()
    tokens = worker.encoder.tokenizer(texts, isolate=True)
    if not row["gpu"]:
        tokens = tokens.take(range(min(len(tokens), _CPU_TEXTS)))
    tokens = tokens.take([k for k in range(len(tokens)) if k not in tokens.failed])
    if not len(tokens):
        return {"number": number, "rates": {}}
    worker.encoder.set_temperature(worker.temperatures[0])
    own, best = worker.encoder.token_budget, dict.fromkeys(_TRIED[row["gpu"]], 0.0)
    try:
        for _ in range(_ROUNDS):
            for budget in best:
                worker.encoder.token_budget = budget
                begun = time.perf_counter()
                out = worker.encoder.encode_tokens(tokens, role=actor.ROLE, isolate=True)
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                if not out.halved:  # What memory does not hold is no budget.
                    best[budget] = max(best[budget], sum(tokens.lengths) / (time.perf_counter() - begun))
    finally:
        worker.encoder.token_budget = own
    return {"number": number, "rates": {budget: rate for budget, rate in best.items() if rate}}
