"""The temperature that a checkpoint's own configuration has: what its logits are multiplied by, beside 1/√d."""

from __future__ import annotations

from typing import Any

from tempscale.temperature.families import base_model, family_of, places, supported


def own_temperature(model: Any) -> float:
    """1 over the factor of the logits: of a scale other than 1/√d, and of rotary positions that scale (yarn, longrope).

    Args:
        model: as for `attach`; weights are not read.

    Returns:
        1.0 where the logits are QKᵀ/√d; also for families whose weights alone say their scale (t5).
    """
    base = base_model(model)
    factors = [
        float(value) ** 2  # Of queries and of keys.
        for module in base.modules()
        for name, value in vars(module).items()
        if name.endswith("attention_scaling")
    ]
    attention: Any = places(base)[0].attention
    scale = 1.0
    if hasattr(attention, "scaling") and supported(family_of(base)).bias not in ("returned", "own"):
        width = getattr(attention, "head_dim", None) or attention.attention_head_size
        scale = attention.scaling * width**0.5
    # Layers of two kinds (gemma, modernbert): that of the stronger one.
    return float(1 / (scale * max(factors, default=1.0)))
