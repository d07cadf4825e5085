"""The science of embedding collapse: tensors in, tensors out.

    import tempscale as ts
    ts.attach(model, 0.8)              # attention logits divided by 0.8, in place
    ts.verify(model)                   # raises unless A_τ ∝ A_1^{1/τ} in every layer
    ts.detach(model)                   # as it was, to the bit
    ts.fold(model, 0.8)                # into the weights, for good
    out = ts.Encoder.load("path", temperature=0.8).encode(texts)
    ts.socm(X1, X2)                    # (d_mu, d_sigma, socm) of two texts' token embeddings

Names are imported on first use, so that `import tempscale` costs nothing.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HOME = {
    "Temperature": "temperature",
    "TemperatureError": "temperature",
    "UnsupportedArchitecture": "architectures",
    "attach": "apply",
    "detach": "apply",
    "attached": "apply",
    "role": "apply",
    "fold": "fold",
    "fit_by_length": "fit",
    "verify": "verify",
    "VerificationError": "verify",
    "Encoder": "encoder",
    "pairwise_socm": "socm",
    "socm": "socm",
}

if TYPE_CHECKING:
    from tempscale.apply import attach, attached, detach, role
    from tempscale.architectures import UnsupportedArchitecture
    from tempscale.encoder import Encoder
    from tempscale.fit import fit_by_length
    from tempscale.fold import fold
    from tempscale.socm import pairwise_socm, socm
    from tempscale.temperature import Temperature, TemperatureError
    from tempscale.verify import VerificationError, verify

__all__ = [
    "Encoder",
    "Temperature",
    "TemperatureError",
    "UnsupportedArchitecture",
    "VerificationError",
    "attach",
    "attached",
    "detach",
    "fit_by_length",
    "fold",
    "pairwise_socm",
    "role",
    "socm",
    "verify",
]


if not TYPE_CHECKING:  # A type checker would take any name for one of ours.

    def __getattr__(name: str) -> Any:
        if name not in _HOME:
            raise AttributeError(f"module 'tempscale' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"tempscale.{_HOME[name]}"), name)
        globals()[name] = value
        return value


class _Package(ModuleType):
    """Importing the submodule `tempscale.socm` would bind its name here; the public function of that name stays."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
