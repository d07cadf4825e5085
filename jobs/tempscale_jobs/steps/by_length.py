"""A correction by length, fitted on a run's texts and on what asks them, and what it takes off their cosines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from tempscale.correction.curve import Curve
from tempscale.correction.recipes import LEAST_TEXTS
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.steps.neighbours import Asking
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers.dispatch import results

RECIPE = "length"
"""The correction; see `tempscale.correction`."""
ALL_ASK = 20_000
"""Up to so many texts all of them ask for their nearest by corrected similarity; of more, a sample."""
FITTED = 20_000
"""Texts, and queries, that the curve is fitted on, at most."""


def name(run: Run, model: Model, temperature: Temperature, who: str) -> str:
    """The file of the correction that is fitted to what asks: «corpus», its own texts, or «queries»."""
    return f"{run.place('corrections', model, temperature)}/{RECIPE}-asked-by-{who}.json"


@dataclass(frozen=True)
class Fitting:
    """The texts of one model and temperature that a correction is fitted on."""

    scope: Embedded
    temperature: Temperature

    @cached_property
    def sample(self) -> np.ndarray:
        """The places of the texts that the curve is fitted on,"""
        return self.scope.texts.sample(FITTED)

    @cached_property
    def _documents(self) -> np.ndarray:
        """And their embeddings."""
        return self.scope.embeddings(self.temperature, self.sample)

    def of(self, asking: Asking, bounds: list[tuple[int, int]]) -> list[np.ndarray] | None:
        """What is taken off the cosines of each block's texts if these ask, float32; the correction is kept in corrections/.

        None under all temperatures but the first, without the setting, and where either side has too few texts.
        """
        too_few = min(len(self.sample), len(asking.places)) < LEAST_TEXTS
        run, model = self.scope.run, self.scope.model
        if self.temperature != run.temperatures[0] or not self.scope.analysis.length_correction or too_few:
            return None
        asking_scope = replace(self.scope, run=asking.run, texts=asking.layout)
        queries = None if asking.own else asking_scope.embeddings(self.temperature, asking.places[:FITTED])
        tokens = np.maximum(self.scope.texts.tokens, 1)
        # By a task: this process may know no torch, which takes 150 MB.
        arguments = [(self._documents, tokens[self.sample], queries)]
        ((data, knots, values),) = results(self.scope.cluster, _fitted, arguments, "correction by length")
        who = "corpus" if asking.own else "queries"
        path = name(run, model, self.temperature, who)
        run.storage.write_json(path, model.fitted(self.temperature, [data]), plain=True)
        offsets = Curve(knots, values)(tokens).astype(np.float32)
        return [offsets[start:stop] for start, stop in bounds]


def _fitted(
    documents: np.ndarray, tokens: np.ndarray, queries: np.ndarray | None
) -> tuple[dict[str, Any], tuple[float, ...], np.ndarray]:
    """The correction as data, and the knots and values of its curve; without queries the documents ask."""
    import torch

    from tempscale.correction.fit import fit
    from tempscale.correction.values import Length

    lengths = torch.from_numpy(tokens.astype(np.int64))
    with threadpool_limits(1):  # As everywhere, so that all workers give the same bytes.
        correction = fit(RECIPE, torch.tensor(documents), lengths, torch.tensor(documents if queries is None else queries))
    assert isinstance(correction, Length)
    return correction.as_data(), correction.curve.tokens, correction.curve.values
