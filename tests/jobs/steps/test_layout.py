"""Texts in canonical order without their ids in memory: samples, places and ties are those of the ids themselves."""

import numpy as np
import pyarrow as pa
import pytest
from prepared import laid_out

from tempscale.stats.sample import keyed_hash, seeded_sample
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.corpus.index import Index, Shard
from tempscale_jobs.corpus.rows import own_document
from tempscale_jobs.corpus.shards import source_row
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import layout
from tempscale_jobs.tables.audit import texts

EDGES, DIM, SEED = (0, 20, 40), 4, 5
IDS = [f"text {k}" for k in range(500)]
RANDOM = np.random.default_rng(0)
TOKENS = RANDOM.integers(1, 60, len(IDS))


def of_ids(ids=IDS, seed=SEED):
    return laid_out(ids, np.arange(len(ids)), np.zeros(len(ids), int), [0], seed)


@pytest.fixture
def run(tmp_path):
    return Run(Storage(str(tmp_path)), [Model("m", "m", "", 64)], [Temperature(1.0)], "2026-11-25")


def write(run, name, numbers, documents=None, rows=None):
    """A part of texts/ with these texts of IDS."""
    ones, count = np.ones(len(numbers), np.float32), len(numbers)
    columns = {
        "text_id": [IDS[k] for k in numbers], "content_sha": [""] * count, "tokens": TOKENS[numbers].astype(np.int32),
        "document": documents or [None] * count, "truncated": [False] * count, "mean_norm": ones, "spread": ones,
        "within_cosine": ones, "source_row": rows or [None] * count,
        "embedding": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(numbers, DIM).astype(np.float32)), DIM),
    }  # fmt: skip
    place = run.place("texts", run.models[0], run.temperatures[0])
    run.storage.write_table(f"{place}/{name}.parquet", texts(DIM).build(columns))


@pytest.mark.parametrize("size", [0, 1, 7, 499, 500, 900])
def test_samples_are_those_of_the_ids(size):
    own, long = of_ids(), np.flatnonzero(TOKENS > 30)
    assert own.ids[own.sample(size)].tolist() == seeded_sample(IDS, size, SEED)
    assert own.ids[own.sample(size, long)].tolist() == seeded_sample([IDS[k] for k in long], size, SEED)


def test_texts_are_found_by_their_ids(monkeypatch):
    monkeypatch.setattr(layout, "AT_ONCE", 64)
    own, asked = of_ids(), [IDS[k] for k in (499, 3, 250, 3)]
    assert own.are_distinct()
    assert own.places(asked).tolist() == [499, 3, 250, 3]
    assert own.where(["text 7", "nobody"]) == {"text 7": 7}
    assert own.where([]) == {}
    with pytest.raises(KeyError, match="nobody"):
        own.places(["nobody"])


def test_ids_of_one_hash_are_told_apart(monkeypatch):
    monkeypatch.setattr(layout, "keyed_hash", lambda text_id, seed: len(text_id))
    own = of_ids()
    assert own.places(["text 42", "text 7", "text 424"]).tolist() == [42, 7, 424]
    assert own.where(["text 43", "nothing"]) == {"text 43": 43}  # As long as another.
    assert own.where(["text99"]) == {}
    assert own.are_distinct()
    assert not of_ids([*IDS, "text 9"]).are_distinct()


