"""Corrections as candidates of `tempscale tune`: fitted on development queries, scored on the embeddings that are there; the
scores are those of a search of corrected vectors.
"""

import json
import math
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from whole_run import as_lines, documented, tuned

from tempscale import Encoder
from tempscale.correction.fit import fit
from tempscale.correction.values import Correction
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.tune import CORRECTIONS, TuneConfig
from tempscale_jobs.errors import UsageError
from tempscale_jobs.tune import words
from tempscale_jobs.tune.report import close_tune

pytestmark = pytest.mark.proof

SEED, WINDOW, REFERENCE = 5, 32, 0.9


@pytest.fixture(scope="module")
def texts():
    """Documents of many lengths; and queries, the end of every one of them."""
    found = list(dict.fromkeys(row["text"] for row in documented("numpy") if 60 < len(row["text"]) < 2000))[:260]
    documents = {f"d{k}": text[: 20 + 37 * k % 140] for k, text in enumerate(found)}
    return documents, {f"q{k}": text[-45:] for k, text in enumerate(found)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, texts):
    own = tmp_path_factory.mktemp("search")
    for name, side in zip(("corpus", "queries"), texts, strict=True):
        (own / f"{name}.jsonl").write_text(as_lines({"id": key, "text": text} for key, text in side.items()))
    rows = [f"q{k}\td{k}\t1" for k in range(len(texts[1]))]
    (own / "qrels.tsv").write_text("\n".join(["query_id\tdoc_id\tscore", *rows]))
    return own


def settings(out, folder, small_model, **choosing):
    return {
        "out": str(out), "seed": SEED, "execution": {"workers": 1},
        "tasks": [{"name": "ends", "type": "retrieval"}
                  | {name: str(folder / f"{name}.{'tsv' if name == 'qrels' else 'jsonl'}")
                     for name in ("corpus", "queries", "qrels")}],
        "embedding": {"models": [small_model], "temperatures": [REFERENCE, 0.5], "max_length": WINDOW},
        "choosing": {"layers": False} | choosing,
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_session, folder, small_model):
    return tuned(settings(tmp_path_factory.mktemp("tune") / "run", folder, small_model))


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
    (row,) = table.filter(pl.col("correction").eq_missing(pl.lit(recipe))).filter(pl.col("tau") == REFERENCE).to_dicts()
    return row


def corrected(run, recipe, embedded):
    """Similarities under the correction that the run left in a file."""
    name = recipe.replace("(", "-").replace(")", "").replace(", ", "-")
    (data,) = run.storage.read_json(f"corrections/{name}.json")["corrections"]
    correction = Correction.of(data)
    documents, tokens, queries, query_tokens = embedded
    moved = correction.queries(queries, query_tokens), correction.documents(documents, tokens)
    return correction, moved, (moved[0].double() @ moved[1].double().T).numpy()


@pytest.mark.parametrize("recipe", CORRECTIONS)
def test_scores_are_those_of_a_search_of_corrected_vectors(finished, texts, embedded, recipe):
    _, _, similarity = corrected(finished, recipe, embedded)
    row, mine = row_of(finished, recipe), held(texts[1])
    assert row["dev_score"] == pytest.approx(ndcg(similarity, texts, ~mine), abs=1e-6)
    assert row["held_score"] == pytest.approx(ndcg(similarity, texts, mine), abs=1e-6)
    first = row_of(finished, None)
    assert row["held_change"] == pytest.approx(row["held_score"] - first["held_score"], abs=1e-12)
    assert (row["dev_items"], row["held_items"]) == ((~mine).sum(), mine.sum())
    plain = (embedded[2].double() @ embedded[0].double().T).numpy()
    assert first["held_score"] == pytest.approx(ndcg(plain, texts, mine), abs=1e-6)


@pytest.mark.parametrize("recipe", CORRECTIONS)
def test_a_correction_is_fitted_without_the_held_out_queries(finished, texts, embedded, recipe):
    documents, tokens, queries, query_tokens = embedded
    own = ~held(texts[1])
    expected = fit(recipe, documents, tokens, queries[own], query_tokens[own])
    found, moved, _ = corrected(finished, recipe, embedded)
    assert found.canonical == expected.canonical == recipe
    np.testing.assert_allclose(moved[1], expected.documents(documents, tokens), atol=2e-4)
    every = fit(recipe, documents, tokens, queries, query_tokens)
    if every.recipe.asks:  # Another fit, were the held-out queries in it.
        assert (
            float((moved[0] - every.queries(queries, query_tokens)).abs().max()) > 1e-4
            or float((moved[1] - every.documents(documents, tokens)).abs().max()) > 1e-4
        )


