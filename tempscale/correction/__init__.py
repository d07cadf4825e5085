"""What can be done about collapsed embeddings without embedding again: corrections of vectors that are there."""
