"""Length collapse: cosines of all pairs by length, from tiles to aggregates and neighbours."""
