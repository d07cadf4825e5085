"""Attention temperature: its value, its place in each architecture, attach, fold and verify."""
