"""A cache of embeddings: what is known is not embedded again, what comes out is the same, and nothing in it is needed."""

import datetime
import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import ray
from whole_run import as_lines, audited, digests, documented, read_parts, read_record

import tempscale_jobs.audit.run
import tempscale_jobs.steps.embed
from tempscale_jobs.errors import Damaged, IncompleteRun, RunError, UsageError
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import cache, lookup, prune
from tempscale_jobs.tables.audit import texts

pytestmark = pytest.mark.proof

TAUS, TEXTS, NEW = [1.0, 0.8], 180, 9


def settings(out, corpus, small_model, store, address=None, **embedding):
    return {
        "out": str(out), "corpus": {"source": str(corpus)},
        "embedding": {"models": [small_model], "temperatures": TAUS, "shard_texts": 64} | embedding,
        "analysis": {"socm_sample": 0, "probe_sample": 0, "intervals": [0, 32, 64, 100]},
        "execution": {"workers": 1, "cache": store and str(store), "address": address},
    }  # fmt: skip


def run(*how, **embedding):
    return audited(settings(*how, **embedding))


def embedded(out, tau=1.0):
    return read_parts(out, "texts", tau).sort("text_id")


def known(out):
    (plan,) = (out / "partials" / "cache").glob("*/plan.json")
    return json.loads(plan.read_text())["found"]


@pytest.fixture(scope="module")
def nights(tmp_path_factory, ray_session, small_model):
    """A first night, a second night with other texts, and that one without a cache."""
    folder = tmp_path_factory.mktemp("nights")
    texts = documented("pyarrow")[: TEXTS + NEW]
    texts[TEXTS - 1] = {"id": "a copy", "text": texts[3]["text"]}  # The same content under two ids.
    monday, tuesday = folder / "monday.jsonl", folder / "tuesday.jsonl"
    monday.write_text(as_lines(texts[:TEXTS]))
    tuesday.write_text(as_lines(texts[NEW:][::-1]))
    store = folder / "cache"
    run(folder / "first", monday, small_model, store)
    run(folder / "second", tuesday, small_model, store)
    shutil.copytree(store, folder / "cache-of-two")
    run(folder / "plain", tuesday, small_model, None)
    return folder


def stop(*arguments, **more):
    raise KeyboardInterrupt


