"""A sample of texts, as many from each length interval as there are, looked into layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from jobs import actor, corpus, parts, versions
from jobs.crew import Crew
from jobs.diagnose_config import DiagnoseConfig
from jobs.diagnose_schema import HEAD_PART, KINDS, LAYER_PART, seen
from jobs.engine import Cluster, results
from jobs.errors import UsageError
from jobs.findings import finite
from jobs.runs import Model, RunOf
from jobs.schema import REJECTED
from jobs.storage import Storage
from tempscale import checkpoint
from tempscale.checkpoint import first_line
from tempscale.length import interval_of
from tempscale.pooling import transformer_folder
from tempscale.tiles import seeded_sample

if TYPE_CHECKING:
    from tempscale.layers import Layer

_LENGTHS = "partials/lengths"
_COPIES = 4
"""Of one layer's attention: logits before and behind the mask, weights, and what is made of them."""

Look = RunOf[DiagnoseConfig]
Rows = list[dict[str, Any]]


def lengths(
    run: Look, cluster: Cluster, model: Model, index: dict[str, Any], on_texts: Callable[[int], None]
) -> dict[str, int]:
    """Tokens of every text that was read, by id, as the model would see it; texts that do not tokenise are rejected.

    Raises:
        IncompleteRun: a task failed for good.
    """
    import ray

    def name(number: int) -> str:
        return f"{_LENGTHS}/model={model.label}/part-{number:05d}.parquet"

    task, shards = ray.remote(num_cpus=1)(_leave_lengths), index["shards"]
    missing = [k for k in range(len(shards)) if not run.storage.exists(name(k))]
    on_texts(index["analysed"] - sum(shards[k]["texts"] for k in missing))
    for k, _ in results(cluster, lambda k: task.remote(run.storage, shards[k]["name"], model, name(k)), missing):
        on_texts(shards[k]["texts"])
    found: dict[str, int] = {}
    for k in range(len(shards)):
        found.update(zip(*(column.to_pylist() for column in run.storage.read_table(name(k)).columns), strict=True))
    return found


def _leave_lengths(storage: Storage, shard: str, model: Model, name: str) -> None:
    table = storage.read_table(shard, ["text_id", "text"])
    tokens = actor.tokenizer(model.name, model.max_length, "truncate")(table.column("text").to_pylist(), isolate=True)
    good = [k for k in range(len(tokens)) if k not in tokens.failed]
    ids = table.column("text_id").to_pylist()
    failed = [{"text_id": ids[k], "place": shard, "reason": reason} for k, reason in sorted(tokens.failed.items())]
    if failed:
        place = f"rejected/model={model.label}/lengths-{name.rpartition('part-')[2]}"
        storage.write_table(place, REJECTED.build_rows(failed))
    storage.write_table(name, pa.table({"text_id": [ids[k] for k in good], "tokens": [tokens.lengths[k] for k in good]}))


def sample(run: Look, found: Sequence[Mapping[str, int]], document_of: Mapping[str, str]) -> list[str]:
    """Ids of the texts to look into, the same for every model, so that models are compared on the same texts.

    Of each length interval the smallest keyed hashes, as evenly as there are texts; whole documents where texts are
    versions of such.

    Args:
        run: what is asked for.
        found: tokens of each text, by model; the first model's count.
        document_of: the document of each text that is a version of one.

    Raises:
        UsageError: versions are asked for and there are none.
    """
    asked, edges = run.config.diagnosis, run.config.diagnosis.intervals
    # A single token differs from nothing: neither HC nor σ_a says anything of it.
    lengths = {i: tokens for i, tokens in found[0].items() if all(own.get(i, 0) > 1 for own in found)}
    if asked.versions_of is not None:
        return versions.sample(document_of, lengths, asked.texts, run.config.seed, asked.versions_of)
    ids = np.array(sorted(lengths), dtype=object)
    interval = interval_of(np.array([lengths[i] for i in ids], dtype=np.int64), edges)
    members = [ids[interval == a].tolist() for a in range(len(edges))]
    sizes = even_sizes([len(own) for own in members], asked.texts)
    return sorted(i for own, size in zip(members, sizes, strict=True) for i in seeded_sample(own, size, run.config.seed))


