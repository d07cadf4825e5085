"""The mean SOCM of a corpus: its error, and what that costs, from all pairs and from groups of texts.

Of 1,000 Wikipedia sentences and of 1,000 paragraphs: all pairs, 32 and 128 groups, each with the embedding of its texts;
beside them the published protocol, timed on few pairs. Then 100,000 sentences by the command line, as a user runs it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import million
from benchmarks.socm import FEW, WIKIPEDIA, _dense

TEXTS, GROUPS, LARGE = 1000, (32, 128), 100_000
EDGES = (0, 32, 64, 100, 200, 300, 400, 500)


def measure() -> list[dict[str, Any]]:
    """Pairs a second, the estimate and its error; empty without the Wikipedia texts."""
    if not WIKIPEDIA.is_dir():
        return []
    rows = []
    for name, file in (("sentences", "sentences_1M"), ("paragraphs", "paragraphs_100k")):
        rows += _of_a_thousand(name, _texts(file))
    return [*rows, *_large()]


def _texts(name: str) -> list[str]:
    import pyarrow.parquet as pq

    from tempscale.stats.sample import seeded_sample

    table = pq.read_table(WIKIPEDIA / f"{name}.parquet", columns=["id", "text"])
    place = {name: at for at, name in enumerate(table["id"].to_pylist())}
    found: list[str] = table["text"].take([place[i] for i in seeded_sample(sorted(place), TEXTS, 0)]).to_pylist()
    return found


def _of_a_thousand(name: str, texts: Sequence[str]) -> list[dict[str, Any]]:
    from tempscale import Encoder
    from tempscale.model.checkpoint import default_model

    encoder = Encoder.load(default_model(), device="cpu")
    with _two_threads():
        dense = _published(encoder, texts)
        found = [_timed(f"{name}, all pairs", lambda: _all_pairs(encoder, texts))]
        for groups in GROUPS:
            found.append(_timed(f"{name}, {groups} groups", lambda groups=groups: _groups(encoder, texts, groups)))  # type: ignore[misc]
    every = TEXTS * (TEXTS - 1) // 2
    published = {"what": f"{name}, all pairs by the published protocol", "pairs": every, "seconds": every / dense}
    rows = [published | {"error": found[0]["error"], "estimate": found[0]["estimate"], "timed_pairs": FEW}, *found]
    for row in rows:
        # Seconds grow as one over the square of the error.
        row["ratio"] = (rows[1]["seconds"] * rows[1]["error"] ** 2) / (row["seconds"] * row["error"] ** 2)
        row |= {"rate": row["pairs"] / row["seconds"], "unit": "pairs/s", "threads": 2}
        row["what"] = f"{row['what']}: {row['pairs']:,} pairs"
    return rows


def _two_threads() -> Any:
    from benchmarks.socm import threads_used

    return threads_used(2)


def _timed(what: str, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    work()  # Compiles the kernels.
    begun = time.perf_counter()
    found = work()
    return {"what": what, "seconds": time.perf_counter() - begun} | found


def _published(encoder: Any, texts: Sequence[str]) -> float:
    """Pairs a second of two d×d roots a pair, one pair a thread."""
    from benchmarks.socm import _each

    with torch.inference_mode():
        tokens = [
            encoder.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
            for ids in encoder.tokenizer(texts[: 2 * FEW]).ids
        ]
    begun = time.perf_counter()
    _each(2, _dense, [(tokens[k], tokens[k + 1]) for k in range(0, 2 * FEW, 2)])
    return FEW / (time.perf_counter() - begun)


def _all_pairs(encoder: Any, texts: Sequence[str]) -> dict[str, Any]:
    from tempscale.second_order.socm import socm_square, socm_value
    from tempscale.stats.errors import within_error

    out = encoder.encode(texts, moments=False, factors=True)
    found = socm_square(torch.stack([mean for mean, _ in out.factors]), [factor for _, factor in out.factors])
    value = socm_value(found.d_mu, found.d_sigma, 1.0, 1.0).numpy()
    np.fill_diagonal(value, 0)
    means = value.sum(1) / (len(texts) - 1)
    error = within_error(means.var(ddof=1), len(texts))
    return {"estimate": float(means.mean()), "error": error, "pairs": len(texts) * (len(texts) - 1) // 2}


def _groups(encoder: Any, texts: Sequence[str], groups: int) -> dict[str, Any]:
    from tempscale.collapse.length import interval_of
    from tempscale.second_order.socm import socm_square, socm_value
    from tempscale.stats.sample import keyed_hash
    from tempscale_jobs.audit import summary
    from tempscale_jobs.config.audit import Analysis
    from tempscale_jobs.steps.dealing import deal
    from tempscale_jobs.steps.group_tables import Cells, MeasuredGroups, with_all
    from tempscale_jobs.steps.layout import Layout

    tokens = np.array([len(ids) for ids in encoder.tokenizer(texts).ids])
    ids = np.array([f"{k:05d}" for k in range(len(texts))], dtype=object)
    key = np.array([keyed_hash(text_id, 0) for text_id in ids], dtype=np.uint64)
    stored, starts = np.arange(len(ids), dtype=np.uint32), np.array([0, len(ids)])
    layout = Layout(ids, key, tokens, interval_of(tokens, EDGES), stored, starts, tuple(EDGES), len(ids), 0, None)
    dealt = deal(layout, Analysis.model_validate({"socm_groups": groups}), groups)
    values, first, second, group, start = [], [], [], [], 0
    for number, own in enumerate(dealt):
        out = encoder.encode([texts[int(i)] for i in own.ids], moments=False, factors=True)
        found = socm_square(torch.stack([mean for mean, _ in out.factors]), [factor for _, factor in out.factors])
        upper = np.triu_indices(len(own.ids), 1)
        values.append(socm_value(found.d_mu, found.d_sigma, 1.0, 1.0).numpy()[upper])
        first.append(start + upper[0])
        second.append(start + upper[1])
        group.append(np.full(len(upper[0]), number))
        start += len(own.ids)
    value, members = np.concatenate(values), np.array([int(i) for own in dealt for i in own.ids])
    measured = MeasuredGroups(
        layout.ids[members], tokens[members], np.zeros(len(members)), np.concatenate(group), np.concatenate(first),
        np.concatenate(second), value, value, value,
    )  # fmt: skip
    cells = Cells.of(measured, layout, dealt, None)
    sums = cells.sums(value)
    means = np.array(with_all(cells, sums, layout.texts_by_interval()), dtype=float)
    error, _ = summary.Replicates(sums.replicates(cells.weights), len(members), means, layout, True).errors()
    return {"estimate": sums.weighted(cells.weights), "error": error, "pairs": len(value), "texts": len(members)}


def _large() -> list[dict[str, Any]]:
    """SOCM's share of a whole run over 100,000 sentences with the real MiniLM, and its error."""
    import polars as pl

    from tempscale.model.checkpoint import default_model

    with tempfile.TemporaryDirectory(prefix="tempscale-socm-") as name:
        out = Path(name) / "run"
        night = million._night(out, WIKIPEDIA / "sentences_1M.parquet", Path(default_model()), LARGE, [], cosine="full")
        row = pl.read_parquet(out / "tables" / "collapse_summary.parquet").row(0, named=True)
    seconds = sum(
        night["steps"][name] for name in night["steps"] if name.startswith(("SOCM", "texts of largest", "worst pairs"))
    )
    what = f"{LARGE:,} sentences, the stages of SOCM in a whole run: {row['socm_pairs']:,} pairs"
    return [
        {"what": what, "rate": row["socm_pairs"] / seconds, "unit": "pairs/s", "seconds": seconds}
        | {"pairs": row["socm_pairs"], "estimate": row["socm_mean"], "error": row["socm_se_superpopulation"]}
        | {"share_of_run": seconds / night["seconds"], "steps": night["steps"]}
    ]
