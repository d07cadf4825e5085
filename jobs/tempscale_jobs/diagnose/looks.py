"""Measure every layer and head on the texts of a sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from tempscale.model import checkpoint
from tempscale.model.settings import Settings
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Journal, Stage
from tempscale_jobs.steps import pieces
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.tables.diagnose import HEAD_PART, KINDS, LAYER_PART, seen
from tempscale_jobs.urls import reason
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew, Piece, missing

if TYPE_CHECKING:
    from tempscale.layers.observe import Layer


_COPIES = 4
"""Arrays of one layer's attention in memory: logits before and after the mask, weights, and derived values."""

_CONCENTRATION = ("spread", "within_cosine", "norm_variation")
"""The figures of `layers.contraction.concentration`, which are columns."""

Rows = list[dict[str, Any]]
Seen = TypeVar("Seen")


@dataclass(frozen=True)
class Read:
    """A source that has been read, and the run and cluster."""

    config: DiagnoseConfig
    run: Run
    cluster: Cluster
    index: Index
    journal: Journal


def check_memory(model: Model, longest: int, workers: int) -> None:
    """Raise if the attention of the longest text does not fit into this machine's memory."""
    import psutil

    config = checkpoint.read_json(Settings.of(checkpoint.resolve(model.name)).transformer / "config.json")
    heads = next((config[name] for name in ("num_attention_heads", "n_heads", "num_heads") if name in config), 0)
    needed = _COPIES * 4 * int(heads) * longest**2 * workers
    memory = psutil.virtual_memory().total
    if needed > memory:
        raise UsageError(
            f"model {model.label}: the attention of a text of {longest:,} tokens takes about {needed / 1e9:,.0f} GB and "
            f"this machine has {memory / 1e9:,.0f}; cut texts with --max-length"
        )


def look(read: Read, crew: Crew, every: list[Piece], stage: Stage) -> None:
    """Write the layers, heads and embeddings of the missing pieces of texts, under each temperature."""
    left = missing(read.run.storage, every)
    stage.advance(sum(piece.size for piece in every) - sum(piece.size for piece in left), 0.0)
    # The attention of a text grows with the square of its length.
    work = [
        piece._replace(cost=float(sum(len(text) ** 2 for text in piece.arguments[1].column("text").to_pylist())))
        for piece in pieces.with_texts(read.run.storage, read.index, left)
    ]
    stage.resize(sum(piece.size for piece in every), sum(piece.cost for piece in work))
    for piece, _ in crew.run(write_layers, work):
        stage.advance(piece.size, piece.cost)


def rejected(run: Run, model: Model) -> int:
    """The number of texts on which the tokenizer or the model failed."""
    return sum(map(run.storage.rows, run.storage.list(run.place("rejected", model))))


def write_layers(worker: actor.ModelActor, number: int, work: pa.Table) -> None:
    """Write the layers, heads and embeddings of texts that succeed under every temperature, a part of each kind for each."""
    from tempscale.model.batches import NO_MEMORY, out_of_memory

    worker.note_processor()
    names = work.column("text_id").to_pylist()
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist(), isolate=True)
    words, around = worker.encoder.model.get_input_embeddings().weight.detach(), worker.encoder.tokenizer.around()
    glance, problems = Glance(), dict(tokens.failed)
    results: list[tuple[Any, dict[int, tuple[Rows, Rows, dict[str, Any]]]]] = []
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"look {number} at τ {temperature.slug}"):
            out = worker.encode(tokens, moments=False, role=actor.ROLE)
        finite = np.isfinite(out.embeddings.numpy()).all(1)
        problems = dict.fromkeys(np.flatnonzero(~finite).tolist(), "it gives no finite embedding") | out.failed | problems
        looked = {}
        for k in (k for k in range(len(names)) if k not in problems):
            try:
                looked[k] = fitting(worker.encoder.model, partial(_looked, worker, glance, tokens.ids[k]))
            except (RuntimeError, IndexError, ValueError) as error:
                actor.end_if_lost(error)
                problems[k] = NO_MEMORY if out_of_memory(error) else f"the model fails on it: {reason(error)}"
        results.append((out.embeddings.numpy(), looked))
    good = [k for k in range(len(names)) if k not in problems]
    for temperature, (embeddings, looked) in zip(worker.temperatures, results, strict=True):
        keys = {k: {"text_id": names[k], "tokens": len(tokens.ids[k])} for k in good}
        layers = [keys[k] | row for k in good for row in looked[k][0]]
        heads = [keys[k] | row for k in good for row in looked[k][1]]
        columns = {"embedding": embeddings[good], "words": mean_words(words, [tokens.ids[k] for k in good], around)}
        columns = {name: parts.fixed_lists(matrix) for name, matrix in columns.items()}
        columns |= {name: [looked[k][2][name] for k in good] for name in _CONCENTRATION}
        lengths = {"text_id": [names[k] for k in good], "tokens": [len(tokens.ids[k]) for k in good]}
        tables = (
            LAYER_PART.build_rows(layers), HEAD_PART.build_rows(heads),
            seen(embeddings.shape[1], words.shape[1]).build(lengths | columns),
        )  # fmt: skip
        for kind, table in zip(KINDS, tables, strict=True):
            worker.storage.write_table(worker.part(kind, temperature, number), table)
    rejected = [(names[k], f"{worker.model.label}: {why}") for k, why in sorted(problems.items())]
    worker.reject(number, [{"text_id": i, "place": f"piece {number}", "reason": why} for i, why in rejected])


