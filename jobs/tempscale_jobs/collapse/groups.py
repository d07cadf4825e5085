"""SOCM of small groups of texts: all pairs of a group are measured by the actor that embeds it again, under every τ.

A group is one piece of work and one small row of durable partials. Its factors live and die in the actor.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse.length import interval_of
from tempscale.stats.enough import GROUPS_FOR_AN_ERROR
from tempscale.stats.groups import GroupSums, jackknife_error, quantile, shares_of_pairs, texts_of_a_group
from tempscale.stats.sample import seeded_sample
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.collapse import socm_tables
from tempscale_jobs.config.audit import SOCM_GROUPS, Analysis
from tempscale_jobs.corpus import shards
from tempscale_jobs.corpus.shards import Index
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import SOCM, SOCM_SCATTER
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.crew import Crew

GROUPS = "partials/groups"
REPLICATES = "replicates.parquet"
"""The file of the estimates without each group, in the folder of a finished step."""
_MOST_GROUPS = 1024
_ROUNDS = 3


class Grouped(NamedTuple):
    """The measured groups of one model under one temperature."""

    ids: np.ndarray
    tokens: np.ndarray
    trace: np.ndarray
    group: np.ndarray
    """The group of each pair."""
    first: np.ndarray
    """The place of a pair's one text in `ids`."""
    second: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray
    value: np.ndarray
    """SOCM_{α,β} of each pair."""


