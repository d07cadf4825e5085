"""SOCM of small groups of texts: an actor embeds a group again and measures all its pairs, under every τ.

A group is one piece of work and one small row of durable partials. Its factors never leave the actor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tempscale.stats.groups import covariance_of_shares, jackknife_error
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import is_whole
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.pace import Pace
from tempscale_jobs.steps import dealing, group_tables, pieces, socm_tables
from tempscale_jobs.steps.dealing import Dealt
from tempscale_jobs.steps.group_tables import Cells, MeasuredGroups
from tempscale_jobs.steps.pair_values import Factors, every_pair
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import SOCM, SOCM_SCATTER
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece, advance_by_finished, missing

if TYPE_CHECKING:
    from tempscale.model.gathering import Encoded

GROUPS = "partials/groups"
REPLICATES = "replicates.parquet"
"""The file of the estimates without each group in turn."""
_MOST_GROUPS = 1024
_ROUNDS = 3


def measure(scope: Embedded) -> list[Dealt]:
    """Measure the pairs of the configured number of groups, or of as many as the error needs; write their tables."""
    analysis = scope.analysis
    planned = dealing.pairs_of(dealing.deal(scope.texts, analysis, analysis.socm_groups))
    whole, pace = (planned, Pace(1.0)) if analysis.socm_se is None else (None, Pace(None))
    with scope.journal.stage(scope.named("SOCM"), whole, "pairs", pace) as stage:
        dealt = _measure(scope, stage)
        pairs = [_tabulate(scope, temperature, dealt) for temperature in scope.run.temperatures]
        stage.note = f"{pairs[-1]:,} pairs of {len(dealt)} groups under τ {scope.run.taus}, {method(analysis)}"
    return dealt


def method(analysis: Analysis) -> str:
    """How d_Σ is computed."""
    return f"with ε = {analysis.socm_regularization:g}" if analysis.socm_regularization else "exact"


def _measure(scope: Embedded, stage: Stage) -> list[Dealt]:
    """Write the missing groups; return all."""
    run, analysis = scope.run, scope.analysis
    groups, dealt = analysis.socm_groups, list[Dealt]()
    for _ in range(_ROUNDS):
        measured, dealt = len(dealt), dealing.deal(scope.texts, analysis, groups)
        if len(dealt) == measured:  # The corpus has no texts for more groups.
            break
        _write(scope, dealt, measured, stage)
        if analysis.socm_se is None:
            break
        errors = [_error(scope, t, dealt) for t in run.temperatures]
        more = math.ceil(groups * max(1.0, *(error / analysis.socm_se for error in errors)) ** 2)
        more = min(more, _MOST_GROUPS)
        if not math.isfinite(max(errors)) or more <= groups:
            break
        groups = more
    return dealt


def _error(scope: Embedded, temperature: Temperature, dealt: list[Dealt]) -> float:
    """The standard error of the corpus's mean SOCM from the groups measured so far."""
    grouped = read(scope, temperature, len(dealt))
    cells = _cells(scope, grouped, dealt)
    return jackknife_error(cells.sums(grouped.value).replicates(cells.weights))


def _write(scope: Embedded, dealt: list[Dealt], first: int, stage: Stage) -> None:
    """Measure the groups from number `first` on that are missing."""
    run, model, layout = scope.run, scope.model, scope.texts
    share = dealing.shares_of_work(dealt, layout)
    every = [
        Piece(
            k, (list(dealt[k].ids),), f"group {k}", tuple(run.part(GROUPS, model, t, k) for t in run.temperatures),
            dealing.pairs_of([dealt[k]]), share[k],
        )
        for k in range(first, len(dealt))
    ]  # fmt: skip
    left = missing(run.storage, every)
    advance_by_finished(stage, every, left)
    index, epsilon = layout.within(scope.index, pieces.ids_of(left)), scope.analysis.socm_regularization
    work = pieces.with_texts(run.storage, index, left, epsilon)
    for piece, _ in scope.crew.run(write_group, work):
        stage.advance(piece.size, piece.cost)


def write_group(worker: actor.ModelActor, number: int, work: pa.Table, epsilon: float) -> Callable[[], None]:
    """Embed the texts of one group; return a function that writes d_μ and d_Σ of its pairs, one row a temperature."""
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist())
    padded, encoded = worker.encoder.padded(tokens), list[Any]()
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"group {number} under τ {temperature.slug}"):
            options: dict[str, Any] = {"moments": False, "factors": True, "role": actor.ROLE, "padded": padded}
            encoded.append(worker.encoder.encode_tokens(tokens, **options))
    return partial(_write_group, worker, number, work, epsilon, encoded)


