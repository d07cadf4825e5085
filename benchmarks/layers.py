"""Measuring the layers for texts of 512 tokens: peak memory and time against a plain `output_attentions=True` pass.

Both compute σ_a of every head, and the ratio of ‖HC‖ and the spread of every layer. Each runs in its own process; its
memory is the growth of the process up to its peak. `python -m benchmarks layers`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from typing import Any

import torch

from benchmarks.measuring import peak_bytes

TEXTS, TOKENS = 8, 512
SECONDS = 10
"""After so long the layers on a GPU are looked at no more."""


def measure() -> list[dict[str, Any]]:
    """Texts a second (the best) and bytes (the median) of each method over five alternating rounds."""
    found: dict[str, list[dict[str, float]]] = {"plain": [], "tempscale": []}
    for _ in range(5):
        for way, rounds in found.items():
            command = [sys.executable, "-m", "benchmarks.layers", way]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rounds.append(json.loads(done.stdout.splitlines()[-1]))
    names = {"plain": "output_attentions=True, float32", "tempscale": "tempscale's looks, all figures of both tables"}
    best = {way: min(round_["seconds"] for round_ in rounds) for way, rounds in found.items()}
    peak = {way: statistics.median(round_["bytes"] for round_ in rounds) for way, rounds in found.items()}
    return [
        {
            "what": f"{names[way]}, {TEXTS} texts of {TOKENS} tokens, MiniLM, one thread", "rate": TEXTS / best[way],
            "unit": "texts/s", "ratio": best["plain"] / best[way], "peak_bytes": peak[way],
            "peak_over_plain": peak[way] / peak["plain"],
        }
        for way in found
    ]  # fmt: skip


def measure_gpu() -> list[dict[str, Any]]:
    """Texts a second on a GPU for 12 layers of 768 (BERT base, random); empty without a GPU."""
    return [on_device("cuda", 60)] if torch.cuda.is_available() else []


def on_device(device: str, texts: int) -> dict[str, Any]:
    """The rate for texts of 512 tokens on one device, after one text to warm it up; of fewer texts after ten seconds."""
    from transformers import BertConfig, BertModel

    from tempscale_jobs.diagnose.looks import Glance

    torch.manual_seed(0)
    model, glance = BertModel(BertConfig()).eval().to(device), Glance()
    each = [_texts()[k % TEXTS] for k in range(texts + 1)]
    glance.of(model, each[0])
    begun, done, seconds = time.perf_counter(), 0, 0.0
    while done < texts and seconds < SECONDS:
        glance.of(model, each[1 + done])
        done, seconds = done + 1, time.perf_counter() - begun
    what = f"tempscale's looks, texts of {TOKENS} tokens, BERT base of 12 layers, float32, on {device}"
    return {"what": what, "rate": done / seconds, "unit": "texts/s", "ratio": 1.0}


def _texts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(2000, 20_000, (TEXTS, TOKENS - 2), generator=generator).tolist()
    return [[101, *own, 102] for own in words]


def plain(encoder: Any, ids: list[int]) -> None:
    """The straightforward version: every layer's attention and hidden states at once, and full decompositions."""
    out = encoder.model(input_ids=torch.tensor([ids]), output_attentions=True, output_hidden_states=True)
    for attention in out.attentions:
        torch.linalg.matrix_norm(attention[0] - attention[0].mean(-2, keepdim=True), 2)
    for before, after in zip(out.hidden_states, out.hidden_states[1:], strict=False):
        h, x = before[0], after[0]
        (x - x.mean(0)).norm() / (h - h.mean(0)).norm()
        (x - x.mean(0)).square().sum() / len(x) / x.mean(0).square().sum()


def _main(way: str) -> None:
    from tempscale import Encoder
    from tempscale_jobs.diagnose.looks import Glance

    torch.set_num_threads(1)
    encoder = Encoder.load(max_length="limit", device="cpu")
    if way == "plain":
        encoder.model.set_attn_implementation("eager")
    texts, glance = _texts(), Glance()

    def look(ids: list[int]) -> None:
        with torch.inference_mode():
            plain(encoder, ids) if way == "plain" else glance.of(encoder.model, ids)

    look(texts[0][:16])
    before = peak_bytes()
    begun = time.perf_counter()
    for ids in texts:
        look(ids)
    seconds = time.perf_counter() - begun
    print(json.dumps({"seconds": seconds, "bytes": peak_bytes() - before}))


if __name__ == "__main__":
    _main(sys.argv[1])
