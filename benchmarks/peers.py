"""Embedding on a CPU beside what else embeds: the backends of sentence-transformers, and the engine of fastembed.

They are not among tempscale's extras, and two want transformers 4, so that they run in an environment of their own:

    pip install onnx onnxruntime openvino            # here
    python -m venv PEERS
    PEERS/bin/pip install 'sentence-transformers[onnx,openvino]' 'transformers<5'
    PEERS_PYTHON=PEERS/bin/python python -m benchmarks peers

measures those that are installed, text for text, on two threads; one that cannot be loaded says why. The memory of each is
the peak of a process that loads it and embeds the texts once, with all that it imports. Not here: infinity,
which runs sentence-transformers' own model behind a queue (0.0.78 fails with transformers 5, and waited without end with 4),
and vLLM's pooling, which has no wheel for a CPU.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.embedding import operations
from benchmarks.measuring import fastest, gemm_rate, peak_bytes

COUNT, THREADS, BATCH, WINDOW = 200, 2, 32, 256
Encode = Callable[[list[str]], np.ndarray]
"""Unit vectors of texts."""


def measure() -> list[dict[str, Any]]:
    """Tokens a second, memory, and the largest difference of a coordinate from sentence-transformers' own backend."""
    from benchmarks.paragraphs import paragraphs
    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    corpus, folder = paragraphs(COUNT)[0], default_model()
    ours = Encoder.load(folder, device="cpu")
    lengths = ours.tokenizer(corpus).lengths
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "corpus.json").write_text(json.dumps({"folder": folder, "corpus": corpus}))
        measured = _measured(sys.executable, place)
        if (python := os.environ.get("PEERS_PYTHON")) is not None:
            measured |= {f"{name}, transformers 4": own for name, own in _measured(python, place).items()}
    limit = operations(ours.model.config, lengths) / gemm_rate(THREADS)
    first, vectors, _ = next(iter(measured.values()))
    return [
        {"what": name, "rate": sum(lengths) / s, "unit": "tokens/s", "ratio": first / s, "limit_share": limit / s}
        | ({"largest_difference": float(np.abs(own - vectors).max())} if own is not vectors else {})
        | {"peak_memory_bytes": peak}
        for name, (s, own, peak) in measured.items()
    ]


def _timed(methods: dict[str, Encode], corpus: list[str]) -> dict[str, tuple[float, np.ndarray]]:
    """Seconds of the fastest of two rounds, and the vectors, of each method."""
    torch.set_num_threads(THREADS)
    with torch.inference_mode():
        seconds = fastest(2, *(lambda encode=encode: encode(corpus) for encode in methods.values()))  # type: ignore[misc]
        return {name: (s, methods[name](corpus)) for name, s in zip(methods, seconds, strict=True)}


def _measured(python: str, place: Path) -> dict[str, tuple[float, np.ndarray, int]]:
    """Seconds, vectors and peak memory of each method that an environment has: first all in one process, in turns."""
    subprocess.run([python, "-m", "benchmarks.peers", str(place)], check=True)
    with np.load(place / "vectors.npz") as vectors:
        seconds = json.loads((place / "seconds.json").read_text())
        return {name: (s, vectors[name], _peak(python, place, name)) for name, s in seconds.items()}


def _peak(python: str, place: Path, name: str) -> int:
    """The most memory of a process that loads one method and embeds the texts once."""
    command = [python, "-m", "benchmarks.peers", str(place), name]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def _main(place: Path, name: str | None = None) -> None:
    """Time every method that is installed here; or embed by one of them, and print this process's peak memory."""
    asked = json.loads((place / "corpus.json").read_text())
    if name is not None:
        torch.set_num_threads(THREADS)
        _loaders(asked["folder"], place)[name]()(asked["corpus"])
        print(peak_bytes())
        return
    measured = _timed(dict(_loaded(asked["folder"], place)), asked["corpus"])
    vectors: Any = {name: vectors for name, (_, vectors) in measured.items()}
    np.savez(place / "vectors.npz", **vectors)
    (place / "seconds.json").write_text(json.dumps({name: s for name, (s, _) in measured.items()}))


