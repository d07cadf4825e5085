"""A checkpoint's own temperature: what its attention does with its logits, against weights that change by it alone."""

import pytest
import torch
from attaching import alone, random_ids, relative

from tempscale.temperature.attach import attach
from tempscale.temperature.own import own_temperature


def test_logits_over_the_root_of_the_width_have_none(tiny_model, family):
    expected = 4.0 if family == "gemma3_text" else 1.0  # The tiny one has heads of 16 and a query_pre_attn_scalar of 256.
    assert own_temperature(tiny_model(family)) == pytest.approx(expected)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gte", "modernbert"])
def test_rotary_positions_that_scale_are_a_temperature(tiny_model, family):
    """A τ of the inverse takes it away, but for the frequencies, which a factor of 1 leaves alone."""
    model, plain = tiny_model(family), tiny_model(family)
    for module in model.modules():
        for name in [name for name in vars(module) if name.endswith("attention_scaling")]:
            setattr(module, name, 1.25)
    assert own_temperature(model) == pytest.approx(1 / 1.25**2)
    text = random_ids(plain, (17,))[0]
    expected = alone(plain, text)
    assert relative(alone(model, text), expected) > 1e-3
    assert relative(alone(attach(model, 1.25**2), text), expected) < 1e-5


def test_yarn_has_the_temperature_of_its_paper():
    from transformers import LlamaConfig, LlamaModel

    rope = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 8.0, "original_max_position_embeddings": 64}
    config = LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=512, rope_parameters=rope,
    )  # fmt: skip
    # Peng et al. 2023: √(1/t) = 0.1·ln(s) + 1.
    assert own_temperature(LlamaModel(config)) == pytest.approx(1 / (0.1 * torch.log(torch.tensor(8.0)).item() + 1) ** 2)


def test_a_scale_other_than_the_root_of_the_width_is_one():
    from transformers import Gemma3TextConfig, Gemma3TextModel

    config = Gemma3TextConfig(
        vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, query_pre_attn_scalar=25,
    )  # fmt: skip
    assert own_temperature(Gemma3TextModel(config)) == pytest.approx(5 / 4)
