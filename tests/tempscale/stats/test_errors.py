"""What a standard error is worth: how often estimate ± 1.96 se holds the truth when a real corpus is sampled again.

Every estimate and error is the job's own. Nominal is 95 %; over these draws 92 to 98 % is what chance allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pytest
import torch

from tempscale import Encoder
from tempscale.collapse.length import CosineSums, Moments, interval_of, text_means
from tempscale.second_order.socm import socm_square
from tempscale.stats.errors import finite_population, within_error
from tempscale_jobs.audit.summary import Sampled
from tempscale_jobs.config import sections
from tempscale_jobs.corpus import sources
from tempscale_jobs.steps import cosine
from tempscale_jobs.steps.socm_tables import Sample, cells

pytestmark = pytest.mark.soak  # Thousands of draws, a minute of them.

TAUS = (1.0, 0.8)
DRAWS, SOCM_DRAWS = 1000, 500
PAIRED, ALL, PREFIXED = 400, 1500, 120
"""Texts embedded under both temperatures with their factors; under τ = 1 alone; at two prefixes."""
LONGEST, PREFIXES = 64, (32, 64)


@dataclass(frozen=True)
class Corpus:
    """Real texts in three length intervals, and what they are as embeddings."""

    tokens: np.ndarray
    edges: tuple[int, ...]
    embeddings: dict[float, np.ndarray]
    """All texts at τ = 1, the paired ones at 0.8."""
    spread: dict[float, np.ndarray]
    d_mu: dict[float, np.ndarray]
    d_sigma: dict[float, np.ndarray]
    prefixes: dict[int, np.ndarray]

    @property
    def interval(self):
        return interval_of(self.tokens, self.edges)


def real_texts(folder):
    """Sentences and long paragraphs of Wikipedia; where it is absent, paragraphs of scipy's docstrings, and whole ones."""
    if folder.is_dir():
        short = pl.read_parquet(folder / "sentences_1M.parquet", columns=["text"])["text"]
        long = pl.read_parquet(folder / "paragraphs_100k.parquet", columns=["text"])["text"]
    else:
        rows = sources.rows(sections.Corpus.model_validate({"source": "docstrings:scipy"}))
        long = pl.Series(sorted({row.text.decode() if isinstance(row.text, bytes) else row.text for row in rows}))
        short = long.str.split("\n\n").explode().str.strip_chars().unique().sort()
        short = short.filter(short.str.contains(r"^[A-Z][^>]*$") & short.str.len_chars().is_between(40, 300))
    long = long.filter(long.str.len_chars() > 500)
    random = np.random.default_rng(1)
    return [
        series[np.sort(random.permutation(len(series))[:count])].to_list()
        for series, count in ((short, ALL), (long, 2 * PREFIXED))
    ]


@pytest.fixture(scope="module")
def corpus(encoder, request):
    texts, longer = real_texts(request.config.rootpath.parent / "shared" / "corpora" / "wikipedia")
    own = Encoder(encoder.model, encoder.tokenizer, encoder.head)
    embeddings, spread, d_mu, d_sigma = {}, {}, {}, {}
    try:
        for tau in TAUS:
            own.set_temperature(tau)
            paired = own.encode(texts[:PAIRED], factors=True, max_length=LONGEST)
            embeddings[tau], spread[tau] = paired.embeddings.numpy(), paired.moments.spread.numpy()
            found = socm_square(torch.stack([mean for mean, _ in paired.factors]), [factor for _, factor in paired.factors])
            d_mu[tau], d_sigma[tau] = found.d_mu.numpy(), found.d_sigma.numpy()
    finally:
        own.set_temperature(1.0)
    rest = own.encode(texts[PAIRED:], moments=False, max_length=LONGEST)
    embeddings[1.0] = np.concatenate([embeddings[1.0], rest.embeddings.numpy()])
    tokens = torch.cat([paired.tokens, rest.tokens]).numpy()
    long = [text for text, n in zip(longer, own.tokenizer(longer).lengths, strict=True) if n >= PREFIXES[-1]][:PREFIXED]
    prefixes = {n: own.encode(long, moments=False, max_length=n).embeddings.numpy() for n in PREFIXES}
    edges = (0, *(int(edge) for edge in np.quantile(tokens, [1 / 3, 2 / 3])))
    return Corpus(tokens, edges, embeddings, spread, d_mu, d_sigma, prefixes)


