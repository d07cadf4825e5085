"""`tempscale diagnose`: why a model's embeddings collapse, layer by layer."""
