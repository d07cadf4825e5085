"""The most collapsed pairs of a corpus and of a sample, for every pooling, against all pairs computed one by one."""

import numpy as np
import polars as pl
import pytest
import torch
from plain_audit import all_pairs
from tiny import save_bert
from whole_run import as_lines, audited, documented, read_tables

pytestmark = pytest.mark.soak

RANKED, TEXTS = 12, 80
HEADS = ("mean", "cls", "lasttoken", "weightedmean", "dense")


@pytest.fixture(scope="module")
def folders(small_model, tmp_path_factory):
    """The small BERT with other weights and each of the heads, saved by sentence-transformers."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, Normalize, Pooling, Transformer

    root = tmp_path_factory.mktemp("heads")
    for seed, head in enumerate(HEADS):
        bare = save_bert(root / "bare", small_model, seed, num_hidden_layers=2, initializer_range=0.3)
        stages = [Pooling(32, pooling_mode="mean" if head == "dense" else head)]
        if head == "dense":  # Steep enough that near means have embeddings far apart.
            stages += [Dense(32, 16), Normalize()]
            torch.nn.init.normal_(stages[1].linear.weight, std=4.0)
        SentenceTransformer(modules=[Transformer(bare), *stages], device="cpu").save(str(root / head))
    return [str(root / head) for head in HEADS]


@pytest.fixture(scope="module")
def texts():
    """From a few tokens to the window: real docstrings, every twentieth by length."""
    rows = sorted(documented("pyarrow"), key=lambda row: (len(row["text"]), row["id"]))
    return rows[:: len(rows) // TEXTS][:TEXTS]


@pytest.fixture(scope="module", params=["corpus", "sample"])
def ranking(request, folders, texts, ray_session, tmp_path_factory):
    """What is ranked, and the ranking of a whole run of all heads, over the corpus or over a sample of all texts."""
    folder = tmp_path_factory.mktemp(request.param)
    (folder / "texts.jsonl").write_text(as_lines(texts))
    audited(
        {
            "out": str(folder / "run"), "corpus": {"source": str(folder / "texts.jsonl")},
            "embedding": {"models": folders, "temperatures": [1.0], "max_length": 48},
            "analysis": {
                "socm_sample": TEXTS if request.param == "sample" else 2, "socm_top_over": request.param, "probe_sample": 0,
                "worst_pairs": RANKED,
            },
            "execution": {"workers": 1},
        }
    )  # fmt: skip
    return request.param, read_tables(folder / "run")["socm_pairs"]


@pytest.mark.parametrize("head", HEADS)
def test_the_ranked_pairs_are_those_of_all_pairs_with_the_cosine_of_their_embeddings(ranking, folders, texts, head):
    """The cosine is that of the embeddings by sentence-transformers itself."""
    from sentence_transformers import SentenceTransformer

    over, table = ranking
    model = SentenceTransformer(folders[HEADS.index(head)], device="cpu")
    model.max_seq_length = 48
    words = [row["text"] for row in texts]
    vectors = model.encode(words).astype(np.float64)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    tokens = [model.encode([one], output_value="token_embeddings")[0].double().numpy() for one in words]
    matrices = (vectors @ vectors.T, *all_pairs(tokens))
    cosine, d_mu, d_sigma = (matrix[np.triu_indices(len(texts), 1)] for matrix in matrices)
    own = table.filter(pl.col("model") == head)
    socm, near = (own.filter((pl.col("over") == over) & (pl.col("ranking") == name)) for name in ("socm", "same_mean"))
    np.testing.assert_allclose(socm["socm"], np.sort((1 - d_mu) * d_sigma)[::-1][:RANKED], atol=5e-5)
    limit = np.quantile(cosine, 0.99)
    # The corpus's limit is known to a bin of 1/2048: pairs above it by more are all ranked, pairs below it by more are not.
    slack = 1e-3 if over == "corpus" else 1e-6
    sure = np.sort(d_sigma[cosine >= limit + slack])[::-1]
    loose = np.sort(d_sigma[cosine >= limit - slack])[::-1]
    assert len(near) == RANKED
    assert (near["d_sigma"].to_numpy()[: len(sure)] >= sure[:RANKED] - 5e-5).all()
    assert (near["d_sigma"].to_numpy() <= loose[:RANKED] + 5e-5).all()
    assert (near["cosine"].to_numpy() >= limit - slack).all()
    assert near.select("text_id_a", "text_id_b").n_unique() == RANKED
    place = {row["id"]: k for k, row in enumerate(texts)}
    rows = own.to_dicts()
    for row in rows:
        pair = place[row["text_id_a"]], place[row["text_id_b"]]
        assert row["cosine"] == pytest.approx(matrices[0][pair], abs=1e-5)
        assert row["d_mu"] == pytest.approx(matrices[1][pair], abs=1e-5)
    apart = max(abs(row["cosine"] - (1 - 2 * row["d_mu"])) for row in rows)
    assert apart < 1e-5 if head == "mean" else apart > 1e-2