def _looked(worker: actor.ModelActor, glance: Glance, ids: list[int]) -> tuple[Rows, Rows, dict[str, Any]]:
    """Layers, heads and token embeddings of one text."""
    pooled = worker.encoder.token_embeddings(ids, role=actor.ROLE)
    return (*glance.of(worker.encoder.model, ids), _concentration(pooled))


def fitting(model: Any, look: Callable[[], Seen]) -> Seen:
    """Observe one text; if the GPU's memory is too small, try again with an empty cache, and then on the CPU."""
    import torch

    from tempscale.model.batches import out_of_memory

    device = next(model.parameters()).device
    for attempt in range(3):
        try:
            if attempt == 2:
                model.to("cpu")
            return look()
        except (RuntimeError, MemoryError) as error:
            if device.type == "cpu" or attempt == 2 or not out_of_memory(error):
                raise
        finally:
            if attempt == 2:
                model.to(device)
        torch.cuda.empty_cache()  # After the except block, because its traceback keeps the tensors of the pass alive.
    raise AssertionError("the third attempt returns or raises")


def mean_words(table: Any, ids: list[list[int]], around: set[int]) -> np.ndarray:
    """Unit means (texts, d) of word embeddings before any layer, without special tokens, which would make texts similar."""
    means = np.empty((len(ids), table.shape[1]), dtype=np.float32)
    for k, tokens in enumerate(ids):
        mean = table[[token for token in tokens if token not in around] or tokens].float().mean(0)
        means[k] = (mean / mean.norm()).cpu().numpy()
    return means


def _concentration(tokens: Any) -> dict[str, float | None]:
    """The similarity of one text's tokens."""
    from tempscale.layers.contraction import concentration

    return {name: finite(float(value)) for name, value in concentration(tokens)._asdict().items()}


class Glance:
    """Measure every layer and head on one text; the norms of a layer's weights are computed once."""

    def __init__(self) -> None:
        self._norms: dict[int, tuple[Any, Any]] = {}

    def of(self, model: Any, ids: list[int]) -> tuple[Rows, Rows]:
        """Rows of `layers` and of `heads` for one text, without the columns that identify it."""
        from tempscale.layers.observe import observe

        observed = observe(model, ids, self._rows, role=actor.ROLE)
        return [row for layers, _ in observed for row in layers], [head for _, heads in observed for head in heads]

    def _rows(self, layer: Layer) -> tuple[Rows, Rows]:
        import torch

        from tempscale.layers.contraction import contraction, gain, head_contraction
        from tempscale.layers.spectrum import head_spectrum, high_frequency_ratios

        if layer.number not in self._norms:
            norms = torch.linalg.matrix_norm(layer.value_weights.double(), 2)
            self._norms[layer.number] = (norms, gain(layer))
        norms, gains = self._norms[layer.number]
        spectrum, lambdas = head_spectrum(layer, norms), head_contraction(layer, gains)
        ratios, contracted = high_frequency_ratios(layer), contraction(layer)
        row = {
            "hc_ratio": ratios.whole, "hc_attention": ratios.attention, "hc_residual": ratios.residual,
            "hc_norms": ratios.norms, "hc_feed_forward": ratios.feed_forward, "sigma_a_mean": spectrum.sigma_a.mean(),
            "rho": contracted.rho, "r": contracted.r, "C": contracted.c, "spread": contracted.spread,
            "spread_bound": contracted.bound, "within_cosine": contracted.within_cosine, "lambda": lambdas.mean(),
        }  # fmt: skip
        row["hc_attention_bound"] = (spectrum.sigma_a * gains).sum()
        columns = {
            "sigma_a": spectrum.sigma_a, "sigma_s": spectrum.sigma_s, "tau_s": 1 / spectrum.sigma_s,
            "sigma_a_bound": spectrum.sigma_a_bound, "lambda": lambdas, "thm2_ratio": spectrum.theorem_2_ratio,
        }  # fmt: skip
        # One transfer for all values: each transfer waits for the GPU.
        by_head = torch.stack([values.double() for values in columns.values()], 1).tolist()
        row_values = torch.stack([value.double() for value in row.values()]).tolist()
        heads = [
            {"layer": layer.number, "head": head} | dict(zip(columns, map(finite, values), strict=True))
            for head, values in enumerate(by_head)
        ]
        layers = [{"layer": layer.number} | dict(zip(row, map(finite, row_values), strict=True))]
        if layer.number == 0:  # Its input is the output of the embedding layer, the start of S2's Fig 11–16.
            figures = _concentration(layer.h)
            layers.insert(0, dict.fromkeys(row) | {"layer": -1} | {k: figures[k] for k in row if k in figures})
        return layers, heads
