"""Micro-batches on a device: assembled as by hand, uploaded once for all temperatures, downloaded in one piece."""

import pytest
import torch
from attaching import LOG, STEPS, head_taus
from device_counter import DEVICE, faked
from tiny import COMMON, FAMILIES

from tempscale.model.encoder import Encoder
from tempscale.model.padded import downloaded, padded
from tempscale.model.pooling import Head
from tempscale.model.sequences import Sequences, Tokens
from tempscale.temperature.schedule import Temperature

IDS = [[7, 8, 9], [5], [6, 7, 8, 9, 10, 11], [4, 3]]
ASKED = {"modernbert": 2, "llama": 2, "mistral": 2, "qwen2": 2, "qwen3": 2, "gemma3_text": 4}
"""What transformers' own code asks of a GPU for each micro-batch at most, by family, where that is more than once: whether a
text is padded, for each kind of mask.
"""


def by_hand(ids, padding):
    width = max(map(len, ids))
    rows = [[*own, *[padding] * (width - len(own))] for own in ids]
    return torch.tensor(rows), torch.tensor([[k < len(own) for k in range(width)] for own in ids])


@pytest.mark.parametrize("batch", [[0, 1, 2, 3], [2], [3, 0], [1, 1]])
def test_a_micro_batch_is_the_one_written_by_hand(batch):
    ids, mask = padded(Sequences.of(IDS), batch, 99, torch.device("cpu"))
    expected_ids, expected_mask = by_hand([IDS[k] for k in batch], 99)
    assert torch.equal(ids, expected_ids)
    assert ids.dtype == torch.int64
    assert torch.equal(mask, expected_mask)
    assert mask.dtype == torch.bool


def test_sequences_in_one_array_are_the_lists_that_they_were_made_of():
    found = Sequences.of(IDS)
    assert found == IDS
    assert found != IDS[:3]
    assert found != [*IDS[:3], [4, 4]]
    assert found[2] == IDS[2]
    assert found[-1] == IDS[-1]
    assert found[1:3] == IDS[1:3]
    assert found.lengths.tolist() == [3, 1, 6, 2]
    assert Sequences.of(found) is found
    assert Sequences.of([]) == []
    with pytest.raises(IndexError):
        found[4]


@pytest.mark.parametrize("text", [None, [0, 1, 1, 2]])
def test_tokens_in_one_array_are_the_same_tokens(text):
    texts = 4 if text is None else 3
    plain, packed = (Tokens(ids, [False] * texts, text) for ids in (IDS, Sequences.of(IDS)))
    assert plain == packed
    assert packed.lengths == ([3, 1, 6, 2] if text is None else [3, 7, 2])
    assert packed.chunks() == plain.chunks()
    assert packed.take([2, 0]) == plain.take([2, 0])


def test_what_is_downloaded_has_its_shapes_and_numbers():
    values = [torch.arange(6.0).reshape(2, 3), torch.tensor(7.0), torch.zeros(0, 3)]
    assert all(found is value for found, value in zip(downloaded(values), values, strict=True))
    with faked() as counts:
        found = downloaded([value.to(DEVICE) for value in values])
        downloaded([value.to(DEVICE) for value in values], wait=False)
    assert [own.shape for own in found] == [own.shape for own in values]
    assert counts.downloads == counts.behind == [(7,)]
    assert downloaded([]) == []


@pytest.fixture(params=[own if own in COMMON else pytest.param(own, marks=pytest.mark.soak) for own in FAMILIES])
def family(request):
    """What a family has of its own here is the number of its questions, `ASKED`."""
    return request.param


@pytest.fixture
def on_device(tiny_model, family):
    """An encoder of this family on the faked GPU, in three micro-batches of IDS."""
    with faked():
        return Encoder(tiny_model(family).to(DEVICE), None, Head("mean", []), token_budget=9)


@pytest.mark.proof
@pytest.mark.parametrize(
    "kind",
    [pytest.param(0.8, id="constant", marks=pytest.mark.soak), pytest.param(STEPS, id="steps", marks=pytest.mark.soak),
     pytest.param(LOG, id="logarithm"), pytest.param("by head", id="by head")],
)  # fmt: skip
def test_a_micro_batch_is_uploaded_once_for_all_temperatures_and_downloaded_in_one_piece(on_device, family, kind):
    taus = head_taus(on_device.model)
    tokens = Tokens(IDS, [False] * len(IDS))
    batches = len(on_device.batches(tokens))
    assert batches == 3
    with faked() as counts:
        ready = on_device.padded(tokens)
        on_device.encode_tokens(tokens, factors=True, padded=ready)
        assert len(counts.uploads) == batches
        on_device.set_temperature(Temperature.by_head(taus) if kind == "by head" else kind)
        on_device.encode_tokens(tokens, factors=True, padded=ready)
        first = len(counts.uploads)
        on_device.encode_tokens(tokens, factors=True, padded=ready)
    assert first - batches <= len(taus)  # The numbers of the temperature, once.
    assert len(counts.uploads) == first
    assert len(counts.downloads) == 3 * batches
    assert 3 * batches <= len(counts.asked) <= 3 * batches * ASKED.get(family, 1)
    if family not in ASKED:
        assert counts.waits == 2 * 3 * batches


@pytest.mark.proof
@pytest.mark.parametrize("text", [None, [0, 1, 1, 2]], ids=["whole", "in chunks"])
def test_nobody_waits_for_embeddings_and_moments_and_chunks_come_in_one_piece(on_device, family, text):
    tokens = Tokens(IDS, [False] * (4 if text is None else 3), text)
    batches = len(on_device.batches(tokens))
    with faked() as counts:
        on_device.encode_tokens(tokens)
    assert len(counts.behind) == batches
    assert len(counts.downloads) == (0 if text is None else 2)
    assert len(counts.asked) <= batches * ASKED.get(family, 1)
    if text is not None:
        with faked() as counts:
            on_device.encode_tokens(tokens, factors=True)
        assert len(counts.uploads) == batches + 1  # What is merged goes through the last stages on the device.
        assert len(counts.downloads) == batches + 2


@pytest.mark.proof
def test_results_are_read_when_the_device_has_finished(on_device, monkeypatch):
    tokens, seen = Tokens(IDS, [False] * 4), []
    with faked() as counts:
        monkeypatch.setattr(
            "tempscale.model.encoder.finished", lambda device: seen.append((device.type, len(counts.behind)))
        )
        monkeypatch.setattr("tempscale.model.encoder.gather", lambda *given: seen.append("gathered"))
        on_device.encode_tokens(tokens)
    assert seen == [(DEVICE, 3), "gathered"]


@pytest.mark.proof
def test_who_is_told_before_each_micro_batch_finds_those_before_ended(on_device):
    tokens, told = Tokens(IDS, [False] * 4), []
    with faked() as counts:
        on_device.encode_tokens(tokens, before=lambda batch: told.append(len(counts.downloads)))
    assert told == [0, 1, 2]
    assert counts.behind == []
