"""A text without an id keeps its place in the sample wherever its row moves, and the sample is simple and random."""

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import as_lines

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import distinct, reading, sources, units
from tempscale_jobs.corpus.rows import Counts, sampled, usable, usable_text
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.runs.storage import Storage

TEXTS, SAMPLE = 1000, 100


def drawn(folder, rows, sample=SAMPLE, files=1, seed=0):
    """The texts and ids of a sample of rows in some files."""
    folder.mkdir(exist_ok=True)
    for old in folder.glob("*.jsonl"):
        old.unlink()
    for k, cut in enumerate(np.array_split(np.arange(len(rows)), files)):
        (folder / f"{k}.jsonl").write_text(as_lines(rows[n] for n in cut))
    return again(folder, sample, seed)


def again(folder, sample, seed):
    """The same of files that are there."""
    corpus = Corpus.model_validate({"source": str(folder)})
    found = list(sampled(usable(sources.rows(corpus), None, Counts(), None, usable_text), sample, seed))
    return [row.content for row in found], [row.text_id for row in found]


@pytest.fixture(scope="module")
def texts():
    return [{"text": f"the text of number {k}"} for k in range(TEXTS)]


@pytest.fixture(scope="module")
def before(tmp_path_factory, texts):
    return set(drawn(tmp_path_factory.mktemp("before"), texts)[0])


def shuffled(rows):
    return random.Random(3).sample(rows, len(rows))


MOVED = {
    "one in front": lambda rows: [{"text": "new"}, *rows],
    "thirty in the middle": lambda rows: [*rows[:400], *({"text": f"new {k}"} for k in range(30)), *rows[400:]],
    "the first is gone": lambda rows: rows[1:],
    "every tenth is gone": lambda rows: [row for k, row in enumerate(rows) if k % 10],
    "another order": shuffled,
    "another order, and fewer": lambda rows: shuffled(rows)[: TEXTS - 50],
}


@pytest.mark.parametrize("files", [1, 7])
@pytest.mark.parametrize("moved", MOVED)
def test_a_sample_changes_by_what_the_change_explains(tmp_path, texts, before, moved, files):
    rows = MOVED[moved](texts)
    after, here = set(drawn(tmp_path / "after", rows, files=files)[0]), {row["text"] for row in rows}
    added = here - {row["text"] for row in texts}
    assert len(after) == SAMPLE
    # A text leaves the sample if it is gone, or if a new one takes its place.
    assert len(before & here - after) <= len(after & added)
    # And one comes in if it is new, or if another is gone.
    assert len(after - before - added) <= len(before - here)
    assert len(before & after) >= SAMPLE - len(before - here) - len(after & added)


def test_of_texts_with_ids_the_ids_alone_decide(tmp_path, texts):
    rows = [row | {"id": f"t{k}"} for k, row in enumerate(texts)]
    wanted = sorted((row["id"] for row in rows), key=lambda text_id: keyed_hash(text_id, 5))[:SAMPLE]
    for order in (rows, shuffled(rows), [row | {"text": "edited"} for row in rows]):
        assert set(drawn(tmp_path / "d", order, seed=5)[1]) == set(wanted)


def test_an_id_is_still_the_digest_of_a_text_and_its_place(tmp_path, texts):
    first = dict(zip(*drawn(tmp_path / "d", texts, TEXTS), strict=True))
    later = dict(zip(*drawn(tmp_path / "d", [{"text": "new"}, *texts], TEXTS + 1), strict=True))
    assert all(first[text] != later[text] for text in first)


def test_copies_of_a_text_are_drawn_as_other_rows_are(tmp_path):
    """How many of 40 copies are among 30 of 100 rows is hypergeometric: neither all of them nor one."""
    rows = shuffled([{"text": "the same"}] * 40 + [{"text": f"other {k}"} for k in range(60)])
    counts = []
    for seed in range(400):
        found, ids = drawn(tmp_path / "d", rows, 30, seed=seed) if seed == 0 else again(tmp_path / "d", 30, seed)
        assert len(set(ids)) == 30
        counts.append(Counter(found)["the same"])
    variance = 30 * 0.4 * 0.6 * 70 / 99
    assert np.mean(counts) == pytest.approx(12, abs=4 * np.sqrt(variance / 400))
    assert np.var(counts) == pytest.approx(variance, rel=0.3)


