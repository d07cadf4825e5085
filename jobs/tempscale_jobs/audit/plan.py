"""`--plan`: the estimated cost of a run on this machine, measured on a few of its texts before anything is written."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from threadpoolctl import threadpool_limits

from tempscale.collapse.aggregates import Block
from tempscale.collapse.cosine import cosine_tile
from tempscale.collapse.tiles import block_size, panel_size
from tempscale.correction.variant_names import chunks_of
from tempscale.stats.enough import GROUPS_FOR_AN_ERROR
from tempscale.stats.groups import TEXTS_OF_A_GROUP
from tempscale_jobs.audit.checks import contents_of
from tempscale_jobs.config.audit import SOCM_GROUPS, Analysis, AuditConfig
from tempscale_jobs.config.sections import Encoding
from tempscale_jobs.config.verify import OneModel, VerifyConfig
from tempscale_jobs.corpus.preview import preview
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.screen import Screen
from tempscale_jobs.runs import folder, places
from tempscale_jobs.runs.journal import duration
from tempscale_jobs.steps import by_length, probe
from tempscale_jobs.urls import masked
from tempscale_jobs.verify import earlier
from tempscale_jobs.verify import stage as verification
from tempscale_jobs.workers import bfloat16

if TYPE_CHECKING:
    from tempscale.model.encoder import Encoder
    from tempscale.model.gathering import Encoded

MEASURED_TEXTS = 48
_LOOKED_AT = 2000
_BASE_BYTES, _WORKER_BYTES = 900 << 20, 800 << 20
"""Memory of Ray with this process, and of one worker without its model, measured on the quick start."""
_START_SECONDS, _ROW_BYTES, _NEIGHBOUR_BYTES = 30.0, 120, 20
_DRIVER_BYTES = 45
"""Memory of this process for each text at its peak."""
_DRIVER_BASE_BYTES, _MODELS_BYTES = 280 << 20, 180 << 20
"""Memory of this process alone without texts: what it imports, and the report's charts; what it imports for models."""


@dataclass(frozen=True)
class Rates:
    """The cost of one model on one core, and the size of its embeddings and texts."""

    width: int
    """Dimensions of the embeddings."""
    weights_bytes: float
    mean_tokens: float
    """Mean tokens per text."""
    long_share: float
    """Share of texts that fill the longest prefix of the probe."""
    prefixes: Sequence[int]
    """Tokens of each prefix of a text of the probe."""
    token_seconds: float
    socm_seconds: float
    """For one pair of the SOCM sample."""
    cosine_seconds: float
    """For one pair of the corpus."""


class EmbeddedAgain(NamedTuple):
    """The cost of texts that are embedded again, for [verify] or by another model, on one core."""

    texts: int
    mean_tokens: float
    token_seconds: float
    weights_bytes: int
    disk_bytes: float = 0.0

    @property
    def tokens(self) -> float:
        """Tokens that are embedded again."""
        return self.texts * self.mean_tokens


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
    driver_bytes: int = 0
    """Memory of this process."""
    left_out: str = ""
    """What else the corpus's folder has, as the end of a sentence."""


def plan(config: AuditConfig) -> Plan:
    """Estimate the whole run from the corpus's rows and the measured cost of embedding a few of its texts.

    Raises:
        UsageError: the corpus, a model or a folder cannot be used, as in the run itself.
    """
    places.check(config)
    cores = os.cpu_count() or 1
    # The workers of a run have one thread each. Processor time is measured, so that other programs do not count.
    with threadpool_limits(1):
        if config.corpus.embedding_column is not None:
            sample = preview(contents_of(config, config.corpus, ""), _LOOKED_AT, config.seed, config.out)
            if not sample.items:
                raise UsageError(f"corpus '{masked(config.corpus.source)}' has no usable embedding")
            width = len(sample.items[0].embedding)
            seconds = _cosine_seconds(width, config.analysis.neighbours)
            rates = [Rates(width, 0.0, 0.0, 0.0, (), 0.0, 0.0, seconds)]
            again = [] if config.verification is None else [_verified(config.verification)]
            return replace(estimated(config, sample.usable, rates, cores, again), left_out=sample.left_out)
        models, others = folder.find_models(config), config.other_models
        by_others = [] if others is None else folder.find_models(others, beside=models)
        sample = preview(contents_of(config, config.corpus, ""), _LOOKED_AT, config.seed, config.out)
        if not sample.items:
            raise UsageError(f"corpus '{masked(config.corpus.source)}' has no usable text")
        texts = [item.text for item in sample.items]
        rates = [measured(config, model, texts) for model in models]
        again = [_again(config.embedding, model, texts, _audited(config, sample.usable)) for model in by_others]
        return replace(estimated(config, sample.usable, rates, cores, again), left_out=sample.left_out)


