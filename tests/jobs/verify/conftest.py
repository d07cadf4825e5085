"""Texts and the vectors that sentence-transformers makes of them, for the tests that plant faults in an index."""

import numpy as np
import pytest
from planted_vectors import ROWS, WINDOW
from sentence_transformers import SentenceTransformer, models
from whole_run import documented


@pytest.fixture(scope="session")
def texts():
    """Real texts of all lengths from a hundred characters on, some longer than the window."""
    return [row["text"] for row in documented("pyarrow") if len(row["text"]) > 100][:ROWS]


@pytest.fixture(scope="session")
def embed(small_model):
    """The model as sentence-transformers runs it, with any of its own options."""
    import torch

    def embed(texts, pooling="mean", window=WINDOW, kind=torch.float32):
        transformer = models.Transformer(small_model, max_seq_length=window)
        model = SentenceTransformer(modules=[transformer, models.Pooling(64, pooling_mode=pooling)], device="cpu").to(kind)
        return model.encode(list(texts), batch_size=8, show_progress_bar=False).astype(np.float64)

    return embed
