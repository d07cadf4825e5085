"""`tempscale correct`: a fitted correction applied to a table of embeddings of any size."""