def _loaders(folder: str, place: Path) -> dict[str, Callable[[], Encode]]:
    """Functions that load each method, by name."""
    backends = {f"sentence-transformers, {name}": name for name in ("torch", "onnx", "openvino")}
    loaders: dict[str, Callable[[], Encode]] = {
        name: lambda backend=backend: _sentence_transformers(folder, backend, place)  # type: ignore[misc]
        for name, backend in backends.items()
    }
    loaders["onnxruntime, as fastembed"] = lambda: _onnxruntime(_exported(folder, place), folder)
    loaders["OpenVINO itself"] = lambda: _openvino(_exported(folder, place), folder)
    loaders["tempscale"] = lambda: _tempscale(folder, moments=False)
    loaders["tempscale + token moments"] = lambda: _tempscale(folder, moments=True)
    return loaders


def _loaded(folder: str, place: Path) -> Iterator[tuple[str, Encode]]:
    """The methods that are installed, by name."""
    for name, load in _loaders(folder, place).items():
        try:
            encode = load()
            encode(["a text", "another, which is longer"])
        except Exception as error:  # Each has its own.
            print(f"{name}: not measured, {type(error).__name__}: {str(error).splitlines()[0]}", file=sys.stderr)
        else:
            yield name, encode


def _tempscale(folder: str, moments: bool) -> Encode:
    from tempscale import Encoder

    encoder = Encoder.load(folder, device="cpu")
    return lambda texts: encoder.encode(texts, moments=moments).embeddings.numpy()


def _sentence_transformers(folder: str, backend: Any, place: Path) -> Encode:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(folder, device="cpu", backend=backend, cache_folder=str(place))
    options: dict[str, Any] = {"batch_size": BATCH, "normalize_embeddings": True, "show_progress_bar": False}
    return lambda texts: np.asarray(model.encode(texts, **options))


def _exported(folder: str, place: Path) -> Path:
    """The transformer as ONNX, from our own weights."""
    from transformers import AutoModel

    file = place / "model.onnx"
    if not file.exists():
        ids = torch.ones(2, 8, dtype=torch.int64)
        axes = {name: {0: "text", 1: "token"} for name in ("input_ids", "attention_mask", "hidden")}
        hidden = _Hidden(AutoModel.from_pretrained(folder).eval())
        torch.onnx.export(
            hidden, (ids, ids), str(file), input_names=["input_ids", "attention_mask"],
            output_names=["hidden"], dynamic_axes=axes, dynamo=False,
        )  # fmt: skip
    return file


class _Hidden(torch.nn.Module):
    """A transformer of ids and mask alone."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> Any:
        return self.model(input_ids=ids, attention_mask=mask).last_hidden_state


def _pooled(folder: str, run: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Encode:
    """Unit means of token embeddings in batches of similar length, from an engine of hidden states."""
    from tempscale.model.tokens import Tokenizer  # In the environment of the peers it is not there.

    tokenizer = Tokenizer(Path(folder), WINDOW)

    def encode(texts: list[str]) -> np.ndarray:
        sequences = tokenizer(texts).sequences
        order = np.argsort(-sequences.lengths, kind="stable")
        vectors = np.empty((len(texts), 0))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            ids, lengths = sequences.padded(rows.tolist(), 0)
            mask = (np.arange(ids.shape[1]) < lengths[:, None]).astype(np.int64)
            sums = (run(ids, mask) * mask[:, :, None]).sum(1)
            if not vectors.size:
                vectors = np.empty((len(texts), sums.shape[1]), np.float32)
            vectors[rows] = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        return vectors

    return encode


def _onnxruntime(file: Path, folder: str) -> Encode:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return _pooled(folder, lambda ids, mask: np.asarray(session.run(None, {"input_ids": ids, "attention_mask": mask})[0]))


def _openvino(file: Path, folder: str) -> Encode:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(str(file), "CPU", settings)
    return _pooled(folder, lambda ids, mask: np.asarray(model({"input_ids": ids, "attention_mask": mask})[0]))


if __name__ == "__main__":
    _main(Path(sys.argv[1]), *sys.argv[2:])
