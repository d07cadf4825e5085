"""What steps do where there is little or nothing: one text, no pairs, no further groups, many shards, many parts."""

from types import SimpleNamespace

import numpy as np
import oracles
import pytest
from whole_run import digests

from tempscale.collapse.aggregates import CosineCells
from tempscale.collapse.length import Moments
from tempscale.stats.errors import DocumentSums, documents_error
from tempscale_jobs.errors import IncompleteRun, RunError
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import blocks, cosine, dealing, groups, layout, prune, socm_tables, source_order, worst
from tempscale_jobs.steps.blocks import Tiling
from tempscale_jobs.steps.cache import KEY
from tempscale_jobs.steps.socm_tables import Sample
from tempscale_jobs.tables import parts

MODEL = Model("tiny", "tiny", "f" * 64, 64)


def sample_of(texts, intervals, seed=0):
    random = np.random.default_rng(seed)
    values = random.uniform(0.1, 1.3, (3, texts, texts))
    values = (values + values.transpose(0, 2, 1)) / 2
    for matrix in values:
        np.fill_diagonal(matrix, np.nan)
    interval = np.arange(texts) * intervals // texts
    return Sample(np.array([f"t{k}" for k in range(texts)]), np.full(texts, 9), interval, *values)


# --- tables of SOCM -------------------------------------------------------------------------------------------------------


def test_errors_of_cells_are_those_of_documents_where_texts_come_in_some():
    sample, documents = sample_of(60, 2), np.repeat(np.arange(30), 2)
    rows = socm_tables.cells((0, 32), sample, np.ones(2), True, documents)
    assert [(row["interval_a"], row["interval_b"]) for row in rows] == [(0, 0), (0, 32), (32, 32)]
    first, second = sample.interval == 0, sample.interval == 1
    inside = documents_error([np.nanmean(sample.value[np.ix_(first, first)], axis=1)], [2.0], [documents[first]])
    block = sample.value[np.ix_(first, second)]
    between = documents_error([block.mean(1), block.mean(0)], [1.0, 1.0], [documents[first], documents[second]])
    assert rows[0]["socm_se_superpopulation"] == pytest.approx(inside)
    assert rows[1]["socm_se_superpopulation"] == pytest.approx(between)
    alone = socm_tables.cells((0, 32), sample, np.ones(2), True)
    assert alone[0]["socm_se_superpopulation"] == pytest.approx(
        oracles.within_error(np.nanmean(sample.value[np.ix_(first, first)], axis=1))
    )
    assert rows[0]["socm_mean"] == alone[0]["socm_mean"]


def test_one_text_has_no_pairs_to_rank_and_no_pairs_have_no_plane():
    assert socm_tables.ranked(sample_of(1, 1), np.ones((1, 4), np.float32), 5) == []
    assert socm_tables.scatter(np.zeros(0), np.zeros(0), 0) == []
    assert len(socm_tables.ranked(sample_of(3, 1), np.eye(3, dtype=np.float32), 5)) > 0


# --- groups ---------------------------------------------------------------------------------------------------------------


def test_groups_end_where_the_corpus_has_no_texts_for_more(monkeypatch):
    """The error that is wanted takes more groups than there are texts for."""
    asked, written = [], []

    def deal(texts, analysis, count):
        asked.append(count)
        return [f"group {k}" for k in range(min(count, 5))]

    monkeypatch.setattr(dealing, "deal", deal)
    monkeypatch.setattr(groups, "_write", lambda scope, dealt, measured, stage: written.append((measured, len(dealt))))
    monkeypatch.setattr(groups, "_error", lambda scope, temperature, dealt: 0.1)
    scope = SimpleNamespace(
        run=SimpleNamespace(temperatures=[1.0]), texts=None, analysis=SimpleNamespace(socm_groups=4, socm_se=0.05)
    )
    assert len(groups._measure(scope, None)) == 5
    assert asked[:2] == [4, 16]
    assert len(asked) == 3
    assert written == [(0, 4), (4, 5)]


def test_a_pair_of_a_group_that_is_no_number_ends_the_run(tmp_path):
    storage = Storage(str(tmp_path))

    def group(d_sigma):
        values = {"text_id": ["a", "b"], "tokens": [3, 4], "trace": [1.0, 1.0], "d_mu": [0.1], "d_sigma": [d_sigma]}
        return parts.SOCM_GROUP.build({name: [value] for name, value in values.items()})

    run = SimpleNamespace(storage=storage, part=lambda kind, model, temperature, number: f"part-{number}.parquet")
    analysis = SimpleNamespace(socm_alpha=1.0, socm_beta=1.0)
    scope = SimpleNamespace(run=run, model=MODEL, analysis=analysis)
    storage.write_table("part-0.parquet", group(0.5))
    assert groups.read(scope, 1.0, 1).value.tolist() == [pytest.approx(0.9 * 0.5)]
    storage.write_table("part-0.parquet", group(float("nan")))
    with pytest.raises(IncompleteRun):
        groups.read(scope, 1.0, 1)


# --- blocks and tiles -----------------------------------------------------------------------------------------------------


def tiling(storage, count):
    return Tiling(storage, "partials", 2, 3, 0.99, 10, count)


def test_a_process_keeps_as_many_blocks_as_have_room(tmp_path, monkeypatch):
    read = []

    def from_storage(of, number, precision):
        read.append(number)
        return SimpleNamespace(embeddings=np.zeros((4, 8), np.float32))

    monkeypatch.setattr(blocks, "_from_storage", from_storage)
    monkeypatch.setattr(blocks, "_KEPT_BYTES", 3 * 4 * 8 * 4)
    monkeypatch.setattr(blocks, "_read", {})
    for number in (0, 1, 2, 0, 3, 1, 0):
        blocks.read_block(tiling(Storage(str(tmp_path)), 9), number)
    assert read == [0, 1, 2, 3, 1]
    assert len(blocks._read) == 3