def _audited(config: AuditConfig, corpus_texts: int) -> int:
    """How many of a corpus's usable texts a run has."""
    return min(corpus_texts, config.corpus.sample or corpus_texts)


PROBED = 100
"""About how many texts the prefix gap needs for its target error: 77 of Wikipedia's paragraphs with all-MiniLM."""


def _verified(config: VerifyConfig) -> EmbeddedAgain:
    """The cost of the vectors that [verify] compares."""
    earlier.check(config)
    (model, *_), (contents, *_) = folder.find_models(config), verification.contents(config)
    sample = preview(contents, _LOOKED_AT, config.seed, config.out)
    if not sample.items:
        raise UsageError(f"corpus '{masked(config.embeddings.source)}' has no row with a text and a vector for [verify]")
    texts = sample.usable if config.sample == "all" else min(config.sample, sample.usable)
    again = _again(config.embedding, model, [item.text for item in sample.items], texts)
    return again._replace(disk_bytes=0.0)  # Only a row of figures is kept of each.


def _again(embedding: Encoding | OneModel, model: folder.Model, some: list[str], texts: int) -> EmbeddedAgain:
    """The cost of `texts` texts by a model, measured on some of them."""
    encoder = _encoder(embedding, model)
    timed = _timed(encoder, model, some, factors=False)
    disk = texts * (8 * timed.encoded.embeddings.shape[1] + _ROW_BYTES)
    return EmbeddedAgain(texts, float(timed.lengths.mean()), timed.token_seconds, _weights_bytes(encoder), disk)


