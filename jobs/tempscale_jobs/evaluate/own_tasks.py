"""User-supplied data sets as MTEB tasks, with the same classes, scores and seeds as a task of the hub."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks.classification import AbsTaskClassification
from mteb.abstasks.clustering import AbsTaskClustering
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.sts import AbsTaskSTS
from mteb.abstasks.task_metadata import TaskMetadata

from tempscale.model.tokens import Tokenizer
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.evaluate import OwnTask, TaskFile
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.readers import Columns, utf8_or_bytes
from tempscale_jobs.corpus.rows import usable_id, usable_text
from tempscale_jobs.corpus.sources import IDS, id_in
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate.windows import Chosen, Labelled, Wanted, by_interval
from tempscale_jobs.urls import masked

_SCORES = {
    "retrieval": "ndcg_at_10", "reranking": "map_at_1000", "classification": "accuracy", "clustering": "v_measure",
    "sts": "cosine_spearman",
}  # fmt: skip
_TYPES = {"sts": "STS"}
_SENTENCES = dict.fromkeys(("sentence1", "sentence2", "score"))
_QUERY, _DOCUMENT = ("query_id", "query-id", "qid"), ("doc_id", "corpus-id", "corpus_id", "docid")
_RELEVANCE = tuple(
    write(name)
    for name in ("score", "rel", "relevance", "label", "grade", "rating", "gain", "judgment")
    for write in (str, str.capitalize)
)


def build(own: OwnTask, seed: int, tokenizer: Tokenizer | None = None, edges: Sequence[int] = ()) -> Any:
    """A user's task with its data, as an mteb task; tokenizer and edges serve `texts_per_interval` alone."""
    if own.type == "classification":
        made = _classification(own, seed, tokenizer, edges)
    else:
        makers = {"retrieval": _retrieval, "reranking": _reranking, "clustering": _clustering, "sts": _sts}
        made = makers[own.type](own)
    made.data_loaded = True
    return made


def _task(own: OwnTask, base: type, **attributes: Any) -> Any:
    """A task of an mteb class under the user's name."""
    metadata = TaskMetadata(
        name=own.name, description=f"Own data: {own.type}.", dataset={"path": own.name, "revision": "own"},
        type=_TYPES.get(own.type, own.type.capitalize()), category="t2t", eval_splits=["test"], eval_langs=["eng-Latn"],
        main_score=_SCORES[own.type], modalities=["text"],
    )  # fmt: skip
    # The data set is already in memory; mteb's own loading would ask the hub for it.
    loaded = {"metadata": metadata, "load_data": lambda self, *_, **__: None}
    return type(own.name, (base,), loaded | attributes)()


def _retrieval(own: OwnTask) -> Any:
    assert own.corpus is not None
    assert own.queries is not None
    assert own.qrels is not None
    documents: dict[str, dict[str, str]] = {}
    for place, values in _rows(own, own.corpus, {"text": None}, dict.fromkeys((*IDS, "title"))):
        key, text, title = _id(own, place, id_in(values)), values["text"], _name(own, place, values.get("title"), "title")
        _new(own, place, key, documents)
        # BEIR has documents of a title alone; mteb embeds the title and the text.
        is_title = bool(title and title.strip()) and (text is None or (isinstance(text, str | bytes) and not text.strip()))
        documents[key] = {"id": key, "title": title or "", "text": "" if is_title else _text(own, place, text)}
    queries: dict[str, dict[str, str]] = {}
    for place, values in _rows(own, own.queries, {"text": None} | dict.fromkeys(own.where, "where"), dict.fromkeys(IDS)):
        if _wanted(own, values):
            key = _id(own, place, id_in(values))
            _new(own, place, key, queries)
            queries[key] = {"id": key, "text": _text(own, place, values["text"], "query")}
    relevant = _relevant(own, documents, queries)
    task = _task(own, AbsTaskRetrieval)
    data = {
        "corpus": Dataset.from_list(list(documents.values())), "queries": Dataset.from_list(list(queries.values())),
        "relevant_docs": relevant, "top_ranked": None,
    }  # fmt: skip
    task.dataset = {"default": {"test": data}}
    return task