# --- drawing ----------------------------------------------------------------------------------------------------------


def drawing(texts, size, again):
    """What draws places of texts, and the correction of its errors: independent draws, as from a corpus without end, or a
    sample of this very corpus, without replacement.
    """
    if again:
        return lambda random: random.integers(0, texts, size), 1.0
    return lambda random: random.permutation(texts)[:size], finite_population(size, texts)


def covered(figures, truth, draws=DRAWS):
    """The share of draws in which estimate ± 1.96 se holds the truth, by figure; the mean estimate where none is given."""
    random = np.random.default_rng(2026)
    drawn = [figures(random) for _ in range(draws)]
    shares = {}
    for name in drawn[0]:
        estimate, error = np.array([figures[name] for figures in drawn]).T
        target = estimate.mean() if truth is None else truth[name]
        shares[name] = float(np.mean(np.abs(estimate - target) <= 1.96 * error))
    return shares


def check(shares):
    print({str(name): round(share, 3) for name, share in shares.items()})
    assert not {name: share for name, share in shares.items() if not 0.92 <= share <= 0.98}


def pair_means(values, interval, again):
    """Means over all pairs and over each cell's. Drawn again, a text may meet itself: its value stands on the diagonal."""
    kept = np.ones(values.shape, dtype=bool) if again else ~np.eye(len(values), dtype=bool)
    found = {"mean": values[kept].mean()}
    for a in range(3):
        for b in range(a, 3):
            block = np.ix_(interval == a, interval == b)
            found[a, b] = values[block][kept[block]].mean()
    return found | {"gap": found[2, 2] - found[0, 0]}


def with_changes(by_tau):
    """The figures at τ = 1, and what 0.8 changes."""
    before, after = (by_tau[tau] for tau in TAUS)
    return before | {("change", name): after[name] - before[name] for name in before}


# --- cosine -----------------------------------------------------------------------------------------------------------


def own_means(embeddings, interval, intervals):
    """Each text's mean cosine with each interval."""
    texts = np.bincount(interval, minlength=intervals)
    vectors = np.stack([embeddings[interval == k].sum(0, dtype=np.float64) for k in range(intervals)])
    return text_means(embeddings, interval, CosineSums(texts, vectors, np.empty(0), np.empty(0)))


def cosine_figures(corpus, drawn, correction):
    """What the summary and length_collapse say of a sample, and what the other temperature changes in it."""
    interval, one = corpus.interval[drawn], np.zeros(len(drawn), dtype=int)
    counts, by_tau = np.bincount(interval, minlength=3), {}
    for tau in TAUS:
        embeddings = corpus.embeddings[tau][drawn]
        means = own_means(embeddings, interval, 3)
        inside = means[np.arange(len(drawn)), interval]
        by_tau[tau] = {
            "mean": Sampled([own_means(embeddings, one, 1)[:, 0]], None, True, correction),
            "gap": Sampled([inside[interval == 2], inside[interval == 0]], None, True, correction),
            "spread": Sampled([corpus.spread[tau][drawn]], None, False, correction),
        }
        if tau == 1.0:
            moments = [Moments.of(means[interval == a]) for a in range(3)]
            cell = {(a, b): means[interval == a, b].mean() for a in range(3) for b in range(a, 3)}
            figures = {ab: (mean, cosine.cell_error(moments, counts, *ab) * correction) for ab, mean in cell.items()}
    for name, before in by_tau[1.0].items():
        changes = by_tau[0.8][name].less(before)
        figures[name] = estimate(before.sets), before.errors()[1]
        figures["change", name] = estimate(changes.sets), changes.errors()[1]
    return figures


