"""The steps of commands: over texts, and over pairs of texts."""
