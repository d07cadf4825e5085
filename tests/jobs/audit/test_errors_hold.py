"""What a standard error is worth on real text: how often estimate ± 1.96 se holds the truth when the corpus is drawn again.

Estimates and errors are the job's own, the truth is a plain mean of all pairs. Nominal is 95 %; each share is allowed what
chance and small samples allow.
"""

from typing import NamedTuple

import numpy as np
import polars as pl
import pytest
import torch

from tempscale import Encoder
from tempscale.collapse.exposure import exposure
from tempscale.collapse.length import CosineSums, Moments, interval_of, text_means
from tempscale.second_order.socm import socm_square
from tempscale.stats.errors import finite_population
from tempscale_jobs.audit.summary import Sampled
from tempscale_jobs.steps import cosine
from tempscale_jobs.steps.socm_tables import Sample, cells

pytestmark = pytest.mark.proof

TEXTS, MORE, LONGEST, DRAWS = 400, 1500, 64, 400
"""Texts with all their values, texts with embeddings at τ = 1, their longest length, and draws of them."""
TAUS = (1.0, 0.8)


class Embedded(NamedTuple):
    """The same real texts at one temperature: embeddings, spreads, and d_μ and d_Σ of all pairs."""

    rows: np.ndarray
    spread: np.ndarray
    d_mu: np.ndarray
    d_sigma: np.ndarray

    @property
    def socm(self):
        return (1 - self.d_mu) * self.d_sigma


class Corpus(NamedTuple):
    """Real texts in three length intervals."""

    tokens: np.ndarray
    edges: tuple[int, ...]
    embedded: dict[float, Embedded]
    rows: np.ndarray
    """The embeddings of all texts at τ = 1."""

    @property
    def interval(self):
        return interval_of(self.tokens, self.edges)


@pytest.fixture(scope="module")
def corpus(encoder, shared_corpora):
    """Sentences of Wikipedia: their length intervals, the edges of these, and the values at each temperature."""
    texts = pl.read_parquet(shared_corpora / "wikipedia" / "sentences_1M.parquet", columns=["text"])["text"]
    texts = texts.sample(MORE, seed=1).to_list()
    own, embedded = Encoder(encoder.model, encoder.tokenizer, encoder.head), {}
    try:
        for tau in TAUS:
            own.set_temperature(tau)
            batch = own.encode(texts[:TEXTS], factors=True, max_length=LONGEST)
            pairs = socm_square(torch.stack([mean for mean, _ in batch.factors]), [factor for _, factor in batch.factors])
            values = (batch.embeddings, batch.moments.spread, pairs.d_mu, pairs.d_sigma)
            embedded[tau] = Embedded(*(value.double().numpy() for value in values))
    finally:
        own.set_temperature(1.0)
    rest = own.encode(texts[TEXTS:], moments=False, max_length=LONGEST)
    rows = np.concatenate([embedded[1.0].rows, rest.embeddings.double().numpy()])
    tokens = torch.cat([batch.tokens, rest.tokens]).numpy()
    edges = (0, *(int(edge) for edge in np.quantile(tokens, [1 / 3, 2 / 3])))
    return Corpus(tokens, edges, embedded, rows)


def drawing(size, again):
    """What draws texts, and its correction: independent draws, as from a corpus without end, or a sample of this corpus."""
    if again:
        return lambda random: random.integers(0, TEXTS, size), 1.0
    return lambda random: random.permutation(TEXTS)[:size], finite_population(size, TEXTS)


def assert_held(figures, truth, least=0.92, most=0.98):
    """Each figure's estimate ± 1.96 se holds the truth in about 95 % of the draws."""
    random = np.random.default_rng(2026)
    drawn = [figures(random) for _ in range(DRAWS)]
    shares = {}
    for name in drawn[0]:
        estimate, error = np.array([figures[name] for figures in drawn]).T
        target = estimate.mean() if truth is None else truth[name]
        shares[name] = float(np.mean(np.abs(estimate - target) <= 1.96 * error))
    slack = 1.96 * np.sqrt(0.05 * 0.95 / DRAWS)  # What chance adds to either side.
    assert not {name: share for name, share in shares.items() if not least - slack <= share <= most + slack}


def pair_means(values, interval, again):
    """Means over all pairs and over each cell's. Drawn again, a text may meet itself: its value stands on the diagonal."""
    kept = np.ones(values.shape, dtype=bool) if again else ~np.eye(len(values), dtype=bool)
    means = {"mean": values[kept].mean()}
    for a in range(3):
        for b in range(a, 3):
            block = np.ix_(interval == a, interval == b)
            means[a, b] = values[block][kept[block]].mean()
    return means | {"gap": means[2, 2] - means[0, 0]}


