"""What steps and actors are given: a scope, and shards that are written and tokenised."""

import numpy as np
from rich.console import Console

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.steps import layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.steps.tokenise import tokenise
from tempscale_jobs.tables.audit import SHARDS
from tempscale_jobs.workers.actor import Tokenising


def laid_out(ids, tokens, interval, edges, seed=0, documents=None, corpus_texts=None):
    """Texts whose ids are at hand, in this order and stored in one part."""
    names = np.empty(len(ids), dtype=object)
    names[:] = ids
    key = np.array([layout.keyed_hash(text_id, seed) for text_id in ids], dtype=np.uint64)
    stored, starts = np.arange(len(ids), dtype=np.uint32), np.array([0, len(ids)])
    given = np.asarray(tokens), np.asarray(interval)
    return layout.Layout(names, key, *given, stored, starts, tuple(edges), corpus_texts or len(ids), seed, documents)


def prepared(storage, folder, texts, number=0):
    """The work of a shard of these texts, whose ids are t0, t1 and so on, for the model in this folder."""
    nothing, name = [None] * len(texts), f"shards/{number}.parquet"
    columns = {"text_id": [f"t{k}" for k in range(len(texts))], "text": texts, "content_sha": ["0" * 64] * len(texts)}
    columns |= {"cut": [False] * len(texts), "document": nothing, "source_row": nothing}
    storage.write_table(name, SHARDS.build(columns))
    return tokenise(name, storage, Tokenising(str(folder), 64, "truncate"), "partials")


def scoped(run, model, texts=None, cluster=None, crew=None, index=None, **settings):
    """What the steps of an audit with these settings are given of a run, a model and its texts."""
    config, journal = resolve(settings), Journal(Console(quiet=True))
    return Embedded(config, config.embedding, config.corpus, index, run, model, cluster, crew, journal, texts)
