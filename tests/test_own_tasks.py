"""Data sets of one's own through mteb: scores of sentence-transformers' own evaluators, items, and clear sentences."""

import json

import numpy as np
import pytest
from whole_run import documented

from jobs.errors import UsageError
from jobs.evaluate_config import EvaluateConfig, OwnTask
from jobs.strict import checked
from tempscale import Encoder
from tempscale.temperature import Temperature

mteb = pytest.importorskip("mteb")

from jobs.mteb_model import MtebModel  # noqa: E402
from jobs.own_tasks import build  # noqa: E402
from jobs.scored import score  # noqa: E402


@pytest.fixture(scope="module")
def texts():
    """Ninety docstrings of one module each, long enough to have a beginning and a rest."""
    rows = [row for row in documented("pyarrow") if 150 < len(row["text"]) < 600]
    return [row["text"] for row in rows[:90]]


@pytest.fixture(scope="module")
def model(minilm):
    return MtebModel(Encoder.load(minilm, device="cpu", max_length=64), "minilm", "rev")


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
    assert main_score(cell) == pytest.approx(expected["spearman_cosine"], abs=1e-4)
    assert 0.3 < main_score(cell) < 1
    cosine = (plain.encode(first) * plain.encode(second)).sum(1)
    np.testing.assert_allclose([row["predicted"] for row in cell.items], cosine, atol=1e-5)
    assert [row["gold"] for row in cell.items] == gold


def labelled(texts):
    return [
        {"id": str(k), "text": text[:150], "label": "long" if len(text) > 300 else "short"} for k, text in enumerate(texts)
    ]


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
