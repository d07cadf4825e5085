"""Small tasks of three types over ninety docstrings, whose scores can be worked out by hand."""

import numpy as np
from whole_run import as_lines

EDGES, TAUS, LONGEST = [0, 24, 48], [1.0, 0.5], 64
DOCUMENTS, QUERIES, PAIRS = 72, 45, 60


def rows_of(texts):
    """The rows of every file, by name."""
    generator = np.random.default_rng(1)
    pairs = []
    for k in range(PAIRS):  # The more of another text, the less alike.
        share, first, other = generator.uniform(0, 1), texts[k][:160], texts[(k + 7) % 90]
        second = first[: int(160 * (1 - share))] + other[: int(160 * share)]
        pairs.append({"sentence1": first, "sentence2": second, "score": round(5 * (1 - share), 1)})
    middle = sorted(map(len, texts))[len(texts) // 2]
    return {
        "corpus": [{"id": f"d{k:02}", "text": texts[k][20:]} for k in range(DOCUMENTS)],
        "queries": [{"id": f"q{k:02}", "text": texts[k][: 15 + 11 * k % 150]} for k in range(QUERIES)],
        "pairs": pairs,
        "halves": [pair | {"score": float(pair["score"] > 2.5)} for pair in pairs[::2]],
        "labels": [
            {"id": f"t{k}", "text": text[:220], "label": "long" if len(text) > middle else "short"}
            for k, text in enumerate(texts)
        ],
    }


def relevance():
    """Scores by query and document: two that answer, of which the second answers others too, and one that does not."""
    return {f"q{k:02}": {f"d{k:02}": 2, f"d{(5 * k + 3) % 24 + 48:02}": 1, f"d{(k + 9) % 48:02}": 0} for k in range(QUERIES)}


def write_tasks(folder, texts):
    """Write the files of all tasks."""
    for name, rows in rows_of(texts).items():
        (folder / f"{name}.jsonl").write_text(as_lines(rows))
    told = [f"{q}\t{d}\t{s}\n" for q, scores in relevance().items() for d, s in scores.items()]
    (folder / "qrels.tsv").write_text("query_id\tdoc_id\tscore\n" + "".join(told))


def retrieval_in(folder, name, corpus, queries, relevant):
    """Write a retrieval of texts by id, whose documents answer one query each or several; the task over its files."""
    for side, texts in (("corpus", corpus), ("queries", queries)):
        (folder / f"{side}.jsonl").write_text(as_lines({"id": key, "text": text} for key, text in texts.items()))
    rows = [f"{query}\t{document}\t1\n" for query, documents in relevant.items() for document in documents]
    (folder / "qrels.tsv").write_text("query_id\tdoc_id\tscore\n" + "".join(rows))
    files = {side: str(folder / f"{side}.jsonl") for side in ("corpus", "queries")}
    return {"name": name, "type": "retrieval", "qrels": str(folder / "qrels.tsv")} | files


def tasks_in(folder):
    """Tasks of three types over the files of a folder."""
    sides = {name: str(folder / f"{name}.jsonl") for name in ("corpus", "queries")}
    return [
        {"name": "found", "type": "retrieval", "qrels": str(folder / "qrels.tsv")} | sides,
        {"name": "alike", "type": "sts", "source": str(folder / "pairs.jsonl")},
        {"name": "halves", "type": "sts", "source": str(folder / "halves.jsonl")},
        {"name": "sizes", "type": "classification", "source": str(folder / "labels.jsonl"), "experiments": 4,
         "samples_per_label": 6},
    ]  # fmt: skip


def settings(out, small_model, tasks, execution=None, **embedding):
    return {
        "out": str(out), "tasks": tasks, "seed": 3, "analysis": {"intervals": EDGES},
        "embedding": {"models": [small_model], "temperatures": TAUS, "max_length": LONGEST} | embedding,
        "execution": {"workers": 1} | (execution or {}),
    }  # fmt: skip


def results(out):
    return {file: file.stat().st_mtime_ns for file in out.glob("cells/*/*/*/result.json")}


def one(table, **where):
    """The only row with these values."""
    (row,) = table.filter(**where).to_dicts()
    return row
