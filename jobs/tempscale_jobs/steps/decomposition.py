"""What the prefix gap is made of: the segments of some of the probe's texts, embedded apart, repeated and mixed.

Only under the first temperature: what a temperature changes is in the ends of the gap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tempscale.collapse.decomposition import Frame, Readings, decompose, sequences, unit
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps import readings
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables import parts
from tempscale_jobs.tables.audit import DECOMPOSITION
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers import actor

LONGEST = 512
"""The most tokens that are decomposed: longer texts would have more segments than there are texts to mix them with."""
_TOKENS, _MOST_TEXTS = 96_000, 96
"""The price of the whole decomposition: less than a tenth of the tokens of 10,000 texts."""
READINGS = "partials/readings"
"""The folder of the embeddings, 8 texts in a part."""
_WAYS = 3
_NONE = pa.schema([("text_id", pa.string())])


def texts(lengths: Sequence[int], probed: int) -> int:
    """How many of the probe's texts are decomposed; 0 where they are too few."""
    long = ends(lengths)[1]
    count = min(probed, _MOST_TEXTS, _TOKENS // (_WAYS * long))
    return count if count >= TEXTS_FOR_AN_INTERVAL else 0


def price(lengths: Sequence[int], probed: int) -> int:
    """Tokens of these texts' segments in all ways."""
    return _WAYS * texts(lengths, probed) * ends(lengths)[1]


def ends(lengths: Sequence[int]) -> tuple[int, int]:
    """The short and the long prefix that are compared."""
    return lengths[0], max(length for length in lengths if length <= LONGEST)


def embed(scope: Embedded, ids: Sequence[str], lengths: Sequence[int], stage: Stage) -> list[str]:
    """Embed these texts' segments in each way; return the ids in their order."""
    return readings.embed(scope, ids, readings.Way(READINGS, write_readings, ends(lengths), 1), stage)


def write_readings(worker: actor.ModelActor, number: int, work: pa.Table, ends: tuple[int, ...]) -> None:
    """Embed the segments of a piece's texts in each way, under the first temperature, and write them as a part."""
    from tempscale.model.sequences import Tokens

    tokenizer, here = worker.encoder.tokenizer, readings.mine(number)
    frame, contents = Frame(*tokenizer.framing()), tokenizer.contents(work.column("text").to_pylist(), ends[1])
    temperature = worker.temperatures[0]
    part = worker.part(READINGS, temperature, number)
    if len(frame.around([])) >= ends[0]:  # A prompt that leaves no room for a text.
        worker.storage.write_table(part, _NONE.empty_table())
        return
    every, ids = sequences(contents, frame, ends[0], ends[1]), work.column("text_id").to_pylist()[here]
    read = [segment for own in every.apart[here] for segment in own]
    owner = np.repeat(np.arange(len(ids)), [len(own) for own in every.apart[here]])
    weights = np.array([len(segment) - len(frame.around([])) for segment in read], np.float64)
    circle = every.circle[here]
    read += every.repeated[here] + every.mixed[here]
    tokens = Tokens(read, [False] * len(read))
    columns = {
        "text_id": [*ids, *ids, *ids[: len(circle)]], "circle": pa.array([-1] * 2 * len(ids) + circle, pa.int32()),
        "way": ["apart"] * len(ids) + ["repeated"] * len(ids) + ["mixed"] * len(circle),
    }  # fmt: skip
    worker.encoder.set_temperature(temperature)
    with worker.noting(f"segments {number} under τ {temperature.slug}"):
        out = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE)
    vectors = unit(out.embeddings.numpy())
    means = np.zeros((len(ids), vectors.shape[1]))
    np.add.at(means, owner, weights[:, None] * vectors[: len(owner)])
    embedding = parts.fixed_lists(np.concatenate([unit(means), vectors[len(owner) :]]))
    worker.storage.write_table(part, pa.table(columns | {"embedding": embedding}))


def tabulate(
    scope: Embedded, ids: Sequence[str], prefixes: pa.Table, lengths: Sequence[int]
) -> pa.Table:  # fmt: skip
    """The rows of `decomposition`; `prefixes` are the probe's embeddings under the first temperature."""
    run, model, temperature = scope.run, scope.model, scope.run.temperatures[0]
    read = readings.read(scope, temperature, READINGS, len(ids))
    if not len(read):
        return DECOMPOSITION.build_rows([])
    way, prefix = read.column("way").to_numpy(), prefixes.column("prefix_tokens").to_numpy()
    circle = read.column("circle").to_numpy()[way == "mixed"]
    apart, repeated = (_in_order(read, way == name, ids) for name in ("apart", "repeated"))
    mixed = _in_order(read, way == "mixed", ids[: len(circle)])
    short, long = (_in_order(prefixes, prefix == end, ids) for end in ends(lengths))
    (tokens_short, tokens_long), key = ends(lengths), run.key(model, temperature)
    return DECOMPOSITION.build_rows([
        key | {"figure": figure.name, "value": figure.value, "se": finite(figure.error), "texts": figure.texts}
        | {"tokens_short": tokens_short, "tokens_long": tokens_long}
        for figure in decompose(Readings(short, long, apart, repeated, mixed, circle), readings.documents_of(scope, ids))
    ])  # fmt: skip


def _in_order(table: pa.Table, rows: np.ndarray, ids: Sequence[str]) -> np.ndarray:
    """The embeddings of some rows, in the order of these ids."""
    chosen = table.filter(pa.array(rows))
    place = {text_id: k for k, text_id in enumerate(chosen.column("text_id").to_pylist())}
    vectors: np.ndarray = parts.matrix(chosen, "embedding")[[place[text_id] for text_id in ids]]
    return vectors
