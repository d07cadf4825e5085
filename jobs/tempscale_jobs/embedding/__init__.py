"""The O(n) steps: texts to embeddings, covariance factors and the prefix probe."""
