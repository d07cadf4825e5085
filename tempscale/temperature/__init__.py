"""Attention temperature: the value, where each architecture keeps what is scaled, attaching, folding, verifying."""
