"""The value that all steps of an audit share under one model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import Analysis, AuditConfig, Embedding
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.steps.layout import PARTS_OF_A_TASK, Layout, rows_of
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew, results


@dataclass(frozen=True)
class Scope:
    """One model, a source that has been read, and the run, cluster and crew."""

    config: AuditConfig
    encoding: Embedding
    """The configuration's section, with the token budget once it is known."""
    source: Corpus
    """The section of the corpus, or of the queries."""
    index: Index
    run: Run
    model: Model
    cluster: Cluster
    crew: Crew
    journal: Journal

    @property
    def analysis(self) -> Analysis:
        """The section of the configuration."""
        return self.config.analysis

    def named(self, step: str, temperature: Temperature | None = None) -> str:
        """The name of a step under this model, and under one temperature if it runs for each."""
        return f"{step}{self.run.named(self.model)}{f', τ {temperature.canonical}' if temperature else ''}"


@dataclass(frozen=True)
class Embedded(Scope):
    """A scope whose source has been embedded."""

    texts: Layout
    """The texts in canonical order."""

    @classmethod
    def of(cls, scope: Scope, texts: Layout) -> Embedded:
        """A scope with its texts."""
        return cls(**vars(scope), texts=texts)

    def embeddings(self, temperature: Temperature, places: np.ndarray) -> np.ndarray:
        """Embeddings (places, d) of some texts; tasks read them from their parts."""
        run, cluster = self.run, self.cluster
        names = run.storage.list(run.place("texts", self.model, temperature))
        part, row = self.texts.parts_and_rows(places)
        used = np.unique(part)
        cuts = np.array_split(used, max(1, len(used) // PARTS_OF_A_TASK))
        rows = [np.flatnonzero(np.isin(part, cut)) for cut in cuts]
        work = [
            (run.storage, [names[k] for k in cut], np.searchsorted(cut, part[indices]), row[indices])
            for cut, indices in zip(cuts, rows, strict=True)
        ]
        gathered = np.concatenate(results(cluster, rows_of, work, "parts of texts"))
        order = np.concatenate(rows)
        whole = np.empty_like(gathered)
        whole[order] = gathered
        return whole