def test_blocks_that_are_read_ahead_come_in_their_order(tmp_path, monkeypatch):
    monkeypatch.setattr(blocks, "_from_storage", lambda of, number, precision: number)
    for count in (0, 1, blocks._READERS + 3):
        found = list(blocks._read_ahead(tiling(Storage(str(tmp_path)), 9), range(count)))
        assert found == list(range(count))


def test_cells_without_pairs_are_read_as_zeros(tmp_path):
    grid = tiling(Storage(str(tmp_path)), 1)
    grid.storage.write_table(grid.cells(0, 0), parts.COSINE_TILE.build_rows([]))
    found = blocks.read_cells(grid, 0, 0)
    assert isinstance(found, CosineCells)
    assert found.pairs.sum() == 0
    assert found.histogram.sum() == 0


def test_means_of_consecutive_blocks_merge_with_the_sums_of_their_documents():
    random = np.random.default_rng(0)
    values, documents = random.normal(size=(9, 2)), np.array([4, 4, 7, 7, 7, 1, 1, 4, 2])

    def means(part):
        of_documents = DocumentSums.of(values[part], documents[part])
        return cosine._Means((Moments.of(values[part]),), (of_documents,))

    whole, merged = means(slice(None)), means(slice(0, 4)).merged(means(slice(4, None)))
    np.testing.assert_allclose(merged.moments[0].mean, values.mean(0))
    assert merged.documents[0].documents.tolist() == whole.documents[0].documents.tolist() == [1, 2, 4, 7]
    np.testing.assert_allclose(merged.documents[0].sums, whole.documents[0].sums)
    without = cosine._Means(whole.moments, None)
    assert means(slice(0, 4)).merged(without).documents is None


# --- layout and the order of the source -----------------------------------------------------------------------------------


def test_one_piece_is_done_here_and_several_are_tasks(monkeypatch):
    def by_tasks(cluster, function, work, name):
        return [("task", function(*arguments)) for arguments in work]

    monkeypatch.setattr(layout, "results", by_tasks)
    assert layout.of_each(None, pow, [(2, 3)]) == [8]
    assert layout.of_each(None, pow, [(2, 3), (3, 2)]) == [("task", 8), ("task", 9)]


def test_of_many_shards_stretches_from_all_over_the_source_are_looked_at(monkeypatch):
    monkeypatch.setattr(source_order, "_SHARDS", 6)
    monkeypatch.setattr(source_order, "_STRETCH", 2)
    monkeypatch.setattr(source_order, "_ids", lambda run, shard: [f"{shard}-{k}" for k in range(3)])

    def stretches(count):
        names = [SimpleNamespace(name=f"{k}") for k in range(count)]
        texts = SimpleNamespace(where=lambda ids: {i: 3 * int(i.split("-")[0]) + int(i.split("-")[1]) for i in ids})
        scope = SimpleNamespace(run=None, index=SimpleNamespace(shards=names), texts=texts)
        return [own.tolist() for own in source_order._stretches(scope)]

    assert stretches(4) == [list(range(12))]
    found = stretches(21)
    assert [own[0] for own in found] == [0, 27, 57]
    assert all(own == list(range(own[0], own[0] + 6)) for own in found)


def test_a_search_that_is_done_starts_no_crew(monkeypatch):
    def no_crew(*arguments):
        pytest.fail("a crew was started")

    monkeypatch.setattr(worst, "seeds_of", lambda scope: {})
    monkeypatch.setattr(worst, "Crew", no_crew)
    monkeypatch.setattr(worst, "_means_are_embeddings", lambda model: True)
    storage = SimpleNamespace(read_json=lambda name: {"pairs": 10, "exact": 4}, remove=lambda place: None)
    run = SimpleNamespace(temperatures=[SimpleNamespace(slug="1.0", canonical="1.0")], storage=storage, place=lambda *_: "p")
    told = []
    scope = SimpleNamespace(run=run, model=MODEL, cluster=None, encoding=None)
    counts = worst._search(scope, SimpleNamespace(tell=told.append))
    assert counts["pairs"] == 10
    assert counts["exact"] == 4


# --- the cache ------------------------------------------------------------------------------------------------------------


def test_a_key_that_is_none_is_not_listed(tmp_path):
    store = Storage(str(tmp_path))
    key = {"last_used": "2026-11-01", "name": "tiny", "temperature": "1.0"}
    store.write_json(f"good/{KEY}", key)
    store.write_json(f"bad/{KEY}", key | {"name": 7})
    assert prune._contents_of(store, "good").values == key
    assert prune._contents_of(store, "bad") is None


def test_files_of_a_cache_that_cannot_be_read_now_stay(tmp_path, monkeypatch):
    store = Storage(str(tmp_path))
    place = "k/bucket-000"
    (tmp_path / place).mkdir(parents=True)
    name = f"{place}/part-{'0' * 32}.parquet"
    monkeypatch.setattr(prune, "_files", lambda store, bucket: [name])
    store.write(name, b"of a storage that does not answer")
    before = digests(tmp_path, "")

    def silent(self, name):
        raise RunError("the storage does not answer")

    monkeypatch.setattr(Storage, "read_table", silent)
    assert prune._readable(store, place) == {}
    assert digests(tmp_path, "") == before
    assert before
