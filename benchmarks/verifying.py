"""`tempscale verify` on real vectors: planted faults found and named, clean indexes that pass, a sample of a million rows.

    python -m benchmarks.verifying [--alone N] [--together N] [--draws N] [--sample N] [--million N] [--corpus FILE]

Vectors are sentence-transformers' own, of all-MiniLM on Wikipedia paragraphs (docstrings without them). Six of the eight
faults are made by its options or, where onnxruntime, onnx and onnxscript are installed, by a model that ONNX Runtime runs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.measuring import texts as docstrings
from benchmarks.socm import WIKIPEDIA
from tempscale.model.checkpoint import default_model

PARAGRAPHS = WIKIPEDIA / "paragraphs_100k.parquet"
CLEAN, DISTINCT, SAMPLE_OF_MILLION = 10_000, 20_000, 3000
"""Rows of a clean index, and those that the large index repeats."""
SHARE = 100
"""One row in so many has a fault."""
_LONG = 500
"""Characters of a text that a window of 64 tokens cuts."""
_WINDOW, _DIMS, _SCALE = 64, 256, 0.0016

Embed = Callable[[Sequence[str]], np.ndarray]


class Index(NamedTuple):
    """Texts and the model's vectors of them."""

    texts: list[str]
    vectors: np.ndarray

    def first(self, rows: int) -> Index:
        """Its first rows."""
        return Index(self.texts[:rows], self.vectors[:rows])


class Fault(NamedTuple):
    """A mistake, the vectors that it gives, and the cause that a run should name."""

    made: Embed
    cause: str


class Sizes(NamedTuple):
    """How much is measured; what has none is left out."""

    alone: int = 10_000
    """Rows of an index with one fault."""
    together: int = 100_000
    """Rows of an index with all of them."""
    draws: int = 100
    """Samples of clean indexes."""
    sample: int = 300
    """Rows of each."""
    million: int = 1_000_000
    """Rows of the large index."""


def measure() -> list[dict[str, Any]]:
    """All rows of `found`, on Wikipedia."""
    return [*found(Sizes(), PARAGRAPHS)]


def found(sizes: Sizes, corpus: Path) -> Iterator[dict[str, Any]]:
    """What was found and named of each fault, alone and together; false alarms of clean draws; the cost of a large index."""
    with tempfile.TemporaryDirectory(prefix="tempscale-verifying-") as name:
        folder, texts = Path(name), _texts(corpus, max(CLEAN, sizes.alone, sizes.together))
        index = Index(texts, _sentence_transformers()(texts))
        yield from _planted(folder, index, sizes)
        if sizes.draws:
            yield from _clean(folder, index.first(CLEAN), sizes)
        if sizes.million:
            yield _large(folder, index.first(DISTINCT), sizes.million)


def _texts(corpus: Path, count: int) -> list[str]:
    """Distinct texts of the corpus."""
    if not corpus.is_file():
        return docstrings(count)
    return list(dict.fromkeys(pq.read_table(corpus, columns=["text"])["text"].to_pylist()))[:count]


# ---------------------------------------------------------------------------------------------- vectors of other programs


def _sentence_transformers(folder: str = "", kind: torch.dtype = torch.float32, **options: Any) -> Embed:
    """The model as sentence-transformers runs it; `window`, `truncate_dim` and what `encode` takes are its own options."""
    from sentence_transformers import SentenceTransformer

    window = options.pop("window", None)
    truncated = {"truncate_dim": options.pop("truncate_dim")} if "truncate_dim" in options else {}
    model = SentenceTransformer(folder or str(default_model()), device="cpu", **truncated).to(kind)
    model.max_seq_length = window or model.max_seq_length

    def embed(texts: Sequence[str]) -> np.ndarray:
        vectors: torch.Tensor = model.encode(list(texts), convert_to_tensor=True, show_progress_bar=False, **options)
        return vectors.float().numpy()

    return embed


def _onnx(folder: Path, pooling: str) -> Embed:
    """The model as ONNX Runtime runs it, pooled by `mean` or `cls`, of unit norm."""
    import onnxruntime
    from transformers import AutoModel, AutoTokenizer

    file, tokenizer = folder / "model.onnx", AutoTokenizer.from_pretrained(default_model())
    if not file.is_file():
        model = AutoModel.from_pretrained(default_model(), attn_implementation="eager").eval()
        some = tokenizer(["a text", "another one, which is longer"], padding=True, return_tensors="pt")
        sizes = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens")}
        torch.onnx.export(
            _Hidden(model), (some["input_ids"], some["attention_mask"]), str(file), dynamo=True,
            input_names=["ids", "mask"], dynamic_shapes={"ids": sizes, "mask": sizes},
        )  # fmt: skip
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])

    def embed(texts: Sequence[str]) -> np.ndarray:
        rows = []
        for first in range(0, len(texts), 16):
            batch = tokenizer(list(texts[first : first + 16]), max_length=256, truncation=True, padding=True)
            ids, mask = (np.array(batch[name], np.int64) for name in ("input_ids", "attention_mask"))
            (hidden,) = session.run(None, {"ids": ids, "mask": mask})
            pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask[..., None]).sum(1) / mask.sum(1)[:, None]
            rows.append(pooled / np.linalg.norm(pooled, axis=1, keepdims=True))
        return np.concatenate(rows)

    return embed


