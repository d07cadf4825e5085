"""Data sets of one's own through mteb: scores of sentence-transformers' own evaluators, items, and clear sentences."""

import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
from whole_run import documented

from tempscale import Encoder
from tempscale.stats.sample import keyed_hash
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.evaluate import EvaluateConfig, OwnTask
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import UsageError

mteb = pytest.importorskip("mteb")

from tempscale_jobs.evaluate import tasks  # noqa: E402
from tempscale_jobs.evaluate.mteb_model import GridModel  # noqa: E402
from tempscale_jobs.evaluate.own_tasks import build  # noqa: E402
from tempscale_jobs.evaluate.scored import score  # noqa: E402


@pytest.fixture(scope="module")
def texts():
    """Ninety docstrings of one module each, long enough to have a beginning and a rest."""
    rows = [row for row in documented("pyarrow") if 150 < len(row["text"]) < 600]
    return [row["text"] for row in rows[:90]]


@pytest.fixture(scope="module")
def model(minilm):
    return GridModel(Encoder.load(minilm, device="cpu", max_length=64), "minilm", "rev")


@pytest.fixture(scope="module")
def plain(minilm):
    """The same model in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(minilm), device="cpu")
    found.max_seq_length = 64
    return found


def lines(file, rows):
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def task_of(own):
    return build(checked(OwnTask, own), 0)


def main_score(cell):
    return cell.result["scores"]["test"][0]["main_score"]


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory, texts):
    """The rest of each text is to be found by its beginning."""
    folder = tmp_path_factory.mktemp("retrieval")
    (folder / "qrels.tsv").write_text("query_id\tdoc_id\trel\n" + "".join(f"q{k}\td{k}\t1\n" for k in range(40)))
    return {
        "name": "beginnings", "type": "retrieval", "qrels": str(folder / "qrels.tsv"),
        "corpus": lines(folder / "c.jsonl", [{"id": f"d{k}", "text": text[60:]} for k, text in enumerate(texts)]),
        "queries": lines(folder / "q.jsonl", [{"id": f"q{k}", "text": text[:60]} for k, text in enumerate(texts[:40])]),
    }  # fmt: skip


@pytest.mark.proof
def test_retrieval_scores_are_those_of_sentence_transformers(retrieval, texts, model, plain):
    from sentence_transformers.evaluation import InformationRetrievalEvaluator

    cell = score(task_of(retrieval), model, Temperature(1.0), keep=False)
    queries, corpus = (
        {f"q{k}": t[:60] for k, t in enumerate(texts[:40])},
        {f"d{k}": t[60:].strip() for k, t in enumerate(texts)},
    )
    relevant = {f"q{k}": {f"d{k}"} for k in range(40)}
    expected = InformationRetrievalEvaluator(queries, corpus, relevant, show_progress_bar=False)(plain)
    assert main_score(cell) == pytest.approx(expected["cosine_ndcg@10"], abs=1e-4)
    assert 0.2 < main_score(cell) < 1
    # Each query's part, and where its document stands, by hand.
    own = plain.encode(list(queries.values())) @ plain.encode(list(corpus.values())).T
    rank = [int((own[k] > own[k, k]).sum()) + 1 for k in range(40)]
    by_query = {row["query"]: row for row in cell.relevant}
    assert [by_query[f"q{k}"]["rank"] for k in range(40)] == rank
    values = {row["item"]: row["value"] for row in cell.items}
    assert values["q3"] == pytest.approx(1 / np.log2(rank[3] + 1) if rank[3] <= 10 else 0, abs=1e-6)
    assert np.mean(list(values.values())) == pytest.approx(main_score(cell), abs=1e-4)
    lengths = dict(zip(corpus, model.model.tokenizer(list(corpus.values())).lengths, strict=True))
    assert all(row["tokens"] == lengths[row["document"]] for row in cell.relevant)


@pytest.mark.proof
def test_roles_have_their_own_temperatures_and_are_embedded_once(retrieval, texts, model, minilm):
    task, calls = task_of(retrieval), []
    encoder = model.model
    plain_encode = encoder.encode_tokens
    encoder.encode_tokens = lambda tokens, **how: calls.append(len(tokens)) or plain_encode(tokens, **how)
    try:
        grid = [Temperature(1.0), Temperature(0.5), Temperature.by_role(query=1.0, document=0.5)]
        cells = [score(task, model, temperature, keep=True) for temperature in grid]
    finally:
        encoder.encode_tokens = plain_encode
    # Copies once; and the third needs nothing new.
    assert calls == [len({text[:60] for text in texts[:40]}), len({text[60:].strip() for text in texts})] * 2
    vectors = {}
    for role, tau, some in (
        ("query", 1.0, [t[:60] for t in texts[:40]]),
        ("document", 0.5, [t[60:].strip() for t in texts]),
    ):
        vectors[role] = Encoder.load(minilm, temperature=tau, device="cpu", max_length=64).encode(some).embeddings.numpy()
    cosine = vectors["query"] @ vectors["document"].T
    rank = [int((cosine[k] > cosine[k, k]).sum()) + 1 for k in range(40)]
    found = {row["query"]: row["rank"] for row in cells[2].relevant}
    assert [found[f"q{k}"] for k in range(40)] == rank
    assert len({main_score(cell) for cell in cells}) > 1


@pytest.mark.proof
def test_sts_scores_are_those_of_sentence_transformers(tmp_path, texts, model, plain):
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator

    rng = np.random.default_rng(0)
    rows = []
    for k, text in enumerate(texts[:60]):  # The more of the other text, the less alike.
        share = rng.uniform(0, 1)
        other = texts[(k + 7) % 60]
        second = text[: int(200 * (1 - share))] + other[: int(200 * share)]
        rows.append({"sentence1": text[:200], "sentence2": second or other, "score": 5 * (1 - share)})
    own = {"name": "mixed", "type": "sts", "source": lines(tmp_path / "s.jsonl", rows)}
    cell = score(task_of(own), model, Temperature(1.0), keep=False)
    first, second, gold = ([row[name] for row in rows] for name in ("sentence1", "sentence2", "score"))
    expected = EmbeddingSimilarityEvaluator(first, second, [g / 5 for g in gold], show_progress_bar=False)(plain)
    predicted = [row["predicted"] for row in cell.items]
    assert main_score(cell) == pytest.approx(scipy.stats.spearmanr(predicted, gold).statistic, abs=1e-12)
    # Two cosines that nearly tie may change places by rounding: d places apart in gold, that is 12 d/(n³ − n).
    assert main_score(cell) == pytest.approx(expected["spearman_cosine"], abs=12 * 10 / (60**3 - 60))
    assert 0.3 < main_score(cell) < 1
    cosine = (plain.encode(first) * plain.encode(second)).sum(1)
    np.testing.assert_allclose(predicted, cosine, atol=1e-5)
    assert [row["gold"] for row in cell.items] == gold


def labelled(texts):
    return [
        {"id": str(k), "text": text[:150], "label": "long" if len(text) > 300 else "short"} for k, text in enumerate(texts)
    ]


@pytest.mark.proof
def test_classification_is_mtebs_and_tells_each_text(tmp_path, texts, model, plain):
    from sklearn.linear_model import LogisticRegression

    own = {"name": "sizes", "type": "classification", "source": lines(tmp_path / "l.jsonl", labelled(texts))}
    task = task_of(own)
    cell = score(task, model, Temperature(1.0), keep=False)
    # mteb's own path with sentence-transformers' encoder.
    theirs = mteb.evaluate(plain, task_of(own), cache=None, show_progress_bar=False, co2_tracker=False).task_results[0]
    assert main_score(cell) == pytest.approx(theirs.scores["test"][0]["main_score"], abs=1e-4)
    assert np.mean([row["value"] for row in cell.items]) == pytest.approx(main_score(cell), abs=1e-9)
    assert 0 < np.mean([row["entropy"] for row in cell.items]) <= np.log(2)
    assert [row["item"] for row in cell.items] == task.dataset["test"]["id"]
    # One text by hand: its experiments, learned from the rows that mteb draws.
    test, train = plain.encode(list(task.dataset["test"]["text"])), plain.encode(list(task.dataset["train"]["text"]))
    right, entropy, order = [], [], None
    for experiment in range(10):
        _, order, chosen = task._undersample_data(task.dataset["train"], experiment, order)
        labels = [task.dataset["train"]["label"][k] for k in chosen]
        fitted = LogisticRegression(max_iter=100, random_state=42).fit(train[chosen], labels)
        p = fitted.predict_proba(test[:1])[0]
        right.append(fitted.predict(test[:1])[0] == task.dataset["test"]["label"][0])
        entropy.append(-(p * np.log(p)).sum())
    assert cell.items[0]["value"] == pytest.approx(np.mean(right))
    assert cell.items[0]["entropy"] == pytest.approx(np.mean(entropy), abs=1e-4)


@pytest.mark.proof
def test_clustering_and_reranking_are_scored(tmp_path, texts, model, plain):
    own = {"name": "groups", "type": "clustering", "source": lines(tmp_path / "l.jsonl", labelled(texts))}
    cell = score(task_of(own), model, Temperature(1.0), keep=False)
    theirs = mteb.evaluate(plain, task_of(own), cache=None, show_progress_bar=False, co2_tracker=False).task_results[0]
    assert main_score(cell) == pytest.approx(theirs.scores["test"][0]["main_score"], abs=1e-4)
    rows = [
        {"query": text[:60], "positives": [text[60:]], "negatives": [other[60:] for other in texts[k + 1 : k + 8]]}
        for k, text in enumerate(texts[:30])
    ]
    cell = score(task_of({"name": "r", "type": "reranking", "source": lines(tmp_path / "r.jsonl", rows)}), model,
                 Temperature(1.0), keep=False)  # fmt: skip
    reciprocal = []
    for row in rows:
        cosine = plain.encode([t.strip() for t in row["positives"] + row["negatives"]]) @ plain.encode(row["query"])
        reciprocal.append(1 / (1 + int((cosine[1:] > cosine[0]).sum())))
    assert main_score(cell) == pytest.approx(np.mean(reciprocal), abs=1e-4)
    assert all(row["found"] == 8 for row in cell.relevant)


@pytest.mark.parametrize(("qrels", "words"), [
    ("q0\tnowhere\t1\n", r"name 1 × a document that is not there, such as 'nowhere'"),
    ("nobody\td0\t1\nnone\td0\t1\n", r"name 2 × a query that is not there, such as 'nobody'"),
    ("q0\td0\tmuch\n", "the relevance 'much' is no number"),
    ("q0\td0\t0\n", "give no query a relevant document"),
])  # fmt: skip
def test_wrong_qrels_are_sentences(tmp_path, retrieval, qrels, words):
    (tmp_path / "qrels.tsv").write_text("query_id\tdoc_id\trel\n" + qrels)
    with pytest.raises(UsageError, match=f"^task 'beginnings': .*{words}"):
        task_of(retrieval | {"qrels": str(tmp_path / "qrels.tsv")})


@pytest.mark.parametrize(("own", "rows", "words"), [
    ({"type": "classification"}, [{"text": "a b", "label": "x"}] * 4, "has the one label 'x'; classification needs"),
    ({"type": "classification"}, [{"text": " ", "label": "x"}], r"row l\.jsonl:0: the text is empty"),
    ({"type": "classification"}, [{"text": "a", "label": 0.5}], "the label 0.5 is neither a string nor a whole number"),
    ({"type": "classification", "label_column": "y"}, [{"text": "a", "label": "x"}], "has no column 'y'"),
    ({"type": "classification", "where": {"split": "z"}}, [{"text": "a", "label": "x", "split": "y"}], "has no row"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": "?"}], r"the score '\?' is no number"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": 1}] * 3, "no two pairs of different score"),
    ({"type": "reranking"}, [{"query": "", "positives": ["a"], "negatives": []}], "the query is empty"),
    ({"type": "reranking"}, [{"query": "q", "positives": [], "negatives": ["a"]}], "positives must be a list of texts"),
    ({"type": "reranking"}, [{"query": "q", "positives": ["a"], "negatives": "b"}], "negatives must be a list of texts;"),
    ({"type": "reranking", "where": {"kind": "z"}}, [{"query": "q", "positives": ["a"], "negatives": [], "kind": "y"}],
     r"l\.jsonl' has no row to ask$"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": "nan"}], "the score nan is not finite"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": "-inf"}], "the score -inf is not finite"),
    ({"type": "sts", "where": {"of": "z"}}, [{"sentence1": "a", "sentence2": "b", "score": k, "of": "y"} for k in (1, 2)],
     "no two pairs of different score"),
    ({"type": "clustering"}, [{"id": 1.5, "text": "a", "label": "x"}], "neither a string nor a whole number but float"),
    ({"type": "clustering"}, [{"id": k, "text": "a", "label": "x"} for k in ("7", 7)], "l.jsonl:1: the id '7' was there"),
])  # fmt: skip
def test_wrong_rows_are_sentences(tmp_path, own, rows, words):
    with pytest.raises(UsageError, match=f"^task 'mine': .*{words}"):
        task_of({"name": "mine", "source": lines(tmp_path / "l.jsonl", rows)} | own)


@pytest.mark.parametrize(("tasks", "words"), [
    ([{"name": "a", "type": "retrieval", "corpus": "c", "queries": "q"}], "retrieval needs qrels"),
    ([{"name": "a", "type": "sts", "source": "s", "qrels": "q"}], "sts has no qrels"),
    (["SciFact", "SciFact"], "task 'SciFact' is named twice"),
    ([], "tasks"),
])  # fmt: skip
def test_wrong_configurations_are_sentences(tasks, words):
    with pytest.raises(UsageError, match=words):
        checked(EvaluateConfig, {"tasks": tasks})


def test_the_grid_of_roles_has_each_pair_once():
    config = checked(
        EvaluateConfig, {"tasks": ["SciFact"], "embedding": {"temperatures": [1.0, 0.8, 0.5], "role_grid": True}}
    )
    found = config.temperatures()
    assert [t.canonical for t in found[:3]] == ["1.0", "0.8", "0.5"]
    pairs = {tuple(dict(t.roles)[role].tau for role in ("query", "document")) for t in found[3:]}
    assert pairs == {(a, b) for a in (1.0, 0.8, 0.5) for b in (1.0, 0.8, 0.5) if a != b}
    assert len(found) == 9


@pytest.mark.soak
def test_real_pairs_and_claims_score_as_sentence_transformers_scores_them(tmp_path, shared_corpora, model, plain):
    """800 pairs of the STS benchmark, and 60 claims of SciFact over the abstracts that answer them and 240 others."""
    import polars as pl
    from sentence_transformers.evaluation import EmbeddingSimilarityEvaluator, InformationRetrievalEvaluator

    pairs = pl.read_parquet(shared_corpora / "sts" / "sts_pairs.parquet").sample(800, seed=0)
    pairs.write_parquet(tmp_path / "pairs.parquet")
    cell = score(
        task_of({"name": "sts", "type": "sts", "source": str(tmp_path / "pairs.parquet")}), model, Temperature(1.0), False
    )
    gold = [value / 5 for value in pairs["score"]]
    expected = EmbeddingSimilarityEvaluator(*(pairs[f"sentence{k}"].to_list() for k in (1, 2)), gold)(plain)
    assert main_score(cell) == pytest.approx(expected["spearman_cosine"], abs=1e-4)
    assert 0.7 < main_score(cell) < 0.95

    folder = shared_corpora / "scifact"
    corpus, queries = (pl.read_ndjson(folder / f"{name}.jsonl.gz") for name in ("corpus", "queries"))
    qrels = pl.read_csv(folder / "qrels.tsv", separator="\t")
    query, document = qrels.columns[:2]
    qrels = qrels.with_columns(pl.col(query, document).cast(pl.String)).filter(pl.col(qrels.columns[2]) > 0)
    corpus, queries = (each.with_columns(pl.col("id").cast(pl.String)) for each in (corpus, queries))
    asked = queries.filter(pl.col("id").is_in(qrels[query].implode())).head(60)
    answers = qrels.filter(pl.col(query).is_in(asked["id"].implode()))
    there = pl.concat([corpus.filter(pl.col("id").is_in(answers[document].implode())), corpus.head(240)]).unique("id")
    (tmp_path / "task").mkdir()
    there.write_ndjson(tmp_path / "task" / "corpus.jsonl")
    asked.write_ndjson(tmp_path / "task" / "queries.jsonl")
    answers.write_csv(tmp_path / "task" / "qrels.tsv", separator="\t")
    own = {"name": "scifact", "type": "retrieval"}
    own |= {name: str(next((tmp_path / "task").glob(f"{name}.*"))) for name in ("corpus", "queries", "qrels")}
    cell = score(task_of(own), model, Temperature(1.0), False)
    texts = {row["id"]: f"{row.get('title') or ''} {row['text']}".strip() for row in there.to_dicts()}
    relevant = {}
    for one, other in answers.select(query, document).iter_rows():
        relevant.setdefault(one, set()).add(other)
    claims = dict(asked.select("id", "text").iter_rows())
    expected = InformationRetrievalEvaluator(claims, texts, relevant, show_progress_bar=False)(plain)
    assert main_score(cell) == pytest.approx(expected["cosine_ndcg@10"], abs=1e-4)
    assert 0.5 < main_score(cell) < 1


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    source = lines(tmp_path / "l.jsonl", [{"text": "a", "label": "x"}])
    (tmp_path / "l.jsonl").write_text((tmp_path / "l.jsonl").read_text() + "{broken\n")
    with pytest.raises(UsageError) as caught:
        task_of({"name": "mine", "type": "clustering", "source": source})
    assert str(caught.value) == "task 'mine': row l.jsonl:1: the line is not valid JSON; mend the row or leave it out"


def test_a_value_that_python_has_no_object_for_is_told_as_one(tmp_path):
    years = pa.array([2**45], pa.timestamp("s"))  # After the year 9999.
    pq.write_table(pa.table({"sentence1": ["a"], "sentence2": ["b"], "score": years}), tmp_path / "s.parquet")
    with pytest.raises(UsageError, match=r"row s\.parquet:0: the score a value that cannot be read is no number; mend"):
        task_of({"name": "mine", "type": "sts", "source": str(tmp_path / "s.parquet")})


@pytest.mark.parametrize("column", [
    pa.array([2**45, 2**45 + 1, 3], pa.timestamp("s")), pa.array([b"\xff", b"\xfe", b"a"]),
])  # fmt: skip
def test_labels_that_are_dates_or_bytes_are_refused(tmp_path, column):
    pq.write_table(pa.table({"text": ["a", "b", "c"], "label": column}), tmp_path / "l.parquet")
    with pytest.raises(UsageError, match=r"row l\.parquet:0: the label .* is neither a string nor a whole number; mend"):
        task_of({"name": "mine", "type": "clustering", "source": str(tmp_path / "l.parquet")})


# --- rows that are asked for ------------------------------------------------------------------------------------------


def test_of_a_retrieval_only_the_queries_asked_for_are_taken_and_their_relevance(tmp_path):
    queries = [{"id": k, "text": f"query {k}", "type": "good" if k % 2 else "other"} for k in range(4)]
    own = {
        "name": "r", "type": "retrieval", "where": {"type": "good"}, "qrels": str(tmp_path / "qrels.tsv"),
        "corpus": lines(tmp_path / "c.jsonl", [{"id": f"d{k}", "text": "a", "title": "b" * k} for k in range(2)]),
        "queries": lines(tmp_path / "q.jsonl", queries),
    }  # fmt: skip
    (tmp_path / "qrels.tsv").write_text("qid\tdocid\trel\n0\td0\t1\n1\td1\t2\n1\td1\t2\n3\td0\t0\n2\tgone\t1\n")
    data = task_of(own).dataset["default"]["test"]
    assert data["queries"].to_list() == [{"id": "1", "text": "query 1"}, {"id": "3", "text": "query 3"}]
    assert data["relevant_docs"] == {"1": {"d1": 2}, "3": {"d0": 0}}
    assert data["corpus"].to_list() == [{"id": "d0", "title": "", "text": "a"}, {"id": "d1", "title": "b", "text": "a"}]
    # Without the filter all four are asked, and what the qrels name must be there.
    with pytest.raises(UsageError, match="name 1 × a document that is not there, such as 'gone'"):
        task_of(own | {"where": {}})


@pytest.mark.parametrize("text", ["", " ", "\n\t", None])
def test_a_document_of_a_title_alone_is_that_title_once(tmp_path, text):
    from datasets import Dataset
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    own = {
        "name": "r", "type": "retrieval", "qrels": str(tmp_path / "qrels.tsv"),
        "corpus": lines(tmp_path / "c.jsonl", [{"_id": "d0", "title": "A b", "text": text}, {"_id": "d1", "text": "c"}]),
        "queries": lines(tmp_path / "q.jsonl", [{"_id": "q0", "text": "query"}]),
    }  # fmt: skip
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\n")
    task = task_of(own)
    corpus = task.dataset["default"]["test"]["corpus"]
    assert corpus.to_list() == [{"id": "d0", "title": "A b", "text": ""}, {"id": "d1", "title": "", "text": "c"}]
    loaded = create_dataloader(corpus, task_metadata=task.metadata, prompt_type=PromptType.document, batch_size=2)
    assert [text for batch in loaded for text in batch["text"]] == ["A b", "c"]
    assert list(tasks.texts(task)) == ["A b", "c", "query"]
    assert list(tasks.texts(SimpleNamespace(dataset={"test": Dataset.from_list([{"text": "x"}])}))) == ["x"]
    for title in ("", " ", None):  # Of nothing there is no document.
        lines(tmp_path / "c.jsonl", [{"_id": "d0", "title": title, "text": text}])
        with pytest.raises(UsageError, match=r"c\.jsonl:0"):
            task_of(own)


@pytest.mark.parametrize("name", [
    "score", "Score", "rel", "relevance", "Relevance", "label", "Label", "grade", "rating", "gain", "judgment",
])  # fmt: skip
def test_the_relevance_has_many_names_and_a_row_without_it_is_refused(tmp_path, name):
    own = {
        "name": "r", "type": "retrieval", "corpus": lines(tmp_path / "c.jsonl", [{"id": k, "text": "a"} for k in range(3)]),
        "queries": lines(tmp_path / "q.jsonl", [{"id": "q", "text": "b"}]), "qrels": str(tmp_path / "qrels.tsv"),
    }  # fmt: skip
    (tmp_path / "qrels.tsv").write_text(f"qid\tdocid\t{name}\nq\t0\t2\nq\t1\t0\nq\t2\t1\n")
    assert task_of(own).dataset["default"]["test"]["relevant_docs"] == {"q": {"0": 2, "1": 0, "2": 1}}
    (tmp_path / "qrels.tsv").write_text(f"qid\tdocid\t{name}\nq\t0\t2\nq\t1\t\n")
    with pytest.raises(UsageError, match=r"qrels\.tsv:1") as caught:
        task_of(own)
    assert caught.value.exit_code == 2
    scores = pa.table({"qid": ["q", "q"], "docid": ["0", "1"], name: pa.array([1, None])})
    pq.write_table(scores, tmp_path / "qrels.parquet")
    with pytest.raises(UsageError, match=r"qrels\.parquet:1"):
        task_of(own | {"qrels": str(tmp_path / "qrels.parquet")})


@pytest.mark.parametrize("empty", ["corpus", "queries", "qrels", "source"])
def test_an_empty_file_is_refused_before_anything_is_computed(tmp_path, empty):
    files = {
        "corpus": '{"id": "d", "text": "a"}\n', "queries": '{"id": "q", "text": "b"}\n', "qrels": "qid\tdocid\nq\td\n",
    }  # fmt: skip
    files = {"source": ""} if empty == "source" else files | {empty: ""}
    own = {"name": "r", "type": "sts" if empty == "source" else "retrieval"}
    for name, content in files.items():
        file = tmp_path / (f"{name}.tsv" if name == "qrels" else f"{name}.jsonl")
        file.write_text(content)
        own[name] = str(file)
    with pytest.raises(UsageError) as caught:
        tasks.check(tasks.expand([checked(OwnTask, own)]), 0)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("score", [10**400, -(10**400), "1e400"])
def test_a_score_beyond_all_floats_is_refused_by_its_row(tmp_path, score):
    rows = [{"sentence1": "a", "sentence2": "b", "score": own} for own in (1, score)]
    with pytest.raises(UsageError, match=r"l\.jsonl:1"):
        task_of({"name": "s", "type": "sts", "source": lines(tmp_path / "l.jsonl", rows)})


@pytest.mark.parametrize(("side", "text", "words"), [
    ("qrels", "left\tright\nq0\td0\n", "row qrels.tsv:0: no query and document; name the columns query_id, doc_id and"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\t0.5\n", "the relevance '0.5' is no whole number, which trec_eval"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\tinf\n", "the relevance 'inf' is no number"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\t1\nq0\td0\t2\n", "'q0' and document 'd0' were there with another relevance"),
    ("corpus", '{"id": 1.5, "text": "a"}\n', "row corpus.jsonl:0: the id is neither a string nor a whole number but float"),
    ("corpus", '{"id": null, "text": "a"}\n', "row corpus.jsonl:0: there is no id; .*; mend the row"),
    ("corpus", '{"id": "a", "text": "a"}\n' * 2, "row corpus.jsonl:1: the id 'a' was there before; mend the row"),
    ("queries", '{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n', "row queries.jsonl:1: the id '1' was there before"),
])  # fmt: skip
def test_wrong_sides_of_a_retrieval_are_sentences(tmp_path, retrieval, side, text, words):
    file = tmp_path / (f"{side}.tsv" if side == "qrels" else f"{side}.jsonl")
    file.write_text(text)
    with pytest.raises(UsageError, match=f"^task 'beginnings': .*{words}"):
        task_of(retrieval | {side: str(file)})


def test_of_a_reranking_only_the_rows_asked_for_are_taken(tmp_path):
    rows = [
        {"query": "first", "positives": ["a", "b"], "negatives": ["c"], "kind": "other"},
        {"query": "second", "positives": ["b"], "negatives": ["b", "c"], "kind": "good"},
        {"query": "third", "positives": ["d"], "negatives": ["b"], "kind": "good"},
    ]
    own = {"name": "r", "type": "reranking", "source": lines(tmp_path / "l.jsonl", rows), "where": {"kind": "good"}}
    data = task_of(own).dataset["default"]["test"]
    assert data["queries"].to_list() == [{"id": "q1", "text": "second"}, {"id": "q2", "text": "third"}]
    assert {row["id"]: row["text"] for row in data["corpus"]} == {"d0": "b", "d1": "c", "d2": "d"}
    # What stands on both sides is relevant.
    assert data["relevant_docs"] == {"q1": {"d0": 1, "d1": 0}, "q2": {"d2": 1, "d0": 0}}
    assert data["top_ranked"] == {"q1": ["d0", "d1"], "q2": ["d2", "d0"]}


def test_of_an_sts_only_the_pairs_asked_for_are_taken_and_their_scores_are_the_range(tmp_path):
    rows = [
        {"sentence1": f"a{k}", "sentence2": f"b{k}", "score": score, "year": year}
        for k, (score, year) in enumerate([(9, 2012), (1, 2013), ("2.5", 2013), (-7, 2014)])
    ]
    own = {"name": "s", "type": "sts", "source": lines(tmp_path / "l.jsonl", rows), "where": {"year": "2013"}}
    task = task_of(own)
    assert task.dataset["test"].to_list() == [
        {"sentence1": "a1", "sentence2": "b1", "score": 1.0}, {"sentence1": "a2", "sentence2": "b2", "score": 2.5},
    ]  # fmt: skip
    assert (task.min_score, task.max_score) == (1.0, 2.5)


# --- a classification by length ---------------------------------------------------------------------------------------


class Words:
    """Stands for a tokenizer: a token is a word, and two are special."""

    max_length = 30

    def __call__(self, texts, max_length):
        return SimpleNamespace(lengths=[min(len(text.split()) + 2, max_length) for text in texts])


def counted(tmp_path, sizes):
    """Two labels in turn; the text of so many words."""
    rows = [{"id": f"t{k}", "text": " ".join(["word"] * n), "label": "xy"[k % 2]} for k, n in enumerate(sizes)]
    return {"name": "c", "type": "classification", "source": lines(tmp_path / "l.jsonl", rows)}


def test_a_classification_is_tested_on_so_many_texts_of_each_length(tmp_path):
    own = counted(tmp_path, [1] * 6 + [4] * 30 + [20] * 30)  # 3, 6 and 22 tokens.
    edges, seed, most = [5, 10], 3, 4
    everything = build(checked(OwnTask, own), seed).dataset
    task = build(checked(OwnTask, own | {"texts_per_interval": most}), seed, Words(), edges)
    assert task.dataset["train"].to_list() == everything["train"].to_list()
    held = {row["id"]: len(row["text"].split()) for row in everything["test"]}
    # Of the held texts, those of smallest keyed hash; those below the first edge are left out.
    expected = []
    for words in (4, 20):
        own_ids = sorted((i for i, n in held.items() if n == words), key=lambda i: keyed_hash(i, seed))
        assert len(own_ids) > most
        expected += sorted(own_ids[:most])
    assert task.dataset["test"]["id"] == expected
    assert not any(task.dataset["test"]["window"])
    by_label = {"x": 0, "y": 1}
    assert task.dataset["test"]["label"] == [by_label["xy"[int(i[1:]) % 2]] for i in expected]


def test_an_interval_of_a_classification_with_too_few_texts_is_filled_with_windows(tmp_path):
    own = counted(tmp_path, [20] * 40)
    task = build(checked(OwnTask, own | {"texts_per_interval": 5, "windows": True}), 0, Words(), [8, 12])
    rows = task.dataset["test"].to_list()
    assert [row["window"] for row in rows] == [True] * 5 + [False] * 5
    for row in rows[:5]:
        first, last = map(int, row["id"].partition("[")[2].rstrip("]").split(":"))
        assert 8 <= last - first + 2 < 12
        assert row["text"] == " ".join(["word"] * (last - first))
        assert row["label"] == int(row["id"].partition("[")[0][1:]) % 2
    # Where no lengths are told, all test rows are taken as they are.
    assert not any(build(checked(OwnTask, own | {"texts_per_interval": 5}), 0).dataset["test"]["window"])


@pytest.mark.parametrize(("more", "told"), [
    ({"test_share": 1 - 1e-12}, "among the 0 rows to learn from; give more rows"),
    ({"test_share": 1e-12}, "among the 0 rows to test on; give more rows"),
    ({"texts_per_interval": 1}, "among the 1 rows to test on; give more rows"),
])  # fmt: skip
def test_a_classification_needs_two_labels_on_either_side(tmp_path, more, told):
    own = checked(OwnTask, counted(tmp_path, [4] * 20) | more)
    with pytest.raises(UsageError) as caught:
        build(own, 0, Words(), [0])
    assert str(caught.value) == f"task 'c': fewer than two labels {told}"
