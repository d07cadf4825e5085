"""A night's summary row from vectors and lengths alone: every cosine in one matrix, errors typed from their equations."""

from collections import Counter

import numpy as np

from tempscale_jobs.nights import record as history
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY, LENGTH_COLLAPSE

EDGES = (0, 32, 64, 100)
FEWEST = 30


def summary_row(model, temperature="1.0", **figures):
    """A row of collapse_summary: what is not given is not known."""
    row = dict.fromkeys(column.name for column in COLLAPSE_SUMMARY.columns)
    return row | {"model": model, "temperature": temperature, "schema_version": 1} | figures


def night_row(night, gate="passed", model="aaaa", run=None, name="", **more):
    """A row of the record, of a model named after its fingerprint."""
    figures = {"tau": 1.0, "texts": 80, "corpus_texts": 80, "cosine_mean": 0.3}
    figures |= {"cosine_se": 0.0, "cosine_se_superpopulation": 0.01}
    known = {
        "run": run or f"run{night[-2:]}", "night": night, "name": name, "folder": night, "tempscale": "0",
        "corpus": "corpus.parquet", "corpus_fingerprint": "c", "model_fingerprint": model, "measured": '{"max_length": 512}',
        "started": f"{night}T02:15:00+00:00", "finished": f"{night}T02:20:00+00:00", "gate": gate, "gate_reason": "",
        "gate_note": "", "compared": True, "texts_added": 3, "texts_removed": 2, "texts_edited": 1,
    }  # fmt: skip
    return summary_row(f"model-{model}", **figures) | known | more


def recorded(folder, *rows):
    """A record of these nights in a folder."""
    storage = Storage(str(folder / "history"))
    for one in rows:
        history.add(storage, [one])
    return storage


def finished_audit(folder, *rows, **record):
    """A finished audit with these rows of collapse_summary; each model's fingerprint is its label doubled."""
    storage = Storage(str(folder))
    storage.write_table("tables/collapse_summary.parquet", COLLAPSE_SUMMARY.build_rows(rows))
    cell = dict.fromkeys(column.name for column in LENGTH_COLLAPSE.columns) | {"schema_version": 1}
    storage.write_table("tables/length_collapse.parquet", LENGTH_COLLAPSE.build_rows([cell]))
    record |= {"config": {"corpus": {}} | record.get("config", {})}
    storage.write_json("run.json", {"models": {row["model"]: {"fingerprint": row["model"] * 2} for row in rows}} | record)
    return storage.root


def summary(vectors, tokens, *, model="small", corpus_texts=None, truncated=None, document=None, **more):
    """The row of collapse_summary for unit vectors and their lengths; figures that these do not tell are null.

    mean over pairs: (Σ_ij u_i·u_j − n)/(n(n−1)); its error 2·sd(per-text means)/√n; the gap's, of both ends in squares.
    With the document of each text, errors for other corpora are over sums of deviations in documents.
    """
    vectors, tokens = np.asarray(vectors, np.float64), np.asarray(tokens)
    n, cosine = len(vectors), np.asarray(vectors, np.float64) @ np.asarray(vectors, np.float64).T
    row = summary_row(model, tau=1.0, texts=n, rejected=0)
    row |= {"corpus_texts": corpus_texts or n, "tokens": int(tokens.sum()), "socm_texts": 0}
    row["cosine_mean"], error = _mean(cosine)
    row |= errors("cosine", error, n, row["corpus_texts"])
    which = np.searchsorted(EDGES, tokens, side="right") - 1
    enough = [k for k in range(len(EDGES)) if (which == k).sum() >= FEWEST]
    if len(enough) > 1:
        ends = [which == k for k in (enough[0], enough[-1])]
        (short, e_short), (long, e_long) = (_mean(cosine[np.ix_(end, end)]) for end in ends)
        row |= {"collapse_gap": long - short, "gap_texts": int(min(end.sum() for end in ends))}
        row |= {"gap_shortest": EDGES[enough[0]], "gap_longest": EDGES[enough[-1]]}
        row |= errors("collapse_gap", np.hypot(e_short, e_long), n, row["corpus_texts"])
    row["truncated_share"] = float(np.mean(np.asarray(truncated))) if truncated is not None else 0.0
    if document is not None:
        document = np.asarray(document)
        row |= {"documents": _equal(document)}
        row["cosine_se_superpopulation"] = _of_documents(document, (_means(cosine), np.ones(n, bool), 2.0))
        if truncated is not None:
            share = (np.asarray(truncated, dtype=float), np.ones(n, bool), 1.0)
            row["truncated_share_se_superpopulation"] = _of_documents(document, share)
        if len(enough) > 1:
            inside = np.zeros(n)
            for end in ends:
                inside[end] = _means(cosine[np.ix_(end, end)])
            row["gap_documents"] = min(_equal(document[end]) for end in ends)
            row["collapse_gap_se_superpopulation"] = _of_documents(document, (inside, ends[1], 2.0), (inside, ends[0], -2.0))
    return row | more


def _equal(document):
    """(Σn)²/Σn², rounded down."""
    texts = list(Counter(document.tolist()).values())
    return sum(texts) ** 2 // sum(n * n for n in texts)


def _of_documents(document, *sets):
    """√Σ_g (Σ_sets w·√(G/(G−1))·Σ_{i in g}(v_i − v̄)/n)² over documents g."""
    effect = dict.fromkeys(document.tolist(), 0.0)
    for values, chosen, weight in sets:
        own, count = values[chosen], len(set(document[chosen].tolist()))
        for name, value in zip(document[chosen].tolist(), own - own.mean(), strict=True):
            effect[name] += weight * (count / (count - 1)) ** 0.5 * value / len(own)
    return sum(value**2 for value in effect.values()) ** 0.5


def errors(name, error, n, corpus_texts):
    return {f"{name}_se_superpopulation": float(error), f"{name}_se": float(error) * (1 - n / corpus_texts) ** 0.5}


def _means(cosine):
    return (cosine.sum(1) - np.diag(cosine)) / (len(cosine) - 1)


def _mean(cosine):
    n, means = len(cosine), _means(cosine)
    return float(means.mean()), 2 * means.std(ddof=1) / n**0.5
