"""A user's data sets as MTEB tasks, with the classes, scores and seeds of tasks of the hub."""

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
from tempscale_jobs.corpus.rows import named_group, not_a_group, usable_id, usable_text
from tempscale_jobs.corpus.sources import IDS, id_in
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate.windows import Chosen, Labelled, TextsToTest, by_interval
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


def build(
    own: OwnTask, seed: int, tokenizer: Tokenizer | None = None, edges: Sequence[int] = (), columns: Sequence[str] = ()
) -> Any:
    """A user's task with its data, as an mteb task; only `texts_per_interval` needs tokenizer and edges.

    A retrieval has `document_groups`: by each of `columns`, the group of each document, by id.
    """
    if own.type == "classification":
        made = _classification(own, seed, tokenizer, edges)
    elif own.type == "retrieval":
        made = _retrieval(own, columns)
    else:
        makers = {"reranking": _reranking, "clustering": _clustering, "sts": _sts}
        made = makers[own.type](own)
    made.data_loaded = True
    return made


def _task(config: OwnTask, base: type, **attributes: Any) -> Any:
    """A task of an mteb class under the user's name."""
    metadata = TaskMetadata(
        name=config.name, description=f"Own data: {config.type}.", dataset={"path": config.name, "revision": "own"},
        type=_TYPES.get(config.type, config.type.capitalize()), category="t2t", eval_splits=["test"],
        eval_langs=["eng-Latn"], main_score=_SCORES[config.type], modalities=["text"],
    )  # fmt: skip
    # The data set is in memory; mteb's loading would ask the hub for it.
    loaded = {"metadata": metadata, "load_data": lambda self, *_, **__: None}
    return type(config.name, (base,), loaded | attributes)()


def check_first(own: OwnTask, columns: Sequence[str]) -> None:
    """Raise a UsageError if the first document lacks one of the columns of groups."""
    next(iter(_documents(own, columns)), None)


