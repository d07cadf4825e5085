"""Growth with the number of texts (cosine pass, its stage on Ray, SOCM) and with their length (embedding, SOCM).

The texts are runs of consecutive tokens of scipy's docstrings, cut to one length, so that only n or only the length
changes; cosines use random embeddings. `python -m benchmarks growth`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from benchmarks.measuring import fastest, gemm_rate, texts

if TYPE_CHECKING:
    from tempscale import Encoder

COSINE_TEXTS = (2_000, 4_000, 8_000, 16_000, 32_000)
STAGE_TEXTS, STAGE_WORKERS = (25_000, 50_000, 100_000), 2
SOCM_TEXTS, SOCM_TOKENS = (125, 250, 500, 1_000), 32
LENGTHS, LENGTH_TEXTS = (64, 128, 256, 512), 24
"""The tokens of a text, special tokens included, and the number of texts of each length."""
ROUNDS, AT_ONCE = 2, 16


def measure(
    cosine_texts: Sequence[int] = COSINE_TEXTS,
    stage_texts: Sequence[int] = STAGE_TEXTS,
    socm_texts: Sequence[int] = SOCM_TEXTS,
    lengths: Sequence[int] = LENGTHS,
    length_texts: int = LENGTH_TEXTS,
) -> list[dict[str, Any]]:
    """Seconds and rates over n, then over length; each series has the exponent of its line on logarithmic axes.

    The ratio is the rate divided by the rate of the series' smallest size: 1 where time grows like the pairs or tokens.
    """
    import scipy.stats  # noqa: F401 - brings its own BLAS, which only a limit set afterwards finds.
    from threadpoolctl import threadpool_limits

    from benchmarks.socm import threads_used
    from tempscale import Encoder

    encoder = Encoder.load(max_length="limit", device="cpu")
    with threadpool_limits(1), threads_used(1), torch.inference_mode():
        return [
            *_cosine(cosine_texts),
            *_stage(stage_texts),
            *_socm(encoder, socm_texts),
            *_embedding(encoder, lengths, length_texts),
            *_socm_of_lengths(encoder, lengths, length_texts),
        ]


def series(name: str, grows: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One series of rows of growing size, with ratios to the first rate and the fitted exponent of seconds over size.

    `grows` says what the size counts, `texts` or `tokens`. The exponent is a least-squares slope of logarithms; its standard
    error is None for two sizes.
    """
    import numpy as np
    from scipy.stats import linregress

    line = linregress(np.log([row["size"] for row in rows]), np.log([row["seconds"] for row in rows]))
    fit = {"exponent": float(line.slope), "exponent_se": float(line.stderr) if len(rows) > 2 else None}
    return [row | {"ratio": row["rate"] / rows[0]["rate"], "series": name, "grows": grows} | fit for row in rows]


def runs(encoder: Encoder, tokens: int, count: int) -> list[list[int]]:
    """Token ids of `count` texts of exactly `tokens` tokens: consecutive tokens of docstrings between two special tokens."""
    ids = encoder.tokenizer(texts()).ids
    inner = cycle(token for own in ids for token in own[1:-1])
    return [[ids[0][0], *islice(inner, tokens - 2), ids[0][-1]] for _ in range(count)]


def _embedded(encoder: Encoder, tokens: int, count: int) -> list[Tensor]:
    """Token embeddings (tokens, d) of `count` unpadded texts of one length."""
    ids = torch.tensor(runs(encoder, tokens, count))
    return [own for some in ids.split(AT_ONCE) for own in encoder.model(input_ids=some).last_hidden_state]


def _pairs(count: int) -> int:
    return count * (count - 1) // 2


# --- in n -------------------------------------------------------------------------------------------------------------


