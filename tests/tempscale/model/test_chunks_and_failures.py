"""Texts in chunks, memory that runs out, texts that the model fails on, bfloat16: against plain float64 and whole runs."""

import numpy as np
import oracles
import pytest
import torch
from transformers import AutoTokenizer

from tempscale.model.batches import NO_MEMORY, lost_device, run_batches
from tempscale.model.checkpoint import ModelError
from tempscale.model.encoder import Encoder
from tempscale.model.sequences import Tokens
from tempscale.model.tokens import Tokenizer
from tempscale.second_order.moments import token_sums

WINDOW = 9
NO_ROOM = [
    torch.OutOfMemoryError("CUDA out of memory"), MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: you tried 1 bytes"),
]  # fmt: skip
TEXTS = ["a b", "a quick brown fox jumps over it all", "z", "0 1 2 3 4 5 6 7 8 9", "one two three four", "a b c d e f g"]


@pytest.fixture(scope="module")
def folder(tiny_folder):
    return tiny_folder("bert")


@pytest.fixture(scope="module")
def chunking(folder):
    return Encoder.load(folder, device="cpu", max_length=WINDOW, token_budget=20, long="chunk")


def plain(encoder, folder, text):
    """A text's token embeddings: every window of its tokens with special tokens of its own, one after another."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inner = tokenizer(text, add_special_tokens=False)["input_ids"]
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    windows = [[first, *inner[k : k + WINDOW - 2], last] for k in range(0, len(inner), WINDOW - 2)]
    with torch.inference_mode():
        return [encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0].double().numpy() for ids in windows]


# --- chunks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 0.7])
def test_chunks_together_are_the_text(folder, chunking, tau):
    chunking.set_temperature(tau)
    out, without = chunking.encode(TEXTS, factors=True), chunking.encode(TEXTS, moments=False)
    chunks = [plain(chunking, folder, text) for text in TEXTS]
    chunking.set_temperature(1.0)
    assert max(map(len, chunks)) >= 3
    assert min(map(len, chunks)) == 1
    assert not out.truncated.any()
    assert (without.moments, without.factors) == (None, None)
    for k, own in enumerate(chunks):
        x = np.concatenate(own)
        assert out.tokens[k] == len(x)
        mean, sigma = oracles.moments(x)
        for found in (out, without):
            np.testing.assert_allclose(found.embeddings[k].numpy(), mean / np.linalg.norm(mean), atol=1e-6)
            np.testing.assert_allclose(found.norms[k], np.linalg.norm(mean), rtol=1e-5)
        np.testing.assert_allclose(out.moments.mean_norm[k], np.linalg.norm(mean), rtol=1e-5)
        np.testing.assert_allclose(out.moments.spread[k], oracles.spread(x), rtol=1e-5)
        np.testing.assert_allclose(out.moments.within_cosine[k], oracles.within_cosine(x), rtol=1e-5)
        factor = out.factors[k][1].double().numpy()
        np.testing.assert_allclose(factor.T @ factor, sigma / (mean @ mean), atol=1e-6)


def test_a_chunk_by_hand(chunking):
    tokens = chunking.tokenizer(["a", "a b c d e f g h"])
    assert [len(own) for own in tokens.chunks()] == [1, 2]
    assert tokens.lengths == [3, 9 + 3]
    assert tokens.text == [0, 1, 1]
    assert tokens.chunks()[1][1][1:-1] == chunking.tokenizer(["h"]).ids[0][1:-1]
    assert Tokens.of_chunks(tokens.chunks(), tokens.truncated) == tokens


def test_texts_within_the_window_are_as_if_never_chunked(folder, chunking):
    short = [text for text in TEXTS if len(plain(chunking, folder, text)) == 1]
    cut = Encoder.load(folder, device="cpu", max_length=WINDOW, token_budget=20)
    assert len(short) >= 3
    assert chunking.tokenizer(short) == cut.tokenizer(short)
    assert torch.equal(chunking.encode(short).embeddings, cut.encode(short).embeddings)


@pytest.mark.parametrize("pieces", [1, 2, 5, 11])
def test_merged_sums_do_not_depend_on_the_cuts(pieces):
    x = torch.randn(11, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 2
    cut = torch.chunk(x, pieces)
    sums = [token_sums(own.unsqueeze(0), torch.ones(1, len(own), dtype=torch.bool)) for own in cut]
    together = type(sums[0])(*(torch.cat(column) for column in zip(*sums, strict=True)))
    found = together.merged(torch.zeros(len(cut), dtype=torch.long), 1).moments()
    np.testing.assert_allclose(found.spread[0], oracles.spread(x.numpy()), rtol=1e-12)
    np.testing.assert_allclose(found.within_cosine[0], oracles.within_cosine(x.numpy()), rtol=1e-12)


# --- what can go wrong ------------------------------------------------------------------------------------------------


def failing(encoder, monkeypatch, rule):
    """Let `rule(ids)` raise before a micro-batch runs; returns the sizes of those that did run."""
    ran, hidden = [], encoder.hidden_states

    def guarded(ids, mask, tokens):
        rule([row[own].tolist() for row, own in zip(ids, mask, strict=True)])
        ran.append(len(ids))
        return hidden(ids, mask, tokens)

    monkeypatch.setattr(encoder, "hidden_states", guarded)
    return ran


@pytest.fixture
def encoder(folder):
    return Encoder.load(folder, device="cpu", token_budget=600)


@pytest.mark.parametrize("error", NO_ROOM)
@pytest.mark.parametrize("isolate", [True, False])
def test_a_batch_that_memory_does_not_hold_runs_in_halves(encoder, monkeypatch, error, isolate):
    expected = encoder.encode(TEXTS, factors=True)
    assert expected.halved == []

    def rule(ids):
        if len(ids) > 2:
            raise error

    ran = failing(encoder, monkeypatch, rule)
    out = encoder.encode_tokens(encoder.tokenizer(TEXTS), factors=True, isolate=isolate)
    assert max(ran) == 2
    assert sum(ran) == len(TEXTS)
    assert out.halved
    assert all(len(batch) > 2 for batch in out.halved)
    assert out.failed == {}
    torch.testing.assert_close(out.embeddings, expected.embeddings, atol=1e-6, rtol=0)
    torch.testing.assert_close(out.factors[1][1], expected.factors[1][1], atol=1e-6, rtol=0)


def test_texts_that_the_model_fails_on_are_found_and_the_others_embedded(encoder, monkeypatch):
    expected = encoder.encode(TEXTS, factors=True)
    tokens = encoder.tokenizer(TEXTS)

    def rule(ids):
        if tokens.ids[3] in ids:
            raise IndexError("index out of range in self")
        if tokens.ids[4] in ids and len(ids) < 2:
            raise MemoryError

    failing(encoder, monkeypatch, rule)
    out = encoder.encode_tokens(tokens, factors=True, isolate=True)
    assert out.failed[3].endswith("IndexError: index out of range in self")
    assert out.failed.get(4) in (None, NO_MEMORY)
    good = [k for k in range(len(TEXTS)) if k not in out.failed]
    assert len(good) >= 4
    assert out.embeddings[3].isnan().all()
    assert out.moments.spread[3].isnan()
    assert out.factors[3][1].isnan().all()
    torch.testing.assert_close(out.embeddings[good], expected.embeddings[good], atol=1e-6, rtol=0)
    with pytest.raises(IndexError):
        encoder.encode_tokens(tokens)


def test_a_text_too_large_for_the_memory_is_named_alone(encoder, monkeypatch):
    tokens = encoder.tokenizer(TEXTS)

    def rule(ids):
        if tokens.ids[3] in ids:
            raise MemoryError

    failing(encoder, monkeypatch, rule)
    assert encoder.encode_tokens(tokens, isolate=True).failed == {3: NO_MEMORY}
    with pytest.raises(MemoryError):
        encoder.encode_tokens(tokens)


CUBLAS = "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`"


@pytest.mark.parametrize("words", ["CUDA error: device-side assert triggered", CUBLAS])
@pytest.mark.parametrize("isolate", [True, False])
def test_a_lost_device_is_no_fault_of_a_text(encoder, monkeypatch, isolate, words):
    """A cuBLAS that never begins is one, too."""

    def rule(ids):
        raise RuntimeError(words)

    failing(encoder, monkeypatch, rule)
    with pytest.raises(RuntimeError, match="CUDA error") as error:
        encoder.encode_tokens(encoder.tokenizer(TEXTS), isolate=isolate)
    assert str(error.value) == words
    assert lost_device(error.value)


@pytest.mark.parametrize("isolate", [True, False])
def test_a_cublas_that_cannot_begin_is_want_of_memory_first(encoder, monkeypatch, isolate):
    tokens, seen = encoder.tokenizer(TEXTS), []
    expected = encoder.encode_tokens(tokens)

    def rule(ids):
        seen.append(ids)
        if len(ids) > 1 or seen.count(ids) == 1:  # Not in a batch, and alone only once the cache was emptied.
            raise RuntimeError(CUBLAS)

    failing(encoder, monkeypatch, rule)
    out = encoder.encode_tokens(tokens, isolate=isolate)
    assert out.failed == {}
    torch.testing.assert_close(out.embeddings, expected.embeddings, atol=1e-6, rtol=0)


def test_a_failed_chunk_loses_its_text_alone(chunking, monkeypatch):
    expected = chunking.encode(TEXTS)
    tokens = chunking.tokenizer(TEXTS)
    last = max(k for k, text in enumerate(tokens.text) if text == 1)

    def rule(ids):
        if tokens.ids[last] in ids:
            raise IndexError("index out of range in self")

    failing(chunking, monkeypatch, rule)
    out = chunking.encode_tokens(tokens, isolate=True)
    assert list(out.failed) == [1]
    assert out.embeddings[1].isnan().all()
    assert out.moments.within_cosine[1].isnan()
    good = [0, 2, 3, 4, 5]
    torch.testing.assert_close(out.embeddings[good], expected.embeddings[good], atol=1e-6, rtol=0)


def test_each_batch_is_told_before_it_runs():
    told, halved = [], []

    def run(batch):
        assert told[-1] == batch
        if len(batch) > 1:
            raise MemoryError
        return batch

    assert list(run_batches([[4, 2], [0]], run, halved=halved, before=told.append)) == [[4], [2], [0]]
    assert told == [[4, 2], [4], [2], [0]]
    assert halved == [[4, 2]]


# --- bfloat16 ---------------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_bfloat16_stays_near_float32_on_the_real_model(minilm, real_texts):
    texts = real_texts[::3]
    exact = Encoder.load(minilm, device="cpu", temperature=0.8).encode(texts, factors=True)
    found = Encoder.load(minilm, device="cpu", temperature=0.8, precision="bfloat16").encode(texts, factors=True)
    cosine = (found.embeddings * exact.embeddings).sum(1)
    assert found.embeddings.dtype == torch.float32
    assert float(cosine.min()) >= 0.9999
    assert float(cosine.max()) < 1 - 1e-7
    torch.testing.assert_close(found.moments.spread, exact.moments.spread, rtol=0.01, atol=0)


def test_an_unknown_precision_and_an_unknown_way_with_long_texts_are_named(folder):
    with pytest.raises(ValueError, match="'float16'"):
        Encoder.load(folder, device="cpu", precision="float16")
    with pytest.raises(ModelError, match="'wrap'"):
        Tokenizer(folder, long="wrap")
