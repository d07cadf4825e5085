"""A smooth function of the logarithm of a length, fitted by least squares: a natural cubic spline with few knots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Curve:
    """A natural cubic spline in ln(tokens), constant beyond its outer knots; one knot is a constant, two make a line."""

    tokens: tuple[float, ...]
    """Its knots, ascending, at least one."""
    values: Float[np.ndarray, "knot ..."]
    """Its value or vector at each knot, float64."""

    @classmethod
    def fitted(cls, tokens: Int[np.ndarray, " text"], values: Float[np.ndarray, "text ..."], knots: int) -> Curve:
        """The least-squares curve of some texts' values, with at most `knots` knots at quantiles of ln(tokens)."""
        logs = np.log(np.asarray(tokens, np.float64))
        # Knots are lengths of texts, each once: without texts between two knots, a value at a knot would be undetermined.
        places = np.unique(np.quantile(logs, np.linspace(0, 1, max(1, knots)), method="nearest"))
        basis = _at(places, np.eye(len(places)), logs)
        solution, *_ = np.linalg.lstsq(basis, np.asarray(values, np.float64).reshape(len(logs), -1), rcond=None)
        return cls(tuple(np.exp(places).tolist()), solution.reshape(len(places), *np.shape(values)[1:]))

    def __call__(self, tokens: Int[np.ndarray, " text"]) -> Float[np.ndarray, "text ..."]:
        """The value, or vector, at each length of at least 1 token."""
        return _at(np.log(np.array(self.tokens)), self.values, np.log(np.asarray(tokens, np.float64)))

    def largest(self) -> float:
        """An upper bound of |f| over all lengths: the largest value on a fine grid, plus 1 % if the curve is no line."""
        places = np.log(np.array(self.tokens))
        grid = np.unique(np.concatenate([np.linspace(places[0], places[-1], 1000), places]))
        return float(np.abs(_at(places, self.values, grid)).max() * (1.0 if len(places) < 3 else 1.01))


def _at(places: np.ndarray, values: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """The natural spline through some values, constant beyond the ends."""
    if len(places) == 1:
        return np.broadcast_to(values[0], (len(logs), *values.shape[1:])).copy()
    inside = np.clip(logs, places[0], places[-1])
    if len(places) == 2:  # scipy's natural spline needs three knots.
        share = ((inside - places[0]) / (places[1] - places[0])).reshape(-1, *(1,) * (values.ndim - 1))
        return np.asarray((1 - share) * values[0] + share * values[1])
    from scipy.interpolate import CubicSpline  # Slow to import, and every audit imports this file.

    return np.asarray(CubicSpline(places, values, bc_type="natural")(inside))
