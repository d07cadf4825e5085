"""The vectors of users: those of `SentenceTransformer(…).encode` with its defaults, for every head, window and prompt."""

import numpy as np
import pytest
import torch
from sentence_transformers_cases import apart, as_users_have_it, change

from tempscale.model.checkpoint import ModelError
from tempscale.model.encoder import Encoder
from tempscale.model.pooling import POOLINGS
from tempscale.model.settings import Settings
from tempscale.model.tokens import Tokenizer

TEXTS = ["a", "b c", "the quick brown fox", "0 1 2 3 4 5 6 7 8 9", "mean pooling hides what differs", "a b " * 40, "!"]


@pytest.fixture
def saved(tiny_folder, tmp_path):
    """A function that saves a tiny model as sentence-transformers does, with other settings, and returns its folder."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer

    def save(*stages, **settings):
        torch.manual_seed(0)
        stages = stages or [Pooling(32)]
        for stage in stages:
            for parameter in stage.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
        SentenceTransformer(modules=[Transformer(str(tiny_folder("bert"))), *stages], device="cpu").save(str(tmp_path))
        for file, more in settings.items():
            change(tmp_path, f"{file}.json", **more)
        return tmp_path

    return save


# --- heads ------------------------------------------------------------------------------------------------------------

STAGES = {
    **{
        mode: lambda models, mode=mode: [
            models.Pooling(32, pooling_mode=mode), models.Dense(32, 12), models.LayerNorm(12), models.Normalize(),
        ]
        for mode in POOLINGS
    },
    **{
        f"{name}, {bias=}": lambda models, name=name, bias=bias: [
            models.Pooling(32), models.Dense(32, 12, bias=bias, activation_function=getattr(torch.nn, name)())
        ]
        for name in ("Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid")
        for bias in (True, False)
    },
    "a residual": lambda models: [models.Pooling(32), models.Dense(32, 32, use_residual=True)],
    "a residual to another width": lambda models: [models.Pooling(32), models.Dense(32, 12, use_residual=True)],
    "another order": lambda models: [models.Pooling(32), models.LayerNorm(32), models.Dense(32, 12)],
}  # fmt: skip


@pytest.mark.proof
@pytest.mark.parametrize("stages", STAGES)
def test_every_head_and_window_gives_the_vectors_of_sentence_transformers(saved, stages):
    from sentence_transformers import SentenceTransformer, models

    folder = saved(*STAGES[stages](models))
    for window in (12, 64):
        change(folder, "sentence_bert_config.json", max_seq_length=window)
        model, encoder = SentenceTransformer(str(folder), device="cpu"), Encoder.load(folder, device="cpu")
        assert encoder.tokenizer.max_length == model.max_seq_length == window
        expected, found = model.encode(TEXTS), as_users_have_it(encoder, TEXTS)
        assert apart(found, expected) < 1e-5
        norms = np.linalg.norm(expected, axis=1)
        assert np.abs(norms - 1).max() < 1e-5 if stages in POOLINGS else np.abs(norms - 1).max() > 0.05
        assert np.abs(found - found[0]).max() > 0.1


def test_the_real_model_has_its_own_window_and_the_vectors_of_its_users(minilm, real_texts):
    from sentence_transformers import SentenceTransformer

    texts = real_texts[::4]
    model, encoder = SentenceTransformer(str(minilm), device="cpu"), Encoder.load(minilm, device="cpu")
    assert encoder.tokenizer.max_length == model.max_seq_length == max(encoder.tokenizer(texts).lengths) == 256
    assert apart(as_users_have_it(encoder, texts), model.encode(texts, batch_size=4)) < 1e-5


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.proof
@pytest.mark.parametrize(
    ("own", "asked", "expected"), [(12, None, 12), (12, 20, 20), (12, "limit", 64), (None, "limit", 64), (1000, None, 64)]
)
def test_the_window_is_the_checkpoints_own_unless_another_is_asked_for(saved, own, asked, expected):
    folder = saved(**({"sentence_bert_config": {"max_seq_length": own}} if own else {}))
    assert Tokenizer(folder, asked).max_length == expected
    if own is None:  # A tokenizer that cuts earlier decides the window and not the limit.
        change(folder, "tokenizer_config.json", model_max_length=20)
        assert (Tokenizer(folder).max_length, Tokenizer(folder, "limit").max_length) == (20, 64)


@pytest.mark.proof
@pytest.mark.parametrize("window", ["many", 0, 2.5])
def test_a_window_that_is_no_number_is_a_sentence(saved, window):
    folder = saved(sentence_bert_config={"max_seq_length": window})
    with pytest.raises(ModelError, match="max_seq_length"):
        Tokenizer(folder)


# --- prompts ----------------------------------------------------------------------------------------------------------

PROMPTS = {"query": "find this : ", "document": "read this : ", "topic": "what is "}


@pytest.mark.proof
@pytest.mark.parametrize("default", [None, "topic", "query"])
def test_prompts_are_those_of_encode_and_of_encode_query_and_encode_document(saved, default):
    from sentence_transformers import SentenceTransformer

    folder = saved(config_sentence_transformers={"prompts": PROMPTS, "default_prompt_name": default})
    model, settings = SentenceTransformer(str(folder), device="cpu"), Settings.of(folder)
    plain = Encoder.load(folder, prompt="", device="cpu")
    assert apart(as_users_have_it(Encoder.load(folder, device="cpu"), TEXTS), model.encode(TEXTS)) < 1e-5
    for which, role, encode in (
        ("default", "query", model.encode), ("default", "document", model.encode), ("model", "query", model.encode_query),
        ("model", "document", model.encode_document),
    ):  # fmt: skip
        prompt = settings.prompt(which, role)
        encoder = Encoder.load(folder, prompt=prompt, device="cpu")
        assert apart(as_users_have_it(encoder, TEXTS), encode(TEXTS)) < 1e-5
        if prompt:
            assert apart(as_users_have_it(plain, TEXTS), encode(TEXTS)) > 1e-2
    assert settings.prompt("none", "query") == ""


@pytest.mark.proof
def test_a_prompt_that_is_not_pooled_is_refused_and_the_model_without_it_is_not(saved):
    from sentence_transformers import SentenceTransformer

    folder = saved(config_sentence_transformers={"prompts": PROMPTS})
    change(folder / "1_Pooling", "config.json", include_prompt=False)
    with pytest.raises(ModelError, match=r"include_prompt .*--prompts none"):
        Encoder.load(folder, prompt="find this : ")
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    assert apart(as_users_have_it(Encoder.load(folder, device="cpu"), TEXTS), expected) < 1e-5


@pytest.mark.proof
def test_a_default_prompt_that_is_not_there_is_a_sentence(saved):
    folder = saved(config_sentence_transformers={"prompts": {"query": "?"}, "default_prompt_name": "topic"})
    with pytest.raises(ModelError, match=r"'topic' .*\(query\)"):
        Settings.of(folder)


@pytest.mark.proof
@pytest.mark.parametrize(("saved_as", "expected"), [(None, "cosine"), ("dot", "dot"), ("euclidean", "euclidean")])
def test_similarity_is_what_the_checkpoint_names(saved, saved_as, expected):
    folder = saved(config_sentence_transformers={"similarity_fn_name": saved_as})
    assert Settings.of(folder).similarity == expected


@pytest.mark.proof
def test_a_plain_transformers_folder_has_the_defaults(tiny_folder):
    settings = Settings.of(tiny_folder("bert"))
    assert (settings.window, settings.default_prompt, settings.similarity, settings.stages) == (None, "", "cosine", ())
    assert not settings.has_prompts
