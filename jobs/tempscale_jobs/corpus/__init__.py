"""Sources of texts and of your own embeddings, read into shards."""
