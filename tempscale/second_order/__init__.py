"""Second-order collapse: token moments, Bures–Wasserstein distances, SOCM and its bounds."""
