"""`ts.socm`, `ts.pairwise_socm` and `ts.sigma_a`: measures of texts, or of token embeddings as tensors or arrays."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from tempscale.layers import spectrum
from tempscale.layers.observe import observe
from tempscale.model.encoder import Encoder, check_encoder
from tempscale.model.gathering import Factor
from tempscale.model.tokens import described
from tempscale.second_order import socm as tensors
from tempscale.second_order.moments import covariance_factor
from tempscale.second_order.socm import Socm

Text: TypeAlias = "str | Tensor | np.ndarray"
"""A text, or its token embeddings (tokens, d): last layer, special tokens included, padding excluded."""


def socm(
    first: Text | Sequence[Text],
    second: Text | Sequence[Text],
    *,
    encoder: Encoder | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Socm:
    """Second-order collapse of two texts, or of each text of one list with its counterpart in another.

        d_μ = ‖μ_1 − μ_2‖²/4,   d_Σ = (tr Σ_1 + tr Σ_2 − 2‖F_1F_2ᵀ‖_*)/4      S2 eqs. 5, 6
        SOCM_{α,β} = (1 − d_μ)^α · d_Σ^β                                      S2 eqs. 4, 30

    with ‖μ‖ = 1 (eq. 8) and Σ = FᵀF.

        ts.socm("a text", "another")                # through the default model
        ts.socm(queries, documents, encoder=enc)    # two lists of equal length: one value a pair
        ts.socm(X1, X2)                             # token embeddings (tokens, d); differentiable

    Args:
        first, second: texts, or token embeddings as tensors or numpy arrays. Two tensors are computed in the wider of their
            precisions, at least float32.
        encoder: the encoder of texts, under its own temperature; by default `Encoder.load()`, loaded once.
        alpha, beta: exponents of eq. 30; 1 and 1 give SOCM itself.

    Returns:
        d_mu in [0, 1], d_sigma ≥ 0 and socm ≥ 0: scalars for two texts, (pairs,) for two lists. In the precision of two
        tensors; else float64. Symmetric in the two texts; unchanged by any rotation of both and any positive scaling of one.

    Raises:
        TypeError: an argument is neither a text nor token embeddings, or `encoder` is no Encoder.
        ValueError: the lists differ in length, the dimensions differ, a text has no tokens, or a mean is zero up to
            rounding or not finite (see `covariance_factor`).
    """
    pairs = _same_length(first, second)
    if pairs is not None:
        return _listed(*pairs, encoder, (alpha, beta))
    if isinstance(first, str) or isinstance(second, str):
        one, other = cast("Text", first), cast("Text", second)  # Neither is a list.
        return Socm(*(values[0] for values in _listed([one], [other], encoder, (alpha, beta))))
    x1, x2 = _tensor(first), _tensor(second)
    wider = torch.promote_types(x1.dtype, x2.dtype)
    return tensors.socm(x1.to(wider), x2.to(x1.device, wider), alpha=alpha, beta=beta)


def pairwise_socm(
    texts: Sequence[Text],
    *,
    encoder: Encoder | None = None,
    regularization: float = 0.0,
    alpha: float = 1.0,
    beta: float = 1.0,
) -> Socm:
    """SOCM of every pair of texts (S2 eqs. 4–6, 30): the same as `socm`, for all pairs at once.

    Args:
        texts: texts, or the token embeddings (tokens_i, d) of each as tensors or numpy arrays. With float32 the error is at
            most 1e-5, usually 1e-6.
        encoder: as in `socm`.
        regularization: 0 is exact. 1e-9 adds the regularization of the published code, see `cross_nuclear_norms`.
        alpha, beta: exponents of eq. 30.

    Returns:
        Three float64 matrices (texts, texts), symmetric, with a diagonal of 0.

    Raises:
        TypeError: `texts` is no list, or one of them is neither a text nor token embeddings.
        ValueError: as for `socm`.
    """
    if not _is_list(texts):
        raise TypeError(f"texts is {described(texts)}; give a list of texts or of token embeddings")
    if not len(texts):
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return Socm(empty, empty, empty)
    means, factors = _moments(texts, encoder)
    return tensors.socm_square(means, factors, regularization=regularization, alpha=alpha, beta=beta)


def sigma_a(encoder: Encoder, text: str, *, role: str | None = None) -> Float[Tensor, "layer head"]:
    """How strongly the attention of each head filters a text (S1 §2), under the encoder's temperature.

        σ_a = ‖(I − (1/n)11ᵀ)A‖₂

    A lower σ_a is a stronger low-pass filter: it removes more of the differences between the tokens.

    Args:
        encoder: any `Encoder`; its prompt is put before the text.
        text: one text, cut at the encoder's window.
        role: «query» or «document», for a temperature that depends on it.

    Returns:
        σ_a of each layer and head, (layers, heads), in [0, √n] for n tokens; its relative error is at most 1e-5.

    Raises:
        TypeError: `encoder` is no Encoder, or `text` is not one string.
        TemperatureError: the temperature depends on the role and none is given, or the role is unknown.
        UnsupportedArchitecture: the model's family is not supported.
    """
    check_encoder(encoder)
    if not isinstance(text, str):
        raise TypeError(f"text is {described(text)}; give one text")
    ids = encoder.tokenizer([text], encoder.tokenizer.max_length).ids[0]
    return torch.stack(observe(encoder.model, ids, lambda layer: spectrum.sigma_a(layer.attention), role=role)).cpu()


@lru_cache(maxsize=1)
def _default_encoder() -> Encoder:
    return Encoder.load()


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def _same_length(first: Any, second: Any) -> tuple[Sequence[Text], Sequence[Text]] | None:
    """Two lists of equal length; None for two single texts."""
    if not _is_list(first) and not _is_list(second):
        return None
    if _is_list(first) and _is_list(second) and len(first) == len(second):
        return first, second
    sizes = " and ".join(f"a list of {len(value)}" if _is_list(value) else "one text" for value in (first, second))
    raise ValueError(
        f"socm compares pairs and got {sizes}; give two texts or two lists of equal length, or call pairwise_socm for all "
        "pairs of one list"
    )


def _listed(first: Sequence[Text], second: Sequence[Text], encoder: Encoder | None, exponents: tuple[float, float]) -> Socm:
    """SOCM of each text of one list with its counterpart in the other."""
    if not len(first):
        return Socm(*(torch.zeros(0, dtype=torch.float64) for _ in range(3)))
    means, factors = _moments([*first, *second], encoder)
    places, (alpha, beta) = range(len(first)), exponents
    return tensors.socm_pairs(means, factors, places, [len(first) + k for k in places], alpha=alpha, beta=beta)


def _moments(texts: Sequence[Text], encoder: Encoder | None) -> tuple[Tensor, list[Tensor]]:
    """Unit means and covariance factors; the strings among the texts are embedded together."""
    strings = [text for text in texts if isinstance(text, str)]
    known: list[Factor] = []
    if strings:
        encoder = _default_encoder() if encoder is None else encoder
        check_encoder(encoder)
        known = encoder.encode(strings, moments=False, factors=True).factors or []
    embedded = iter(known)
    pairs = [next(embedded) if isinstance(text, str) else covariance_factor(_tensor(text)) for text in texts]
    widths = sorted({len(mean) for mean, _ in pairs})
    if len(widths) > 1:
        raise ValueError(f"token embeddings have {' and '.join(map(str, widths))} dimensions; all texts need the same")
    wider = torch.float32
    for mean, _ in pairs:
        wider = torch.promote_types(wider, mean.dtype)
    device = next((mean.device for mean, _ in pairs if mean.device.type != "cpu"), torch.device("cpu"))
    means = torch.stack([mean.to(device, wider) for mean, _ in pairs])
    return means, [factor.to(device, wider) for _, factor in pairs]


def _tensor(value: object) -> Tensor:
    """Token embeddings as a tensor of at least float32."""
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiu":
        value = torch.as_tensor(value)
    if not isinstance(value, Tensor) or value.dtype.is_complex:
        raise TypeError(f"a text is {described(value)}; give a string, or token embeddings as a tensor or a numpy array")
    return value.to(torch.promote_types(value.dtype, torch.float32))
