"""The O(n²) steps: cosine, exposure and SOCM over blocks of texts."""