def even_sizes(available: list[int], wanted: int) -> list[int]:
    """How many of each group, so that they are `wanted` together and the smallest share is as large as it can be."""
    sizes, left = [0] * len(available), min(wanted, sum(available))
    for place, k in enumerate(sorted(range(len(available)), key=lambda k: (available[k], k))):
        sizes[k] = min(available[k], left // (len(available) - place))
        left -= sizes[k]
    # What division leaves over goes to the longest intervals that have more.
    for k in reversed(range(len(available))):
        more = min(left, available[k] - sizes[k])
        sizes[k], left = sizes[k] + more, left - more
    return sizes


def check_memory(run: Look, model: Model, longest: int) -> None:
    """Raise where the attention of the longest text would not fit into this machine's memory.

    Raises:
        UsageError: it would not.
    """
    import psutil

    config = checkpoint.read_json(transformer_folder(checkpoint.resolve(model.name)) / "config.json")
    heads = next((config[name] for name in ("num_attention_heads", "n_heads", "num_heads") if name in config), 0)
    needed = _COPIES * 4 * int(heads) * longest**2 * (run.config.execution.workers or 1)
    memory = psutil.virtual_memory().total
    if needed > memory:
        raise UsageError(
            f"model {model.label}: the attention of a text of {longest:,} tokens takes about {needed / 1e9:,.0f} GB and "
            f"this machine has {memory / 1e9:,.0f}; look at shorter ones with --max-length"
        )


def look(
    run: Look, crew: Crew, model: Model, index: dict[str, Any], chosen: list[str], on_texts: Callable[[int], None]
) -> None:
    """Look into every chosen text under every temperature, but for the pieces that are there.

    Raises:
        IncompleteRun: a worker failed for good.
    """
    size = run.config.diagnosis.piece_texts
    pieces = [chosen[k : k + size] for k in range(0, len(chosen), size)]
    missing = {
        number: piece
        for number, piece in enumerate(pieces)
        if not all(run.storage.exists(run.part(kind, model, t, number)) for kind in KINDS for t in run.temperatures)
    }
    on_texts(len(chosen) - sum(map(len, missing.values())))
    texts = corpus.texts_of(run.storage, index, {i for piece in missing.values() for i in piece}) if missing else {}
    work = {k: pa.table({"text_id": piece, "text": [texts[i] for i in piece]}) for k, piece in missing.items()}
    for report in crew.work(leave_looks, work):
        on_texts(report["texts"])


def rejected(run: Look, model: Model) -> int:
    """Texts that the model's tokenizer or the model failed on."""
    names = run.storage.list(f"rejected/model={model.label}")
    return sum(run.storage.read_table(name, ["text_id"]).num_rows for name in names)


def leave_looks(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Look into some texts and write their layers, heads and embeddings, one part of each a temperature.

    A text that the model fails on, or gives nothing finite for, under one of them is left out of all and rejected.
    """
    worker.note_processor()
    names = work.column("text_id").to_pylist()
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist(), isolate=True)
    words = worker.encoder.model.get_input_embeddings().weight.detach()
    glance, problems = Glance(), dict(tokens.failed)
    found: list[tuple[Any, dict[int, tuple[Rows, Rows]]]] = []
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"look {number} at τ {temperature.slug}"):
            out = worker.encode(tokens, moments=False, role=actor.ROLE)
        finite = np.isfinite(out.embeddings.numpy()).all(1)
        problems = dict.fromkeys(np.flatnonzero(~finite).tolist(), "it gives no finite embedding") | out.failed | problems
        looked = {}
        for k in (k for k in range(len(names)) if k not in problems):
            try:
                looked[k] = glance.of(worker.encoder.model, tokens.ids[k])
            except (RuntimeError, IndexError, ValueError) as error:
                problems[k] = f"the model fails on it: {first_line(error)}"
        found.append((out.embeddings.numpy(), looked))
    good = [k for k in range(len(names)) if k not in problems]
    for temperature, (embeddings, looked) in zip(worker.temperatures, found, strict=True):
        place = f"model={worker.model.label}/temperature={temperature.slug}/part-{number:05d}.parquet"
        own = {k: {"text_id": names[k], "tokens": len(tokens.ids[k])} for k in good}
        layers, heads = ([own[k] | row for k in good for row in looked[k][side]] for side in (0, 1))
        columns = {"embedding": embeddings[good], "words": _mean_words(words, [tokens.ids[k] for k in good])}
        columns = {name: parts.fixed_lists(matrix) for name, matrix in columns.items()}
        lengths = {"text_id": [names[k] for k in good], "tokens": [len(tokens.ids[k]) for k in good]}
        tables = (
            LAYER_PART.build_rows(layers), HEAD_PART.build_rows(heads),
            seen(embeddings.shape[1], words.shape[1]).build(lengths | columns),
        )  # fmt: skip
        for kind, table in zip(KINDS, tables, strict=True):
            worker.storage.write_table(f"{kind}/{place}", table)
    rejected = [(names[k], f"{worker.model.label}: {why}") for k, why in sorted(problems.items())]
    worker.reject(number, [{"text_id": i, "place": f"piece {number}", "reason": why} for i, why in rejected])
    return {"number": number, "texts": work.num_rows}


def _mean_words(table: Any, ids: list[list[int]]) -> np.ndarray:
    """The unit mean of each text's word embeddings (texts, d), which no layer has touched."""
    means = np.empty((len(ids), table.shape[1]), dtype=np.float32)
    for k, own in enumerate(ids):
        mean = table[own].float().mean(0)
        means[k] = (mean / mean.norm()).cpu().numpy()
    return means


class Glance:
    """Figures of each layer and head of one text; norms of weights are taken once a layer."""

    def __init__(self) -> None:
        self._norms: dict[int, tuple[Any, Any]] = {}

    def of(self, model: Any, ids: list[int]) -> tuple[Rows, Rows]:
        """Rows of `layers` and of `heads`, without the text's own columns."""
        from tempscale.layers import observe

        found = observe(model, ids, self._rows, role=actor.ROLE)
        return [layer for layer, _ in found], [head for _, heads in found for head in heads]

    def _rows(self, layer: Layer) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        import torch

        from tempscale.contraction import contraction, gain, head_contraction
        from tempscale.spectrum import head_spectrum, high_frequency_ratios

        if layer.number not in self._norms:
            norms = torch.linalg.matrix_norm(layer.value_weights.double(), 2)
            self._norms[layer.number] = (norms, gain(layer))
        norms, gains = self._norms[layer.number]
        spectrum, lambdas = head_spectrum(layer, norms), head_contraction(layer, gains)
        kept, own = high_frequency_ratios(layer), contraction(layer)
        row = {
            "hc_ratio": kept.whole, "hc_attention": kept.attention, "hc_residual": kept.residual, "hc_norms": kept.norms,
            "hc_feed_forward": kept.feed_forward, "sigma_a_mean": spectrum.sigma_a.mean(), "rho": own.rho, "r": own.r,
            "C": own.c, "spread": own.spread, "spread_bound": own.bound, "within_cosine": own.within_cosine,
            "lambda": lambdas.mean(),
        }  # fmt: skip
        row["hc_attention_bound"] = (spectrum.sigma_a * gains).sum()
        columns = {
            "sigma_a": spectrum.sigma_a, "sigma_s": spectrum.sigma_s, "tau_s": 1 / spectrum.sigma_s,
            "sigma_a_bound": spectrum.sigma_a_bound, "lambda": lambdas, "thm2_ratio": spectrum.theorem_2_ratio,
        }  # fmt: skip
        # A GPU is asked once for all of them: each answer would wait for its work.
        by_head = torch.stack([values.double() for values in columns.values()], 1).tolist()
        own_row = torch.stack([value.double() for value in row.values()]).tolist()
        heads = [
            {"layer": layer.number, "head": head} | dict(zip(columns, map(finite, values), strict=True))
            for head, values in enumerate(by_head)
        ]
        return {"layer": layer.number} | dict(zip(row, map(finite, own_row), strict=True)), heads