def test_as_many_copies_stay_in_the_sample_in_any_order(tmp_path):
    rows = [{"text": f"text {k % 150}"} for k in range(600)]
    first = Counter(drawn(tmp_path / "d", rows)[0])
    assert max(first.values()) > 1
    assert Counter(drawn(tmp_path / "d", shuffled(rows), files=4)[0]) == first
    fewer = Counter(drawn(tmp_path / "d", [{"text": "new"}, *rows])[0])
    assert sum((first - fewer).values()) <= 1


@pytest.mark.parametrize("size", [1, 40, 200, 900])
def test_units_draw_the_sample_of_the_whole(tmp_path, size):
    """Texts that are there once, twice in a unit and in each unit; some rows have ids, of which some are repeated."""
    data = tmp_path / "data"
    data.mkdir()
    for k in range(5):
        own = ["everywhere", *(f"text {n}" for n in range(40)), *(f"twice {n // 2}" for n in range(40))]
        own = shuffled([*own, *(f"{k} alone {n}" for n in range(30))])
        ids = [None if n % 9 else f"{k % 3}-{n}" for n in range(len(own))]
        pq.write_table(pa.table({"id": pa.array(ids, pa.string()), "text": own}), data / f"{k}.parquet")
    config = resolve({"corpus": {"source": str(data), "unit_rows": 111, "sample": size}, "out": str(tmp_path / "run")})
    storage, contents, state = (
        Storage(config.out),
        TextShards(config.corpus, config.embedding, ""),
        sources.state(config.corpus),
    )
    planned = units.plan(config.corpus, contents.columns, config.corpus)
    read = [reading.read_unit(storage, contents, unit, 0, state) for unit in planned]
    assert len(read) == 5
    assert all(unit.unnamed for unit in read)
    numbers, names, repeated = range(5), ([], []), 0
    for k in range(3):
        if gone := distinct.repeated(storage, numbers, (k, 3), f"gone-{k}.parquet"):
            names[0].append(f"gone-{k}.parquet")
            repeated += sum(gone.values())
        distinct.copies(storage, numbers, distinct.Draw(size, 0), (k, 3), f"copies-{k}.parquet")
        names[1].append(f"copies-{k}.parquet")
    assert repeated == 2 * 13  # Of rows with ids alone.
    distinct.sampled(storage, numbers, size, names, "drawn.parquet")
    found = {unit: set(own.tolist()) for unit, own in distinct.rows_by_unit(storage, ["drawn.parquet"]).items()}
    every = [(unit.number, *pair) for unit in planned for pair in enumerate(contents.items(unit, Counts(), None))]
    whole = usable(sources.rows(config.corpus), None, Counts(), None, usable_text)
    wanted = {row.text_id for row in sampled(whole, size, 0)}
    assert {text.text_id for unit, row, text in every if row in found.get(unit, ())} == wanted
    assert sum(map(len, found.values())) == len(wanted) == min(size, 5 * 111 - 2 * 13)


def test_embeddings_without_ids_are_drawn_by_what_they_are(tmp_path):
    rows = [{"v": [float(k), 1.0, -1.0], "n": 1 + k % 9} for k in range(200)]

    def kept(name, rows):
        (tmp_path / f"{name}.jsonl").write_text(as_lines(rows))
        given = {"source": str(tmp_path / f"{name}.jsonl"), "embedding_column": "v", "length_column": "n", "sample": 40}
        config = resolve({"corpus": given, "out": str(tmp_path / name)})
        storage = Storage(config.out)
        SourceReader(storage, Vectors("texts", config.corpus, config.out), 0, config.out)
        found = [storage.read_table(name) for name in storage.list("texts")]
        return {row["content_sha"]: row["text_id"] for table in found for row in table.to_pylist()}

    first, later = kept("first", rows), kept("later", [{"v": [7.0, 7.0, 1.0], "n": 3}, *rows])
    assert len(first) == 40
    assert len(first.keys() - later.keys()) <= 1
    both = first.keys() & later.keys()
    assert all(later[sha] == f"later.jsonl:{int(first[sha].rpartition(':')[2]) + 1}" for sha in both)
