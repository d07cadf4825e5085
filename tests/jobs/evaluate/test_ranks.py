"""Ranks of relevant documents over the whole corpus, beyond the thousand that mteb keeps (S1 Table 3)."""

import numpy as np
import pytest
from score_tasks import retrieval_in
from whole_run import documented

from tempscale import Encoder
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.evaluate import OwnTask
from tempscale_jobs.config.strict import checked

pytest.importorskip("mteb")

from tempscale_jobs.evaluate.grid_model import Checkpoint, GridModel
from tempscale_jobs.evaluate.own_tasks import build
from tempscale_jobs.evaluate.scored import ScoringOptions, score

DOCUMENTS, QUERIES, WINDOW = 1200, 30, 16


@pytest.fixture(scope="module")
def corpus():
    """Short pieces of docstrings; every seventh is longer than the window."""
    words = " ".join(row["text"] for row in documented("pyarrow")).split()
    pieces = [" ".join(words[9 * k : 9 * k + (60 if k % 7 == 0 else 6)]) for k in range(DOCUMENTS)]
    return {f"d{k}": piece for k, piece in enumerate(pieces)}


@pytest.fixture(scope="module")
def queries(corpus):
    return {f"q{k}": corpus[f"d{7 * k + 3}"] for k in range(QUERIES)}


RELEVANT = {f"q{k}": [f"d{(101 * k + 7) % DOCUMENTS}", f"d{7 * ((13 * k) % 150)}"] for k in range(QUERIES)}
"""Documents at random, so that they stand anywhere in a ranking."""


def test_every_rank_is_that_of_all_cosines(corpus, queries, small_model, tmp_path):
    from sentence_transformers import SentenceTransformer

    own = retrieval_in(tmp_path, "random", corpus, queries, RELEVANT)
    model = GridModel(Encoder.load(small_model, device="cpu", max_length=WINDOW), Checkpoint("tiny", "rev"))
    cell = score(build(checked(OwnTask, own), 0), model, Temperature(1.0), ScoringOptions(keep=False))

    plain = SentenceTransformer(small_model, device="cpu")
    plain.max_seq_length = WINDOW
    unit = [plain.encode(list(texts.values()), normalize_embeddings=True) for texts in (queries, corpus)]
    cosine = unit[0].astype(np.float64) @ unit[1].T.astype(np.float64)
    place = {document: k for k, document in enumerate(corpus)}
    assert len(cell.relevant) == 2 * QUERIES
    beyond = 0
    for row in cell.relevant:
        own = cosine[list(queries).index(row["query"])]
        value = own[place[row["document"]]]
        # Equal pieces tie, and rounding may exchange two that nearly do.
        assert (own > value + 1e-6).sum() < row["rank"] <= (own > value - 1e-6).sum()
        beyond += row["rank"] > 1000
    assert beyond > 3