def with_change(by_tau, names):
    """The figures at τ = 1, and what 0.8 changes."""
    before, after = (by_tau[tau] for tau in TAUS)
    return before | {("change", name): after[name] - before[name] for name in names}


def own_means(rows, interval, intervals):
    """Each text's mean cosine with each interval."""
    return text_means(rows, interval, CosineSums.of(rows, interval, intervals))


CHANGES = ("mean", "gap", "spread")


@pytest.mark.parametrize("again", [True, False])
def test_errors_of_cosine(corpus, again):
    """Of a corpus without end, and of one of which half is drawn."""
    all_intervals, embedded = corpus.interval[:TEXTS], corpus.embedded
    draw, correction = drawing(150 if again else TEXTS // 2, again)
    truth = {
        tau: pair_means(own.rows @ own.rows.T, all_intervals, again) | {"spread": own.spread.mean()}
        for tau, own in embedded.items()
    }

    def figures(random):
        drawn = draw(random)
        interval, sampled = all_intervals[drawn], {}
        for tau, own in embedded.items():
            means = own_means(own.rows[drawn], interval, 3)
            inside = means[np.arange(len(drawn)), interval]
            overall = own_means(own.rows[drawn], np.zeros(len(drawn), dtype=int), 1)[:, 0]
            sampled[tau] = {
                "mean": Sampled([overall], None, True, correction),
                "gap": Sampled([inside[interval == 2], inside[interval == 0]], None, True, correction),
                "spread": Sampled([own.spread[drawn]], None, False, correction),
            }
            if tau == 1.0:
                counts = np.bincount(interval, minlength=3)
                moments = [Moments.of(means[interval == a]) for a in range(3)]
                result = {
                    (a, b): (means[interval == a, b].mean(), cosine.cell_error(moments, counts, a, b) * correction)
                    for a in range(3)
                    for b in range(a, 3)
                }
        for name in CHANGES:
            change = sampled[0.8][name].less(sampled[1.0][name])
            result |= {name: estimate(sampled[1.0][name]), ("change", name): estimate(change)}
        return result

    assert_held(figures, with_change(truth, CHANGES))


def estimate(sampled):
    """The mean of one set of texts, or that of the first minus that of the second; with its error for this corpus."""
    means = [values.mean() for values in sampled.sets]
    return means[0] - sum(means[1:]), sampled.errors()[1]


@pytest.mark.parametrize("again", [True, False])
def test_errors_of_socm(corpus, again):
    all_intervals, embedded = corpus.interval[:TEXTS], corpus.embedded
    draw, correction = drawing(TEXTS // 2, again)
    truth = {tau: pair_means(own.socm, all_intervals, again) for tau, own in embedded.items()}

    def sample(own, drawn):
        block = np.ix_(drawn, drawn)
        value = own.socm[block]
        np.fill_diagonal(value, np.nan)
        distances = own.d_mu[block], own.d_sigma[block]
        return Sample(drawn.astype(str), corpus.tokens[drawn], all_intervals[drawn], *distances, value)

    def figures(random):
        drawn = draw(random)
        before, after = (sample(embedded[tau], drawn) for tau in TAUS)
        rows = cells(corpus.edges, before, np.full(3, correction), exact=True)
        place = {edge: k for k, edge in enumerate(corpus.edges)}
        result = {(place[row["interval_a"]], place[row["interval_b"]]): (row["socm_mean"], row["socm_se"]) for row in rows}
        mean = Sampled([before.overall()], None, True, correction)
        change = Sampled([after.overall()], None, True, correction).less(mean)
        return result | {"mean": estimate(mean), ("change", "mean"): estimate(change)}

    assert_held(figures, with_change(truth, ["mean"]))


# Exposure depends on how many texts there are, so its truth is its own mean over samples of that size.


def exposure_figures(corpus, drawn, asked, population=np.inf):
    """Exposure of each interval to the asking texts, or to the drawn texts themselves."""
    own = asked is None
    cosines = corpus.rows[drawn if own else asked] @ corpus.rows[drawn].T
    if own:
        np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :5]
    figures = {}
    for k in (1, 5):
        result = exposure(nearest[:, :k], corpus.interval[drawn], 3, own, population=population)
        figures |= {(k, b): (result.exposure[b], result.corrected[b]) for b in range(3)}
    return figures


@pytest.mark.parametrize("population", [300, 600, MORE])
def test_errors_of_exposure(corpus, population):
    def figures(random):
        return exposure_figures(corpus, random.permutation(population)[:150], None, population)

    assert_held(figures, None)


@pytest.mark.parametrize("asking", [50, 300])
def test_errors_of_exposure_to_queries(corpus, asking):
    def figures(random):
        drawn = random.permutation(MORE)[: 150 + asking]
        return exposure_figures(corpus, drawn[:150], drawn[150:])

    assert_held(figures, None)
