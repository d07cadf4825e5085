"""What the first rows, a schema, a file or an option tell is refused with 2 and one sentence before Ray starts."""

import json

import polars as pl
import pytest
import torch
from one_process import ran
from whole_run import as_lines

from tempscale.correction.fit import fit

pytestmark = pytest.mark.proof

TEXTS = [{"id": f"t{k}", "text": f"a text of number {k}", "vector": [1.0, k, 2.0], "n": k + 1} for k in range(8)]
QUERIES = [{"id": f"q{k}", "text": f"which number {k}", "vector": [1.0, k]} for k in range(4)]
PAIRS = [{"sentence1": "one text", "sentence2": "another text", "score": k} for k in range(4)]
OWN = ("--embedding-column", "vector", "--length-column", "n")

REFUSED = {
    # command line: a word of the sentence that names what is wrong
    "audit --corpus texts.jsonl --text-column body": "body",
    "audit --corpus texts.csv --id-column key": "key",
    "audit --corpus texts.parquet --document-column doc": "doc",
    "audit --corpus nothing.jsonl": "nothing.jsonl",
    "audit --corpus empty.jsonl": "empty.jsonl",
    "audit --corpus numbers.jsonl": "numbers.jsonl",
    "audit --corpus broken.parquet": "broken.parquet",
    "audit --corpus broken.jsonl.gz": "broken.jsonl.gz",
    "audit --corpus many/*.jsonl --text-column body": "body",
    "audit --corpus texts.jsonl --queries nothing.jsonl": "nothing.jsonl",
    "audit --corpus texts.jsonl --queries numbers.jsonl": "numbers.jsonl",
    "audit --corpus texts.jsonl --model no/such-model": "no/such-model",
    "audit --corpus texts.jsonl --out texts.jsonl/below": "texts.jsonl",
    "audit --corpus texts.jsonl --embedding-column v --length-column n": "--embedding-column",
    "audit --corpus texts.jsonl --embedding-column vector --length-column m": "--length-column",
    "audit --corpus texts.jsonl --embedding-column vector --length-column n --dims 9": "--dims",
    "audit --corpus texts.jsonl --embedding-column text --length-column n": "texts.jsonl",
    "audit --corpus texts.jsonl --embedding-column vector --length-column n --queries q.jsonl": "--queries-embedding-column",
    "audit --corpus texts.jsonl --queries q.jsonl --queries-embedding-column vector": "--embedding-column",
    "audit --corpus texts.jsonl --embedding-column vector --length-column n --queries q.jsonl "
    "--queries-embedding-column w": "--queries-embedding-column",
    "audit --corpus texts.jsonl --embedding-column vector --length-column n --queries q.jsonl "
    "--queries-embedding-column vector": "2 dimensions",
    "audit --corpus texts.jsonl --baseline nowhere": "nowhere",
    "verify --embeddings nothing.parquet": "nothing.parquet",
    "verify --embeddings pairs.jsonl": "embedding",
    "pairs --pairs nothing.csv": "nothing.csv",
    "pairs --pairs pairs.jsonl": "text_a",
    "pairs --pairs empty.jsonl --column-a sentence1 --column-b sentence2": "empty.jsonl",
    "diagnose --corpus texts.jsonl --versions-of page": "page",
    "diagnose --corpus texts.jsonl --pair t1 nobody": "nobody",
    "tune --corpus many --text-column body": "body",
    "tune --corpus empty.parquet": "empty.parquet",
    "tune --task sts:texts.jsonl": "sentence1",
    "evaluate --task sts:nothing.jsonl": "nothing.jsonl",
    "evaluate --task classification:texts.jsonl": "label",
    "evaluate --task retrieval:mine": "qrels",
    "evaluate --task retrieval:half": "q9",
    "evaluate --task Nothing-Like-It": "Nothing-Like-It",
    "audit --corpus texts.jsonl --queries q.jsonl --what-if centre_by(language)": "add --by language",
    "audit --corpus texts.jsonl --by language --what-if centre_by(language)": "--queries",
    "tune --task retrieval:whole --correction centre_by(language)": "no column 'language'",
    "tune --task SciFact --correction centre_by(language)": "'SciFact'",
    "correct --embeddings texts.parquet --embedding-column vector --correction grouped.json": "no column 'language'",
    "correct --embeddings texts.parquet --embedding-column v --correction fitted.json": "'v'",
    "correct --embeddings texts.jsonl --embedding-column vector --correction fitted.json": "Parquet",
    "correct --embeddings nothing.jsonl --embedding-column vector --correction fitted.json": "nothing.jsonl",
    "correct --embeddings texts.jsonl --embedding-column vector --correction gone.json": "gone.json",
    "correct --embeddings texts.jsonl --embedding-column vector --correction fitted.json --model MODEL": "another",
    "submit -- audit gone.toml": "gone.toml",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refused")
    (folder / "texts.jsonl").write_text(as_lines(TEXTS))
    pl.DataFrame(TEXTS).write_parquet(folder / "texts.parquet")
    pl.DataFrame(TEXTS).drop("vector").write_csv(folder / "texts.csv")
    (folder / "q.jsonl").write_text(as_lines(QUERIES))
    (folder / "pairs.jsonl").write_text(as_lines(PAIRS))
    (folder / "empty.jsonl").write_text("\n")
    pl.DataFrame(TEXTS).clear().write_parquet(folder / "empty.parquet")
    (folder / "numbers.jsonl").write_text(as_lines([{"id": k, "text": k} for k in range(9)]))
    (folder / "broken.parquet").write_bytes((folder / "texts.parquet").read_bytes()[:-20])
    (folder / "broken.jsonl.gz").write_bytes(b"\x1f\x8b\x08 no gzip")
    (folder / "many").mkdir()
    for k in range(3):
        (folder / "many" / f"part-{k}.jsonl").write_text(as_lines(TEXTS))
    for name in ("mine", "half", "whole"):
        (folder / name).mkdir()
        (folder / name / "corpus.jsonl").write_text(as_lines([{"id": t["id"], "text": t["text"]} for t in TEXTS]))
        (folder / name / "queries.jsonl").write_text(as_lines([{"id": q["id"], "text": q["text"]} for q in QUERIES]))
    (folder / "half" / "qrels.jsonl").write_text(as_lines([{"query_id": "q9", "doc_id": "t1", "score": 1}]))
    (folder / "whole" / "qrels.jsonl").write_text(as_lines([{"query_id": "q1", "doc_id": "t1", "score": 1}]))
    vectors = torch.nn.functional.normalize(torch.tensor([text["vector"] for text in TEXTS]), dim=1)
    vectors = vectors.repeat(20, 1)
    lengths = torch.arange(1, len(vectors) + 1)
    centred = fit("centre", vectors, lengths, vectors, lengths).as_data()
    grouped = fit("centre_by(language)", vectors, None, vectors, groups=["de", "en"] * (len(vectors) // 2))
    (folder / "grouped.json").write_text(json.dumps(grouped.as_data()))
    of = {"name": "another", "fingerprint": "0" * 64}
    (folder / "fitted.json").write_text(json.dumps({"model": of, "corrections": [centred]}))
    return folder


@pytest.fixture(scope="module")
def ended(folder, small_model):
    """How each command ended."""
    lines = []
    for k, line in enumerate(REFUSED):
        words = line.replace("MODEL", small_model).split()
        if words[0] not in ("correct", "submit") and not {"--model", "--embedding-column"} & set(words):
            words += ["--model", small_model]
        if words[0] != "submit" and "--out" not in words:
            words += ["--out", f"out-{k}"]
        lines.append(words)
    return dict(zip(REFUSED, ran(lines, folder), strict=True))


@pytest.mark.parametrize("line", REFUSED)
def test_a_mistake_in_the_inputs_is_answered_before_ray_starts(ended, folder, line):
    found = ended[line]
    assert found["code"] == 2, found["out"] + found["err"]
    assert not found["ray"]
    assert not (folder / "ray").exists()
    sentences = [text for text in found["err"].splitlines() if text.startswith("error: ")]
    assert len(sentences) == 1, found["err"]
    assert REFUSED[line] in sentences[0]
    assert "Traceback" not in found["err"]
