"""The least number of values for a figure: with fewer it is not computed, not compared or not described."""

VALUES_FOR_AN_ERROR = 3
"""Two texts have one pair, so the error of its mean is unknown; the ranks of two items always correlate at 1 or −1."""
VALUES_FOR_A_SENTENCE = 5
"""The error of a mean of four values is itself uncertain by 40 %, 1/√(2·3), so nothing is concluded from it."""
GROUPS_FOR_AN_ERROR = 10
"""An error from ten groups is itself uncertain by a quarter, 1/√(2·9); with fewer it means little."""
EQUAL_DOCUMENTS_FOR_AN_ERROR = 7
"""Ten documents of unequal sizes, one of which may have half of the texts, are worth fewer documents of equal size."""
TEXTS_FOR_AN_INTERVAL = 30
"""±1.96 standard errors contain 94 % with 30 texts (Student's t), 92 % with 10; smaller intervals are not compared."""
TEXTS_FOR_A_FILTER = 4
"""Few are enough for a mean σ_a, which is also a mean over all layers and heads; it is measured again for every τ tried."""
TEXTS_FOR_LAYERS = 8
"""Eight texts have 28 pairs, whose mean cosine is lowered by the search for one τ a layer."""
ITEMS_FOR_A_HALF = 10
"""Queries, texts or pairs of a task in the half that chooses a temperature, and also in the half that tests it."""
DRAWS_FOR_A_HALF = 2
"""Experiments of a classification task in each of these halves: one has no spread."""
TOKENS_FOR_A_WINDOW = 8
"""Special tokens included. One or two words of a text seldom show its label."""
