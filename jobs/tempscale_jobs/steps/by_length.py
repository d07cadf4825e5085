"""A correction by length, fitted to a run's texts and their queries, and the offsets that it subtracts from cosines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tempscale.correction.curve import Curve
from tempscale.correction.recipes import LEAST_ASKING, LEAST_TEXTS
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model, place
from tempscale_jobs.steps.neighbours import Queries
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers.dispatch import results

RECIPE = "length"
"""The correction; see `tempscale.correction`."""
ALL_ASK = 20_000
"""Up to this many texts, all are queries for their nearest by corrected similarity; of more, a sample."""
FITTED = 20_000
"""The most texts, and the most queries, that the curve is fitted to."""


def name(model: Model | str, temperature: Temperature, who: str) -> str:
    """The file of the correction of a model, or its label, that is fitted to queries from the «corpus» or from «queries»."""
    return f"{place('corrections', model, temperature)}/{RECIPE}-asked-by-{who}.json"


def learns(key: np.ndarray) -> np.ndarray:
    """Whether a text or query is one that the curve is fitted to, by its keyed hash; the others measure what it does."""
    return np.asarray(key % 2 == 0)


@dataclass(frozen=True)
class Fitting:
    """The texts of one model and temperature that a correction is fitted to."""

    scope: Embedded
    temperature: Temperature

    @cached_property
    def sample(self) -> np.ndarray:
        """The places of the texts that the curve is fitted to."""
        return self.scope.texts.sample(FITTED)

    @cached_property
    def _documents(self) -> np.ndarray:
        """The embeddings of these texts."""
        return self.scope.embeddings(self.temperature, self.sample)

    def of(self, queries: Queries, bounds: list[tuple[int, int]]) -> list[np.ndarray] | None:
        """The float32 offsets of each block's texts, from a correction that is written to corrections/; None without one.

        Of the queries those that learn are its queries.
        """
        asking = queries.places[learns(queries.layout.key[queries.places])][:FITTED]
        too_few = len(self.sample) < LEAST_TEXTS or len(asking) < LEAST_ASKING
        run, model = self.scope.run, self.scope.model
        if self.temperature != run.temperatures[0] or not self.scope.analysis.length_correction or too_few:
            return None
        query_scope = replace(self.scope, run=queries.run, texts=queries.layout)
        query_embeddings = query_scope.embeddings(self.temperature, asking)
        tokens = np.maximum(self.scope.texts.tokens, 1)
        # In a task, because torch would take 150 MB of this process.
        arguments = [(self._documents, tokens[self.sample], query_embeddings)]
        ((data, knots, values),) = results(self.scope.cluster, _fitted, arguments, "correction by length")
        who = "corpus" if queries.from_corpus else "queries"
        path = name(model, self.temperature, who)
        run.storage.write_json(path, model.fitted(self.temperature, [data]), plain=True)
        offsets = Curve(knots, values)(tokens).astype(np.float32)
        return [offsets[start:stop] for start, stop in bounds]


def _fitted(
    documents: np.ndarray, tokens: np.ndarray, queries: np.ndarray
) -> tuple[dict[str, Any], tuple[float, ...], np.ndarray]:
    """The correction as data, and the knots and values of its curve."""
    import torch

    from tempscale.correction.fit import fit
    from tempscale.correction.values import Length

    lengths = torch.from_numpy(tokens.astype(np.int64))
    with threadpool_limits(1):  # So that all workers give the same bytes.
        correction = fit(RECIPE, torch.tensor(documents), lengths, torch.tensor(queries))
    assert isinstance(correction, Length)
    return correction.as_data(), correction.curve.tokens, correction.curve.values
