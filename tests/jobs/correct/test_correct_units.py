"""Which files of vectors are corrected: Parquet files, and no tables of other kinds."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tempscale_jobs.config.correct import Embeddings
from tempscale_jobs.correct import units
from tempscale_jobs.errors import UsageError

VECTORS = pa.table({"embedding": [[1.0, 2.0], [3.0, 4.0]]})


def planned(source, out):
    given = Embeddings.model_validate({"source": str(source), "column": "embedding"})
    return units.plan(given, units.columns_of(given), str(out))


@pytest.mark.parametrize("kind", ["delta", "lance"])
@pytest.mark.parametrize("prefix", [False, True])
def test_a_table_is_refused_and_the_advice_can_be_followed(tmp_path, kind, prefix):
    table = tmp_path / ("vectors.lance" if kind == "lance" else "vectors")
    if kind == "lance":
        pytest.importorskip("lance").write_dataset(VECTORS, str(table))
    else:
        pytest.importorskip("deltalake").write_deltalake(str(table), VECTORS)
    with pytest.raises(UsageError, match="Parquet") as caught:
        planned(f"{kind}:{table}" if prefix else table, tmp_path / "run")
    assert caught.value.exit_code == 2
    assert "give that folder" not in str(caught.value)
    pq.write_table(VECTORS, tmp_path / "current.parquet")
    assert [unit.rows for unit in planned(tmp_path / "current.parquet", tmp_path / "run")] == [2]