def run_until(module, name, *how):
    """A run that Ctrl-C stops where this would be called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, name, stop)
        with pytest.raises(KeyboardInterrupt):
            run(*how)


@pytest.fixture(scope="module")
def again(nights, small_model):
    """The second night once more, its texts all known; stopped before the model ran, then after it, and resumed."""
    how = nights / "again", nights / "tuesday.jsonl", small_model, nights / "cache"
    run_until(tempscale_jobs.steps.embed, "embed", *how)
    run_until(tempscale_jobs.audit.run, "layout", *how)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lookup, "look_up_all", stop)  # It is asked once, and
        patch.setattr(cache, "key", stop)  # is added to once.
        run(*how)
    return nights / "again"


def test_only_what_changed_is_embedded_and_what_may_differ_in_its_last_digits_is_listed(nights, again):
    assert [known(folder) for folder in (nights / "first", nights / "second", nights / "plain", again)] == [
        0, TEXTS - NEW, 0, TEXTS,
    ]  # fmt: skip
    new = pl.read_parquet(nights / "second" / "texts" / "*" / "temperature=1.0" / "part-0*.parquet", hive_partitioning=False)
    assert len(new) == NEW
    assert set(embedded(again).columns) == set(embedded(nights / "plain").columns)
    assert len(embedded(again)) == TEXTS
    assert read_record(nights / "first")["byte_identity_exceptions"] == []
    (told,) = read_record(nights / "second")["byte_identity_exceptions"]
    assert f"{TEXTS - NEW} of {TEXTS} texts" in told


@pytest.mark.parametrize("tau", TAUS)
def test_cached_texts_equal_fresh_ones(nights, tau):
    cached, fresh = embedded(nights / "second", tau), embedded(nights / "plain", tau)
    for column in ("text_id", "content_sha", "tokens", "truncated"):
        assert cached[column].to_list() == fresh[column].to_list()
    assert cached["text_id"].n_unique() == TEXTS
    for column in ("embedding", "mean_norm", "spread", "within_cosine"):
        one, other = (np.stack(table[column].to_list()) for table in (cached, fresh))
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_figures_from_cached_texts_are_those_from_fresh_ones(nights):
    cached, fresh = (pl.read_parquet(nights / night / "tables" / "length_collapse.parquet") for night in ("second", "plain"))
    assert cached["pairs"].to_list() == fresh["pairs"].to_list()
    np.testing.assert_allclose(cached["cosine_mean"], fresh["cosine_mean"], atol=1e-6)
    for column in ("cosine_p05", "cosine_p50", "cosine_p95"):
        assert np.abs(cached[column].to_numpy() - fresh[column].to_numpy()).max() <= 1 / 2048
    one, other = (read_parts(nights / night, "neighbours").sort("text_id") for night in ("second", "plain"))
    cosines = [table["cosines"].list.explode().to_numpy() for table in (one, other)]
    np.testing.assert_allclose(np.sort(cosines[0]), np.sort(cosines[1]), atol=1e-6)


# --- upkeep -----------------------------------------------------------------------------------------------------------


def test_pruning_keeps_the_texts_of_the_runs_named_and_merges_files(nights, again, small_model, tmp_path):
    root = str(nights / "cache")
    before = prune.listed(root)
    assert {held.texts for held in before} == {TEXTS + NEW - 1}
    freed = prune.prune(root, None, [str(nights / "second")])
    after = prune.listed(root)
    assert freed > 0
    assert {held.texts for held in after} == {embedded(nights / "second")["content_sha"].n_unique()}
    assert all(held.files <= cache.BUCKETS for held in after)
    run(tmp_path / "run", nights / "tuesday.jsonl", small_model, root)
    assert known(tmp_path / "run") == TEXTS
    # A cached run repeated equals itself to the byte, whichever files its texts come from.
    tables = digests(tmp_path / "run", "tables")
    assert {f"tables/{name}.parquet" for name in ("length_collapse", "exposure", "near_duplicates")} <= set(tables)
    assert tables == digests(again, "tables")


def stored(folder, *files):
    """A cache of one key whose bucket 17 has files of these texts."""
    store = Storage(str(folder))
    store.write_json(f"key/{cache.KEY}", {"name": "m", "temperature": "1.0", "last_used": "2026-11-01"})
    names = [cache.write_bucket(store, "key", 17, entries(shas)) for shas in files]
    return store, names


def entries(shas, dim=2, **changed):
    """Entries of a cache, all of them the same unit vector."""
    columns = {"tokens": 5, "truncated": False, "embedding": [1.0] + [0.0] * (dim - 1)}
    columns |= {"mean_norm": 1.0, "spread": 1.0, "within_cosine": 0.5}
    columns = {"content_sha": list(shas)} | {name: [value] * len(shas) for name, value in columns.items()} | changed
    return pa.table(columns, schema=cache.columns(dim))


def found(store, buckets, wanted, dim=2):
    """The texts that a cache has, and how much of it is not used."""
    held = cache.cached_texts(store, "key", buckets, wanted, dim)
    return sorted(held.texts["content_sha"].to_pylist()), sum(held.ignored.values())


def test_pruning_removes_keys_by_the_day_of_their_last_use_and_not_what_is_just_written(tmp_path):
    store, _ = stored(tmp_path / "cache", ["11a"])
    today = datetime.datetime.now(datetime.UTC).date()
    for days in (0, 20, 40):
        last_used = (today - datetime.timedelta(days=days)).isoformat()
        store.write_json(f"key{days}/{cache.KEY}", store.read_json(f"key/{cache.KEY}") | {"last_used": last_used})
    store.write("key20/bucket-000/.writing-0123", b"half")
    for unused_days in (40, None):
        prune.prune(store.root, unused_days, [])
        assert [days for days in (0, 20, 40) if store.exists(f"key{days}")] == [0, 20]
    assert store.read("key20/bucket-000/.writing-0123") == b"half"


def test_what_is_no_cache_and_a_run_that_cannot_say_what_to_keep_are_named(tmp_path):
    """A folder that is no run, and a run whose texts were pruned."""
    store, names = stored(tmp_path / "cache", ["11a"], ["11b"])
    Storage(str(tmp_path / "run")).write_json("run.json", {})
    with pytest.raises(UsageError, match=str(tmp_path)):
        prune.listed(str(tmp_path / "run"))
    for folder in (tmp_path, tmp_path / "run"):
        with pytest.raises(UsageError, match=str(folder)):
            prune.prune(store.root, None, [str(folder)])
    assert store.list("key/bucket-017") == sorted(names)


def pruned_while(store, monkeypatch, read_table):
    """The files and texts that are left where a file is read like this while a cache is pruned."""
    with monkeypatch.context() as patch:
        patch.setattr(Storage, "read_table", read_table)
        prune.prune(store.root, None, [])
    left = store.list("key/bucket-017")
    return left, sorted(sha for name in left for sha in store.read_table(name)["content_sha"].to_pylist())


def test_of_two_that_prune_one_merges(tmp_path, monkeypatch):
    """The other has just removed what it merged: this one leaves the bucket to it."""
    store, names = stored(tmp_path / "cache", ["11a", "11b"], ["11b", "11c"])
    read = Storage.read_table

    def merged_meanwhile(self, name, columns=None):
        cache.write_bucket(store, "key", 17, entries(["11a", "11b", "11c"]))
        for each in names:
            store.remove(each)
        return read(self, name, columns)

    left, texts_left = pruned_while(store, monkeypatch, merged_meanwhile)
    assert (len(left), texts_left) == (1, ["11a", "11b", "11c"])


@pytest.mark.parametrize("of_two", [False, True])
def test_pruning_removes_a_damaged_file_that_another_may_remove_first(tmp_path, monkeypatch, of_two):
    store, (whole, damaged) = stored(tmp_path / "cache", ["11a"], ["11b"])
    store.write(damaged, b"nothing")
    read = Storage.read_table

    def removed_meanwhile(self, name, columns=None):
        try:
            return read(self, name, columns)
        except Damaged:
            store.remove(damaged)
            raise

    found = pruned_while(store, monkeypatch, removed_meanwhile if of_two else read)
    assert found == ([whole], ["11a"])


def test_files_that_cannot_be_read_now_stay(tmp_path, monkeypatch):
    store, _ = stored(tmp_path / "cache", ["11a"], ["11b"])
    before = digests(store.root, "")

    def silent(self, name, columns=None):
        raise RunError("the storage does not answer")

    pruned_while(store, monkeypatch, silent)
    assert len(before) == 2
    assert digests(store.root, "") == before


# --- what can go wrong ------------------------------------------------------------------------------------------------


class Refusing(Storage):
    """A storage with an exception of its own, as gcsfs has."""

    def read(self, name):
        raise RuntimeError("HttpError: 403")

    list = read_table = opened = read


def test_no_run_depends_on_a_cache_whatever_its_storage_raises(tmp_path):
    store = Refusing(str(tmp_path))
    assert not cache.is_foreign(store, {"format": 1})
    assert cache.cached_texts(store, "k", range(2), {"00"}, 2).texts.num_rows == 0


def test_a_damaged_file_of_a_bucket_has_nothing_and_the_others_what_they_have(tmp_path):
    store, (damaged, _) = stored(tmp_path / "cache", ["11a"], ["11b"])
    data = bytearray(store.read(damaged))
    data[len(data) // 3] ^= 1
    store.write(damaged, bytes(data))
    assert found(store, [17], {"11a", "11b"}) == (["11b"], 1)


def other_entries():
    """What may lie in the bucket of a key beside an entry of the text 11b, and is no embedding of the text 11a."""
    nan, inf = float("nan"), float("inf")
    good = entries(["11a"])
    return {
        "a column less": good.drop_columns(["spread"]),
        "a column more": good.append_column("more", pa.array([1])),
        "a column of another type": good.set_column(1, "tokens", pa.array([5.0])),
        "another width": entries(["11a"], dim=3),
        "nan": entries(["11a"], embedding=[[nan, 0.0]]),
        "inf": entries(["11a"], embedding=[[inf, 0.0]]),
        "not of unit norm": entries(["11a"], embedding=[[0.5, 0.5]]),
        "zero": entries(["11a"], embedding=[[0.0, 0.0]]),
        "no embedding": entries(["11a"], embedding=[None]),
        "no tokens": entries(["11a"], tokens=[None]),
        "a figure that is none": entries(["11a"], within_cosine=[nan]),
    }


@pytest.mark.parametrize("what", other_entries())
def test_entries_that_can_be_no_embeddings_are_counted_and_not_used(tmp_path, what):
    store, _ = stored(tmp_path / "cache", ["11b"])
    cache.write_bucket(store, "key", 17, other_entries()[what])
    assert found(store, [17], {"11a", "11b"}) == (["11b"], 1)
    prune.prune(store.root, None, [])
    assert found(store, [17], {"11a", "11b"})[0] == ["11b"]


@pytest.mark.parametrize("data", [b"", b"PAR1", b"a note of mine", b"PAR1" + bytes(200) + b"PAR1"])
@pytest.mark.parametrize("name", ["notes.txt", "another.parquet"])
def test_files_of_others_in_a_cache_are_neither_used_nor_removed(tmp_path, name, data):
    store, _ = stored(tmp_path / "cache", ["11b"])
    for place in (f"key/bucket-017/{name}", f"key/{name}", name):
        store.write(place, data)
    assert found(store, [17], {"11b"}) == (["11b"], 1)
    store.write_json("theirs/key.json", {"theme": "dark"})
    store.write_json("odd/key.json", store.read_json(f"key/{cache.KEY}") | {"name": 7})
    assert [held.place for held in prune.listed(store.root)] == ["key"]
    prune.prune(store.root, 0, [])  # All that is the cache's own is removed.
    assert store.list("") == sorted([f"key/bucket-017/{name}", f"key/{name}", name, "odd/key.json", "theirs/key.json"])


def test_entries_of_one_text_that_agree_are_one_and_others_none(tmp_path):
    store, _ = stored(tmp_path / "cache", ["11a", "11b"])
    cache.write_bucket(store, "key", 17, entries(["11a"], embedding=[[1.0, 1e-6]]))
    assert found(store, [17], {"11a", "11b"}) == (["11a", "11b"], 0)
    cache.write_bucket(store, "key", 17, entries(["11b", "11b"], embedding=[[1.0, 0.0], [0.0, 1.0]]))
    assert found(store, [17], {"11a", "11b"}) == (["11a"], 1)


def test_a_key_of_other_settings_is_foreign_and_one_that_says_nothing_is_not(tmp_path):
    store, values = Storage(str(tmp_path)), {"model": "m", "temperature": "1.0"}
    name = f"{cache.folder(values)}/{cache.KEY}"
    assert not cache.is_foreign(store, values)
    for written, foreign in (
        (values | {"name": "m", "last_used": "2026-11-01"}, False), (values | {"temperature": "0.8"}, True),
        ({}, True), ([], True), ({"theme": "dark"}, True),
    ):  # fmt: skip
        store.write_json(name, written)
        assert cache.is_foreign(store, values) == foreign, written
    store.write(name, b"no JSON")
    assert not cache.is_foreign(store, values)


def test_a_text_that_was_cut_here_is_truncated_though_it_is_whole_where_it_was_embedded(tmp_path):
    """Two texts of one content: one says no more than that, the other was cut to it."""
    storage, shas = Storage(str(tmp_path / "run")), ["11a", "11b"]
    row = {"text_id": ["x", "y"], "content_sha": shas, "document": pa.array([None, None], pa.int64()), "cut": [True, False]}
    storage.write_table("shards/part-00000000.parquet", pa.table(row))
    given = {column.name: [None, None] for column in texts(2).columns}
    given |= {"text_id": ["x", "y"], "content_sha": shas, "tokens": [5, 6], "truncated": [False, False]}
    given |= {"embedding": [[1.0, 0.0], [0.0, 1.0]]}
    given |= {name: [1.0, 1.0] for name in ("mean_norm", "spread", "within_cosine")}
    held = texts(2).build(given).drop_columns(["text_id", "document", "source_row"])
    cache.write_bucket(Storage(str(tmp_path / "cache")), "key", 17, held)
    how = lookup.Exchange(storage, str(tmp_path / "cache"), ["key"], ["texts/x"], "scratch", 2)
    lookup.sort_group(how, 0, ["shards/part-00000000.parquet"])
    assert lookup.look_up_range(how, [0], range(256), 0) == (2, {})
    found = storage.read_table(how.found(0, 0))
    assert found.select(["text_id", "truncated"]).to_pydict() == {"text_id": ["x", "y"], "truncated": [True, False]}


@pytest.mark.soak
def test_a_run_goes_on_with_its_plan_whatever_became_of_the_option(nights, small_model, tmp_path):
    """Begun with a cache and gone on without, or the other way round: every text once."""
    for number, (first, then) in enumerate(((nights / "cache", None), (None, nights / "cache"))):
        out = tmp_path / str(number)
        # All texts are embedded, and nothing else is done.
        run_until(tempscale_jobs.audit.run, "layout", out, nights / "tuesday.jsonl", small_model, first)
        run(out, nights / "tuesday.jsonl", small_model, then)
        assert embedded(out)["text_id"].to_list() == embedded(nights / "plain")["text_id"].to_list()


def test_a_corpus_in_many_groups_and_ranges_is_looked_up_the_same(nights, small_model, monkeypatch, tmp_path):
    """Three groups of a shard each and seven ranges of buckets, of which texts of one content are in two groups."""
    monkeypatch.setattr(lookup, "TEXTS_OF_A_GROUP", 64)
    monkeypatch.setattr(lookup, "TEXTS_OF_A_RANGE", TEXTS // 7 + 1)
    run(tmp_path / "run", nights / "tuesday.jsonl", small_model, nights / "cache", shard_texts=64, shard_characters=1 << 20)
    assert known(tmp_path / "run") == TEXTS  # All that the first two nights embedded.
    for tau in TAUS:
        one, other = embedded(tmp_path / "run", tau), embedded(nights / "second", tau)
        exact = ["text_id", "content_sha", "document", "tokens", "truncated"]
        assert one.select(exact).equals(other.select(exact))
        assert np.abs(np.stack(one["embedding"]) - np.stack(other["embedding"])).max() < 1e-6
    assert len(list((tmp_path / "run" / "texts").rglob("part-cached-*"))) == 3 * len(TAUS)


@pytest.mark.soak
def test_a_run_embeds_again_what_its_cache_cannot_give_and_says_so(nights, small_model, tmp_path):
    """Of four buckets one has vectors of another width, one such that are none, one is cut, and one is as it was."""
    store = Storage(str(shutil.copytree(nights / "cache-of-two", tmp_path / "cache")))
    for name in store.list("", ".parquet"):
        number = int(name.partition("bucket-")[2][:3])  # The same under every temperature.
        table = store.read_table(name)
        vectors = np.stack(table["embedding"].to_numpy())
        vectors = (vectors[:, :8], vectors * np.nan, vectors, vectors)[number % 4]
        place = table.column_names.index("embedding")
        kind = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel(), pa.float32()), vectors.shape[1])
        store.write_table(name, table.set_column(place, "embedding", kind))
        if number % 4 == 3:
            store.write(name, store.read(name)[:-9])
    out = tmp_path / "run"
    run(out, nights / "tuesday.jsonl", small_model, store.root)
    assert 0 < known(out) < TEXTS
    (model,) = read_record(out)["models"].values()
    ignored = model["cache_ignored"]
    assert len(ignored) == 3
    assert min(ignored.values()) > 10
    one, plain = embedded(out), embedded(nights / "plain")
    assert one["text_id"].to_list() == plain["text_id"].to_list()
    assert np.abs(np.stack(one["embedding"]) - np.stack(plain["embedding"])).max() < 1e-5


@pytest.mark.proof
def test_a_cache_that_cannot_be_added_to_costs_the_run_nothing(nights, small_model, monkeypatch, tmp_path, capsys):
    def full(*arguments, **more):
        raise IncompleteRun("cannot write 'cache': the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(cache, "add_parts", full)
        run(tmp_path / "run", nights / "monday.jsonl", small_model, tmp_path / "cache")
    assert "disk is full" in capsys.readouterr().err
    assert len(embedded(tmp_path / "run")) == TEXTS


@pytest.mark.soak
def test_two_runs_at_once_leave_what_one_leaves(nights, small_model, tmp_path):
    code = f"import sys, json; sys.path[:0] = {sys.path!r}; import whole_run; whole_run.audited(json.loads(sys.argv[1]))"
    given = nights / "monday.jsonl", small_model, tmp_path / "cache", ray.get_runtime_context().gcs_address
    asked = [json.dumps(settings(tmp_path / name, *given)) for name in ("one", "other")]
    started = [subprocess.Popen([sys.executable, "-c", code, data]) for data in asked]
    assert [process.wait(timeout=600) for process in started] == [0, 0]
    assert len({str(digests(folder, "tables")) for folder in (tmp_path / "one", tmp_path / "other", nights / "first")}) == 1
    assert {held.texts for held in prune.listed(str(tmp_path / "cache"))} == {TEXTS - 1}


def test_pruning_beside_a_run_costs_neither_anything(nights, small_model, tmp_path):
    """Again and again while a run looks up and adds: what it finds is whole, and what it adds is there afterwards."""
    root = str(shutil.copytree(nights / "cache", tmp_path / "cache"))
    before = {held.place: held.texts for held in prune.listed(root)}
    keep, ended = [str(nights / "first"), str(nights / "second")], threading.Event()
    freed, failed = [], []
    abandoned, fresh = (tmp_path / "cache" / f".writing-{name}" for name in ("abandoned", "fresh"))
    for file in (abandoned, fresh):
        file.write_bytes(b"half")
    os.utime(abandoned, (0, 0))

    def again_and_again():
        while not ended.is_set():
            try:
                freed.append(prune.prune(root, None, keep))
            except Exception as error:
                failed.append(error)

    pruning = threading.Thread(target=again_and_again)
    pruning.start()
    try:
        run(tmp_path / "run", nights / "tuesday.jsonl", small_model, root)
    finally:
        ended.set()
        pruning.join()
    assert failed == []
    assert freed
    assert digests(tmp_path / "run", "tables").keys() == digests(nights / "second", "tables").keys()
    assert embedded(tmp_path / "run")["text_id"].to_list() == embedded(nights / "second")["text_id"].to_list()
    assert {held.place: held.texts for held in prune.listed(root)} == before
    assert [abandoned.exists(), fresh.exists()] == [False, True]
