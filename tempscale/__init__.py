"""The science of embedding collapse: tensors in, tensors out.

    import tempscale as ts
    ts.attach(model, 0.8)              # attention logits divided by 0.8, in place
    ts.verify(model)                   # raises unless A_τ ∝ A_1^{1/τ} in every layer
    ts.detach(model)                   # the original model, to the bit
    ts.fold(model, 0.8)                # into the weights, permanently
    ts.save(model, "folder")           # with a file of its temperature; ts.load("folder") attaches it again
    out = ts.Encoder.load("path", temperature=0.8).encode(texts)
    mteb.evaluate(ts.MtebModel("path", temperature=0.8), tasks)
    ts.socm("a text", "another")       # (d_mu, d_sigma, socm); also of token embeddings, and of two lists
    ts.sigma_a(encoder, "a text")      # (layers, heads): how strongly attention filters a text

Names are imported on first use, so that `import tempscale` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

_HOME = {
    "Temperature": "temperature.schedule",
    "TemperatureError": "temperature.reading",
    "UnsupportedArchitecture": "temperature.families",
    "attach": "temperature.attach",
    "detach": "temperature.attach",
    "attached": "temperature.attach",
    "role": "temperature.attach",
    "fold": "temperature.fold",
    "fit_by_length": "choosing.by_length",
    "verify": "temperature.verify",
    "VerificationError": "temperature.verify",
    "Encoder": "model.encoder",
    "MtebModel": "model.mteb_model",
    "load": "temperature.saving",
    "save": "temperature.saving",
    "pairwise_socm": "measures",
    "sigma_a": "measures",
    "socm": "measures",
}

if TYPE_CHECKING:
    from tempscale.choosing.by_length import fit_by_length
    from tempscale.measures import pairwise_socm, sigma_a, socm
    from tempscale.model.encoder import Encoder
    from tempscale.model.mteb_model import MtebModel
    from tempscale.temperature.attach import attach, attached, detach, role
    from tempscale.temperature.families import UnsupportedArchitecture
    from tempscale.temperature.fold import fold
    from tempscale.temperature.reading import TemperatureError
    from tempscale.temperature.saving import load, save
    from tempscale.temperature.schedule import Temperature
    from tempscale.temperature.verify import VerificationError, verify

__all__ = [
    "Encoder",
    "MtebModel",
    "Temperature",
    "TemperatureError",
    "UnsupportedArchitecture",
    "VerificationError",
    "attach",
    "attached",
    "detach",
    "fit_by_length",
    "fold",
    "load",
    "pairwise_socm",
    "role",
    "save",
    "sigma_a",
    "socm",
    "verify",
]


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # Otherwise a type checker would accept any name.

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'tempscale' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tempscale.{_HOME[name]}"), name)
        globals()[name] = value
        return value
