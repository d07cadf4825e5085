"""torch.compile on a GPU against the same model as it is; skipped without one, or without a compiler."""

import pytest
import torch
from attaching import STEPS, batch, random_ids, random_tokens, run
from card import CARD, needs_card

from tempscale.model.encoder import Encoder
from tempscale.model.pooling import Head
from tempscale.temperature.attach import attach

pytestmark = [needs_card, pytest.mark.skipif(CARD == "cpu", reason="torch.compile needs a compiler on a processor")]


def test_an_encoder_at_every_temperature(tiny_model):
    plain, compiled = (
        Encoder(tiny_model("bert").to(CARD), None, Head("mean", []), 90, compiled=how) for how in (False, True)
    )
    tokens, seen = random_tokens((3, 40, 7, 7, 21, 12, 33, 5, 28)), []
    for tau in (1.0, 0.5, 0.9):
        for encoder in (plain, compiled):
            encoder.set_temperature(tau)
        expected, found = (encoder.encode_tokens(tokens) for encoder in (plain, compiled))
        torch.testing.assert_close(found.embeddings, expected.embeddings, rtol=0, atol=1e-3)
        for column, other in zip(found.moments, expected.moments, strict=True):
            torch.testing.assert_close(column, other, rtol=2e-3, atol=1e-3)
        seen.append(expected.embeddings)
    assert float((seen[0] - seen[1]).abs().max()) > 0.01  # Another temperature is another embedding.


@pytest.mark.parametrize("schedule", [0.5, STEPS], ids=str)
def test_an_attached_model(tiny_model, schedule):
    model = attach(tiny_model("bert").to(CARD), schedule)
    inputs = {name: value.to(CARD) for name, value in batch(model, random_ids(model, (9, 25))).items()}
    torch.testing.assert_close(run(torch.compile(model), inputs), run(model, inputs), rtol=1e-3, atol=1e-3)
