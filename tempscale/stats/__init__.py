"""Standard errors, correlations, samples, and how many values each figure needs."""
