"""A small grid of random texts whose blocks are written, and the digests of what its tiles wrote."""

import hashlib

import numpy as np
import pyarrow as pa

from tempscale.collapse import tiles
from tempscale_jobs.runs.folder import GIVEN
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.tables.audit import texts
from tempscale_jobs.workers.dispatch import Crew, Piece

TEXTS, DIM, SIZE, INTERVALS = 2300, 24, 1024, 3
BOUNDS = tiles.blocks(TEXTS, SIZE)
TRIANGLE = tiles.upper_triangle(len(BOUNDS))


def grid(folder):
    """A grid of random texts with their blocks written, gathered from parts in another order."""
    random = np.random.default_rng(0)
    rows = random.normal(size=(TEXTS, DIM)).astype(np.float32) + 0.2
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    storage, order = Storage(str(folder)), random.permutation(TEXTS)
    for number, own in enumerate(np.array_split(order, 5)):
        constant = np.ones(len(own), np.float32)
        columns = {
            "text_id": [str(i) for i in own],
            "content_sha": [""] * len(own),
            "document": [None] * len(own),
            "tokens": np.full(len(own), 9, np.int32),
        }
        columns |= {"source_row": [None] * len(own)}
        columns |= {"truncated": pa.array([False] * len(own)), "mean_norm": constant, "spread": constant}
        columns |= {"embedding": pa.FixedSizeListArray.from_arrays(pa.array(rows[own].ravel()), DIM)}
        storage.write_table(f"texts/part-{number:05d}.parquet", texts(DIM).build(columns | {"within_cosine": constant}))
    tiling = Tiling(storage, "partials/cosine", INTERVALS, 5, 0.8, 50, len(BOUNDS))
    part, row = np.empty(TEXTS, int), np.empty(TEXTS, int)
    for number, own in enumerate(np.array_split(order, 5)):
        part[own], row[own] = number, np.arange(len(own))
    interval, labels = np.sort(random.integers(0, INTERVALS, TEXTS)), random.permutation(TEXTS).astype(np.int32)
    names = dict(enumerate(storage.list("texts")))
    blocks.write_blocks(tiling, names, 0, BOUNDS, blocks.Gathered(part, row, interval, labels))
    for number, (start, stop) in enumerate(BOUNDS):
        block = blocks.read_block(tiling, number)
        assert (block.embeddings == rows[start:stop]).all()
        assert (block.labels == labels[start:stop]).all()
        named = storage.read_table(tiling.block(number), ["text_id", "document"])
        assert named.column("text_id").to_pylist() == [str(i) for i in range(start, stop)]
        assert named.column("document").null_count == stop - start
    return tiling


def tiled(cluster, work, arguments, tiles):
    """Yield the super-tiles as they are done, by tasks or by actors without a model."""
    with Crew(None, cluster, GIVEN, None) as crew:
        yield from (piece.number for piece in crew.tiles(work, [Piece(tile, (*arguments, *tile)) for tile in tiles]))


def digests(tiling):
    """The digest of each file; a process that was killed may leave what it was writing, which no run looks at."""
    names = tiling.storage.list(tiling.place)
    return {name: hashlib.sha256(tiling.storage.read(name)).digest() for name in names}