def _write_group(worker: actor.ModelActor, number: int, work: pa.Table, epsilon: float, encoded: Sequence[Encoded]) -> None:
    """Compare the pairs of one group and write them."""
    import torch

    from tempscale.second_order.routing import socm_device
    from tempscale.second_order.socm import traces

    device = socm_device(worker.device, epsilon)
    for temperature, out in zip(worker.temperatures, encoded, strict=True):
        assert out.factors is not None
        factors = [factor for _, factor in out.factors]
        texts = Factors(torch.stack([mean for mean, _ in out.factors]), factors)
        pairs = every_pair(texts.on(device), None, epsilon)
        values = {
            "text_id": [work.column("text_id").to_pylist()], "tokens": [out.tokens.tolist()],
            "trace": [traces(factors).tolist()], "d_mu": [pairs.d_mu.tolist()],
            "d_sigma": [pairs.d_sigma.tolist()],
        }  # fmt: skip
        worker.storage.write_table(worker.part(GROUPS, temperature, number), parts.SOCM_GROUP.build(values))


def read(scope: Embedded, temperature: Temperature, groups: int) -> MeasuredGroups:
    """The first groups that were measured."""
    import torch

    from tempscale.second_order.socm import socm_value

    run, model, analysis = scope.run, scope.model, scope.analysis
    rows = [run.storage.read_table(run.part(GROUPS, model, temperature, k)).to_pylist()[0] for k in range(groups)]
    starts = np.concatenate([[0], np.cumsum([len(row["text_id"]) for row in rows])]).astype(int)
    upper = [np.triu_indices(len(row["text_id"]), 1) for row in rows]
    joined = {name: np.concatenate([row[name] for row in rows]) for name in ("tokens", "trace", "d_mu", "d_sigma")}
    d_mu, d_sigma = (torch.from_numpy(joined[name]) for name in ("d_mu", "d_sigma"))
    value = socm_value(d_mu, d_sigma, analysis.socm_alpha, analysis.socm_beta).numpy()
    if not np.isfinite(value).all():
        raise IncompleteRun("the d_Σ of a pair is no number; start over with --fresh")
    ids = np.array([i for row in rows for i in row["text_id"]], dtype=object)
    group = np.repeat(np.arange(groups), [len(indices) for indices, _ in upper])
    first, second = (
        np.concatenate([start + indices[k] for start, indices in zip(starts, upper, strict=False)]) for k in (0, 1)
    )
    tokens, trace = joined["tokens"].astype(np.int64), joined["trace"]
    return MeasuredGroups(ids, tokens, trace, group, first, second, joined["d_mu"], joined["d_sigma"], value)


def _cells(scope: Embedded, grouped: MeasuredGroups, dealt: list[Dealt]) -> Cells:
    return Cells.of(grouped, scope.texts, dealt, dealing.document_sets(scope.texts, scope.analysis))


def _tabulate(scope: Embedded, temperature: Temperature, dealt: list[Dealt]) -> int:
    """Write the cells, the scatter, the estimates without each group and done.json; return the number of pairs."""
    run, model, layout, analysis = scope.run, scope.model, scope.texts, scope.analysis
    storage, place, key = run.storage, run.place("partials/socm", model, temperature), run.key(model, temperature)
    grouped = read(scope, temperature, len(dealt))
    if is_whole(storage, f"{place}/done.json"):
        return len(grouped.value)
    cells = _cells(scope, grouped, dealt)
    sums, over = cells.sums(grouped.value), cells.sums((grouped.value > 1).astype(np.float64))
    figures = {"socm_mean": sums, "socm_over_1_share": over}
    rows = group_tables.rows(grouped, cells, layout.edges, figures, exact=not analysis.socm_regularization)
    storage.write_table(f"{place}/socm.parquet", SOCM.build_rows([key | row for row in rows]))
    scatter = socm_tables.scatter(grouped.d_mu, grouped.d_sigma, layout.seed)
    storage.write_table(f"{place}/socm_scatter.parquet", SOCM_SCATTER.build_rows([key | row for row in scatter]))
    replicates = {name: figure.replicates(cells.weights) for name, figure in figures.items()}
    storage.write_table(f"{place}/{REPLICATES}", pa.table(replicates))
    members = "\n".join(f"{group.drawn} {i}" for group in dealt for i in group.ids)
    summary = {
        "way": "groups", "texts": len(grouped.ids), "pairs": len(grouped.value), "groups": len(dealt),
        "by_document": cells.pairs is not None, "freedom": cells.freedom,
        "drawn": hashlib.sha256(members.encode("utf-8", "surrogatepass")).hexdigest(),
    }  # fmt: skip
    summary |= {name: figure.weighted(cells.weights) for name, figure in figures.items()}
    means = {name: group_tables.with_all(cells, figure, layout.texts_by_interval()) for name, figure in figures.items()}
    shares = covariance_of_shares(layout.interval, len(layout.edges), layout.documents)
    summary |= {"interval_means": means, "interval_covariance": shares.tolist()}
    summary["files"] = [f"{place}/{name}" for name in ("socm.parquet", "socm_scatter.parquet", REPLICATES)]
    storage.write_json(f"{place}/done.json", summary)
    return len(grouped.value)