def _relevant(own: OwnTask, documents: Mapping[str, Any], queries: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Relevance by query and document, of the queries that were taken."""
    assert own.qrels is not None
    missing: Counter[str] = Counter()
    example: dict[str, str] = {}
    relevant: dict[str, dict[str, int]] = {}
    optional = dict.fromkeys((*_QUERY, *_DOCUMENT, *_RELEVANCE))
    for place, values in _rows(own, own.qrels, {}, optional):
        query, document, score = (
            next((values[name] for name in names if values.get(name) is not None and str(values[name])), None)
            for names in (_QUERY, _DOCUMENT, _RELEVANCE)
        )
        if query is None or document is None:
            if _is_trec(values):
                raise UsageError(
                    f"task '{own.name}': the qrels '{masked(own.qrels)}' are TREC's four columns without names; write them "
                    "as .tsv with a first line of names: query_id, iteration, doc_id, score"
                )
            raise _wrong(own, place, f"no query and document; name the columns {_QUERY[0]}, {_DOCUMENT[0]} and score")
        query, document = _id(own, place, query), _id(own, place, document)
        if own.where and query not in queries:
            continue  # `where` left this query out.
        for kind, key, there in (("query", query, queries), ("document", document, documents)):
            if key not in there:
                missing[kind] += 1
                example.setdefault(kind, key)
                break
        else:
            if score is None and any(name in values for name in _RELEVANCE):
                raise _wrong(own, place, f"query '{query}' and document '{document}' have no relevance")
            value = _score(own, place, 1 if score is None else score)
            if relevant.setdefault(query, {}).setdefault(document, value) != value:
                raise _wrong(own, place, f"query '{query}' and document '{document}' were there with another relevance")
    if missing:
        found = " and ".join(
            f"{count} × a {kind} that is not there, such as '{example[kind]}'" for kind, count in missing.items()
        )
        raise UsageError(
            f"task '{own.name}': the qrels '{masked(own.qrels)}' name {found}; mend the qrels or add what is missing"
        )
    if not any(score > 0 for scores in relevant.values() for score in scores.values()):
        raise UsageError(f"task '{own.name}': the qrels '{masked(own.qrels)}' give no query a relevant document")
    return relevant


def _is_trec(values: Mapping[str, Any]) -> bool:
    """Whether a row of qrels without names is of TREC's form: query, iteration, document, relevance."""
    # The first line is read as the names of columns, or is a text.
    lines = (" ".join(values), str(utf8_or_bytes(values.get("text", ""))))
    return any(len(fields) == 4 and fields[3].lstrip("-").isdigit() for fields in map(str.split, lines))


def _score(own: OwnTask, place: str, value: Any) -> int:
    try:
        whole = int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise _wrong(own, place, f"the relevance {value!r} is no number") from None
    if whole != float(value):
        raise _wrong(own, place, f"the relevance {value!r} is no whole number, which trec_eval's measures are made of")
    return whole


def _reranking(own: OwnTask) -> Any:
    assert own.source is not None
    corpus: dict[str, str] = {}
    queries: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    ranked: dict[str, list[str]] = {}
    columns = dict.fromkeys(("query", "positives", "negatives")) | dict.fromkeys(own.where, "where")
    for number, (place, values) in enumerate(_rows(own, own.source, columns)):
        if not _wanted(own, values):
            continue
        key = f"q{number}"
        queries.append({"id": key, "text": _text(own, place, values["query"], "query")})
        for side, score in (("positives", 1), ("negatives", 0)):
            texts = values[side]
            if not isinstance(texts, list) or (score and not texts):
                raise _wrong(own, place, f"{side} must be a list of texts" + (", at least one" if score else ""))
            for text in texts:
                document = corpus.setdefault(_text(own, place, text, side), f"d{len(corpus)}")
                # A text on both sides is relevant.
                relevant.setdefault(key, {}).setdefault(document, score)
        ranked[key] = list(relevant[key])
    if not queries:
        raise UsageError(f"task '{own.name}': '{masked(own.source)}' has no row to ask")
    task = _task(own, AbsTaskRetrieval)
    documents = [{"id": document, "title": "", "text": text} for text, document in corpus.items()]
    task.dataset = {"default": {"test": {
        "corpus": Dataset.from_list(documents), "queries": Dataset.from_list(queries), "relevant_docs": relevant,
        "top_ranked": ranked,
    }}}  # fmt: skip
    return task


def _classification(own: OwnTask, seed: int, tokenizer: Tokenizer | None, edges: Sequence[int]) -> Any:
    rows: list[Labelled] = []
    train: list[dict[str, Any]] = []
    for row in _labelled(own):
        if keyed_hash(row.id, seed) / 2**64 < own.test_share:
            rows.append(row)
        else:
            train.append(row._asdict())
    chosen = [Chosen(*row, window=False) for row in rows]
    if own.texts_per_interval is not None and tokenizer is not None:
        chosen = by_interval(rows, tokenizer, edges, Wanted(own.texts_per_interval, own.windows, seed))
    test = [row._asdict() for row in chosen]
    for name, part in (("learn from", train), ("test on", test)):
        if len({row["label"] for row in part}) < 2:
            raise UsageError(
                f"task '{own.name}': fewer than two labels among the {len(part)} rows to {name}; give more rows"
            )
    task = _task(
        own, AbsTaskClassification, samples_per_label=own.samples_per_label, n_experiments=own.experiments,
    )  # fmt: skip
    task.dataset = DatasetDict({"train": Dataset.from_list(train), "test": Dataset.from_list(test)})
    return task


def _clustering(own: OwnTask) -> Any:
    rows = _labelled(own)
    task = _task(
        own, AbsTaskClustering, max_fraction_of_documents_to_embed=None, max_document_to_embed=len(rows),
        input_column_name="text", label_column_name="labels",
    )  # fmt: skip
    data = [{"id": row.id, "text": row.text, "labels": row.label} for row in rows]
    task.dataset = DatasetDict({"test": Dataset.from_list(data)})
    return task


def _labelled(own: OwnTask) -> list[Labelled]:
    """The texts with the numbers of their labels in alphabetical order."""
    assert own.source is not None
    found: list[tuple[str, str, str]] = []
    seen: set[str] = set()
    required = {own.text_column: "text_column", own.label_column: "label_column"} | dict.fromkeys(own.where, "where")
    for number, (place, values) in enumerate(_rows(own, own.source, required, dict.fromkeys(IDS))):
        if not _wanted(own, values):
            continue
        value = values[own.label_column]
        label = str(value) if isinstance(value, bool) else usable_id(value)[0]
        if label is None:
            raise _wrong(own, place, f"the label {value!r} is neither a string nor a whole number")
        text_id = _name(own, place, id_in(values), "id") or str(number)
        if text_id in seen:
            raise _wrong(own, place, f"the id '{text_id}' was there before")
        seen.add(text_id)
        found.append((text_id, _text(own, place, values[own.text_column]), label))
    labels = {label: number for number, label in enumerate(sorted({label for _, _, label in found}))}
    if len(labels) < 2:
        there = f"the one label {next(iter(labels))!r}" if labels else "no row"
        raise UsageError(f"task '{own.name}': '{masked(own.source)}' has {there}; {own.type} needs at least two labels")
    return [Labelled(text_id, text, labels[label]) for text_id, text, label in found]


def _sts(own: OwnTask) -> Any:
    assert own.source is not None
    pairs: list[dict[str, Any]] = []
    for place, values in _rows(own, own.source, _SENTENCES | dict.fromkeys(own.where, "where")):
        if _wanted(own, values):
            score = values["score"]
            try:
                score = float(score)
            except (TypeError, ValueError, OverflowError):
                raise _wrong(own, place, f"the score {score!r} is no number") from None
            if score != score or abs(score) == float("inf"):
                raise _wrong(own, place, f"the score {score!r} is not finite")
            first, second = (_text(own, place, values[name], name) for name in ("sentence1", "sentence2"))
            pairs.append({"sentence1": first, "sentence2": second, "score": score})
    if len({pair["score"] for pair in pairs}) < 2:
        raise UsageError(f"task '{own.name}': '{masked(own.source)}' has no two pairs of different score")
    scores = [float(pair["score"]) for pair in pairs]
    task = _task(own, AbsTaskSTS, min_score=min(scores), max_score=max(scores))
    task.dataset = DatasetDict({"test": Dataset.from_list(pairs)})
    return task


def _rows(
    own: OwnTask, source: str, required: Mapping[str, str | None], optional: Mapping[str, str | None] | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, values) of every row of a file; raises if the file, a column or a row cannot be read."""
    columns = Columns(dict(required), {}, dict(optional or {}))
    try:
        for record in sources.records(TaskFile(source), columns):
            if record.problem is not None:
                raise _wrong(own, record.place, record.problem)
            yield record.place, record.values
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith("task ") else f"task '{own.name}': {message}") from None


def _new(own: OwnTask, place: str, key: str, there: Mapping[str, Any]) -> None:
    if key in there:
        raise _wrong(own, place, f"the id '{key}' was there before")


def _wanted(own: OwnTask, values: Mapping[str, Any]) -> bool:
    return all(_is_value(values.get(name), wanted) for name, wanted in own.where.items())


def _is_value(value: Any, wanted: str) -> bool:
    """Whether a value is what `where` asks for, in every format: CSV has 1 and true as texts."""
    if isinstance(value, bool):
        return str(value).lower() == wanted.lower()
    name, _ = usable_id(value)
    return (str(value) if name is None else name) == wanted


def _text(own: OwnTask, place: str, value: Any, what: str = "text") -> str:
    text, problem = usable_text(value)
    if text is None:
        raise _wrong(own, place, (problem or "").replace("the text", f"the {what}"))
    return text


def _id(own: OwnTask, place: str, value: Any) -> str:
    found = _name(own, place, value, "id")
    if found is None:
        raise _wrong(own, place, "there is no id; its column is id, or _id as in BEIR")
    return found


def _name(own: OwnTask, place: str, value: Any, what: str) -> str | None:
    """An id or a title as text; None where there is none."""
    found, problem = usable_id(value, f"the {what}")
    if problem is not None:
        raise _wrong(own, place, problem)
    return found


def _wrong(own: OwnTask, place: str, problem: str) -> UsageError:
    return UsageError(f"task '{own.name}': row {place}: {problem}; mend the row or leave it out")