def _documents(config: OwnTask, columns: Sequence[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows of the documents of a retrieval, with the columns of groups."""
    assert config.corpus is not None
    groups: dict[str, str | None] = dict.fromkeys(columns, "--correction 'centre_by(COLUMN)'")
    return _rows(config, config.corpus, groups | {"text": None}, dict.fromkeys((*IDS, "title")))


def _retrieval(config: OwnTask, columns: Sequence[str]) -> Any:
    assert config.queries is not None
    assert config.qrels is not None
    documents: dict[str, dict[str, str]] = {}
    groups: dict[str, dict[str, str]] = {column: {} for column in columns}
    for place, values in _documents(config, columns):
        key, text, title = (
            _id(config, place, id_in(values)),
            values["text"],
            _name(config, place, values.get("title"), "title"),
        )
        _new(config, place, key, documents)
        # BEIR has documents with a title only; mteb embeds title and text.
        is_title = bool(title and title.strip()) and (text is None or (isinstance(text, str | bytes) and not text.strip()))
        documents[key] = {"id": key, "title": title or "", "text": "" if is_title else _text(config, place, text)}
        for column, named in groups.items():
            if (problem := not_a_group(column, values[column], "--correction")) is not None:
                raise _wrong(config, place, problem)
            named[key] = named_group(values[column])
    queries: dict[str, dict[str, str]] = {}
    for place, values in _rows(
        config, config.queries, {"text": None} | dict.fromkeys(config.where, "where"), dict.fromkeys(IDS)
    ):
        if _passes_where(config, values):
            key = _id(config, place, id_in(values))
            _new(config, place, key, queries)
            queries[key] = {"id": key, "text": _text(config, place, values["text"], "query")}
    relevant = _relevant(config, documents, queries)
    task = _task(config, AbsTaskRetrieval, document_groups=groups)
    data = {
        "corpus": Dataset.from_list(list(documents.values())), "queries": Dataset.from_list(list(queries.values())),
        "relevant_docs": relevant, "top_ranked": None,
    }  # fmt: skip
    task.dataset = {"default": {"test": data}}
    return task


def _relevant(config: OwnTask, documents: Mapping[str, Any], queries: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Relevance by query and document, for the queries of the task."""
    assert config.qrels is not None
    missing: Counter[str] = Counter()
    example: dict[str, str] = {}
    relevant: dict[str, dict[str, int]] = {}
    optional = dict.fromkeys((*_QUERY, *_DOCUMENT, *_RELEVANCE))
    for place, values in _rows(config, config.qrels, {}, optional):
        query, document, score = (
            next((values[name] for name in names if values.get(name) is not None and str(values[name])), None)
            for names in (_QUERY, _DOCUMENT, _RELEVANCE)
        )
        if query is None or document is None:
            if _is_trec(values):
                raise UsageError(
                    f"task '{config.name}': the qrels '{masked(config.qrels)}' are TREC's four columns without names; write "
                    "them as .tsv with a first line of names: query_id, iteration, doc_id, score"
                )
            raise _wrong(config, place, f"no query and document; name the columns {_QUERY[0]}, {_DOCUMENT[0]} and score")
        query, document = _id(config, place, query), _id(config, place, document)
        if config.where and query not in queries:
            continue  # `where` left this query out.
        for kind, key, known in (("query", query, queries), ("document", document, documents)):
            if key not in known:
                missing[kind] += 1
                example.setdefault(kind, key)
                break
        else:
            if score is None and any(name in values for name in _RELEVANCE):
                raise _wrong(config, place, f"query '{query}' and document '{document}' have no relevance")
            value = _score(config, place, 1 if score is None else score)
            if relevant.setdefault(query, {}).setdefault(document, value) != value:
                raise _wrong(config, place, f"query '{query}' and document '{document}' are repeated with another relevance")
    if missing:
        unknown = " and ".join(f"{count} × an unknown {kind}, such as '{example[kind]}'" for kind, count in missing.items())
        raise UsageError(
            f"task '{config.name}': the qrels '{masked(config.qrels)}' name {unknown}; mend the qrels or add what is missing"
        )
    if not any(score > 0 for scores in relevant.values() for score in scores.values()):
        raise UsageError(f"task '{config.name}': the qrels '{masked(config.qrels)}' give no query a relevant document")
    return relevant


def _is_trec(values: Mapping[str, Any]) -> bool:
    """Whether a row of qrels has TREC's form without column names: query, iteration, document, relevance."""
    # Such a line was read as the names of columns, or as a text.
    lines = (" ".join(values), str(utf8_or_bytes(values.get("text", ""))))
    return any(len(fields) == 4 and fields[3].lstrip("-").isdigit() for fields in map(str.split, lines))


def _score(config: OwnTask, place: str, value: Any) -> int:
    try:
        whole = int(float(value))
    except (TypeError, ValueError, OverflowError):
        raise _wrong(config, place, f"the relevance {value!r} is no number") from None
    if whole != float(value):
        raise _wrong(config, place, f"the relevance {value!r} is no whole number, which trec_eval's measures are made of")
    return whole


def _reranking(config: OwnTask) -> Any:
    assert config.source is not None
    corpus: dict[str, str] = {}
    queries: list[dict[str, str]] = []
    relevant: dict[str, dict[str, int]] = {}
    ranked: dict[str, list[str]] = {}
    columns = dict.fromkeys(("query", "positives", "negatives")) | dict.fromkeys(config.where, "where")
    for number, (place, values) in enumerate(_rows(config, config.source, columns)):
        if not _passes_where(config, values):
            continue
        key = f"q{number}"
        queries.append({"id": key, "text": _text(config, place, values["query"], "query")})
        for side, score in (("positives", 1), ("negatives", 0)):
            texts = values[side]
            if not isinstance(texts, list) or (score and not texts):
                raise _wrong(config, place, f"{side} must be a list of texts" + (", at least one" if score else ""))
            for text in texts:
                document = corpus.setdefault(_text(config, place, text, side), f"d{len(corpus)}")
                # A text on both sides counts as relevant.
                relevant.setdefault(key, {}).setdefault(document, score)
        ranked[key] = list(relevant[key])
    if not queries:
        raise UsageError(f"task '{config.name}': '{masked(config.source)}' has no query")
    task = _task(config, AbsTaskRetrieval)
    documents = [{"id": document, "title": "", "text": text} for text, document in corpus.items()]
    task.dataset = {"default": {"test": {
        "corpus": Dataset.from_list(documents), "queries": Dataset.from_list(queries), "relevant_docs": relevant,
        "top_ranked": ranked,
    }}}  # fmt: skip
    return task


def _classification(config: OwnTask, seed: int, tokenizer: Tokenizer | None, edges: Sequence[int]) -> Any:
    rows: list[Labelled] = []
    train: list[dict[str, Any]] = []
    for row in _labelled(config):
        if keyed_hash(row.id, seed) / 2**64 < config.test_share:
            rows.append(row)
        else:
            train.append(row._asdict())
    chosen = [Chosen(*row, window=False) for row in rows]
    if config.texts_per_interval is not None and tokenizer is not None:
        chosen = by_interval(rows, tokenizer, edges, TextsToTest(config.texts_per_interval, config.windows, seed))
    test = [row._asdict() for row in chosen]
    for name, part in (("learn from", train), ("test on", test)):
        if len({row["label"] for row in part}) < 2:
            raise UsageError(
                f"task '{config.name}': fewer than two labels among the {len(part)} rows to {name}; give more rows"
            )
    task = _task(
        config, AbsTaskClassification, samples_per_label=config.samples_per_label, n_experiments=config.experiments,
    )  # fmt: skip
    task.dataset = DatasetDict({"train": Dataset.from_list(train), "test": Dataset.from_list(test)})
    return task


def _clustering(config: OwnTask) -> Any:
    rows = _labelled(config)
    task = _task(
        config, AbsTaskClustering, max_fraction_of_documents_to_embed=None, max_document_to_embed=len(rows),
        input_column_name="text", label_column_name="labels",
    )  # fmt: skip
    data = [{"id": row.id, "text": row.text, "labels": row.label} for row in rows]
    task.dataset = DatasetDict({"test": Dataset.from_list(data)})
    return task


def _labelled(config: OwnTask) -> list[Labelled]:
    """The texts with their labels, which are numbered in alphabetical order."""
    assert config.source is not None
    rows: list[tuple[str, str, str]] = []
    seen: set[str] = set()
    required = {config.text_column: "text_column", config.label_column: "label_column"} | dict.fromkeys(
        config.where, "where"
    )
    for number, (place, values) in enumerate(_rows(config, config.source, required, dict.fromkeys(IDS))):
        if not _passes_where(config, values):
            continue
        value = values[config.label_column]
        label = str(value) if isinstance(value, bool) else usable_id(value)[0]
        if label is None:
            raise _wrong(config, place, f"the label {value!r} is neither a string nor a whole number")
        text_id = _name(config, place, id_in(values), "id") or str(number)
        if text_id in seen:
            raise _wrong(config, place, f"the id '{text_id}' is repeated")
        seen.add(text_id)
        rows.append((text_id, _text(config, place, values[config.text_column]), label))
    labels = {label: number for number, label in enumerate(sorted({label for _, _, label in rows}))}
    if len(labels) < 2:
        content = f"the one label {next(iter(labels))!r}" if labels else "no row"
        raise UsageError(
            f"task '{config.name}': '{masked(config.source)}' has {content}; {config.type} needs at least two labels"
        )
    return [Labelled(text_id, text, labels[label]) for text_id, text, label in rows]


def _sts(config: OwnTask) -> Any:
    assert config.source is not None
    pairs: list[dict[str, Any]] = []
    for place, values in _rows(config, config.source, _SENTENCES | dict.fromkeys(config.where, "where")):
        if _passes_where(config, values):
            score = values["score"]
            try:
                score = float(score)
            except (TypeError, ValueError, OverflowError):
                raise _wrong(config, place, f"the score {score!r} is no number") from None
            if score != score or abs(score) == float("inf"):
                raise _wrong(config, place, f"the score {score!r} is not finite")
            first, second = (_text(config, place, values[name], name) for name in ("sentence1", "sentence2"))
            pairs.append({"sentence1": first, "sentence2": second, "score": score})
    if len({pair["score"] for pair in pairs}) < 2:
        raise UsageError(f"task '{config.name}': '{masked(config.source)}' has no two pairs of different score")
    scores = [float(pair["score"]) for pair in pairs]
    task = _task(config, AbsTaskSTS, min_score=min(scores), max_score=max(scores))
    task.dataset = DatasetDict({"test": Dataset.from_list(pairs)})
    return task


def _rows(
    config: OwnTask, source: str, required: Mapping[str, str | None], optional: Mapping[str, str | None] | None = None
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(place, values) of every row of a file; a UsageError if the file, a column or a row cannot be read."""
    columns = Columns(dict(required), {}, dict(optional or {}))
    try:
        for record in sources.records(TaskFile(source), columns):
            if record.problem is not None:
                raise _wrong(config, record.place, record.problem)
            yield record.place, record.values
    except UsageError as error:
        message = str(error)
        raise UsageError(message if message.startswith("task ") else f"task '{config.name}': {message}") from None


def _new(config: OwnTask, place: str, key: str, known: Mapping[str, Any]) -> None:
    if key in known:
        raise _wrong(config, place, f"the id '{key}' is repeated")


def _passes_where(config: OwnTask, values: Mapping[str, Any]) -> bool:
    return all(_is_value(values.get(name), expected) for name, expected in config.where.items())


def _is_value(value: Any, expected: str) -> bool:
    """Whether a value equals a value of `where` in every format: CSV has 1 and true as texts."""
    if isinstance(value, bool):
        return str(value).lower() == expected.lower()
    name, _ = usable_id(value)
    return (str(value) if name is None else name) == expected


def _text(config: OwnTask, place: str, value: Any, what: str = "text") -> str:
    text, problem = usable_text(value)
    if text is None:
        raise _wrong(config, place, (problem or "").replace("the text", f"the {what}"))
    return text


def _id(config: OwnTask, place: str, value: Any) -> str:
    key = _name(config, place, value, "id")
    if key is None:
        raise _wrong(config, place, "there is no id; its column is id, or _id as in BEIR")
    return key


def _name(config: OwnTask, place: str, value: Any, what: str) -> str | None:
    """An id or a title as text; None if the row has none."""
    name, problem = usable_id(value, f"the {what}")
    if problem is not None:
        raise _wrong(config, place, problem)
    return name


def _wrong(config: OwnTask, place: str, problem: str) -> UsageError:
    return UsageError(f"task '{config.name}': row {place}: {problem}; mend the row or leave it out")
