"""Fit a temperature to a model: by length, or by layer."""
