"""Scores are those that mteb gives a plain SentenceTransformer: without a Normalize stage, by dot product, with prompts."""

import json

import numpy as np
import pytest
from score_tasks import retrieval_in
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from sklearn.linear_model import LogisticRegression
from whole_run import as_lines, documented

from tempscale import Encoder
from tempscale.model.settings import Settings
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.evaluate import OwnTask
from tempscale_jobs.config.strict import checked

mteb = pytest.importorskip("mteb")

from tempscale_jobs.evaluate.grid_model import Checkpoint, GridModel  # noqa: E402
from tempscale_jobs.evaluate.own_tasks import build  # noqa: E402
from tempscale_jobs.evaluate.scored import ScoringOptions, score  # noqa: E402

pytestmark = pytest.mark.proof

PROMPTS = {"query": "which text is this about? ", "document": "a text of a library: ", "Classification": "how long is "}


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    """A task of each kind, of docstrings: to find the rest of a text by its beginning, its size, how alike two are."""
    folder, texts = tmp_path_factory.mktemp("tasks"), [row["text"] for row in documented("pyarrow")]
    texts = [text for text in texts if 150 < len(text) < 600][:90]
    labels = [
        {"id": str(k), "text": text[:150], "label": ["short", "long", "longer"][(len(text) > 250) + (len(text) > 400)]}
        for k, text in enumerate(texts)
    ]
    pairs = [
        {"sentence1": one, "sentence2": one[: 3 * k] + other, "score": k}
        for k, (one, other) in enumerate(zip(texts[:30], texts[30:60], strict=True))
    ]
    ranked = [
        {"query": text[:60], "positives": [text[60:]], "negatives": [other[60:] for other in texts[k + 1 : k + 8]]}
        for k, text in enumerate(texts[:30])
    ]
    for name, rows in (("labels", labels), ("pairs", pairs), ("ranked", ranked)):
        (folder / f"{name}.jsonl").write_text(as_lines(rows))
    corpus = {f"d{k}": text[60:] for k, text in enumerate(texts)}
    queries = {f"q{k}": text[:60] for k, text in enumerate(texts[:40])}
    labelled = {"source": str(folder / "labels.jsonl")}
    return {
        "retrieval": retrieval_in(folder, "rest", corpus, queries, {f"q{k}": [f"d{k}"] for k in range(40)}),
        "classification": {"name": "sizes", "type": "classification"} | labelled,
        "clustering": {"name": "groups", "type": "clustering"} | labelled,
        "sts": {"name": "alike", "type": "sts", "source": str(folder / "pairs.jsonl")},
        "reranking": {"name": "ranked", "type": "reranking", "source": str(folder / "ranked.jsonl")},
    }


@pytest.fixture(scope="module", params=["bare", "dot", "prompts", pytest.param("the real one", marks=pytest.mark.soak)])
def folder(request, small_model, minilm, tmp_path_factory):
    """A model's folder: without Normalize, compared by dot product, or with prompts."""
    if request.param == "the real one":
        return minilm
    found = tmp_path_factory.mktemp("model") / "tiny"
    SentenceTransformer(modules=[Transformer(small_model), Pooling(64)], device="cpu").save(str(found))
    file = found / "config_sentence_transformers.json"
    more = {"dot": {"similarity_fn_name": "dot"}, "prompts": {"prompts": PROMPTS}}.get(request.param, {})
    file.write_text(json.dumps(json.loads(file.read_text()) | more))
    return found


@pytest.mark.parametrize("kind", ["retrieval", "classification", "clustering", "sts", "reranking"])
def test_every_score_is_that_of_mteb_with_the_plain_model(folder, tasks, kind):
    settings = Settings.of(folder)
    encoder = Encoder.load(folder, device="cpu", prompt="")
    model = GridModel(encoder, Checkpoint("tiny", "rev", settings.similarity, settings if settings.has_prompts else None))

    def task():
        own = build(checked(OwnTask, tasks[kind]), 0)
        if kind == "classification":
            # A regression that stops before it has converged multiplies last digits, on some processors to .003.
            own.evaluator_model = LogisticRegression(max_iter=20_000, tol=1e-8)
        return own

    plain = SentenceTransformer(str(folder), device="cpu")
    theirs = mteb.evaluate(plain, task(), cache=None, show_progress_bar=False, co2_tracker=False).task_results[0]
    (expected,) = theirs.scores["test"]
    (found,) = score(task(), model, Temperature(1.0), ScoringOptions(keep=False)).result["scores"]["test"]
    numbers = {name for name, value in expected.items() if isinstance(value, float) and np.isfinite(value)}
    assert len(numbers) > 3
    assert {name: found[name] for name in numbers} == pytest.approx({name: expected[name] for name in numbers}, abs=1e-6)
    assert 0.02 < abs(found["main_score"]) < 1