def _cosine(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The cosine pass on one thread over all pairs in memory, as in `cosine`."""
    from benchmarks.cosine import DIM, INTERVALS, random_block
    from tempscale.collapse.cosine import cosine_tile

    rows = []
    for size in sizes:
        block = random_block(size)
        seconds = fastest(
            ROUNDS,
            lambda block=block: cosine_tile(block, block, INTERVALS, diagonal=True, duplicate=0.95, listed=100),
        )[0]
        rows.append(
            {"what": f"cosine pass, {size:,} texts, 1 thread", "rate": _pairs(size) / seconds, "unit": "pairs/s"}
            | {"limit_share": 2 * DIM * _pairs(size) / seconds / gemm_rate(), "size": size, "seconds": seconds}
        )
    return series("cosine pass", "texts", rows)


def _stage(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """The whole cosine stage on Ray, as in `stage`."""
    from benchmarks.stage import DIM, cosine_stage, product_rate

    rows = []
    for size in sizes:
        seconds, _, _ = cosine_stage(size, workers=STAGE_WORKERS)
        limit = 2 * DIM * _pairs(size) / seconds / product_rate(STAGE_WORKERS)
        rows.append(
            {"what": f"cosine stage on Ray, {size:,} texts", "rate": _pairs(size) / seconds, "unit": "pairs/s"}
            | {"limit_share": limit, "size": size, "seconds": seconds, "workers": STAGE_WORKERS}
        )
    return series("cosine stage on Ray", "texts", rows)


def _socm(encoder: Encoder, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """`pairwise_socm` on one thread over texts of one length."""
    from tempscale import pairwise_socm

    tokens = _embedded(encoder, SOCM_TOKENS, max(sizes))
    works = [lambda own=tokens[:size]: pairwise_socm(own) for size in sizes]
    rows = [
        {"what": f"SOCM, {size:,} texts of {SOCM_TOKENS} tokens, 1 thread"}
        | _socm_row(size, SOCM_TOKENS, tokens[0], seconds)
        for size, seconds in zip(sizes, fastest(ROUNDS, *works), strict=True)
    ]
    return series("SOCM", "texts", [row | {"size": size} for size, row in zip(sizes, rows, strict=True)])


def _socm_row(count: int, length: int, text: Tensor, seconds: float) -> dict[str, Any]:
    """The rate and the limit, as in `socm`, of all pairs of `count` texts of `length` tokens."""
    from benchmarks.socm import limit

    dim = text.shape[1]
    rank = min(length, dim)
    operations = 2 * dim * rank * rank * _pairs(count)
    return {"rate": _pairs(count) / seconds, "unit": "pairs/s", "seconds": seconds} | limit(
        operations, _pairs(count), rank, 1, seconds
    )


# --- in length --------------------------------------------------------------------------------------------------------


def _embedding(encoder: Encoder, lengths: Sequence[int], count: int) -> list[dict[str, Any]]:
    """The same number of texts of each length through the model on one thread, without and with the token moments."""
    from benchmarks.embedding import operations
    from tempscale.model.sequences import Tokens

    plain: list[dict[str, Any]] = []
    moments: list[dict[str, Any]] = []
    for length in lengths:
        tokens = Tokens(runs(encoder, length, count), [False] * count)
        seconds = fastest(
            ROUNDS,
            lambda own=tokens: encoder.encode_tokens(own, moments=False),
            lambda own=tokens: encoder.encode_tokens(own),
        )
        needed = operations(encoder.model.config, [length] * count)
        for rows, name, own in zip((plain, moments), ("embedding", "embedding + token moments"), seconds, strict=True):
            rows.append(
                {"what": f"{name}, {count} texts of {length} tokens, 1 thread", "rate": count * length / own}
                | {"unit": "tokens/s", "limit_share": needed / own / gemm_rate(), "size": length, "seconds": own}
            )
        moments[-1] |= {"moments_cost": seconds[1] / seconds[0] - 1}
    return [*series("embedding", "tokens", plain), *series("embedding + token moments", "tokens", moments)]


def _socm_of_lengths(encoder: Encoder, lengths: Sequence[int], count: int) -> list[dict[str, Any]]:
    """SOCM of all pairs of the same number of texts of each length, on one thread."""
    from tempscale import pairwise_socm

    rows = []
    for length in lengths:
        tokens = _embedded(encoder, length, count)
        seconds = fastest(ROUNDS, lambda own=tokens: pairwise_socm(own))[0]
        row = _socm_row(count, length, tokens[0], seconds) | {"size": length}
        rows.append({"what": f"SOCM, pairs of {count} texts of {length} tokens, 1 thread"} | row)
    return series("SOCM", "tokens", rows)