def test_parts_are_laid_out_by_interval_and_place_in_the_source(run, monkeypatch):
    monkeypatch.setattr(layout, "PARTS_OF_A_TASK", 10_000)  # In this process.
    for number, own in enumerate(np.split(np.arange(500), [100, 100, 350])):
        write(run, f"part-{number:08d}", own)
    found = layout.layout(run, None, run.models[0], layout.Order(EDGES, SEED, 700))
    interval = np.searchsorted(EDGES, TOKENS, side="right") - 1
    order = np.lexsort((np.arange(500), interval))
    assert (found.stored == order).all()
    assert found.ids[np.arange(500)].tolist() == [IDS[k] for k in order]
    assert (found.tokens == TOKENS[order]).all()
    assert (found.interval == interval[order]).all()
    assert (found.key == np.array([keyed_hash(IDS[k], SEED) for k in order], np.uint64)).all()
    part, row = found.parts_and_rows(slice(None))
    assert (part == np.searchsorted([100, 100, 350], order, side="right")).all()
    assert (row == order - np.array([0, 100, 100, 350])[part]).all()
    assert found.texts_by_interval().tolist() == np.bincount(interval).tolist()
    assert (found.population(500), found.documents) == (700, None)
    index = Index("", {}, "", 0, 0, 500, 500, {}, tuple(Shard(f"shards/{k}", 0) for k in range(4)))
    within = found.within(index, ["text 99", "text 350", "text 499"]).shards
    assert [shard.name for shard in within] == ["shards/0", "shards/3"]
    assert found.within(index, ["nobody"]).shards == ()


def test_parts_of_a_cache_are_in_the_source_s_order_with_the_others(run):
    known = np.flatnonzero(RANDOM.random(500) < 0.4)
    new = np.setdiff1d(np.arange(500), known)
    rows = [source_row(k // 100, k % 100) for k in range(500)]
    write(run, "part-00000000-00000000", new, rows=[rows[k] for k in new])
    write(run, "part-cached-00000000", known, rows=[rows[k] for k in known])
    found = layout.layout(run, None, run.models[0], layout.Order(EDGES, SEED, 500))
    order = np.lexsort((np.arange(500), np.searchsorted(EDGES, TOKENS, side="right") - 1))
    assert found.ids[np.arange(500)].tolist() == [IDS[k] for k in order]
    assert found.shards_of(np.arange(500)).tolist() == (order // 100).tolist()


@pytest.fixture
def part_by_part(monkeypatch):
    monkeypatch.setattr(layout, "PARTS_OF_A_TASK", 1)
    monkeypatch.setattr(layout, "of_each", lambda cluster, function, work: [function(*how) for how in work])


def test_texts_without_a_document_among_others_are_documents_of_their_own(run, part_by_part):
    write(run, "part-00000000", np.arange(3), documents=[7, None, 9])
    write(run, "part-00000001", np.arange(3, 5))
    found = layout.layout(run, None, run.models[0], layout.Order((0,), SEED, 5))
    assert found.documents.tolist() == [7, own_document(IDS[1]), 9, own_document(IDS[3]), own_document(IDS[4])]


@pytest.mark.parametrize("cached", [False, True])
def test_parts_without_a_text_change_nothing(run, part_by_part, cached):
    """All texts of a shard may have been rejected by the model."""
    for number, own in enumerate(([], range(3), [], range(3, 5), [])):
        rows = [source_row(number, k) for k in range(len(own))] if cached else None
        write(run, f"part-{number:08d}", np.array(own, dtype=int), rows=rows)
    found = layout.layout(run, None, run.models[0], layout.Order((0,), SEED, 5))
    assert found.ids[np.arange(5)].tolist() == IDS[:5]
    assert found.shards_of(np.arange(5)).tolist() == found.parts_and_rows(np.arange(5))[0].tolist() == [1, 1, 1, 3, 3]
    assert layout.column(run, run.models[0], run.temperatures[0], found, "spread").tolist() == [1.0] * 5


def test_the_places_of_keys_are_those_of_their_texts_in_any_steps(monkeypatch):
    monkeypatch.setattr(layout, "AT_ONCE", 3)
    texts = laid_out([f"t{k}" for k in range(10)], [5] * 10, [0] * 10, [0])
    asked = np.array([texts.key[[7, 0, 7]], [texts.key[9], np.uint64(1), texts.key[3]]], dtype=np.uint64)
    assert texts.places_of_keys(asked).tolist() == [[7, 0, 7], [9, -1, 3]]
    assert texts.places_of_keys(asked[:0]).shape == (0, 3)
