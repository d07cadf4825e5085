"""What model actors and tile actors do, without Ray, on a GPU against the CPU; skipped without one."""

import numpy as np
import pytest
from card import CARD, needs_card

pytest.importorskip("pydantic", reason="the settings of the job need pydantic")

from tile_grid import INTERVALS, TRIANGLE, grid

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks
from tempscale_jobs.steps.embed import Into, embed_shard
from tempscale_jobs.steps.tokenise import tokenise
from tempscale_jobs.tables.audit import SHARDS
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.actor import Tokenising

pytestmark = needs_card
TEXTS = ["a b c", "mean pooling hides what differs", "zz", "the quick brown fox jumps over it " * 3, "", "0 1 2 3 4 5"]
TAUS = [1.0, 0.5, {"by_length": {"0": 1.0, "8": 0.6}}]


def shard_of(storage):
    """One shard of texts, written and tokenised."""
    count = len(TEXTS)
    columns = {"text_id": [f"t{k}" for k in range(count)], "text": TEXTS, "content_sha": [f"{k:064d}" for k in range(count)]}
    columns |= {"document": [None] * count, "cut": [False] * count, "source_row": [None] * count}
    storage.write_table("shards/shard.parquet", SHARDS.build(columns))
    return lambda folder: tokenise("shards/shard.parquet", storage, Tokenising(str(folder), 64, "truncate"), "partials")


@pytest.fixture
def embedded(tiny_folder, tmp_path):
    """The parts that an actor writes on a device."""
    folder = tiny_folder()

    def run(device):
        storage = Storage(str(tmp_path / device.replace(":", "")))
        settings = {"max_length": 64, "token_budget": 60}
        worker = actor.ModelActor(storage, Model("tiny", str(folder), "", 64), TAUS, settings, int(device != "cpu"))
        embed_shard(worker, 0, shard_of(storage)(folder), Into(storage))
        return {t.canonical: storage.read_table(worker.part("texts", t, 0)) for t in map(Temperature.of, TAUS)}

    return run


def test_an_actor_writes_what_one_on_the_cpu_writes(embedded, monkeypatch):
    if not CARD.startswith("cuda"):  # The actor asks for «cuda» itself.
        from tempscale.model.encoder import Encoder

        load = Encoder.load
        monkeypatch.setattr(Encoder, "load", lambda name, device=None, **how: load(name, device="cpu", **how))
    parts, expected = embedded("card"), embedded("cpu")
    assert list(parts) == list(expected)
    assert len(parts) == 3
    for name, part in parts.items():
        exact = expected[name]
        for column in ("text_id", "content_sha", "tokens", "truncated"):
            assert part.column(column).equals(exact.column(column))
        rows, others = (np.stack(own.column("embedding").to_numpy()) for own in (part, exact))
        assert np.linalg.norm(others, axis=1) == pytest.approx(1, abs=1e-5)
        assert np.abs(rows - others).max() < 2e-3
        for column in ("mean_norm", "spread", "within_cosine"):
            assert part.column(column).to_numpy() == pytest.approx(exact.column(column).to_numpy(), rel=1e-2, abs=1e-3)
    one, half = (np.stack(parts[name].column("embedding").to_numpy()) for name in list(parts)[:2])
    assert np.abs(one - half).max() > 1e-4


def test_tiles_on_a_device_are_those_of_the_cpu(tmp_path):
    own, other = grid(tmp_path / "cpu"), grid(tmp_path / "card")
    device = CARD if CARD.startswith("cuda") else "cpu:0"
    for i, j in TRIANGLE:
        assert blocks.compare_panels(own, i, j) == blocks.compare_panels(other, i, j, device=device)
        cells, expected = blocks.read_cells(other, i, j), blocks.read_cells(own, i, j)
        assert expected.pairs.sum() > 1000
        np.testing.assert_array_equal(cells.pairs, expected.pairs)
        np.testing.assert_allclose(cells.first, expected.first, rtol=1e-6, atol=1e-4)
        assert np.abs(cells.histogram.cumsum(-1) - expected.histogram.cumsum(-1)).max() <= 40
        near, exact = (blocks.read_near(tiling, i, j, "rows") for tiling in (other, own))
        np.testing.assert_allclose(near.cosine, exact.cosine, atol=1e-6)
        assert (near.label == exact.label).mean() > 0.999
    assert cells.pairs.shape == (INTERVALS, INTERVALS)
