"""Nightly audits: the gate, the record of nights, baselines and comparisons."""
