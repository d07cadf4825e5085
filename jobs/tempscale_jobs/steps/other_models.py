"""The texts and the queries under other models, for each `model:NAME` of --what-if; removed once they are compared.

They are embedded in the same way as by the run's own models, but before them and only under the first temperature.
"""

from __future__ import annotations

from dataclasses import replace

from tempscale.correction.variant_names import model_of
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.steps import lookup
from tempscale_jobs.steps.blocks import COSINE
from tempscale_jobs.steps.layout import Order, layout
from tempscale_jobs.steps.scope import Embedded
from tempscale_jobs.workers.marks import MARKS

_WRITTEN = ("texts", "shards", MARKS, COSINE, lookup.PLACE)
"""The folders of what is removed."""


def run_of(run: Run) -> Run:
    """The same run, as the other models embed its texts."""
    return replace(run, models=[*run.models, *run.other_models], temperatures=run.temperatures[:1])


def asked(scope: Embedded) -> dict[str, Model]:
    """The model of each variant that is another model."""
    names = [what for what in scope.analysis.what_if if model_of(what) is not None]
    return dict(zip(names, scope.run.other_models, strict=True))


def embedded(scope: Embedded, model: Model) -> Embedded:
    """The texts of a run under another model, once they are embedded."""
    run, texts = run_of(scope.run), scope.texts
    order = Order(texts.edges, texts.seed, scope.index.usable, tuple(scope.config.by))
    return replace(scope, run=run, model=model, texts=layout(run, scope.cluster, model, order))


def forget(run: Run) -> None:
    """Remove what the other models computed; the texts that they reject stay recorded."""
    for model in run.other_models:
        for folder in (run, run.below("queries")):
            for kind in _WRITTEN:
                folder.storage.remove(folder.place(kind, model))
