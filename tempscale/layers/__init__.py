"""The effect of each layer on the tokens of a text: attention as a filter, and the contraction of the spread."""
