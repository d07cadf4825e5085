"""docs/short-texts-win.md: its Python runs on corrected vectors as it stands, and finds what a plain search finds."""

import contextlib
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tempscale.correction.fit import fit

pytestmark = pytest.mark.proof

PAGE = (Path(__file__).parents[2] / "docs" / "short-texts-win.md").read_text("utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture
def corrected(tmp_path):
    """documents/vectors and queries/vectors as `tempscale correct` leaves them, and the corrected similarities."""
    random = np.random.default_rng(0)
    rows, asking = (random.standard_normal((count, 16)).astype(np.float32) for count in (300, 120))
    rows, asking = (own / np.linalg.norm(own, axis=1, keepdims=True) for own in (rows, asking))
    tokens = torch.from_numpy(random.integers(4, 400, 300))
    correction = fit("length", torch.from_numpy(rows), tokens, torch.from_numpy(asking))
    documents, queries = correction.documents(torch.from_numpy(rows), tokens), correction.queries(torch.from_numpy(asking))
    for name, side in (("documents", documents), ("queries", queries)):
        (tmp_path / name / "vectors").mkdir(parents=True)
        flat = pa.FixedSizeListArray.from_arrays(pa.array(side.numpy().ravel()), side.shape[1])
        table = pa.table({"id": [f"{name[0]}{k}" for k in range(len(side))], "embedding": flat})
        pq.write_table(table, tmp_path / name / "vectors" / "part-00000000-00000000.parquet")
    return tmp_path, (queries.double() @ documents.double().T).numpy()


def ran(code, folder):
    found = {}
    with contextlib.chdir(folder):
        exec(compile(code, "short-texts-win.md", "exec"), found)
    return found


def test_faiss_finds_the_corrected_similarities(corrected):
    pytest.importorskip("faiss", reason="faiss is not installed")
    folder, similarity = corrected
    found = ran(SNIPPETS[0], folder)
    order = np.argsort(-similarity, axis=1)[:, :10]
    np.testing.assert_array_equal(found["place"], order)
    np.testing.assert_allclose(found["similarity"], np.take_along_axis(similarity, order, 1), atol=1e-6)


def test_lancedb_finds_the_corrected_similarities(corrected):
    pytest.importorskip("lancedb", reason="lancedb is not installed")
    folder, similarity = corrected
    found = ran(SNIPPETS[1], folder)["nearest"]
    order = np.argsort(-similarity[0])[:10]
    assert found["id"].to_pylist() == [f"d{k}" for k in order]
    # Lance calls 1 − ⟨q, d⟩ the distance.
    np.testing.assert_allclose(1 - found["_distance"].to_numpy(), similarity[0][order], atol=1e-6)


def test_every_kind_of_correction_stands_on_the_page():
    from tempscale.correction.recipes import PARAMETERS

    assert set(re.findall(r"^\| `([a-z_]+)", PAGE, re.MULTILINE)) == set(PARAMETERS)
    assert len(SNIPPETS) == 2
