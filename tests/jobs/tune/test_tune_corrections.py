"""Corrections as candidates of `tempscale tune`: fitted on development queries, scored on the embeddings that are there; the
scores are those of a search of corrected vectors.
"""

import math

import numpy as np
import polars as pl
import pytest
import torch
from score_tasks import retrieval_in
from whole_run import documented, read_record, tuned

from tempscale import Encoder
from tempscale.correction.fit import fit
from tempscale.correction.values import Correction
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.tune import CORRECTIONS
from tempscale_jobs.runs.folder import load_tables
from tempscale_jobs.tune import findings, words

pytestmark = pytest.mark.proof

SEED, WINDOW, REFERENCE = 5, 32, 0.9


@pytest.fixture(scope="module")
def texts():
    """Documents of many lengths; and queries, the end of every one of them."""
    found = list(dict.fromkeys(row["text"] for row in documented("numpy") if 60 < len(row["text"]) < 2000))[:260]
    documents = {f"d{k}": text[: 20 + 37 * k % 140] for k, text in enumerate(found)}
    return documents, {f"q{k}": text[-45:] for k, text in enumerate(found)}


@pytest.fixture(scope="module")
def task(tmp_path_factory, texts):
    return retrieval_in(
        tmp_path_factory.mktemp("search"), "ends", *texts, {f"q{k}": [f"d{k}"] for k in range(len(texts[1]))}
    )


def settings(out, task, small_model, **choosing):
    return {
        "out": str(out), "seed": SEED, "execution": {"workers": 1}, "tasks": [task],
        "embedding": {"models": [small_model], "temperatures": [REFERENCE, 0.5], "max_length": WINDOW},
        "choosing": {"layers": False} | choosing,
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_session, task, small_model):
    return tuned(settings(tmp_path_factory.mktemp("tune") / "run", task, small_model))


@pytest.fixture(scope="module")
def embedded(texts, small_model):
    """(documents, tokens before the cut, queries, the same): unit vectors of the reference, each text alone."""
    encoder = Encoder.load(small_model, device="cpu", temperature=REFERENCE, max_length=WINDOW)
    found = []
    for side in texts:
        out = [encoder.encode([text]) for text in side.values()]
        found += [torch.cat([one.embeddings for one in out]), torch.tensor(encoder.tokenizer(list(side.values())).whole)]
    assert (found[1] > WINDOW).sum() > 5  # Some were cut, and are as long as they were before.
    return found


def held(names):
    return np.array([keyed_hash(f"held out {name}", SEED) / 2**64 < 0.5 for name in names])


def ndcg(similarity, texts, chosen):
    """NDCG@10 of the chosen queries, whose one relevant document has their own number."""
    names = np.array(list(texts[0]))
    values = []
    for k in np.flatnonzero(chosen):
        ranked = sorted(range(len(names)), key=lambda j: (similarity[k, j], names[j]), reverse=True)
        rank = ranked.index(k) + 1
        values.append(1 / math.log2(rank + 1) if rank <= 10 else 0.0)
    return float(np.mean(values))


def row_of(run, recipe):
    table = pl.read_parquet(f"{run.storage.root}/tables/tuning_scores.parquet")
    (row,) = table.filter(pl.col("correction").eq_missing(pl.lit(recipe)), pl.col("tau") == REFERENCE).to_dicts()
    return row


def plain(embedded):
    """Similarities without a correction."""
    return (embedded[2].double() @ embedded[0].double().T).numpy()


def corrected(run, recipe, embedded):
    """The correction that the run left in a file, the vectors of queries and documents under it, and their similarities."""
    name = recipe.replace("(", "-").replace(")", "").replace(", ", "-")
    (data,) = run.storage.read_json(f"corrections/{name}.json")["corrections"]
    correction = Correction.of(data)
    documents, tokens, queries, query_tokens = embedded
    moved = correction.queries(queries, query_tokens), correction.documents(documents, tokens)
    return correction, moved, (moved[0].double() @ moved[1].double().T).numpy()


@pytest.mark.parametrize("recipe", CORRECTIONS)
def test_scores_are_those_of_a_search_of_vectors_corrected_without_the_held_out_queries(finished, texts, embedded, recipe):
    found, moved, similarity = corrected(finished, recipe, embedded)
    row, first, mine = row_of(finished, recipe), row_of(finished, None), held(texts[1])
    assert row["dev_score"] == pytest.approx(ndcg(similarity, texts, ~mine), abs=1e-6)
    assert row["held_score"] == pytest.approx(ndcg(similarity, texts, mine), abs=1e-6)
    assert row["held_change"] == pytest.approx(row["held_score"] - first["held_score"], abs=1e-12)
    assert (row["dev_items"], row["held_items"]) == ((~mine).sum(), mine.sum())
    assert first["held_score"] == pytest.approx(ndcg(plain(embedded), texts, mine), abs=1e-6)
    documents, tokens, queries, query_tokens = embedded
    expected = fit(recipe, documents, tokens, queries[~mine], query_tokens[~mine])
    assert found.canonical == expected.canonical == recipe
    np.testing.assert_allclose(moved[1], expected.documents(documents, tokens), atol=2e-4)
    every = fit(recipe, documents, tokens, queries, query_tokens)
    if every.recipe.asks:  # Another fit, were the held-out queries in it.
        off = moved[0] - every.queries(queries, query_tokens), moved[1] - every.documents(documents, tokens)
        assert max(float(side.abs().max()) for side in off) > 1e-4