def deal(layout: Layout, groups: int, seed: int) -> list[list[str]]:
    """The texts of each group: each interval's texts in the order of their keyed hash, so many to a group.

    More groups begin with the same ones. Fewer are dealt where no interval has texts for all of them.
    """
    sizes, found = texts_of_a_group(layout.texts(), SOCM_GROUPS), [list[str]() for _ in range(groups)]
    for a, size in enumerate(sizes.tolist()):
        if size:
            own = seeded_sample(layout.ids[layout.interval == a].tolist(), groups * size, seed)
            for k, text_id in enumerate(own):
                found[k // size].append(text_id)
    return [group for group in found if len(group) > 1]


def pairs_of(dealt: list[list[str]]) -> int:
    """The pairs of all groups."""
    return sum(len(group) * (len(group) - 1) // 2 for group in dealt)


def enough(layout: Layout, analysis: Analysis, seed: int) -> bool:
    """Whether so many groups can be dealt that their errors are known; otherwise all pairs are few."""
    return len(deal(layout, min(analysis.socm_groups, SOCM_GROUPS), seed)) >= GROUPS_FOR_AN_ERROR


def measure(
    run: Run, crew: Crew, model: Model, layout: Layout, index: Index, analysis: Analysis, seed: int,
    on_pairs: Callable[[int], None],
) -> int:  # fmt: skip
    """Write the missing groups; return how many there are: as many as are configured, or as the wanted error takes."""
    wanted = analysis.socm_groups
    for _ in range(_ROUNDS):
        dealt = deal(layout, wanted, seed)
        _write(run, crew, model, index, analysis, dealt, on_pairs)
        if analysis.socm_se is None:
            break
        errors = [_error(run, model, t, layout, analysis, len(dealt)) for t in run.temperatures]
        more = math.ceil(len(dealt) * max(1.0, *(error / analysis.socm_se for error in errors)) ** 2)
        more = min(more, _MOST_GROUPS)
        if not math.isfinite(max(errors)) or more <= len(dealt) or len(dealt) < wanted:
            break
        wanted = more
    return len(dealt)


def _write(
    run: Run, crew: Crew, model: Model, index: Index, analysis: Analysis, dealt: list[list[str]],
    on_pairs: Callable[[int], None],
) -> None:  # fmt: skip
    missing = [
        k for k in range(len(dealt))
        if not all(run.storage.exists(run.part(GROUPS, model, t, k)) for t in run.temperatures)
    ]  # fmt: skip
    on_pairs(pairs_of(dealt) - pairs_of([dealt[k] for k in missing]))
    texts = shards.texts_of(run.storage, index, {i for k in missing for i in dealt[k]}) if missing else {}
    settings = {"regularization": repr(analysis.socm_regularization)}
    work = {
        k: pa.table({"text_id": dealt[k], "text": [texts[i] for i in dealt[k]]}).replace_schema_metadata(settings)
        for k in missing
    }
    for report in crew.work(write_group, work):
        on_pairs(report["pairs"])


def write_group(worker: actor.ModelActor, number: int, work: pa.Table) -> dict[str, Any]:
    """Embed the texts of one group and write d_μ and d_Σ of all its pairs, one row for each temperature."""
    import torch

    from tempscale.second_order.socm import socm_square, traces

    epsilon = float(work.schema.metadata[b"regularization"])
    tokens = worker.encoder.tokenizer(work.column("text").to_pylist())
    row, column = np.triu_indices(len(tokens.ids), 1)
    for temperature in worker.temperatures:
        worker.encoder.set_temperature(temperature)
        with worker.noting(f"group {number} under τ {temperature.slug}"):
            out = worker.encoder.encode_tokens(tokens, moments=False, factors=True, role=actor.ROLE)
        assert out.factors is not None
        factors = [factor for _, factor in out.factors]
        found = socm_square(torch.stack([mean for mean, _ in out.factors]), factors, regularization=epsilon)
        values = {
            "text_id": [work.column("text_id").to_pylist()], "tokens": [out.tokens.tolist()],
            "trace": [traces(factors).tolist()], "d_mu": [found.d_mu.numpy()[row, column].tolist()],
            "d_sigma": [found.d_sigma.numpy()[row, column].tolist()],
        }  # fmt: skip
        worker.storage.write_table(worker.part(GROUPS, temperature, number), parts.SOCM_GROUP.build(values))
    return {"number": number, "pairs": len(row)}


def read(run: Run, model: Model, temperature: Temperature, analysis: Analysis, groups: int) -> Grouped:
    """The first groups that were measured."""
    import torch

    from tempscale.second_order.socm import socm_value

    rows = [run.storage.read_table(run.part(GROUPS, model, temperature, k)).to_pylist()[0] for k in range(groups)]
    starts = np.concatenate([[0], np.cumsum([len(row["text_id"]) for row in rows])]).astype(int)
    upper = [np.triu_indices(len(row["text_id"]), 1) for row in rows]
    joined = {name: np.concatenate([row[name] for row in rows]) for name in ("tokens", "trace", "d_mu", "d_sigma")}
    d_mu, d_sigma = (torch.from_numpy(joined[name]) for name in ("d_mu", "d_sigma"))
    value = socm_value(d_mu, d_sigma, analysis.socm_alpha, analysis.socm_beta).numpy()
    if not np.isfinite(value).all():
        raise IncompleteRun("the d_Σ of a pair is no number; start over with --fresh")
    ids = np.array([i for row in rows for i in row["text_id"]], dtype=object)
    group = np.repeat(np.arange(groups), [len(own) for own, _ in upper])
    first, second = (np.concatenate([start + own[k] for start, own in zip(starts, upper, strict=False)]) for k in (0, 1))
    tokens, trace = joined["tokens"].astype(np.int64), joined["trace"]
    return Grouped(ids, tokens, trace, group, first, second, joined["d_mu"], joined["d_sigma"], value)


def _cells(found: Grouped, layout: Layout) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """The cell of each pair, and all cells a ≤ b of intervals."""
    interval = interval_of(found.tokens, layout.edges)
    one, other = interval[found.first], interval[found.second]
    size = len(layout.edges)
    names = list(zip(*(side.tolist() for side in np.triu_indices(size)), strict=True))
    place = np.zeros((size, size), dtype=np.int64)
    place[np.triu_indices(size)] = np.arange(len(names))
    return place[np.minimum(one, other), np.maximum(one, other)], names


def _error(run: Run, model: Model, temperature: Temperature, layout: Layout, analysis: Analysis, groups: int) -> float:
    """The standard error of the corpus's mean SOCM from the groups measured so far."""
    found = read(run, model, temperature, analysis, groups)
    cell, names = _cells(found, layout)
    sums = GroupSums.of(found.value, found.group, cell, (groups, len(names)))
    return jackknife_error(sums.replicates(shares_of_pairs(layout.texts())))


def tabulate(
    run: Run, model: Model, temperature: Temperature, layout: Layout, analysis: Analysis, seed: int, groups: int
) -> int:
    """Write the cells, the scatter, the estimates without each group and done.json; return the number of pairs."""
    storage, place, key = run.storage, run.place("partials/socm", model, temperature), run.key(model, temperature)
    found = read(run, model, temperature, analysis, groups)
    if storage.exists(f"{place}/done.json"):
        return len(found.value)
    cell, names = _cells(found, layout)
    shape, weights = (groups, len(names)), shares_of_pairs(layout.texts())
    sums = GroupSums.of(found.value, found.group, cell, shape)
    over = GroupSums.of((found.value > 1).astype(np.float64), found.group, cell, shape)
    rows = _rows(found, cell, names, layout.edges, sums, over, exact=not analysis.socm_regularization)
    storage.write_table(f"{place}/socm.parquet", SOCM.build_rows([key | row for row in rows]))
    scatter = socm_tables.scatter(found.d_mu, found.d_sigma, seed)
    storage.write_table(f"{place}/socm_scatter.parquet", SOCM_SCATTER.build_rows([key | row for row in scatter]))
    values = {"socm_mean": sums.replicates(weights), "socm_over_1_share": over.replicates(weights)}
    storage.write_table(f"{place}/{REPLICATES}", pa.table(values))
    drawn = hashlib.sha256("\n".join(f"{g} {i}" for g, i in _members(found)).encode("utf-8", "surrogatepass"))
    summary = {
        "way": "groups", "texts": len(found.ids), "pairs": len(found.value), "groups": groups,
        "socm_mean": sums.weighted(weights), "socm_over_1_share": over.weighted(weights), "drawn": drawn.hexdigest(),
        "interval_texts": layout.texts().tolist(),
        "interval_means": {
            "socm_mean": _with_all(sums, names, layout.texts()),
            "socm_over_1_share": _with_all(over, names, layout.texts()),
        },
    }  # fmt: skip
    storage.write_json(f"{place}/done.json", summary)
    return len(found.value)


def _members(found: Grouped) -> list[tuple[int, str]]:
    group = np.zeros(len(found.ids), dtype=np.int64)
    group[found.first], group[found.second] = found.group, found.group
    return list(zip(group.tolist(), found.ids.tolist(), strict=True))


def _with_all(sums: GroupSums, names: list[tuple[int, int]], texts: np.ndarray) -> list[float | None]:
    """The mean of a text of each interval with all texts of the corpus; None where no pair of it was measured."""
    means, found = sums.means(), list[float | None]()
    for a in range(len(texts)):
        own = {(i + j - a): means[k] for k, (i, j) in enumerate(names) if a in (i, j) and np.isfinite(means[k])}
        weights = {b: float(texts[b]) for b in own}
        total = sum(weights.values())
        found.append(sum(weights[b] * float(own[b]) for b in own) / total if total else None)
    return found


def _rows(
    found: Grouped, cell: np.ndarray, names: list[tuple[int, int]], edges: tuple[int, ...], sums: GroupSums,
    over: GroupSums, exact: bool,
) -> list[dict[str, Any]]:  # fmt: skip
    """One row for each cell that has pairs."""
    rows = []
    means = {"socm_mean": (sums.means(), sums.errors()), "socm_over_1_share": (over.means(), over.errors())}
    for k in np.flatnonzero(sums.counts.sum(0)).tolist():
        a, b = names[k]
        here = cell == k
        row: dict[str, Any] = {"interval_a": edges[a], "interval_b": edges[b], "pairs": int(here.sum())}
        row |= {"groups": int((sums.counts[:, k] > 0).sum()), "exact": exact, "d_sigma_error": 0.0}
        row |= {"d_mu_mean": float(found.d_mu[here].mean()), "d_sigma_mean": float(found.d_sigma[here].mean())}
        for name, (values, errors) in means.items():
            short, error = name.removesuffix("_mean"), _known(float(errors[k]))
            row |= {name: float(values[k]), f"{short}_se": error, f"{short}_se_superpopulation": error}
        for share in (50, 95):
            at, error_at = quantile(found.value[here], found.group[here], share / 100)
            row |= {f"socm_p{share}": at, f"socm_p{share}_se": _known(error_at)}
        rows.append(row)
    return rows


def _known(error: float) -> float | None:
    return error if math.isfinite(error) else None
