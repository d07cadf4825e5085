"""The search for the most collapsed pairs, without a run: whose factors it asks for, and who leaves them."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from prepared import laid_out, scoped

from tempscale import Temperature
from tempscale.second_order.nuclear import principal_rows
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.corpus.index import Shard
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import factor_pairs, socm_tables, worst
from tempscale_jobs.steps.factor_pairs import PairPlaces, pair_values
from tempscale_jobs.workers import actor


def test_of_no_pairs_none_is_ranked_and_no_task_begins():
    none = np.empty(0, dtype=np.int64)
    found = pair_values(None, None, PairPlaces(np.empty(0, object), none, none), Analysis.model_validate({}))
    assert [len(column) for column in found] == [0] * 5
    assert socm_tables.best(found, found.value, found.value, socm_tables.Named(np.empty(0, object), none), 5) == []


def test_factors_are_left_under_the_temperatures_that_want_some(tmp_path, tiny_folder):
    """Of a shard of four texts two are wanted, and under the second temperature only."""
    storage, model = Storage(str(tmp_path / "run")), Model("tiny", str(tiny_folder("bert")), "", 64)
    texts, name = ["some letters", "other letters", "more of them", "a few"], "shards/part-00000000.parquet"
    storage.write_table(name, pa.table({"text_id": [f"t{k}" for k in range(4)], "text": texts}))
    run = Run(storage, [], [Temperature(1.0), Temperature(0.8)], "2026-11-22")
    worker = actor.ModelActor(storage, model, [1.0, 0.8], {"token_budget": 90}, 0)
    done = []

    class Here:
        def run(self, process, pieces):
            for piece in pieces:
                process(worker, *piece.arguments)
                done.append(piece.number)
            return [(piece, None) for piece in pieces]

    count, index = np.arange(4), SimpleNamespace(shards=(Shard(name, 4),))
    layout = laid_out([f"t{k}" for k in count], count + 10, count * 0, [0])
    scope = scoped(run, model, layout, index=index, crew=Here())
    worst.missing_factors(scope, {"0.8": np.array([2, 0])}, "partials/top-seeds")
    assert done == [0]
    assert storage.list("partials/top-seeds") == [run.part("partials/top-seeds", model, Temperature(0.8), 0)]
    found = storage.read_table(storage.list("partials/top-seeds")[0])
    assert found.column("text_id").to_pylist() == ["t2", "t0"]
    expected = worker.encoder.encode(texts, factors=True).factors  # Still under 0.8, the temperature of its last work.
    for row, k in zip(found.to_pylist(), (2, 0), strict=True):
        factor = np.float32(row["factor"]).reshape(row["rank"], -1)
        np.testing.assert_array_equal(factor, principal_rows(expected[k][1]).numpy())


def test_the_threshold_is_that_of_pairs_near_in_embedding_whatever_their_means(tmp_path, monkeypatch):
    """CLS-like texts: every two token means are alike, few embeddings are, and the largest d_Σ are between far ones."""
    texts, ranked = 40, 5
    first, second = np.triu_indices(texts, 1)
    random = np.random.default_rng(0)
    vectors = np.eye(texts, dtype=np.float32)
    vectors[1::2] += 3 * vectors[::2]  # Texts 2k and 2k + 1 are near, no others.
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    near = (first // 2 == second // 2) & (first % 2 == 0)
    d_sigma = np.where(near, 0.4, 0.7) + 0.1 * random.random(len(first))
    matrix = np.zeros((texts, texts))
    matrix[first, second] = d_sigma

    def measured(cluster, files, wanted, *_):
        own = matrix[wanted.first, wanted.second]
        return socm_tables.PairValues(wanted.first, wanted.second, 0 * own, own, own)

    model, temperature = Model("tiny", "tiny", "", 64), Temperature(1.0)
    run = Run(Storage(str(tmp_path)), [model], [temperature], "")
    run.storage.write_json(f"{run.place('partials/cosine', model, temperature)}/closed.json", {"cosine_p99": 0.9})
    monkeypatch.setattr(worst.FactorFiles, "of", lambda *_: None)
    monkeypatch.setattr(factor_pairs, "pair_values", measured)
    monkeypatch.setattr(worst.Embedded, "embeddings", lambda *_: vectors)
    monkeypatch.setattr(worst.blocks, "tiling", lambda *_: (None, []))
    monkeypatch.setattr(worst, "column", lambda *_: np.ones(texts))
    layout = laid_out([str(k) for k in range(texts)], np.zeros(texts), np.zeros(texts, dtype=int), [0])
    scope = scoped(run, model, layout, analysis={"worst_pairs": ranked})
    begun = worst.seed_thresholds(scope, temperature, np.arange(texts), means=True)
    assert begun.thresholds["same_mean"] == np.sort(d_sigma[near])[-ranked] < 0.5
    assert begun.thresholds["socm"] == np.sort(d_sigma)[-ranked] > 0.7
