"""Corrections of existing embeddings against collapse, without embedding again."""
