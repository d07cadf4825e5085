"""Score one task under one temperature with mteb, and keep the score of each of its items."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import mteb
import numpy as np
from mteb._evaluators.sklearn_evaluator import SklearnEvaluator
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS

from tempscale.correction.errors import CorrectionError
from tempscale.correction.values import Correction
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.evaluate.corrected import CorrectedScores, Corrections, Sides, exposures, moved
from tempscale_jobs.evaluate.grid_model import Embedded, EncodedTexts, GridModel
from tempscale_jobs.evaluate.tasks import PLAIN

_RANKED = {"ndcg_at_": "ndcg_cut_", "map_at_": "map_cut_", "recall_at_": "recall_", "precision_at_": "P_"}
"""mteb's names of a query's scores -> trec_eval's names."""

_EMPTY = dict.fromkeys(("window", "right", "value", "ndcg_at_10", "ndcg_at_100", "entropy", "predicted", "gold"))
"""Columns of items that some types of task leave empty."""


class Scored(NamedTuple):
    """The result of one cell, with the rows of its items and of its relevant documents."""

    result: dict[str, Any]
    """mteb's TaskResult, as it is written to disk."""
    items: list[dict[str, Any]]
    relevant: list[dict[str, Any]]
    corrected: tuple[CorrectedScores, ...] = ()
    """Scores of a retrieval, first without a correction and then with each."""


class ScoringOptions(NamedTuple):
    """The options for scoring a task."""

    keep: bool
    embedded: Embedded | None = None
    """See `GridModel.begin`."""
    corrections: Corrections | None = None


class _Scoring(NamedTuple):
    """A task that is scored."""

    task: Any
    model: GridModel
    temperature: Temperature
    embedded: Embedded | None
    record: _Record


def score(task: Any, model: GridModel, temperature: Temperature, manner: ScoringOptions) -> Scored:
    """Score a loaded task with `mteb.evaluate`."""
    (keep, embedded, corrections), record = manner, _Record(task)
    scoring = _Scoring(task, model, temperature, embedded, record)
    _reseed(task)
    applied = corrections if isinstance(task, AbsTaskRetrieval) and corrections and corrections.recipes else None
    with tempfile.TemporaryDirectory() as folder:
        keep = keep or applied is not None
        model.begin(temperature, keep, Path(folder) if isinstance(task, AbsTaskRetrieval) else None, embedded)
        results = mteb.evaluate(
            model, task, cache=None, co2_tracker=False, show_progress_bar=False, prediction_folder=folder,
            encode_kwargs={"batch_size": 512},
        )  # fmt: skip
        predictions = Path(folder) / task.prediction_file_name
        predicted = json.loads(predictions.read_text("utf-8")) if predictions.is_file() else {}
        result = json.loads(results.task_results[0].model_dump_json())
        rows = [_items(scoring, part, predicted) for part in _parts(result)]
        parts = [part for part in _parts(result) if not _reranks(task, *part)] if applied is not None else []
        corrected = _corrected(scoring, parts, applied) if parts and applied else ()
    items, relevant = (
        ([row for part_rows in side for row in part_rows] for side in zip(*rows, strict=True)) if rows else ([], [])
    )
    return Scored(result, items, relevant, corrected)


def _corrected(scoring: _Scoring, parts: list[tuple[str, str]], corrections: Corrections) -> tuple[CorrectedScores, ...]:
    """Score a retrieval again with each correction of the embeddings of the last call of mteb."""
    task, model, temperature, embedded, record = scoring
    sides = {part: Sides.of([texts for texts in model.seen if (texts.split, texts.subset) == part]) for part in parts}
    groups = getattr(task, "document_groups", {})
    here = {part: {"task": task.metadata.name, "split": part[0], "subset": part[1]} for part in parts}
    shown = [row for part in parts for row in exposures(here[part], sides[part], record.queries[part][2], corrections)]
    results = [CorrectedScores(PLAIN, [], shown, [])]
    for recipe in corrections.recipes:
        try:
            fitted = {part: part_sides.fitted(recipe, corrections, groups) for part, part_sides in sides.items()}
        except CorrectionError as error:
            results.append(CorrectedScores(recipe, [], [], [], str(error)))
            continue

        def correct(call: EncodedTexts, vectors: np.ndarray, fitted: dict[Any, Correction] = fitted) -> np.ndarray:
            correction = fitted.get((call.split, call.subset))
            return vectors if correction is None else moved(correction, call, vectors, groups)

        _reseed(task)
        model.begin(temperature, True, None, embedded, correct)
        mteb.evaluate(model, task, cache=None, co2_tracker=False, show_progress_bar=False, encode_kwargs={"batch_size": 512})
        items, shown = [], []
        for part in parts:
            calls = [texts for texts in model.seen if (texts.split, texts.subset) == part]
            items += _queries(here[part], calls, task.metadata.main_score, record.queries[part])[0]
            shown += exposures(here[part], sides[part], record.queries[part][2], corrections)
        data = [{"split": split, "subset": subset} | correction.as_data() for (split, subset), correction in fitted.items()]
        results.append(CorrectedScores(recipe, items, shown, data))
    return tuple(results)


