"""The retrieval sets of docs/short-texts-win.md, as folders for `tempscale tune --task retrieval:FOLDER`.

    python -m benchmarks.retrieval_sets FOLDER

Docstrings of twenty installed packages, of which the first line asks and the rest answers; SciFact and QMSum where their
files lie beside the checkout. Then, for each set and model:

    tempscale tune --task retrieval:FOLDER/scifact --model MODEL --tau 1.0 --tau 0.9 --out runs/scifact
    python docs/short_texts.py "SciFact=runs/scifact"
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import polars as pl

from benchmarks.socm import WIKIPEDIA
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import sources

PACKAGES = (
    "numpy", "scipy", "pandas", "polars", "torch", "transformers", "ray", "sklearn", "networkx", "sympy",
    "sentence_transformers", "mteb", "datasets", "huggingface_hub", "numba", "altair", "pip", "pydantic", "narwhals",
    "lancedb",
)  # fmt: skip
OF_EACH = 150
_FIRST, _REST = 20, 150
"""Characters that a first line and a rest have at least."""


class Answered(NamedTuple):
    """A question and the one text that answers it."""

    name: str
    question: str
    answer: str


def docstrings() -> Iterator[Answered]:
    """Of each package 150 docstrings, or as many as it has, drawn by their ids."""
    for package in PACKAGES:
        chosen = sorted(_of_package(package), key=lambda own: keyed_hash(own.name, 0))
        yield from chosen[:OF_EACH]


def _of_package(package: str) -> Iterator[Answered]:
    asked = set[str]()
    for row in sources.rows(Corpus.model_validate({"source": f"docstrings:{package}"})):
        first, _, rest = (part.strip() for part in row.text.strip().partition("\n"))
        if len(first) >= _FIRST and len(rest) >= _REST and first not in asked:
            asked.add(first)
            yield Answered(row.id, first, rest)


def write(folder: Path, corpus: dict[str, str], queries: dict[str, str], relevant: Iterable[tuple[str, str]]) -> None:
    """The three files of a retrieval."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps({"id": key, "text": text}, ensure_ascii=False) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join([*lines, ""]), "utf-8")
    rows = [f"{query}\t{document}\t1" for query, document in relevant]
    (folder / "qrels.tsv").write_text("\n".join(["query_id\tdoc_id\tscore", *rows, ""]), "utf-8")


def _shared(folder: Path, name: str) -> None:
    """SciFact or QMSum, from files that are not part of the project."""
    source = WIKIPEDIA.parent / name
    texts = {}
    for kind in ("corpus", "queries"):
        with gzip.open(source / f"{kind}.jsonl.gz", "rt", encoding="utf-8") as lines:
            rows = [json.loads(line) for line in lines]
        texts[kind] = {str(row["id"]): ". ".join(filter(None, [row.get("title", ""), row["text"]])) for row in rows}
    judged = pl.read_csv(source / "qrels.tsv", separator="\t", schema_overrides={"query_id": pl.String, "doc_id": pl.String})
    pairs = judged.filter(pl.col("rel") > 0).select("query_id", "doc_id").unique(maintain_order=True)
    queries = {key: texts["queries"][key] for key in pairs["query_id"].unique(maintain_order=True)}
    write(folder / name, texts["corpus"], queries, pairs.iter_rows())


if __name__ == "__main__":
    (to,) = sys.argv[1:]
    drawn = [*docstrings()]
    write(
        Path(to) / "packages", {one.name: one.answer for one in drawn}, {one.name: one.question for one in drawn},
        [(one.name, one.name) for one in drawn],
    )  # fmt: skip
    for name in ("scifact", "qmsum"):
        if (WIKIPEDIA.parent / name).is_dir():
            _shared(Path(to), name)
