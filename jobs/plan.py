"""`--plan`: what a run will cost here, measured on a few of its own texts, before anything is written."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jobs import corpus, runs, vectors
from jobs.config import AuditConfig
from jobs.errors import UsageError
from jobs.progress import duration
from jobs.urls import shown
from tempscale.cosine import Block, cosine_tile
from tempscale.tiles import block_size

_MEASURED_TEXTS = 48
_READ_AHEAD = 2000
_BASE_BYTES, _WORKER_BYTES = 900 << 20, 500 << 20
"""Ray with this process, and one worker beside its model: measured on the quick start."""
_START_SECONDS, _ROW_BYTES = 30.0, 120


@dataclass(frozen=True)
class Plan:
    """Estimates for one machine with these workers."""

    texts: int
    corpus_texts: int
    tokens: int
    pairs: int
    socm_pairs: int
    seconds: float
    memory_bytes: int
    disk_bytes: int
    workers: int


def plan(config: AuditConfig) -> Plan:
    """Read the corpus's rows, embed a few of its texts, and estimate the whole run from that.

    Raises:
        UsageError: as the run itself would.
    """
    import torch
    from transformers.utils import logging

    from tempscale.encoder import Encoder
    from tempscale.socm import socm_tile

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    if config.corpus.embedding_column is not None:
        return _plan_of_given(config)
    models = runs.find_models(config)
    first, corpus_texts = corpus.preview(config, _READ_AHEAD)
    if not corpus_texts:
        raise UsageError(f"corpus '{shown(config.corpus.source)}' has no usable text")
    texts = min(corpus_texts, config.corpus.sample or corpus_texts)
    tokens = seconds = disk = weights = 0.0
    socm_texts = min(config.analysis.socm_sample, texts)
    pairs, socm_pairs = texts * (texts - 1) // 2, socm_texts * (socm_texts - 1) // 2
    for model in models:
        encoder = Encoder.load(
            model.name,
            max_length=config.embedding.max_length,
            long=config.embedding.long,
            precision=config.embedding.precision,
            device="cpu",
        )
        tokens_of_first = encoder.tokenizer(first, isolate=True)
        good = [k for k in range(len(first)) if k not in tokens_of_first.failed]
        if not good:
            raise UsageError(
                f"model {model.label}: {tokens_of_first.failed[0]}, and so on each of the first {len(first):,} texts"
            )
        lengths = np.array(tokens_of_first.lengths)[good]
        few = tokens_of_first.take(good[:: max(1, len(good) // _MEASURED_TEXTS)])
        begun = time.monotonic()
        measured = encoder.encode_tokens(few, factors=True)
        token_seconds = (time.monotonic() - begun) / int(measured.tokens.sum())
        assert measured.factors is not None
        means, factors = torch.stack([m for m, _ in measured.factors]), [f for _, f in measured.factors]
        socm_tile(means[:1], factors[:1], means[:1], factors[:1])  # Compiled before it is timed.
        begun = time.monotonic()
        socm_tile(means, factors, means, factors)
        socm_seconds = (time.monotonic() - begun) / len(factors) ** 2
        width = measured.embeddings.shape[1]
        cosine_seconds = _cosine_seconds(width, config.analysis.neighbours) if config.analysis.cosine == "full" else 0.0
        probe = min(config.analysis.probe_sample, int((lengths >= 512).mean() * texts)) * 992
        model_tokens = float(lengths.mean()) * (texts + socm_texts) + probe
        each = model_tokens * token_seconds + pairs * cosine_seconds + socm_pairs * socm_seconds
        temperatures = len(config.embedding.temperatures)
        tokens += temperatures * model_tokens
        seconds += temperatures * each
        factor_bytes = socm_texts * min(float(lengths.mean()), width) * width * 4
        text_bytes = 8 * width + _ROW_BYTES + 40 * config.analysis.neighbours
        disk += temperatures * (texts * text_bytes + factor_bytes)
        weights = max(weights, sum(p.numel() * 4 for p in encoder.model.parameters()))
    workers = config.execution.workers or os.cpu_count() or 1
    blocks = 2 * 4 * width * min(texts, block_size(texts, width))
    memory = _BASE_BYTES + workers * (_WORKER_BYTES + weights + blocks) + texts * _ROW_BYTES
    seconds = seconds / min(workers, os.cpu_count() or 1) + _START_SECONDS * len(models)
    return Plan(texts, corpus_texts, int(tokens), pairs, socm_pairs, seconds, int(memory), int(disk), workers)


def _plan_of_given(config: AuditConfig) -> Plan:
    """For embeddings of one's own, of which only the pairs take time."""
    counts, reader, width = corpus.Counts(), vectors.Reader(config.corpus), 0
    rows = vectors.rows(config.corpus, config.out)
    for _, (row, _) in corpus.usable(rows, config, counts, None, lambda row: None, reader):
        width = len(row)
    if not counts.usable:
        raise UsageError(f"corpus '{shown(config.corpus.source)}' has no usable embedding")
    texts = min(counts.usable, config.corpus.sample or counts.usable)
    pairs, workers = texts * (texts - 1) // 2, config.execution.workers or os.cpu_count() or 1
    each = _cosine_seconds(width, config.analysis.neighbours) if config.analysis.cosine == "full" else 0.0
    memory = _BASE_BYTES + workers * (_WORKER_BYTES + 8 * width * min(texts, block_size(texts, width))) + texts * _ROW_BYTES
    disk = texts * (8 * width + _ROW_BYTES + 40 * config.analysis.neighbours)
    seconds = pairs * each / min(workers, os.cpu_count() or 1) + _START_SECONDS
    return Plan(texts, counts.usable, 0, pairs, 0, seconds, memory, disk, workers)


def _cosine_seconds(width: int, neighbours: int) -> float:
    """Seconds of one pair in the pass over all cosines, measured on a small tile."""
    units = np.random.default_rng(0).standard_normal((4096, width), dtype=np.float32)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    seconds = 0.0
    for rows in (16, len(units)):  # Compiled before it is timed.
        block = Block(units[:rows], np.zeros(rows, np.int64), np.arange(rows, dtype=np.int32))
        begun = time.monotonic()
        cosine_tile(block, block, 1, diagonal=True, neighbours=neighbours)
        seconds = (time.monotonic() - begun) / (rows * (rows - 1) / 2)
    return seconds


def print_plan(config: AuditConfig, console: Console) -> None:
    """Print the plan as a table."""
    console.print("reading the corpus and measuring a few of its texts …", highlight=False)
    found = plan(config)
    table = Table(box=None, show_header=False, padding=(0, 2))
    temperatures = ", ".join(t.canonical for t in config.temperatures())
    table.add_row("texts", f"{found.texts:,} of {found.corpus_texts:,} usable")
    table.add_row("tokens", f"about {found.tokens:,} over all temperatures ({temperatures}), samples included")
    table.add_row("pairs", f"{found.pairs:,} cosines and {found.socm_pairs:,} SOCM for each temperature")
    table.add_row("time", f"about {duration(found.seconds)} with {found.workers} workers on processors like this one's")
    table.add_row("memory", f"about {found.memory_bytes / 2**30:.1f} GiB")
    table.add_row("disk", f"about {max(found.disk_bytes / 2**30, 0.01):.2f} GiB in {escape(shown(config.out))}")
    Console().print(table)
