"""Which tenth of a text its vector follows: copies of some of the probe's texts with a tenth of another text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tempscale.collapse.decomposition import Frame, unit
from tempscale.collapse.positions import TENTHS, by_tenth, replaced
from tempscale.stats.enough import TEXTS_FOR_AN_INTERVAL
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.journal import Stage
from tempscale_jobs.steps import readings
from tempscale_jobs.steps.decomposition import LONGEST
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.tables.audit import POSITIONS
from tempscale_jobs.tables.columns import finite
from tempscale_jobs.workers import actor

MOST_TEXTS = 64
TENTHS_OF_TEXTS = "partials/tenths"
"""The folder of the cosines, 8 texts in a part."""


def texts(probed: int) -> int:
    """How many of the probe's texts are read; 0 where they are too few."""
    count = min(probed, MOST_TEXTS)
    return count if count >= TEXTS_FOR_AN_INTERVAL else 0


def price(lengths: Sequence[int], probed: int) -> int:
    """Tokens of these texts and of their copies."""
    return texts(probed) * (1 + TENTHS) * sum(read_at(lengths))


def read_at(lengths: Sequence[int]) -> tuple[int, ...]:
    """The prefixes whose tenths are replaced."""
    return tuple(length for length in lengths if length <= LONGEST)


def embed(scope: Embedded, ids: Sequence[str], lengths: Sequence[int], stage: Stage) -> list[str]:
    """Embed the copies of these texts at each length; return the ids in their order."""
    way = readings.Way(TENTHS_OF_TEXTS, write_tenths, read_at(lengths), len(scope.run.temperatures))
    return readings.embed(scope, ids, way, stage)


def write_tenths(worker: actor.ModelActor, number: int, work: pa.Table, lengths: tuple[int, ...]) -> None:
    """Write the cosines of a piece's texts with their copies, one part for each temperature."""
    from tempscale.model.sequences import Tokens

    tokenizer, mine = worker.encoder.tokenizer, range(work.num_rows)[readings.mine(number)]
    texts, frame = work.column("text").to_pylist(), Frame(*tokenizer.framing())
    # The text half a turn away: those of one document stand together.
    others = [(k + work.num_rows // 2) % work.num_rows for k in mine]
    own, other = (tokenizer.contents([texts[k] for k in rows], max(lengths)) for rows in (mine, others))
    copies, of_copy = list[list[int]](), list[tuple[str, int]]()
    for length in lengths:
        room = length - len(frame.around([]))
        for k, content, strange in zip(mine, own, other, strict=True):
            read = replaced(content[: max(0, room)], strange)
            copies += [frame.around(copy) for copy in read]
            of_copy += [(work.column("text_id")[k].as_py(), length)] if read else []
    tokens = Tokens(copies, [False] * len(copies))
    ids, tokens_of = [text_id for text_id, _ in of_copy], [length for _, length in of_copy]
    for temperature in worker.temperatures:
        cosines = np.zeros((0, TENTHS))
        if copies:
            worker.encoder.set_temperature(temperature)
            with worker.noting(f"tenths {number} under τ {temperature.slug}"):
                out = worker.encoder.encode_tokens(tokens, moments=False, role=actor.ROLE)
            vectors = unit(out.embeddings.numpy()).reshape(len(of_copy), TENTHS + 1, -1)
            cosines = np.einsum("ntd,nd->nt", vectors[:, 1:], vectors[:, 0])
        columns = {
            "text_id": pa.array(ids, pa.string()), "tokens": pa.array(tokens_of, pa.int32()),
            "cosines": pa.array(list(cosines), pa.list_(pa.float64())),
        }  # fmt: skip
        worker.storage.write_table(worker.part(TENTHS_OF_TEXTS, temperature, number), pa.table(columns))


def tabulate(scope: Embedded, temperature: Temperature, ids: Sequence[str]) -> pa.Table:
    """The rows of `positions`."""
    table = readings.read(scope, temperature, TENTHS_OF_TEXTS, len(ids))
    tokens, names = table.column("tokens").to_numpy(), np.array(table.column("text_id").to_pylist(), dtype=object)
    rows, key = [], scope.run.key(scope.model, temperature)
    for length in np.unique(tokens).tolist():
        here = tokens == length
        cosines = np.array(table.filter(pa.array(here)).column("cosines").to_pylist(), np.float64)
        rows += [
            key | {"tokens": length, "tenth": tenth.number, "cosine": tenth.cosine}
            | {"se": finite(tenth.error), "texts": tenth.texts}
            for tenth in by_tenth(cosines, readings.documents_of(scope, names[here].tolist()))
        ]  # fmt: skip
    return POSITIONS.build_rows(rows)