def estimated(
    config: AuditConfig, corpus_texts: int, rates: Sequence[Rates], cores: int, again: Sequence[EmbeddedAgain] = ()
) -> Plan:  # fmt: skip
    """The plan of a run over `corpus_texts` usable texts, from the rates of each model, or of user-supplied embeddings."""
    vectors_given = config.corpus.embedding_column is not None
    analysis, temperatures = config.analysis, len(config.temperatures())
    texts = _audited(config, corpus_texts)
    pairs, (socm_texts, stored_texts, socm_pairs) = (
        texts * (texts - 1) // 2,
        (0, 0, 0) if vectors_given else _socm_work(analysis, texts),
    )
    asked_pairs = min(texts, analysis.exposure_sample) * texts if analysis.compares else 0
    compared_pairs = pairs if analysis.cosine == "full" else asked_pairs
    more_pairs = 0  # For what a correction by length and each variant would do, under the first temperature.
    if analysis.cosine == "full" and analysis.length_correction and analysis.neighbours:
        more_pairs += texts * texts if texts <= by_length.ALL_ASK else asked_pairs
    if analysis.what_if:
        more_pairs += (1 + len(analysis.what_if)) * min(texts, analysis.exposure_sample) * texts
    workers = config.execution.workers or cores
    tokens = seconds = disk = largest = 0.0
    for rate in rates:
        probe_texts = PROBED if analysis.probe_sample is None else analysis.probe_sample
        probed = min(probe_texts, int(rate.long_share * texts))
        probe_tokens = probe.price(rate.prefixes, probed, analysis.probe, temperatures)
        cut_tokens = rate.mean_tokens * texts * sum(chunks_of(what) is not None for what in analysis.what_if)
        model_tokens = temperatures * rate.mean_tokens * (texts + socm_texts) + probe_tokens + cut_tokens
        tokens += model_tokens
        work = temperatures * (compared_pairs * rate.cosine_seconds + socm_pairs * rate.socm_seconds)
        work += model_tokens * rate.token_seconds + more_pairs * rate.cosine_seconds
        seconds += work / min(workers, cores) + _START_SECONDS
        factor_bytes = stored_texts * min(rate.mean_tokens, rate.width) * rate.width * 4
        text_bytes = 8 * rate.width + _ROW_BYTES + _neighbour_bytes(texts, rate.width, analysis)
        disk += temperatures * (texts * text_bytes + factor_bytes)
        blocks = 2 * 4 * rate.width * min(texts, block_size(texts, rate.width))
        largest = max(largest, rate.weights_bytes + blocks)
    for texts_again in again:
        tokens += texts_again.tokens
        seconds += texts_again.tokens * texts_again.token_seconds / min(workers, cores)
        largest = max(largest, texts_again.weights_bytes)
        disk += texts_again.disk_bytes
    memory = _BASE_BYTES + workers * (_WORKER_BYTES + largest) + texts * _DRIVER_BYTES
    runs_no_model = vectors_given and not again
    driver = _DRIVER_BASE_BYTES + (0 if runs_no_model else _MODELS_BYTES) + texts * _DRIVER_BYTES
    return Plan(texts, corpus_texts, int(tokens), pairs, socm_pairs, seconds, int(memory), int(disk), workers, driver)


