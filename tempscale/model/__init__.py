"""From the folder of a model to embeddings: checkpoint, tokens, batches, pooling, encoder."""
