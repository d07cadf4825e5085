"""The sample of diagnose, chosen from lengths that stay in storage."""

import hashlib
import random

import pyarrow as pa
import pytest

from tempscale_jobs.config.diagnose import Diagnosis
from tempscale_jobs.diagnose.sampling import candidates_of, evenly
from tempscale_jobs.runs.storage import Storage

EDGES, WANTED, SEED, SHARDS = [0, 4, 9], 14, 5, 6


def hashed(text_id):
    return hashlib.blake2b(text_id.encode(), digest_size=8, key=SEED.to_bytes(8, "little")).digest()


@pytest.fixture
def stored(tmp_path):
    """Lengths of texts for two models in a few shards: the files of each model, and all lengths by id."""
    storage, generator, lengths, names = Storage(str(tmp_path)), random.Random(3), [{}, {}], [[], []]
    for shard in range(SHARDS):
        for model in range(2):
            found = {f"{shard}-{k}": generator.randrange(14) for k in range(40) if generator.random() > 0.1}
            names[model].append(f"{model}/{shard}.parquet")
            storage.write_table(names[model][-1], pa.table({"text_id": [*found], "tokens": [*found.values()]}))
            lengths[model] |= found
    return storage, names, lengths


@pytest.mark.parametrize("at_once", [1, 2, SHARDS])
def test_the_texts_of_least_hash_are_chosen_however_many_shards_are_read_at_once(stored, at_once):
    storage, names, (first, second) = stored
    settings = Diagnosis(texts=WANTED, intervals=EDGES)
    groups = [slice(k, k + at_once) for k in range(0, SHARDS, at_once)]
    parts = [candidates_of(storage, [files[group] for files in names], settings, SEED) for group in groups]
    chosen = evenly(settings, SEED, parts)
    usable = sorted((i for i in first if first[i] > 1 and second.get(i, 0) > 1), key=hashed)
    expected = set()
    for low, high, size in ((0, 4, 4), (4, 9, 5), (9, 99, 5)):  # 14 of three intervals; the longest have the remainder.
        expected |= set([i for i in usable if low <= first[i] < high][:size])
    assert set(chosen) == expected
    assert len(expected) == WANTED
    assert all(tokens == (first[i], second[i]) for i, tokens in chosen.items())


def test_no_more_is_held_than_a_sample_may_have(stored):
    storage, names, _ = stored
    found = candidates_of(storage, names, Diagnosis(texts=3, intervals=EDGES), SEED)
    assert found.texts.min() > 3
    assert [len(group) for group in found.least] == [3, 3, 3]
