"""Choose the texts to observe: evenly from the length intervals, or whole documents with all their versions.

Tasks read the lengths from storage, so that no process has more texts of an interval in memory than the sample may have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tempscale.collapse.length import interval_of
from tempscale.stats.sample import seeded_sample
from tempscale_jobs.config.diagnose import Diagnosis
from tempscale_jobs.diagnose import versions
from tempscale_jobs.diagnose.looks import Read
from tempscale_jobs.runs.folder import Model, part, place
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import REJECTED
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.dispatch import Piece, missing, run_tasks

_LENGTHS = "partials/lengths"
_SHARDS_OF_A_TASK = 16

Tokens = tuple[int, ...]
"""The length of one text for each model."""


class Candidates(NamedTuple):
    """The candidates of some shards for a sample, by interval."""

    texts: np.ndarray
    """The number of texts of each interval."""
    least: list[dict[str, Tokens]]
    """The texts of smallest keyed hash, as many as a sample may have."""


class Sample(NamedTuple):
    """The texts to observe, the same for every model."""

    ids: list[str]
    longest: list[int]
    """The length of the longest text, for each model."""


def write_lengths(read: Read, model: Model, stage: Stage) -> int:
    """Write the length in tokens of every text that the model can tokenise, and reject the others; count the former."""
    storage, index, names = read.run.storage, read.index, _names(read, model)
    left = missing(
        storage,
        [
            Piece(k, (storage, shard.name, model, k), f"shard {k}", (name,), shard.texts)
            for k, (shard, name) in enumerate(zip(index.shards, names, strict=True))
        ],
    )
    stage.advance(index.analysed - sum(piece.size for piece in left))
    for piece, _ in run_tasks(read.cluster, write_shard, left, ahead=2):
        stage.advance(piece.size)
    return sum(storage.rows(name) for name in names)


def _names(read: Read, model: Model) -> list[str]:
    return [part(_LENGTHS, model, None, k) for k in range(len(read.index.shards))]


def write_shard(storage: Storage, shard: str, model: Model, number: int) -> None:
    """Write the lengths of a shard's texts, and the texts that do not tokenise to rejected/."""
    table = storage.read_table(shard, ["text_id", "text"])
    how = actor.Tokenising(model.name, model.max_length, "truncate", model.document_prompt, model.settings)
    tokenizer = actor.tokenizer(how)
    tokens = tokenizer(table.column("text").to_pylist(), isolate=True)
    good = [k for k in range(len(tokens)) if k not in tokens.failed]
    ids = table.column("text_id").to_pylist()
    failed = [{"text_id": ids[k], "place": shard, "reason": reason} for k, reason in sorted(tokens.failed.items())]
    if failed:
        storage.write_table(f"{place('rejected', model)}/lengths-{number:08d}.parquet", REJECTED.build_rows(failed))
    name = part(_LENGTHS, model, None, number)
    storage.write_table(name, pa.table({"text_id": [ids[k] for k in good], "tokens": [tokens.lengths[k] for k in good]}))


def choose(read: Read, document_of: Mapping[str, str]) -> Sample:
    """The texts to observe; `document_of` is the document of each text if whole documents are observed."""
    settings, seed = read.config.diagnosis, read.config.seed
    if settings.versions_of is not None:
        lengths = _lengths(read.run.storage, [_names(read, model) for model in read.run.models])
        ids = versions.sample(
            document_of, {i: tokens[0] for i, tokens in lengths.items()}, settings.texts, seed, settings.versions_of
        )
        return _sample(ids, lengths)
    candidates = (found for _, found in run_tasks(read.cluster, candidates_of, _groups(read)))
    chosen = evenly(settings, seed, candidates)
    return _sample(sorted(chosen), chosen)


def evenly(settings: Diagnosis, seed: int, candidates: Iterable[Candidates]) -> dict[str, Tokens]:
    """The lengths, by id, of texts that are chosen evenly from the intervals."""
    texts, least = np.zeros(len(settings.intervals), np.int64), [dict[str, Tokens]() for _ in settings.intervals]
    for found in candidates:
        texts += found.texts
        for a, more in enumerate(found.least):
            joined = least[a] | more
            least[a] = {i: joined[i] for i in seeded_sample(joined, settings.texts, seed)}
    sizes = even_sizes(texts.tolist(), settings.texts)
    return {i: tokens for group, size in zip(least, sizes, strict=True) for i, tokens in [*group.items()][:size]}


def _sample(ids: list[str], lengths: Mapping[str, Tokens]) -> Sample:
    return Sample(ids, [max(tokens) for tokens in zip(*(lengths[i] for i in ids), strict=True)])


def _groups(read: Read) -> list[Piece]:
    """Pieces of consecutive shards of every model's lengths."""
    by_model, config = [_names(read, model) for model in read.run.models], read.config
    groups = [slice(k, k + _SHARDS_OF_A_TASK) for k in range(0, len(read.index.shards), _SHARDS_OF_A_TASK)]
    work = [(read.run.storage, [names[group] for names in by_model], config.diagnosis, config.seed) for group in groups]
    return [Piece(k, arguments, f"lengths {k}") for k, arguments in enumerate(work)]


def candidates_of(storage: Storage, names: Sequence[Sequence[str]], settings: Diagnosis, seed: int) -> Candidates:
    """The candidates from the files of each model (`names`); the first model's lengths decide the interval."""
    lengths, edges = _lengths(storage, names), settings.intervals
    ids = np.array([*lengths], dtype=object)
    interval = interval_of(np.array([tokens[0] for tokens in lengths.values()], dtype=np.int64), edges)
    members = [ids[interval == a].tolist() for a in range(len(edges))]
    least = [{i: lengths[i] for i in seeded_sample(group, settings.texts, seed)} for group in members]
    return Candidates(np.array([len(group) for group in members]), least)


def _lengths(storage: Storage, names: Sequence[Sequence[str]]) -> dict[str, Tokens]:
    """The lengths of the texts that have at least two tokens for every model, which HC and σ_a need."""
    by_model = list[dict[str, int]]()
    for files in names:
        by_model.append({})
        for columns in storage.columns(files, ["text_id", "tokens"]):
            by_model[-1].update(zip(*(column.to_pylist() for column in columns), strict=True))
    joined = {i: tuple(by_id.get(i, 0) for by_id in by_model) for i in by_model[0]}
    return {i: tokens for i, tokens in joined.items() if min(tokens) > 1}


def even_sizes(available: list[int], wanted: int) -> list[int]:
    """Sizes of the groups' samples that sum to `wanted` and are as even as the available numbers allow."""
    sizes, left = [0] * len(available), min(wanted, sum(available))
    for done, k in enumerate(sorted(range(len(available)), key=lambda k: (available[k], k))):
        sizes[k] = min(available[k], left // (len(available) - done))
        left -= sizes[k]
    # The remainder goes to the longest intervals that have more texts.
    for k in reversed(range(len(available))):
        more = min(left, available[k] - sizes[k])
        sizes[k], left = sizes[k] + more, left - more
    return sizes
