"""Vectors as an index stores them: how far rounding may move them, and whether they are a model's."""