@pytest.mark.parametrize("recipe", ["length", "csls(10, 0.5)", "centre"])
def test_an_index_of_faiss_finds_what_was_promised(finished, texts, embedded, recipe):
    faiss = pytest.importorskip("faiss", reason="faiss is not installed")
    _, (queries, documents), _ = corrected(finished, recipe, embedded)
    index = faiss.IndexFlatIP(documents.shape[1])
    index.add(documents.numpy())
    similarity = np.full((len(queries), len(documents)), -np.inf)
    scores, places = index.search(queries.numpy(), len(documents))
    np.put_along_axis(similarity, places, scores, axis=1)
    assert row_of(finished, recipe)["held_score"] == pytest.approx(ndcg(similarity, texts, held(texts[1])), abs=1e-6)


def test_exposure_is_counted_in_the_first_ten_of_held_out_queries(finished, texts, embedded):
    table = pl.read_parquet(f"{finished.storage.root}/tables/tuning_exposure.parquet")
    assert table["correction"].unique(maintain_order=True).to_list() == [None, *CORRECTIONS]
    tokens, mine = embedded[1].numpy(), held(texts[1])
    for recipe in (None, "length"):
        similarity = (
            (embedded[2].double() @ embedded[0].double().T).numpy()
            if recipe is None
            else corrected(finished, recipe, embedded)[2]
        )
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


def test_the_sentence_says_what_a_correction_gives_and_costs(finished, capsys):
    close_tune(finished)
    out = capsys.readouterr().out
    assert "Documents of each fifth of length, shortest first, are shown " in out
    assert "Without embedding again, the correction " in out
    assert "changes the held-out score by " in out
    page = finished.storage.read("report.html").decode()
    assert "whiten(0.5) at" in page


def test_of_two_exposures_the_fairer_one_is_named():
    rows = [(None, [2.0, 0.5]), ("one", [1.1, 0.9]), ("two", [0.0, 2.0])]
    exposure = pl.DataFrame(
        [{"correction": own, "task": "t", "split": "s", "subset": "d", "exposure": e} for own, each in rows for e in each]
    )
    scores = pl.DataFrame([{"correction": own, "held_change": -0.01, "held_change_se": 0.005} for own, _ in rows])
    (said,) = words.corrected({"without_correction": {}}, {"tuning_exposure": exposure, "tuning_scores": scores})
    assert "are shown 2.00 0.50 times" in said
    assert "the correction one makes it 1.10 0.90, and changes the held-out score by −0.0100 ± 0.0098" in said
    assert words.unfairness(exposure, None) == pytest.approx(math.log(2))
    (said,) = words.corrected(
        {"without_correction": {}}, {"tuning_exposure": exposure.gather_every(2), "tuning_scores": scores}
    )
    assert said == "All documents are of one length as the model sees them, so no length can win."


@pytest.mark.soak
def test_few_queries_are_a_reason_and_no_failure(tmp_path, ray_session, folder, small_model, capsys):
    lines = (folder / "queries.jsonl").read_text().splitlines()[:150]
    (tmp_path / "queries.jsonl").write_text("\n".join(lines))
    rows = (folder / "qrels.tsv").read_text().splitlines()[:151]
    (tmp_path / "qrels.tsv").write_text("\n".join(rows))
    data = settings(tmp_path / "run", folder, small_model, corrections=["centre", "remove_top"])
    data["tasks"][0] |= {"queries": str(tmp_path / "queries.jsonl"), "qrels": str(tmp_path / "qrels.tsv")}
    run = tuned(data)
    close_tune(run)
    out = " ".join(capsys.readouterr().out.split())
    assert "No correction was tried: centre, centre needs at least 100 asking texts; there are " in out
    table = pl.read_parquet(f"{run.storage.root}/tables/tuning_scores.parquet")
    assert table["correction"].to_list() == [None, None]


def test_a_correction_that_there_is_not_is_a_sentence(tmp_path, folder, small_model):
    for recipes, sentence in (
        (["whitening"], "there is no correction 'whitening'"),
        (["length", "length(2)"], "is given twice"),
    ):
        with pytest.raises(UsageError, match=sentence):
            TuneConfig.from_data(settings(tmp_path, folder, small_model, corrections=recipes))


@pytest.mark.soak
def test_a_pair_task_has_no_correction(tmp_path, ray_session, small_model, texts, capsys):
    documents = list(texts[0].values())
    rows = [{"sentence1": a, "sentence2": b, "score": k % 6} for k, (a, b) in enumerate(pairwise(documents))]
    (tmp_path / "pairs.jsonl").write_text(as_lines(rows))
    data = settings(tmp_path / "run", tmp_path, small_model)
    data["tasks"] = [{"name": "pairs", "type": "sts", "source": str(tmp_path / "pairs.jsonl")}]
    run = tuned(data)
    close_tune(run)
    assert "No correction was tried: pairs, no retrieval, so nothing asks." in capsys.readouterr().out
    assert json.loads(run.storage.read("run.json"))["choice"]["correction"] is None