def _neighbour_bytes(texts: int, width: int, analysis: Analysis) -> float:
    """Bytes of a text's neighbours: one list from each panel until they are merged, then one with ids."""
    count = -(-texts // block_size(texts, width))
    panels = -(-count // panel_size(count))
    return analysis.neighbours * (8 * panels + _NEIGHBOUR_BYTES) if analysis.cosine == "full" else 0.0


def _socm_work(analysis: Analysis, texts: int) -> tuple[int, int, int]:
    """Texts that are embedded again for SOCM, those whose factors are stored, and pairs; few are left to rank by bounds."""
    sampled = analysis.socm_sample
    a_group = min(TEXTS_OF_A_GROUP, max(2, texts // SOCM_GROUPS))
    groups = min(analysis.socm_groups, texts // a_group)
    if sampled is None and groups < GROUPS_FOR_AN_ERROR:
        sampled = texts
    if sampled is not None:
        sampled = min(sampled, texts)
        return sampled, sampled, sampled * (sampled - 1) // 2
    ranked = min(analysis.socm_ranked, groups * a_group) if analysis.socm_top_over == "sample" else 0
    return groups * a_group + ranked, ranked, groups * a_group * (a_group - 1) // 2


class _Timed(NamedTuple):
    """Some texts embedded by a model on one core."""

    encoded: Encoded
    """A few of them."""
    lengths: np.ndarray
    """Tokens of each text that the model can take."""
    token_seconds: float


def measured(config: AuditConfig, model: folder.Model, texts: list[str]) -> Rates:
    """The rates of a model on one core of this machine, measured on some of these texts."""
    import torch

    from tempscale.second_order.socm import socm_tile

    encoder = _encoder(config.embedding, model)
    encoded, lengths, token_seconds = _timed(encoder, model, texts, factors=True)
    assert encoded.factors is not None
    means, factors = torch.stack([m for m, _ in encoded.factors]), [f for _, f in encoded.factors]
    socm_tile(means[:1], factors[:1], means[:1], factors[:1])  # Compile it before timing it.
    begun = time.process_time()
    socm_tile(means, factors, means, factors)
    socm_seconds = (time.process_time() - begun) / len(factors) ** 2
    prefixes = probe.up_to(encoder.tokenizer.max_length)
    width = encoded.embeddings.shape[1]
    return Rates(
        width, _weights_bytes(encoder), float(lengths.mean()), float((lengths >= max(prefixes, default=0)).mean()),
        prefixes, token_seconds, socm_seconds, _cosine_seconds(width, config.analysis.neighbours),
    )  # fmt: skip


def _encoder(embedding: Encoding | OneModel, model: folder.Model) -> Encoder:
    """The model on one core."""
    import torch
    from transformers.utils import logging

    from tempscale.model.encoder import Encoder

    torch.set_num_threads(1)
    logging.disable_progress_bar()
    return Encoder.load(
        model.name,
        max_length=model.max_length,
        prompt=model.document_prompt,
        long=embedding.long,
        precision=_precision(embedding.precision),
        device="cpu",
    )


def _timed(encoder: Encoder, model: folder.Model, texts: list[str], *, factors: bool) -> _Timed:
    """Embed a few of these texts, with the factors of their tokens or without."""
    tokens = encoder.tokenizer(texts, isolate=True)
    good = [k for k in range(len(texts)) if k not in tokens.failed]
    if not good:
        raise UsageError(f"model {model.label}: {tokens.failed[0]}, and so on each of {len(texts):,} texts of the corpus")
    few = tokens.take(good[:: max(1, len(good) // MEASURED_TEXTS)])
    begun = time.process_time()
    encoded = encoder.encode_tokens(few, moments=factors, factors=factors)
    return _Timed(encoded, np.array(tokens.lengths)[good], (time.process_time() - begun) / int(encoded.tokens.sum()))


def _weights_bytes(encoder: Encoder) -> int:
    return sum(weights.numel() * 4 for weights in encoder.model.parameters())


def _precision(asked: str) -> Literal["float32", "tf32", "bfloat16"]:
    """The precision of a run on machines like this one; what only a GPU has is timed in float32."""
    return "float32" if asked in ("float32", "tf32") else bfloat16.decided(asked, [bfloat16.here()]).precision


def _cosine_seconds(width: int, neighbours: int) -> float:
    """Seconds per pair in the pass over all cosines, measured on a small tile."""
    units = np.random.default_rng(0).standard_normal((4096, width), dtype=np.float32)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    seconds = 0.0
    for rows in (16, len(units)):  # The small first call compiles the function.
        block = Block(units[:rows], np.zeros(rows, np.int64), np.arange(rows, dtype=np.int32))
        begun = time.process_time()
        cosine_tile(block, block, 1, diagonal=True, neighbours=neighbours)
        seconds = (time.process_time() - begun) / (rows * (rows - 1) / 2)
    return seconds


def print_plan(config: AuditConfig, console: Console, screen: Console | None = None) -> None:
    """Print progress on `console` and the plan as a table on `screen`, which is standard output by default."""
    console.print("reading the corpus and measuring a few of its texts …", highlight=False)
    estimates = plan(config)
    table = Table(box=None, show_header=False, padding=(0, 2))
    temperatures = ", ".join(t.canonical for t in config.temperatures())
    table.add_row("texts", escape(f"{estimates.texts:,} of {estimates.corpus_texts:,} usable{estimates.left_out}"))
    table.add_row("tokens", f"about {estimates.tokens:,} over all temperatures ({temperatures}), samples included")
    table.add_row("pairs", f"{estimates.pairs:,} cosines and {estimates.socm_pairs:,} SOCM for each temperature")
    table.add_row(
        "time", f"about {duration(estimates.seconds)} with {estimates.workers} workers on processors like this one's"
    )
    driver = f"{estimates.driver_bytes / 2**30:.1f} GiB of it of the process that starts the run"
    table.add_row("memory", f"about {estimates.memory_bytes / 2**30:.1f} GiB, {driver}")
    table.add_row("disk", f"about {max(estimates.disk_bytes / 2**30, 0.01):.2f} GiB in {escape(masked(config.out))}")
    (screen or Screen()).print(table)
