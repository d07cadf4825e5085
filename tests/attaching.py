"""Inputs of small models, padded and alone, and the schedules that are attached to them."""

import inspect

import torch
from tiny import HEADS

from tempscale.model.sequences import Tokens
from tempscale.temperature.families import places
from tempscale.temperature.schedule import Temperature

STEPS = Temperature.by_length({0: 1.0, 6: 0.8, 20: 0.5})
LOG = Temperature.log_length(8)
LENGTHS = (3, 31, 6, 19, 20)


def first_position(model):
    """RoBERTa and MPNet count positions from the padding index on."""
    shifted = ("roberta", "xlm-roberta", "camembert", "mpnet")
    return model.config.pad_token_id + 1 if model.config.model_type in shifted else 0


def random_ids(model, lengths, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(5, model.config.vocab_size, (n,), generator=generator).tolist() for n in lengths]


def random_tokens(lengths, seed=1):
    """Tokens of texts of these lengths, which every small model knows."""
    generator = torch.Generator().manual_seed(seed)
    return Tokens([torch.randint(5, 150, (n,), generator=generator).tolist() for n in lengths], [False] * len(lengths))


def batch(model, texts, side="right"):
    """Padded ids and mask; and, where the model takes them, the positions that each token has without padding."""
    width = max(map(len, texts))
    ids = torch.full((len(texts), width), model.config.pad_token_id or 0)
    mask = torch.zeros(len(texts), width, dtype=torch.long)
    positions = torch.full((len(texts), width), first_position(model))
    for row, text in enumerate(texts):
        place = slice(0, len(text)) if side == "right" else slice(width - len(text), width)
        ids[row, place], mask[row, place] = torch.tensor(text), 1
        positions[row, place] = torch.arange(len(text)) + first_position(model)
    inputs = {"input_ids": ids, "attention_mask": mask}
    return inputs | ({"position_ids": positions} if "position_ids" in inspect.signature(model.forward).parameters else {})


def run(model, inputs):
    with torch.no_grad():
        return model(**inputs).last_hidden_state


def alone(model, text):
    return run(model, {"input_ids": torch.tensor([text])})[0]


def hooked(model):
    """Whether any module of a model has a hook."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def relative(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


def layer_taus(model):
    return [round(0.5 + 0.15 * number, 2) for number in range(len(places(model)))]


def head_taus(model):
    return [[round(0.4 + 0.15 * number + 0.2 * head, 2) for head in range(HEADS)] for number in range(len(places(model)))]
