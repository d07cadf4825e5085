"""Storage operations and bytes of a whole run grow in straight lines with its vectors, but for the tiles."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks import counting

pytestmark = pytest.mark.soak

FEW, TIMES, DIM, INTERVALS = 6000, 3, 8, [0, 20, 40]
UNIT, PART, BLOCK = 256, 32, 256
CONSTANTS = {
    "tempscale.collapse.tiles:SMALLEST_BLOCK": 16,
    "tempscale.collapse.tiles:LARGEST_BLOCK": BLOCK,
    "tempscale_jobs.steps.blocks:GATHERED_BYTES": 4 * DIM * BLOCK,
    "tempscale_jobs.corpus.vectors:PART": PART,
    "tempscale_jobs.corpus.reading:IDS_OF_A_GROUP": UNIT // 8,
    "tempscale_jobs.corpus.distinct:PARTITION_IDS": 16 * UNIT,
    "tempscale_jobs.steps.layout:PARTS_OF_A_TASK": 8,
    "tempscale_jobs.steps.source_order:_EMBEDDINGS": PART,
    "tempscale_jobs.steps.source_order:_PAIRS": 16,
    "tempscale_jobs.steps.by_length:ALL_ASK": UNIT,
}
"""A five-hundredth of the usual, so that a few thousand vectors have the files of a few millions."""
MORE, OPERATIONS, BYTES = 1.2, 100, 1_000_000
"""Growth over that of the vectors, and what a step may take besides, whatever its size."""


def write(folder, count):
    folder.mkdir()
    random = np.random.default_rng(0)
    rows = random.standard_normal((count, DIM)).astype(np.float32) + 0.3
    columns = {"id": [f"t{k}" for k in range(count)], "tokens": random.integers(1, 60, count)}
    table = pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), DIM)})
    for k, start in enumerate(range(0, count, 1500)):
        pq.write_table(table.slice(start, 1500), folder / f"{k:03d}.parquet")
    return folder


@pytest.fixture(scope="module")
def sizes(tmp_path_factory):
    """The steps of a run over few vectors, and of one over three times as many."""
    folder, found = tmp_path_factory.mktemp("linear"), []
    for count in (FEW, TIMES * FEW):
        source = str(write(folder / f"source-{count}", count))
        corpus = {"source": source, "embedding_column": "vector", "length_column": "tokens", "unit_rows": UNIT}
        data = {"corpus": corpus, "analysis": {"intervals": INTERVALS}, "execution": {"workers": 2}}
        found.append(counting.audited(folder / str(count), data, CONSTANTS))
    return found


def test_a_step_grows_as_its_vectors_do(sizes):
    few, many = sizes
    steps = {*counting.PARTS.values(), "read all of the corpus", "tables"} - {"exposure: neighbours of a sample"}
    assert set(few) == set(many) >= steps
    grown = {}
    for name in set(few) - set(counting.OF_TILES):
        for what, allowed in (("operations", OPERATIONS), ("bytes", BYTES), ("names", OPERATIONS)):
            one, other = (getattr(steps[name].every, what) for steps in sizes)
            if other > MORE * TIMES * one + allowed:
                grown[name, what] = (one, other)
    assert not grown


def test_the_driver_asks_a_few_questions_a_file(sizes):
    """Of each part of texts/ and each block once or twice, where tables are made; where tasks work, only of them all.

    At the end each file that stays is read once for the inventory.
    """
    for steps, count in zip(sizes, (FEW, TIMES * FEW), strict=True):
        files = -(-count // BLOCK) + steps["read all of the corpus"].every.write
        asked = {name: step.driver.operations for name, step in steps.items() if name not in counting.OF_TILES}
        assert asked.pop("after report") < steps["after report"].driver.names + OPERATIONS
        assert sum(asked.values()) < 2 * files + OPERATIONS
        for name in ("layout", "cosine: blocks", "cosine: sums", "cosine: means by text"):
            assert asked[name] <= 24, name
        units = -(-1500 // UNIT) * count // 1500
        assert asked["read all of the corpus"] <= 24 + units, "what a task says of a unit is read once"