def test_exposure_is_counted_in_the_first_ten_of_held_out_queries(finished, texts, embedded):
    table = pl.read_parquet(f"{finished.storage.root}/tables/tuning_exposure.parquet")
    assert table["correction"].unique(maintain_order=True).to_list() == [None, *CORRECTIONS]
    tokens, mine = embedded[1].numpy(), held(texts[1])
    for recipe, similarity in ((None, plain(embedded)), ("length", corrected(finished, "length", embedded)[2])):
        shown = np.argsort(-similarity[mine], axis=1)[:, :10]
        rows = table.filter(pl.col("correction").eq_missing(pl.lit(recipe))).to_dicts()
        assert len(rows) == 5
        assert sum(row["documents"] for row in rows) == len(tokens)
        for row in rows:
            inside = (tokens >= row["tokens_from"]) & (tokens <= row["tokens_to"])
            assert inside.sum() == row["documents"]
            assert row["exposure"] == pytest.approx(inside[shown].mean() / inside.mean(), abs=0.02)
            assert row["exposure_se"] > 0
            assert row["queries"] == mine.sum()
    # What is fair in the mean stays so.
    means = table.group_by("correction").agg((pl.col("exposure") * pl.col("documents")).sum() / pl.col("documents").sum())
    np.testing.assert_allclose(means["exposure"], 1.0, atol=1e-9)


def tables_of(rows, error=0.02, chosen=None):
    """The tables of a choice by scores with the exposure of each part of the documents, by correction."""
    here = {"task": "t", "split": "s", "subset": "d", "exposure_se": error}
    exposure = pl.DataFrame([here | {"correction": own, "exposure": e} for own, each in rows for e in each])
    scored = {"model": "m", "temperature": "1.0", "held_change": -0.01, "held_change_se": 0.005}
    scores = pl.DataFrame([scored | {"correction": own, "chosen": own == chosen} for own, _ in rows])
    return {"tuning_exposure": exposure, "tuning_scores": scores}


def test_of_two_exposures_the_fairer_one_is_named():
    tables = tables_of([(None, [2.0, 0.5]), ("one", [1.1, 0.9]), ("two", [0.0, 2.0])])
    (said,) = words.corrected({"without_correction": {}}, tables)
    assert "2.00 0.50" in said
    assert "one makes it 1.10 0.90" in said
    assert "−0.0100 ± 0.0098" in said
    assert words.unfairness(tables["tuning_exposure"], None) == pytest.approx(math.log(2))
    alike = tables | {"tuning_exposure": tables["tuning_exposure"].gather_every(2)}
    (said,) = words.corrected({"without_correction": {}}, alike)
    assert "one length" in said


@pytest.mark.parametrize(
    ("after", "error", "expected"),
    [([1.29, 0.8], 0.02, (0.52, 1.29)), ([0.9, 0.4], 0.02, (1.6, 0.4)), ([1.05, 1.0], 0.02, None), ([1.29, 1.0], 0.3, None)],
)
def test_a_correction_that_passes_the_fair_exposure_is_not_praised(after, error, expected):
    tables = tables_of([(None, [0.52, 1.6]), ("one", after)], error, "one")
    found = findings.overshot(tables, tables["tuning_scores"].row(1, named=True))
    assert (None if found is None else found[1:]) == expected
    choice = {"chosen": "1.0", "changed": True, "correction": "one", "reason": "it is best"}
    assert ("overshoots" in words.answer({"choice": choice}, tables)) == (expected is not None)
    fair = tables_of([(None, [0.52, 1.6]), ("one", [1.35, 0.8]), ("two", [0.6, 1.4])])
    assert "correction two makes" in words.corrected({"without_correction": {}}, fair)[0]  # Though one is nearer to 1.


@pytest.mark.proof
def test_few_queries_are_a_reason_and_no_failure(tmp_path, ray_session, texts, small_model):
    documents, queries = texts[0], dict(list(texts[1].items())[:150])
    few = retrieval_in(tmp_path, "ends", documents, queries, {name: [f"d{name[1:]}"] for name in queries})
    run = tuned(settings(tmp_path / "run", few, small_model, corrections=["centre", "remove_top"]))
    sentences = words.evidence(read_record(run.storage.root), load_tables(run.storage))
    assert "centre, centre needs at least 100 queries" in " ".join(sentences)
    table = pl.read_parquet(f"{run.storage.root}/tables/tuning_scores.parquet")
    assert table["correction"].to_list() == [None, None]