class _Hidden(torch.nn.Module):
    """A model that gives its last hidden states alone."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden


def _has_onnx() -> bool:
    return all(find_spec(name) for name in ("onnxruntime", "onnx", "onnxscript"))


def _by_cls(folder: Path) -> Embed:
    """The model pooled by its first token, by ONNX Runtime where it is installed."""
    if _has_onnx():
        return _onnx(folder, "cls")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer

    modules = [Transformer(str(default_model()), max_seq_length=256), Pooling(384, pooling_mode="cls"), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu")
    return lambda texts: np.asarray(model.encode(list(texts), show_progress_bar=False))


def _other_model(folder: Path) -> str:
    """A folder with the model without its last layer."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(default_model()), device="cpu")
    bert = model[0].auto_model
    bert.encoder.layer = bert.encoder.layer[:-1]
    bert.config.num_hidden_layers -= 1
    model.save(str(folder / "other"))
    return str(folder / "other")


# ---------------------------------------------------------------------------------------------- faults


def _faults(folder: Path, other: str) -> dict[str, Fault]:
    """The eight faults by name; those that move vectors or change texts take the right ones."""
    right = _sentence_transformers()
    return {
        "pooling": Fault(_by_cls(folder), "pooled by cls"),
        "prompt": Fault(_sentence_transformers(prompt="query: "), "embedded with the prompt 'query: '"),
        "window": Fault(_sentence_transformers(window=_WINDOW), f"cut to a window of {_WINDOW} tokens"),
        "other model": Fault(_sentence_transformers(other), "of the model other"),
        "precision": Fault(_sentence_transformers(kind=torch.bfloat16), "computed in bfloat16"),
        "edited text": Fault(
            lambda texts: right([f"{text[: len(text) // 2]} This was edited." for text in texts]),
            "of a text that was probably edited since",
        ),
        "cut dimensions": Fault(_sentence_transformers(truncate_dim=_DIMS), f"cut to the first {_DIMS} of 384 dimensions"),
        "shifted rows": Fault(right, "of the row above"),
    }


def _planted(folder: Path, index: Index, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Each fault alone in one row of a hundred, then all eight in one index."""
    other = _other_model(folder)
    faults = _faults(folder, other)
    indexes = [(index.first(sizes.alone), [name]) for name in faults if sizes.alone]
    indexes += [(index.first(sizes.together), [*faults])] if sizes.together else []
    for (texts, right), names in indexes:
        places = _places(texts, [*faults])
        vectors, causes = list[np.ndarray](right), dict[str, str]()
        for name in names:
            # The rows of cut dimensions are shorter than others, so each is a vector of its own.
            for k, vector in zip(places[name], _wrong(faults[name], texts, places[name], name), strict=True):
                vectors[k] = vector
                causes[f"t{k}"] = faults[name].cause
        file = _written(folder / "planted.parquet", texts, vectors)
        what = names[0] if len(names) == 1 else "all eight"
        yield _found(
            f"{what}, {len(texts):,} rows", causes, _verified(folder, file, "--sample", "all", "--candidate", other)
        )


def _places(texts: list[str], faults: Sequence[str]) -> dict[str, list[int]]:
    """The rows of each fault: one in a hundred, of long texts."""
    long = np.array([k for k, text in enumerate(texts) if k and len(text) > _LONG])
    chosen = np.random.default_rng(0).permutation(long)[: max(1, len(texts) // SHARE) * len(faults)]
    return {name: rows.tolist() for name, rows in zip(faults, np.array_split(chosen, len(faults)), strict=True)}


def _wrong(fault: Fault, texts: list[str], rows: Sequence[int], name: str) -> np.ndarray:
    above = 1 if name == "shifted rows" else 0
    return fault.made([texts[k - above] for k in rows])


def _found(what: str, causes: dict[str, str], run: dict[str, Any]) -> dict[str, Any]:
    """How many of the planted rows a run found and named, and how many others it called wrong."""
    wrong: dict[str, str | None] = run["wrong"]
    hit = [row for row in causes if row in wrong]
    named = sum(wrong[row] == causes[row] for row in hit)
    others = Counter(str(wrong[row]) for row in hit if wrong[row] != causes[row])
    rest = f" ({', '.join(f'{count} {cause}' for cause, count in others.most_common(2))})" if others else ""
    false = len(wrong) - len(hit)
    text = f"{what}: {len(hit)} of {len(causes)} found, {named} named{rest}, {false} others called wrong"
    figures = {"planted": len(causes), "found": len(hit), "named": named, "false": false}
    return {"what": text, "rate": run["compared"] / run["seconds"], "unit": "rows/s", "seconds": run["seconds"]} | figures


# ---------------------------------------------------------------------------------------------- clean indexes


def _clean(folder: Path, index: Index, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Samples of clean indexes in four formats, and of ONNX Runtime's vectors: no row may be wrong."""
    texts, right = index
    indexes = {
        "float32": (right, ()),
        "float16": (right.astype(np.float16), ()),
        "bfloat16": (torch.from_numpy(right).bfloat16().float().numpy(), ()),
        "int8": (np.clip(np.rint(right / _SCALE), -128, 127).astype(np.int8), (f"scale = {_SCALE}",)),
    }
    if _has_onnx():
        indexes["float32 of ONNX Runtime"] = (_onnx(folder, "mean")(texts[: sizes.sample]), ())
    for name, (vectors, settings) in indexes.items():
        file = _written(folder / "clean.parquet", texts[: len(vectors)], list(vectors), settings)
        by_onnx = name not in ("float32", "float16", "bfloat16", "int8")
        each = 1 if by_onnx else sizes.draws // 4
        sampled = "all" if by_onnx else str(sizes.sample)
        runs = [_verified(folder, file, "--sample", sampled, "--seed", str(seed)) for seed in range(each)]
        if not runs:
            continue
        failed, seconds = sum(bool(run["wrong"]) for run in runs), sum(run["seconds"] for run in runs)
        yield {
            "what": f"clean, {name}: {failed} of {len(runs)} draws of {sampled} have a wrong row", "seconds": seconds,
            "rate": sum(run["compared"] for run in runs) / seconds, "unit": "rows/s", "failed": failed,
        }  # fmt: skip


def _large(folder: Path, index: Index, count: int) -> dict[str, Any]:
    """The cost of a sample of a large index."""
    texts, right = index
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("embedding", pa.list_(pa.float32()))])
    file, distinct = folder / "large.parquet", min(DISTINCT, len(texts), count)
    columns = [pa.array(texts[:distinct]), pa.array(list(right[:distinct]), schema.field("embedding").type)]
    with pq.ParquetWriter(file, schema) as writer:
        for first in range(0, count, distinct):
            here = min(distinct, count - first)
            ids = pa.array([f"t{k}" for k in range(first, first + here)])
            writer.write_table(pa.table([ids, *(column.slice(0, here) for column in columns)], schema=schema))
    run = _verified(folder, file, "--sample", str(SAMPLE_OF_MILLION))
    text = f"{count:,} rows, a sample of {run['compared']:,}: {len(run['wrong'])} wrong"
    return {"what": text, "rate": count / run["seconds"], "unit": "rows/s"} | {
        name: run[name] for name in ("seconds", "peak_memory_bytes", "steps")
    }