def estimate(groups):
    """The mean of one set of texts, or that of the first minus that of the second."""
    return groups[0].mean() - (groups[1].mean() if len(groups) > 1 else 0.0)


def cosine_truth(corpus, again):
    """The same of all paired texts."""
    found = {}
    for tau in TAUS:
        rows = corpus.embeddings[tau][:PAIRED].astype(np.float64)
        found[tau] = pair_means(rows @ rows.T, corpus.interval[:PAIRED], again) | {"spread": corpus.spread[tau].mean()}
    return with_changes(found)


@pytest.mark.parametrize("again", [True, False])
def test_errors_of_cosine_hold_for_a_corpus_without_end_and_for_one_of_which_half_was_drawn(corpus, again):
    draw, correction = drawing(PAIRED, 150 if again else PAIRED // 2, again)
    check(covered(lambda random: cosine_figures(corpus, draw(random), correction), cosine_truth(corpus, again)))


@pytest.mark.parametrize("again", [True, False])
def test_errors_of_the_prefix_probe_hold(corpus, again):
    texts = len(corpus.prefixes[32])
    draw, correction = drawing(texts, 60, again)
    short, long = (np.float64(corpus.prefixes[n]) for n in PREFIXES)
    kept = np.ones((texts, texts), dtype=bool) if again else ~np.eye(texts, dtype=bool)
    truth = {"mean": (short @ short.T)[kept].mean(), "gap": (long @ long.T - short @ short.T)[kept].mean()}

    def figures(random):
        drawn = draw(random)
        own = [own_means(rows[drawn], np.zeros(60, dtype=int), 1)[:, 0] for rows in (short, long)]
        gap = own[1] - own[0]
        return {
            "mean": (own[0].mean(), within_error(own[0].var(ddof=1), 60) * correction),
            "gap": (gap.mean(), Sampled([gap], None, True, correction).errors()[1]),
        }

    check(covered(figures, truth))


# --- SOCM -------------------------------------------------------------------------------------------------------------


def socm_values(corpus, tau):
    """SOCM of all paired texts; 0 of a text with itself."""
    return (1 - corpus.d_mu[tau]) * corpus.d_sigma[tau]


def sample(corpus, tau, drawn):
    block, texts = np.ix_(drawn, drawn), drawn.astype(str)
    value = socm_values(corpus, tau)[block]
    np.fill_diagonal(value, np.nan)
    interval = corpus.interval[drawn]
    return Sample(texts, corpus.tokens[drawn], interval, corpus.d_mu[tau][block], corpus.d_sigma[tau][block], value)


def socm_figures(corpus, drawn, correction):
    """What the summary and the socm table say of a simple random sample."""
    samples = [sample(corpus, tau, drawn) for tau in TAUS]
    before, after = (one.overall() for one in samples)
    rows = cells(corpus.edges, samples[0], np.full(3, correction), exact=True)
    places = {edge: k for k, edge in enumerate(corpus.edges)}
    figures = {(places[row["interval_a"]], places[row["interval_b"]]): (row["socm_mean"], row["socm_se"]) for row in rows}
    figures["mean"] = np.nanmean(samples[0].value), Sampled([before], None, True, correction).errors()[1]
    change = after - before
    return figures | {("change", "mean"): (change.mean(), Sampled([change], None, True, correction).errors()[1])}


def socm_truth(corpus, again):
    interval = corpus.interval[:PAIRED]
    return with_changes({tau: pair_means(socm_values(corpus, tau), interval, again) for tau in TAUS})


@pytest.mark.parametrize("again", [True, False])
def test_errors_of_socm_hold_for_a_corpus_without_end_and_for_one_of_which_half_was_drawn(corpus, again):
    draw, correction = drawing(PAIRED, PAIRED // 2, again)
    check(covered(lambda random: socm_figures(corpus, draw(random), correction), socm_truth(corpus, again), SOCM_DRAWS))


# --- exposure ---------------------------------------------------------------------------------------------------------
# Exposure depends on how many texts there are, so what it should be is its own mean over samples of that size.
