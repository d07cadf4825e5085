"""Whole audits with a model or tokenizer that fails on some texts, in bfloat16, and with measured micro-batches."""

import json
import random
import shutil
import weakref
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from whole_run import as_lines, audited, digests, read_parts, read_record, rejected

from tempscale import Encoder, Temperature
from tempscale.model.budgets import TOKEN_BUDGET
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.budget import stored
from tempscale_jobs.workers import actor
from tempscale_jobs.workers.cluster import Cluster

pytestmark = [pytest.mark.proof, pytest.mark.usefixtures("ray_session")]

TEXTS = 120
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
WORDS = ["river", "bridge", "winter", "market", "engine", "garden", "paper", "silver", "and", "the"]


@pytest.fixture(scope="module")
def texts():
    generator = random.Random(0)
    return [
        {"id": f"t{k:03d}", "text": " ".join(generator.choices(WORDS, k=generator.randint(3, 60)))} for k in range(TEXTS)
    ]


@pytest.fixture
def run(tmp_path, small_model):
    """Audits records; returns run.json, and the embeddings under τ = 1 with the rest of texts/ by id."""

    def run(name, records, model=small_model, **more):
        (tmp_path / f"{name}.jsonl").write_text(as_lines(records))
        data = {
            "out": str(tmp_path / name), "corpus": {"source": str(tmp_path / f"{name}.jsonl")},
            "embedding": {"models": [str(model)]} | more.pop("embedding", {}), "execution": {"workers": 1},
            "analysis": {"socm_sample": 0, "probe_sample": 0} | more.pop("analysis", {}),
        }  # fmt: skip
        audited(data | more)
        return read_record(tmp_path / name), read_parts(tmp_path / name, "texts", 1.0).sort("text_id")

    return run


# --- what fails -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict_model(small_model, tmp_path_factory):
    """The small model with a tokenizer that fails on a character which it does not know, instead of saying [UNK]."""
    folder = Path(shutil.copytree(small_model, tmp_path_factory.mktemp("strict") / "strict"))
    tokenizer, config = (json.loads((folder / name).read_text("utf-8")) for name in TOKENIZER)
    tokenizer["model"]["unk_token"] = "[NONE]"
    config["tokenizer_class"] = "PreTrainedTokenizerFast"  # BERT's own class would set the token again.
    for name, data in zip(TOKENIZER, (tokenizer, config), strict=True):
        (folder / name).write_text(json.dumps(data), "utf-8")
    return folder


@pytest.mark.parametrize("long", ["truncate", pytest.param("chunk", marks=pytest.mark.soak)])
def test_texts_that_the_tokenizer_fails_on_are_recorded_and_change_no_other(run, texts, strict_model, tmp_path, long):
    strange = [{"id": "strange", "text": "a \U0001f4a5 here"}, {"id": "too", "text": "\U0001f4a5"}]
    settings = {"max_length": 32, "long": long}
    with_them = [*texts[:50], strange[0], *texts[50:], strange[1]]
    analysis = {"socm_sample": 20, "socm_top_over": "corpus", "worst_pairs": 5} if long == "truncate" else {}
    _, expected = run("without", texts, strict_model, embedding=settings, analysis=analysis)
    record, found = run("with", with_them, strict_model, embedding=settings, analysis=analysis)
    reasons = rejected(tmp_path / "with")
    assert set(reasons) == {"strange", "too"}
    assert all("strict: the tokenizer" in reason and "[UNK]" in reason for reason in reasons.values())
    assert record["corpus"]["rejected_by_models"] == 2
    assert found["text_id"].to_list() == expected["text_id"].to_list()
    # Micro-batches follow from lengths, and what stands for such a text is the shortest of all: the same, to the bit.
    assert found["embedding"].to_list() == expected["embedding"].to_list()
    if analysis:  # A search that tokenises whole shards again.
        pairs = [pl.read_parquet(tmp_path / name / "tables" / "socm_pairs.parquet") for name in ("with", "without")]
        assert len(pairs[0]) >= 10
        assert pairs[0].equals(pairs[1])


def test_groups_of_texts_in_chunks_have_the_pairs_of_texts_and_not_of_chunks(run, texts, small_model, tmp_path):
    analysis = {"socm_sample": None, "socm_groups": 10, "socm_ranked": 8}
    _, found = run("chunks", texts, small_model, embedding={"max_length": 32, "long": "chunk"}, analysis=analysis)
    assert found["tokens"].max() > 32  # Some texts are several chunks.
    own = dict(zip(found["text_id"].to_list(), found["embedding"].to_numpy().astype(float), strict=True))
    groups = read_parts(tmp_path / "chunks", "partials/groups", "1.0").to_dicts()
    assert len(groups) == 10
    for group in groups:
        unit = np.array([own[text_id] for text_id in group["text_id"]])
        # The model pools by the mean, so d_μ follows from the embeddings: (1 − cos)/2.
        expected = (1 - unit @ unit.T)[np.triu_indices(len(unit), 1)] / 2
        np.testing.assert_allclose(group["d_mu"], expected, atol=1e-6)
        assert min(group["d_sigma"]) > 0


