"""A smooth function of the logarithm of a length, fitted by least squares: a natural cubic spline with few knots.

With two knots it is a line in log length.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


@dataclass(frozen=True)
class Curve:
    """A function of a text's length in tokens: a natural cubic spline in ln(tokens), constant beyond its outer knots.

    A natural spline has no curvature at its ends, so two knots make a line. It has one value at each knot, or one vector.
    """

    tokens: tuple[float, ...]
    """Its knots, ascending, at least one; one knot is a constant."""
    values: Float[np.ndarray, "knot ..."]
    """Its values at the knots, float64."""

    @classmethod
    def fitted(cls, tokens: Int[np.ndarray, " text"], values: Float[np.ndarray, "text ..."], knots: int) -> Curve:
        """The curve of least squared distance to some texts' values.

        Args:
            tokens: each text's length, at least 1.
            values: of each text, one or a vector.
            knots: at most how many, at quantiles of ln(tokens) from the shortest to the longest; equal ones become one.

        Returns:
            The curve.
        """
        logs = np.log(np.asarray(tokens, np.float64))
        # Where no text lies between two of them, a value at a knot would be free: knots are lengths of texts, each once.
        places = np.unique(np.quantile(logs, np.linspace(0, 1, max(1, knots)), method="nearest"))
        basis = _at(places, np.eye(len(places)), logs)
        solution, *_ = np.linalg.lstsq(basis, np.asarray(values, np.float64).reshape(len(logs), -1), rcond=None)
        return cls(tuple(np.exp(places).tolist()), solution.reshape(len(places), *np.shape(values)[1:]))

    def __call__(self, tokens: Int[np.ndarray, " text"]) -> Float[np.ndarray, "text ..."]:
        """Its value at each text's length.

        Args:
            tokens: lengths, at least 1.

        Returns:
            One value, or one vector, for each.
        """
        return _at(np.log(np.array(self.tokens)), self.values, np.log(np.asarray(tokens, np.float64)))

    def largest(self) -> float:
        """An upper bound of |f| over all lengths: the largest on a fine grid, and a hundredth more.

        Returns:
            0 for the curve that is 0.
        """
        places = np.log(np.array(self.tokens))
        grid = np.unique(np.concatenate([np.linspace(places[0], places[-1], 1000), places]))
        return float(np.abs(_at(places, self.values, grid)).max() * (1.0 if len(places) < 3 else 1.01))


def _at(places: np.ndarray, values: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """The natural spline through some values, constant beyond the ends."""
    if len(places) == 1:
        return np.broadcast_to(values[0], (len(logs), *values.shape[1:])).copy()
    inside = np.clip(logs, places[0], places[-1])
    if len(places) == 2:  # scipy's natural spline wants three knots.
        share = ((inside - places[0]) / (places[1] - places[0])).reshape(-1, *(1,) * (values.ndim - 1))
        return np.asarray((1 - share) * values[0] + share * values[1])
    from scipy.interpolate import CubicSpline  # Slow to import, and every audit knows of curves.

    return np.asarray(CubicSpline(places, values, bc_type="natural")(inside))