def _reseed(task: Any) -> None:
    """Reset the task's random generators, so that its scores do not depend on earlier temperatures."""
    for subtask in [task, *getattr(task, "tasks", [])]:
        subtask.rng_state, subtask.np_rng = random.Random(subtask.seed), np.random.default_rng(subtask.seed)  # noqa: S311 - as mteb's


def _parts(result: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for split, scores in result["scores"].items():
        for row in scores:
            yield split, row["hf_subset"]


class _Record:
    """Per-item scores, which mteb only averages: scores of queries, and a classifier's output."""

    def __init__(self, task: Any) -> None:
        self.queries: dict[tuple[str, str], tuple[Any, Any, Any]] = {}
        self.labels: list[tuple[np.ndarray, np.ndarray]] = []
        """(whether each test text is predicted right, the entropy of the output), by experiment."""
        self.experiments = 0
        record = self
        if isinstance(task, AbsTaskRetrieval):
            original = type(task).task_specific_scores

            def specific(scores: Any, qrels: Any, results: Any, hf_split: str, hf_subset: str) -> Any:
                record.queries[hf_split, hf_subset] = (scores, qrels, results)
                return original(task, scores, qrels, results, hf_split=hf_split, hf_subset=hf_subset)

            task.task_specific_scores = specific
        elif isinstance(task, AbsTaskClassification) and type(task).evaluator is SklearnEvaluator:
            self.experiments = task.n_experiments

            class Recording(SklearnEvaluator):  # type: ignore[misc]
                def __call__(self, train_embeddings: Any, test_embeddings: Any) -> Any:
                    labels = super().__call__(train_embeddings, test_embeddings)
                    right = np.asarray(labels) == np.asarray(self.eval_dataset[self.label_column_name])
                    record.labels.append((right, entropies(self.evaluator_model, test_embeddings)))
                    return labels

            task.evaluator = Recording
            scores_of = type(task)._calculate_scores
            # Pass arrays: scikit-learn reads a column of the data set row by row, which takes seconds.
            task._calculate_scores = lambda labels, predicted: scores_of(task, np.asarray(labels), np.asarray(predicted))


def entropies(classifier: Any, embeddings: Any) -> np.ndarray:
    """Entropy of each text's distribution over labels, in nats; NaN if the classifier gives no distribution."""
    if not hasattr(classifier, "predict_proba"):
        return np.full(len(embeddings), np.nan)
    p = classifier.predict_proba(embeddings)
    return np.asarray(-np.sum(p * np.log(np.clip(p, 1e-300, None)), axis=1))


def _items(
    scoring: _Scoring, part: tuple[str, str], predicted: dict[str, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows of items and of relevant documents of one split and subset; empty for task types without known items."""
    task, model, _, _, record = scoring
    split, subset = part
    here = {"task": task.metadata.name, "split": split, "subset": subset}
    calls = [texts for texts in model.seen if (texts.split, texts.subset) == (split, subset)]
    if isinstance(task, AbsTaskRetrieval):
        items, relevant = _queries(here, calls, task.metadata.main_score, record.queries[split, subset])
        if not _reranks(task, split, subset):
            _rank_the_rest(model, calls, relevant, task.ignore_identical_ids)
        return items, relevant
    if isinstance(task, AbsTaskClassification) and record.experiments and not task.is_cross_validation:
        experiments, record.labels = record.labels[: record.experiments], record.labels[record.experiments :]
        return text_rows(here, calls[-1], _dataset(task, split, subset), experiments, task.metadata.main_score), []
    if isinstance(task, AbsTaskSTS):
        return _pairs(here, calls, _dataset(task, split, subset), predicted[subset][split]), []
    return [], []


def _queries(
    here: dict[str, str], calls: list[EncodedTexts], metric: str, recorded: tuple[Any, Any, Any]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    scores, qrels, results = recorded
    lengths = {
        role: {key: n for texts in calls if texts.role == role for key, n in zip(texts.ids, texts.lengths, strict=True)}
        for role in ("query", "document")
    }
    whole = {key: n for texts in calls if texts.role == "document" for key, n in zip(texts.ids, texts.whole, strict=True)}
    name = next((trec + metric.removeprefix(prefix) for prefix, trec in _RANKED.items() if metric.startswith(prefix)), "")
    items, relevant = [], []
    for query in sorted(scores):
        measures = scores[query]
        row = _EMPTY | here | {"item": query, "tokens": lengths["query"].get(query), "value": measures.get(name)}
        items.append(row | {"ndcg_at_10": measures.get("ndcg_cut_10"), "ndcg_at_100": measures.get("ndcg_cut_100")})
        # trec_eval's order: by score, ties by id, both descending.
        ranked = sorted(results[query].items(), key=lambda pair: (pair[1], pair[0]), reverse=True)
        place = {document: k + 1 for k, (document, _) in enumerate(ranked)}
        for document, relevance in sorted(qrels[query].items()):
            if relevance > 0:
                facts_of_pair = {"query": query, "document": document, "tokens": lengths["document"].get(document)}
                facts_of_pair |= {"tokens_whole": whole.get(document)}
                relevant.append(here | facts_of_pair | {"rank": place.get(document), "found": len(ranked)})
    return items, relevant


def _reranks(task: Any, split: str, subset: str) -> bool:
    """Whether the data set has a list of documents for each query to rerank."""
    return bool(_dataset(task, split, subset).get("top_ranked"))


def _rank_the_rest(
    model: GridModel, calls: list[EncodedTexts], relevant: list[dict[str, Any]], without_itself: bool
) -> None:
    """Fill in the ranks after the first thousand documents of each query, which mteb keeps."""
    absent: dict[str, list[str]] = {}
    for row in relevant:
        if row["rank"] is None:
            absent.setdefault(row["query"], []).append(row["document"])
    ranks = model.ranks(calls, absent, without_itself) if absent else {}
    for row in relevant:
        if row["rank"] is None:
            row["rank"] = ranks.get((row["query"], row["document"]))


def text_rows(
    here: dict[str, str], own: EncodedTexts, data: Any, experiments: list[tuple[np.ndarray, np.ndarray]], metric: str
) -> list[dict[str, Any]]:
    """One row for each text of a classification, with the results of its experiments."""
    ids, windows = (data[name] if name in data.column_names else None for name in ("id", "window"))
    names = [str(key) for key in (range(len(data)) if ids is None else ids)]
    if len(set(names)) < len(names):  # Repeated ids cannot match texts between temperatures.
        names = [str(k) for k in range(len(data))]
    right = np.array([row[0] for row in experiments]).T
    # Only accuracy is a mean over texts; other scores have no value per text.
    values = right.mean(1).tolist() if metric == "accuracy" else [None] * len(names)
    entropy = np.mean([row[1] for row in experiments], axis=0)
    columns = zip(names, own.lengths, right.tolist(), values, entropy.tolist(), windows or [False] * len(names), strict=True)
    return [
        _EMPTY | here | {"item": i, "tokens": n, "window": w, "right": r, "value": v, "entropy": e if e == e else None}
        for i, n, r, v, e, w in columns
    ]


def _pairs(here: dict[str, str], calls: list[EncodedTexts], dataset: Any, scores: dict[str, Any]) -> list[dict[str, Any]]:
    tokens = np.sum([texts.lengths for texts in calls[:2]], axis=0).tolist()
    columns = zip(tokens, scores["cosine_scores"], dataset["score"], strict=True)
    return [
        _EMPTY | here | {"item": str(k), "tokens": n, "predicted": float(cosine), "gold": float(gold)}
        for k, (n, cosine, gold) in enumerate(columns)
    ]


def _dataset(task: Any, split: str, subset: str) -> Any:
    return task.dataset[subset][split] if subset in task.dataset else task.dataset[split]
