"""Which texts of a source tell whether neighbours are alike."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from tempscale_jobs.steps import source_order

SHARDS = 1000


def test_of_many_shards_stretches_from_all_over_the_source_are_looked_at():
    """Texts whose ids are their places, three to a shard; few shards are read whole."""

    def read_table(name, columns):
        return pa.table({"text_id": [3 * int(name) + k for k in range(3)]})

    def stretches(count):
        index = SimpleNamespace(shards=[SimpleNamespace(name=str(k)) for k in range(count)])
        texts = SimpleNamespace(where=lambda ids: {i: i for i in ids})
        run = SimpleNamespace(storage=SimpleNamespace(read_table=read_table))
        return source_order._stretches(SimpleNamespace(run=run, index=index, texts=texts))

    assert [own.tolist() for own in stretches(4)] == [list(range(12))]
    found = stretches(SHARDS)
    assert (found[0][0], found[-1][-1]) == (0, 3 * SHARDS - 1)
    assert len(found) > 3
    assert all((np.diff(own) == 1).all() and len(own) > 3 for own in found)
    assert sum(map(len, found)) < SHARDS
