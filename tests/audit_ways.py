"""The settings of an audit with queries, SOCM in groups and a search for the most collapsed pairs."""

from typing import NamedTuple


class Plain(NamedTuple):
    """An audit whose tables are all computed once more, plainly."""

    texts: int = 112
    socm: int = 16
    probed: int = 20
    shard: int = 24
    edges: tuple[int, ...] = (0, 64, 100)


PLAIN = Plain()
EDGES, TAUS, TEXTS, QUERIES, K = [0, 32, 64, 100], [1.0, 0.8], 230, 20, 4
RANKED, DUPLICATE = 12, 0.9


def settings(out, corpus, small_model, **analysis):
    return {
        "out": str(out), "corpus": {"source": str(corpus)}, "queries": {"source": str(corpus.with_name("queries.jsonl"))},
        "embedding": {"models": [small_model], "temperatures": TAUS, "max_length": 128},
        "analysis": {"intervals": EDGES, "probe_sample": 0, "neighbours": K, "near_duplicate": DUPLICATE} | analysis,
    }  # fmt: skip
