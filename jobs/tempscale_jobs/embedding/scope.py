"""What the steps of an audit share under one model. Every step takes it whole."""

from __future__ import annotations

from dataclasses import dataclass

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.audit import Analysis, AuditConfig, Embedding
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus.index import Index
from tempscale_jobs.embedding.layout import Layout
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.workers.cluster import Cluster
from tempscale_jobs.workers.dispatch import Crew


@dataclass(frozen=True)
class Scope:
    """One model, a source that has been read, and what works on it."""

    config: AuditConfig
    encoding: Embedding
    """How texts are embedded: the configuration's section, with the token budget once that is known."""
    source: Corpus
    """The section of the source: of the corpus, or of the queries."""
    index: Index
    run: Run
    model: Model
    cluster: Cluster
    crew: Crew
    journal: Journal

    @property
    def analysis(self) -> Analysis:
        """What is measured."""
        return self.config.analysis

    def named(self, step: str, temperature: Temperature | None = None) -> str:
        """The name of a step under this model, and under one temperature where it has one of its own."""
        return f"{step}{self.run.named(self.model)}{f', τ {temperature.canonical}' if temperature else ''}"


@dataclass(frozen=True)
class Embedded(Scope):
    """The same, once the source has been embedded."""

    texts: Layout
    """The texts in canonical order."""

    @classmethod
    def of(cls, scope: Scope, texts: Layout) -> Embedded:
        """A scope with its texts."""
        return cls(**vars(scope), texts=texts)