# ---------------------------------------------------------------------------------------------- runs


def _written(file: Path, texts: list[str], vectors: list[np.ndarray], settings: Sequence[str] = ()) -> Path:
    """Write an index, or a configuration that names it where its numbers need settings."""
    kind = pa.int8() if vectors[0].dtype == np.int8 else pa.float16() if vectors[0].dtype == np.float16 else pa.float32()
    ids = pa.array([f"t{k}" for k in range(len(texts))])
    columns = {"id": ids, "text": pa.array(texts), "embedding": pa.array(vectors, pa.list_(kind))}
    pq.write_table(pa.table(columns), file)
    if not settings:
        return file
    config = file.with_suffix(".toml")
    config.write_text("\n".join(["[embeddings]", f'source = "{file}"', *settings, ""]), "utf-8")
    return config


def _verified(folder: Path, index: Path, *options: str) -> dict[str, Any]:
    """One run of the command line: its wrong rows with their causes, seconds and memory."""
    out = folder / "run"
    source = [str(index)] if index.suffix == ".toml" else ["--embeddings", str(index)]
    command = [sys.executable, "-m", "tempscale_jobs", "verify", *source, "--out", str(out), "--fresh", "--quiet", *options]
    begun = time.monotonic()
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    seconds = time.monotonic() - begun
    if process.returncode not in (0, 1):
        raise SystemExit(f"the run ended with {process.returncode}: {process.stderr}")
    table = pq.read_table(out / "tables" / "verified.parquet", columns=["text_id", "wrong", "cause"])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    record = json.loads((out / "run.json").read_text("utf-8"))
    return {
        "wrong": {text_id: cause for text_id, wrong, cause in rows if wrong}, "compared": table.num_rows,
        "seconds": seconds, "peak_memory_bytes": record["peak_memory_bytes"],
        "steps": {name: step["seconds"] for name, step in record["steps"].items()},
    }  # fmt: skip


def _arguments() -> tuple[Sizes, Path]:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verifying", description=__doc__.splitlines()[0])
    for name, default in Sizes()._asdict().items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--corpus", type=Path, default=PARAGRAPHS, help="a Parquet file with a column text")
    asked = vars(parser.parse_args())
    return Sizes(**{name: asked[name] for name in Sizes._fields}), asked["corpus"]


if __name__ == "__main__":
    for row in found(*_arguments()):
        print(json.dumps(row), flush=True)
