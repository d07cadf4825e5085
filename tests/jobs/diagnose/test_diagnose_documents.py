"""Errors of `tempscale diagnose` where texts come in documents: those of documents, by hand from its own tables."""

import numpy as np
import polars as pl
import pytest
from whole_run import as_lines, diagnosed, documented, read_tables

pytestmark = pytest.mark.soak

TEXTS = 40


@pytest.fixture(scope="module")
def runs(ray_session, tmp_path_factory, small_model):
    """The tables of the same texts with documents of four texts each, and without."""
    place = tmp_path_factory.mktemp("diagnosed")
    texts = [text | {"of": k // 4} for k, text in enumerate(documented("pyarrow")[:TEXTS])]
    (place / "texts.jsonl").write_text(as_lines(texts), "utf-8")
    found = {}
    for name, column in (("named", "of"), ("unnamed", None)):
        diagnosed(
            {
                "out": str(place / name), "corpus": {"source": str(place / "texts.jsonl"), "document_column": column},
                "embedding": {"models": [small_model], "temperatures": [1.0, 0.7], "max_length": 64},
                "diagnosis": {"texts": TEXTS, "intervals": [0, 24], "repeated_pairs": 0},
            }
        )  # fmt: skip
        found[name] = read_tables(place / name)
    return found, {text["id"]: text["of"] for text in texts}


def of_documents(values, documents):
    """√(G/(G−1)·Σ_g(Σ_{i∈g}(x_i − x̄))²)/n."""
    off, sums = np.array(values) - np.mean(values), {}
    for value, document in zip(off, documents, strict=True):
        sums[document] = sums.get(document, 0.0) + value
    count = len(sums)
    return (count / (count - 1) * sum(value**2 for value in sums.values())) ** 0.5 / len(off)


def test_changes_are_the_same_and_their_errors_are_those_of_documents(runs):
    found, document = runs
    heads = found["named"]["heads"].group_by("text_id", "tau", maintain_order=True).agg(pl.col("sigma_a").mean())
    both = [dict(heads.filter(pl.col("tau") == tau).select("text_id", "sigma_a").iter_rows()) for tau in (1.0, 0.7)]
    ids = sorted(both[0])
    by_hand = of_documents([both[1][i] - both[0][i] for i in ids], [document[i] for i in ids])
    chosen = (pl.col("finding") == "temperature") & (pl.col("layers") == "all") & (pl.col("tau") == 0.7)
    named, unnamed = (found[name]["diagnose_findings"].filter(chosen).row(0, named=True) for name in ("named", "unnamed"))
    assert named["change"] == unnamed["change"]
    assert named["change_se"] == pytest.approx(by_hand, rel=1e-9)
    assert unnamed["change_se"] != pytest.approx(by_hand, rel=1e-3)


def test_every_other_error_is_of_documents_too(runs):
    found, _ = runs
    for table, value, error in (
        ("diagnose_findings", "change", "change_se"), ("spectrum_by_length", "sigma_a_mean", "sigma_a_se"),
        ("spectrum_by_length", "cosine_mean", "cosine_se"), ("layer_summary", "within_cosine_mean", "within_cosine_se"),
        ("equal_norms", "norm_variation_mean", "norm_variation_se"),
    ):  # fmt: skip
        named, unnamed = (found[name][table] for name in ("named", "unnamed"))
        assert named[value].equals(unnamed[value], null_equal=True), table
        assert len(unnamed.filter(pl.col(error).is_not_null() & (pl.col(error) != 0))) > 0
        assert not named[error].equals(unnamed[error], null_equal=True), table