def test_a_text_with_a_number_that_is_none_is_rejected(run, texts, small_model, tmp_path):
    folder = Path(shutil.copytree(small_model, tmp_path / "broken"))
    weights = load_file(folder / "model.safetensors")
    token = Encoder.load(small_model).tokenizer(["quantum"]).ids[0][1]
    (name,) = [key for key in weights if key.endswith("word_embeddings.weight")]
    weights[name][token] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    poisoned = [row | {"text": row["text"] + " quantum"} if k in (7, 31) else row for k, row in enumerate(texts)]
    record, found = run("run", poisoned, folder)
    reasons = rejected(tmp_path / "run")
    assert set(reasons) == {"t007", "t031"}
    assert all(reason.startswith("broken: ") for reason in reasons.values())
    assert record["corpus"]["rejected_by_models"] == 2
    (model,) = record["models"].values()
    assert (model["token_budget"], model["tokens_per_second"]) == (TOKEN_BUDGET, {})  # The encoder's own.
    assert len(Storage(str(tmp_path / "run")).list("partials/budget")) == 1
    assert len(found) == TEXTS - 2
    expected = Encoder.load(small_model).encode([row["text"] for k, row in enumerate(poisoned) if k not in (7, 31)])
    np.testing.assert_allclose(np.stack(found["embedding"].to_list()), expected.embeddings.numpy(), atol=1e-6)
    summary = pl.read_parquet(tmp_path / "run" / "tables" / "collapse_summary.parquet")
    assert summary["texts"].unique().to_list() == [TEXTS - 2]
    with pytest.raises(UsageError, match="broken: "):
        run("none", [poisoned[7], poisoned[31]], folder)


# --- settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_measured_micro_batches_are_kept_and_are_those_of_the_same_budget_given(run, texts, tmp_path):
    record, _ = run("tuned", texts, embedding={"tune_batches": True})
    (model,) = record["models"].values()
    rates = {int(budget): rate for budget, rate in model["tokens_per_second"].items()}
    assert set(rates) == {256, 512, 1024, 2048, 4096}
    assert min(rates.values()) > 0
    assert model["token_budget"] == min(k for k, rate in rates.items() if rate >= 0.98 * max(rates.values()) - 1)
    again, _ = run("given", texts, embedding={"token_budget": model["token_budget"]})
    assert digests(tmp_path / "given", "tables") == digests(tmp_path / "tuned", "tables")
    (other,) = again["models"].values()
    assert other["token_budget"] == model["token_budget"]


@pytest.mark.soak
def test_a_worker_loads_the_model_once_for_all_steps_before_the_tiles(run, texts, monkeypatch):
    """One load by one worker; the search of the worst pairs of a whole corpus needs another one after its tiles."""
    loads, arguments = [], actor.arguments
    monkeypatch.setattr(actor, "arguments", lambda *given: loads.append(None) or arguments(*given))
    everything = {"socm_sample": 20, "probe_sample": 5, "worst_pairs": 5}
    run("once", texts, embedding={"tune_batches": True}, analysis=everything)
    assert len(loads) == 1
    run("searched", texts, embedding={"tune_batches": True}, analysis=everything | {"socm_top_over": "corpus"})
    assert len(loads) == 3


@pytest.mark.parametrize(("of", "budget"), [("cpu", 90), (None, 90), ("cuda", TOKEN_BUDGET)])
def test_a_run_that_comes_to_another_kind_of_device_takes_the_usual_budget_there(tmp_path, small_model, of, budget):
    """What a user gave is kept, and a worker that starts again goes on with what was measured."""
    storage, model = Storage(str(tmp_path)), Model("small", str(small_model), "", 64)
    storage.write_json(actor.budget_name(model), actor.budget_to_keep(90, of))
    assert actor.ModelActor(storage, model, [1.0], {"token_budget": None}, 0).encoder.token_budget == budget
    again = actor.ModelActor(storage, model, [1.0], {"token_budget": 1024}, 0)
    assert again.encoder.token_budget == (1024 if of == "cuda" else 90)
    run = Run(storage, [model], [Temperature(1.0)], "")
    scope = SimpleNamespace(run=run, cluster=Cluster(1, 0), model=model, encoding=Embedding.model_validate({}))
    assert stored(scope).token_budget == (90 if budget == 90 else None)


def test_an_actor_without_its_model_computes_what_needs_none(tmp_path, small_model):
    worker = actor.ModelActor(Storage(str(tmp_path)), Model("small", str(small_model), "", 64), [1.0], {}, 0)
    model = weakref.ref(worker.encoder.model)
    worker.unload()
    assert model() is None
    done = []
    worker.call(done.append, "tile")
    assert done == ["tile"]


@pytest.mark.soak
def test_what_may_differ_in_the_embeddings_of_queries_is_listed_too(run, texts, tmp_path):
    (tmp_path / "queries.jsonl").write_text(as_lines({"text": f"where is {row['text']}"} for row in texts[:10]))
    queries, execution = {"source": str(tmp_path / "queries.jsonl")}, {"workers": 2, "cache": str(tmp_path / "cache")}
    first, second = (run(name, texts, queries=queries, execution=execution)[0] for name in ("first", "second"))
    assert first["byte_identity_exceptions"] == []
    of_queries, of_texts = sorted(second["byte_identity_exceptions"])
    assert of_queries.startswith("queries: ")
    assert "10 of 10 texts" in of_queries
    assert f"{TEXTS} of {TEXTS} texts" in of_texts
