"""What `--plan` says that steps read and write, against what real runs do, counted in all of their processes."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import as_lines

from benchmarks import counting
from tempscale_jobs.audit import plan
from tempscale_jobs.config.audit import resolve

pytestmark = pytest.mark.soak

FACTOR, BYTES, FILES = 1.5, 100_000, 3
"""How near a figure is to what a run did, and what a step may take besides, such as its own record."""
PREFIXES = {"read": ("read ",), "embed": ("embed ",), "cosine": ("layout", "cosine"), "exposure": ("exposure",)}
"""The steps of a run by those of the plan."""


def vectors(folder, count=20_000, dim=64):
    """A configuration of random embeddings."""
    random = np.random.default_rng(0)
    rows = random.standard_normal((count, dim)).astype(np.float32) + 0.2
    columns = {"id": [f"t{k}" for k in range(count)], "tokens": random.integers(1, 400, count)}
    table = pa.table(columns | {"vector": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), dim)})
    pq.write_table(table, folder / "vectors.parquet")
    corpus = {"embedding_column": "vector", "length_column": "tokens"}
    return {"corpus": corpus | {"source": str(folder / "vectors.parquet")}}


def texts(folder, model):
    random = np.random.default_rng(0)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("are", "ind", "ock", "ule", "en")]
    rows = [{"id": k, "text": " ".join(random.choice(words, int(random.integers(4, 90))))} for k in range(600)]
    (folder / "texts.jsonl").write_text(as_lines(rows))
    own = {"models": [model], "temperatures": [1.0, 0.8], "shard_texts": 100}
    return {"corpus": {"source": str(folder / "texts.jsonl")}, "embedding": own}


@pytest.mark.parametrize("kind", ["vectors", "sample", "units", "texts"])
def test_a_plan_is_near_what_a_run_reads_and_writes(tmp_path, small_model, kind):
    given = texts(tmp_path, small_model) if kind == "texts" else vectors(tmp_path)
    given["corpus"] |= {"unit_rows": 1000} if kind == "units" else {}
    given |= {"analysis": {"cosine": "moments", "exposure_sample": 500}} if kind == "sample" else {}
    data = given | {"execution": {"workers": 2}}
    planned = plan.plan(resolve(data | {"out": str(tmp_path / "planned")}))
    steps = counting.audited(tmp_path, data)
    assert [step.step for step in planned.steps] == [name for name in PREFIXES if kind == "texts" or name != "embed"]
    far = {}
    for step in planned.steps:
        done = [found for name, found in steps.items() if name.startswith(PREFIXES[step.step])]
        every = sum((found.every for found in done), counting.Counts())
        for what, thought, real, more in (
            ("read", step.read, every.bytes_read, BYTES),
            ("written", step.written, every.bytes_written, BYTES),
            ("files", step.files, every.write, FILES),
        ):
            print(f"{step.step:10} {what:8} planned {thought:14,.0f} real {real:14,} {thought / max(1, real):6.2f}")
            if not (thought <= FACTOR * real + more and real <= FACTOR * thought + more):
                far[step.step, what] = (thought, real)
    driver = max(step.driver_peak_bytes for step in steps.values())
    print(f"driver planned {planned.driver_bytes:,} real {driver:,}")
    assert not far
    assert driver / FACTOR <= planned.driver_bytes <= FACTOR * driver
