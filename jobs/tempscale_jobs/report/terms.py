"""The symbols of reports and of the terminal, each explained where it comes first."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple


class Term(NamedTuple):
    """A symbol, how a terminal writes it where it comes first, and what a report says of it."""

    symbol: str
    first: str
    meaning: str


TERMS = (
    Term(
        "τ", "temperature τ",
        "the attention temperature: attention logits are divided by it, and 1 leaves the model as it is",
    ),
    Term(
        "SOCM", "SOCM (second-order collapse)",
        "how much the tokens of two texts differ without their vectors showing it (second-order collapse); 0 means that "
        "nothing is hidden",
    ),
    Term("d_μ", "d_μ (distance of means)", "the distance between the mean token vectors of two texts, (1 − cosine)/2"),
    Term(
        "d_Σ", "d_Σ (difference of token clouds)",
        "how differently the token vectors of two texts spread around their means",
    ),
    Term(
        "tr Σ", "tr Σ (spread of tokens)",
        "the spread of a text's token vectors around their mean, divided by the squared norm of that mean",
    ),
    Term(
        "σ_a", "σ_a (gain of attention)",
        "the largest factor by which attention passes on differences between tokens; a lower one smooths more",
    ),
    Term(
        "exposure", "exposure",
        "the share of search results that texts of a length take, divided by their share of all texts; 1 is fair",
    ),
    Term(
        "hubness", "hubness",
        "the skewness of the number of result lists that each text is in; large where a few texts are in very many",
    ),
    Term("S1", "S1 (arXiv 2410.24200)", "Length-Induced Embedding Collapse in Transformer-based Models, arXiv 2410.24200"),
    Term("S2", "S2 (arXiv 2604.27398)", "Why Mean Pooling Works, arXiv 2604.27398"),
)  # fmt: skip
_FOUND = {
    term.symbol: re.compile(
        rf"(?<![\w/]){term.symbol}(?![\w/])",  # None in a path.
        re.IGNORECASE if term.symbol.isascii() and term.symbol.islower() else 0,  # A word may begin a sentence.
    )
    for term in TERMS
}


def meanings(texts: Iterable[str], known: Iterable[str] = ()) -> list[str]:
    """A sentence on each symbol that is in the texts, but for those that the `known` texts have."""
    new, old = "\n".join(texts), "\n".join(known)
    return [f"{t.symbol}: {t.meaning}." for t in TERMS if _FOUND[t.symbol].search(new) and not _FOUND[t.symbol].search(old)]


def explained(texts: Iterable[str]) -> list[str]:
    """The texts, with each symbol explained in the first of them that has it."""
    lines = [*texts]
    for term in TERMS:
        for place, text in enumerate(lines):
            if (found := _FOUND[term.symbol].search(text)) is not None:
                begins = found.start() == 0 or text[: found.start()].endswith((". ", "? "))
                first = f"{term.first[0].upper()}{term.first[1:]}" if begins else term.first
                lines[place] = text[: found.start()] + first + text[found.end() :]
                break
    return lines
