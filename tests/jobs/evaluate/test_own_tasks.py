"""Data sets of one's own through mteb: scores of sentence-transformers' own evaluators, and what is wrong is named."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from score_tasks import retrieval_in
from whole_run import as_lines, documented

from tempscale import Encoder
from tempscale.stats.sample import keyed_hash
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.evaluate import EvaluateConfig, OwnTask
from tempscale_jobs.config.strict import checked
from tempscale_jobs.errors import UsageError

pytest.importorskip("mteb")

from tempscale_jobs.evaluate import tasks
from tempscale_jobs.evaluate.grid_model import Checkpoint, GridModel
from tempscale_jobs.evaluate.own_tasks import build
from tempscale_jobs.evaluate.scored import ScoringOptions, score


@pytest.fixture(scope="module")
def model(minilm):
    return GridModel(Encoder.load(minilm, device="cpu", max_length=64), Checkpoint("minilm", "rev"))


@pytest.fixture(scope="module")
def plain(minilm):
    """The same model in sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    found = SentenceTransformer(str(minilm), device="cpu")
    found.max_seq_length = 64
    return found


def lines(file, rows):
    file.write_text(as_lines(rows))
    return str(file)


def over(folder, corpus, queries, qrels):
    """A retrieval of these rows."""
    (folder / "qrels.tsv").write_text(qrels)
    sides = {"corpus": lines(folder / "c.jsonl", corpus), "queries": lines(folder / "q.jsonl", queries)}
    return {"name": "r", "type": "retrieval", "qrels": str(folder / "qrels.tsv")} | sides


def task_of(own):
    return build(checked(OwnTask, own), 0)


def main_score(cell):
    return cell.result["scores"]["test"][0]["main_score"]


@pytest.fixture(scope="module")
def retrieval(tmp_path_factory, task_texts):
    """The rest of each text is to be found by its beginning."""
    corpus = {f"d{k}": text[60:] for k, text in enumerate(task_texts)}
    queries = {f"q{k}": text[:60] for k, text in enumerate(task_texts[:40])}
    relevant = {f"q{k}": [f"d{k}"] for k in range(40)}
    return retrieval_in(tmp_path_factory.mktemp("retrieval"), "beginnings", corpus, queries, relevant)


@pytest.mark.proof
def test_roles_have_their_own_temperatures_and_are_embedded_once(retrieval, task_texts, model, minilm, plain):
    task, calls = task_of(retrieval), []
    encoder = model.model
    plain_encode = encoder.encode_tokens
    encoder.encode_tokens = lambda tokens, **how: calls.append(len(tokens)) or plain_encode(tokens, **how)
    try:
        grid = [Temperature(1.0), Temperature(0.5), Temperature.by_role(query=1.0, document=0.5)]
        cells = [score(task, model, temperature, ScoringOptions(keep=True)) for temperature in grid]
    finally:
        encoder.encode_tokens = plain_encode
    # Copies once; and the third needs nothing new.
    queries, documents = [text[:60] for text in task_texts[:40]], [text[60:].strip() for text in task_texts]
    assert calls == [len(set(queries)), len(set(documents))] * 2
    half = Encoder.load(minilm, temperature=0.5, device="cpu", max_length=64)
    own = plain.encode(queries)
    for cell, vectors in ((cells[0], plain.encode(documents)), (cells[2], half.encode(documents).embeddings.numpy())):
        cosine = own @ vectors.T
        rank = [int((cosine[k] > cosine[k, k]).sum()) + 1 for k in range(40)]
        found = {row["query"]: row["rank"] for row in cell.relevant}
        assert [found[f"q{k}"] for k in range(40)] == rank
        expected = np.mean([1 / np.log2(place + 1) if place <= 10 else 0 for place in rank])
        assert main_score(cell) == pytest.approx(expected, abs=1e-4)
    assert len({main_score(cell) for cell in cells}) > 1


@pytest.mark.parametrize(("side", "text", "named"), [
    ("qrels", "query_id\tdoc_id\trel\nq0\tnowhere\t1\n", "1 × an unknown document, .* 'nowhere'"),
    ("qrels", "query_id\tdoc_id\trel\nnobody\td0\t1\nnone\td0\t1\n", "2 × an unknown query, .* 'nobody'"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\t0\n", "qrels.tsv"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\tmuch\n", "qrels.tsv:0: .* 'much'"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\tinf\n", "qrels.tsv:0: .* 'inf'"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\t0.5\n", "qrels.tsv:0: .* '0.5'"),
    ("qrels", "query_id\tdoc_id\trel\nq0\td0\t1\nq0\td0\t2\n", "qrels.tsv:1: .* 'q0' .* 'd0'"),
    ("qrels", "", "qrels.tsv"),
    ("corpus", '{"id": 1.5, "text": "a"}\n', "corpus.jsonl:0: .* id .* float"),
    ("corpus", '{"id": null, "text": "a"}\n', "corpus.jsonl:0: .* id"),
    ("corpus", '{"id": "a", "text": "a"}\n' * 2, "corpus.jsonl:1: .* 'a'"),
    ("corpus", "", "corpus.jsonl|unknown document"),
    ("queries", '{"id": 1, "text": "a"}\n{"id": "1", "text": "b"}\n', "queries.jsonl:1: .* '1'"),
    ("queries", "", "queries.jsonl|unknown query"),
])  # fmt: skip
def test_wrong_sides_of_a_retrieval_are_named(tmp_path, retrieval, side, text, named):
    file = tmp_path / (f"{side}.tsv" if side == "qrels" else f"{side}.jsonl")
    file.write_text(text)
    with pytest.raises(UsageError, match=f"^task 'beginnings': .*({named})"):
        task_of(retrieval | {side: str(file)})


@pytest.mark.parametrize(("own", "rows", "named"), [
    ({"type": "classification"}, [{"text": "a b", "label": "x"}] * 4, "l.jsonl' .* 'x'"),
    ({"type": "classification"}, [{"text": " ", "label": "x"}], "l.jsonl:0: .* empty"),
    ({"type": "classification"}, [{"text": "a", "label": 0.5}], "l.jsonl:0: the label 0.5"),
    ({"type": "classification", "label_column": "y"}, [{"text": "a", "label": "x"}], "column 'y'"),
    ({"type": "classification", "where": {"split": "z"}}, [{"text": "a", "label": "x", "split": "y"}], "no row"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": "?"}], r"l.jsonl:0: the score '\?'"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": own} for own in (1, -(10**400))], "l.jsonl:1"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": own} for own in (1, "1e400")], "l.jsonl:1"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": "nan"}], "l.jsonl:0: .* nan"),
    ({"type": "sts"}, [{"sentence1": "a", "sentence2": "b", "score": 1}] * 3, "l.jsonl"),
    ({"type": "sts"}, [], "l.jsonl"),
    ({"type": "sts", "where": {"of": "z"}}, [{"sentence1": "a", "sentence2": "b", "score": k, "of": "y"} for k in (1, 2)],
     "l.jsonl"),
    ({"type": "reranking"}, [{"query": "", "positives": ["a"], "negatives": []}], "l.jsonl:0: .* query"),
    ({"type": "reranking"}, [{"query": "q", "positives": [], "negatives": ["a"]}], "l.jsonl:0: positives"),
    ({"type": "reranking"}, [{"query": "q", "positives": ["a"], "negatives": "b"}], "l.jsonl:0: negatives"),
    ({"type": "reranking", "where": {"kind": "z"}}, [{"query": "q", "positives": ["a"], "negatives": [], "kind": "y"}],
     "l.jsonl' has no query"),
    ({"type": "clustering"}, [{"id": 1.5, "text": "a", "label": "x"}], "l.jsonl:0: .* float"),
    ({"type": "clustering"}, [{"id": k, "text": "a", "label": "x"} for k in ("7", 7)], "l.jsonl:1: .* '7'"),
])  # fmt: skip
def test_wrong_rows_are_named(tmp_path, own, rows, named):
    with pytest.raises(UsageError, match=f"^task 'mine': .*{named}"):
        task_of({"name": "mine", "source": lines(tmp_path / "l.jsonl", rows)} | own)


def test_a_line_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "l.jsonl").write_text(as_lines([{"text": "a", "label": "x"}]) + "{broken\n")
    with pytest.raises(UsageError, match=r"^task 'mine': row l\.jsonl:1: .* JSON"):
        task_of({"name": "mine", "type": "clustering", "source": str(tmp_path / "l.jsonl")})


@pytest.mark.parametrize("column", [
    pa.array([2**45, 2**45 + 1, 3], pa.timestamp("s")), pa.array([b"\xff", b"\xfe", b"a"]),  # Years after 9999.
])  # fmt: skip
def test_labels_and_scores_that_are_dates_or_bytes_are_refused(tmp_path, column):
    columns = {name: ["a", "b", "c"] for name in ("text", "sentence1", "sentence2")} | {"label": column, "score": column}
    pq.write_table(pa.table(columns), tmp_path / "l.parquet")
    for kind, named in (("clustering", "label"), ("sts", "score")):
        with pytest.raises(UsageError, match=rf"^task 'mine': row l\.parquet:0: the {named}"):
            task_of({"name": "mine", "type": kind, "source": str(tmp_path / "l.parquet")})


@pytest.mark.parametrize(("tasks", "named"), [
    ([{"name": "a", "type": "retrieval", "corpus": "c", "queries": "q"}], "retrieval needs qrels"),
    ([{"name": "a", "type": "sts", "source": "s", "qrels": "q"}], "sts has no qrels"),
    (["SciFact", "SciFact"], "'SciFact'"),
    ([], "tasks"),
])  # fmt: skip
def test_wrong_configurations_are_named(tasks, named):
    with pytest.raises(UsageError, match=named):
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


# --- rows that are asked for ------------------------------------------------------------------------------------------


def test_of_a_retrieval_only_the_queries_asked_for_are_taken_and_their_relevance(tmp_path):
    queries = [{"id": k, "text": f"query {k}", "type": "good" if k % 2 else "other"} for k in range(4)]
    corpus = [{"id": f"d{k}", "text": "a", "title": "b" * k} for k in range(2)]
    qrels = "qid\tdocid\trel\n0\td0\t1\n1\td1\t2\n1\td1\t2\n3\td0\t0\n2\tgone\t1\n"
    own = over(tmp_path, corpus, queries, qrels)
    data = task_of(own | {"where": {"type": "good"}}).dataset["default"]["test"]
    assert data["queries"].to_list() == [{"id": "1", "text": "query 1"}, {"id": "3", "text": "query 3"}]
    assert data["relevant_docs"] == {"1": {"d1": 2}, "3": {"d0": 0}}
    assert data["corpus"].to_list() == [{"id": "d0", "title": "", "text": "a"}, {"id": "d1", "title": "b", "text": "a"}]
    # Without the filter all four are asked, and what the qrels name must be there.
    with pytest.raises(UsageError, match=r"1 × an unknown document, .* 'gone'"):
        task_of(own)


@pytest.mark.parametrize("text", ["", " ", "\n\t", None])
def test_a_document_of_a_title_alone_is_that_title_once(tmp_path, text):
    from datasets import Dataset
    from mteb._create_dataloaders import create_dataloader
    from mteb.types import PromptType

    rows = [{"_id": "d0", "title": "A b", "text": text}, {"_id": "d1", "text": "c"}]
    own = over(tmp_path, rows, [{"_id": "q0", "text": "query"}], "query-id\tcorpus-id\tscore\nq0\td0\t1\n")
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
    rows = [{"id": k, "text": "a"} for k in range(3)], [{"id": "q", "text": "b"}]
    own = over(tmp_path, *rows, f"qid\tdocid\t{name}\nq\t0\t2\nq\t1\t0\nq\t2\t1\n")
    assert task_of(own).dataset["default"]["test"]["relevant_docs"] == {"q": {"0": 2, "1": 0, "2": 1}}
    (tmp_path / "qrels.tsv").write_text(f"qid\tdocid\t{name}\nq\t0\t2\nq\t1\t\n")
    with pytest.raises(UsageError, match=r"qrels\.tsv:1") as caught:
        task_of(own)
    assert caught.value.exit_code == 2
    scores = pa.table({"qid": ["q", "q"], "docid": ["0", "1"], name: pa.array([1, None])})
    pq.write_table(scores, tmp_path / "qrels.parquet")
    with pytest.raises(UsageError, match=r"qrels\.parquet:1"):
        task_of(own | {"qrels": str(tmp_path / "qrels.parquet")})


def test_of_a_reranking_only_the_rows_asked_for_are_taken(tmp_path):
    rows = [
        {"query": "first", "positives": ["a", "b"], "negatives": ["c"], "kind": False},
        {"query": "second", "positives": ["b"], "negatives": ["b", "c"], "kind": True},
        {"query": "third", "positives": ["d"], "negatives": ["b"], "kind": True},
    ]
    own = {"name": "r", "type": "reranking", "source": lines(tmp_path / "l.jsonl", rows), "where": {"kind": "true"}}
    data = task_of(own).dataset["default"]["test"]
    assert data["queries"].to_list() == [{"id": "q1", "text": "second"}, {"id": "q2", "text": "third"}]
    assert {row["id"]: row["text"] for row in data["corpus"]} == {"d0": "b", "d1": "c", "d2": "d"}
    # What stands on both sides is relevant.
    assert data["relevant_docs"] == {"q1": {"d0": 1, "d1": 0}, "q2": {"d2": 1, "d0": 0}}
    assert data["top_ranked"] == {"q1": ["d0", "d1"], "q2": ["d2", "d0"]}


def test_of_an_sts_only_the_pairs_asked_for_are_taken_and_their_scores_are_the_range(tmp_path):
    rows = [
        {"sentence1": f"a{k}", "sentence2": f"b{k}", "score": score, "year": year}
        for k, (score, year) in enumerate([(9, 2012), (1, 2013), ("2.5", 2013.0), (-7, 2014)])
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
    ({"test_share": 1 - 1e-12}, "0 rows to learn from"), ({"test_share": 1e-12}, "0 rows to test on"),
    ({"texts_per_interval": 1}, "1 rows to test on"),
])  # fmt: skip
def test_a_classification_needs_two_labels_on_either_side(tmp_path, more, told):
    own = checked(OwnTask, counted(tmp_path, [4] * 20) | more)
    with pytest.raises(UsageError, match=f"^task 'c': .*{told}"):
        build(own, 0, Words(), [0])


# --- ranks beyond the thousand that mteb keeps (S1 Table 3) -----------------------------------------------------------


DOCUMENTS, QUERIES, WINDOW = 1200, 30, 16


@pytest.fixture(scope="module")
def corpus():
    """Short pieces of docstrings; every seventh is longer than the window."""
    words = " ".join(row["text"] for row in documented("pyarrow")).split()
    pieces = [" ".join(words[9 * k : 9 * k + (60 if k % 7 == 0 else 6)]) for k in range(DOCUMENTS)]
    return {f"d{k}": piece for k, piece in enumerate(pieces)}


@pytest.fixture(scope="module")
def queries(corpus):
    return {f"q{k}": corpus[f"d{7 * k + 3}"] for k in range(QUERIES)}


RELEVANT = {f"q{k}": [f"d{(101 * k + 7) % DOCUMENTS}", f"d{7 * ((13 * k) % 150)}"] for k in range(QUERIES)}
"""Documents at random, so that they stand anywhere in a ranking."""


def test_every_rank_is_that_of_all_cosines(corpus, queries, small_model, tmp_path):
    from sentence_transformers import SentenceTransformer

    own = retrieval_in(tmp_path, "random", corpus, queries, RELEVANT)
    model = GridModel(Encoder.load(small_model, device="cpu", max_length=WINDOW), Checkpoint("tiny", "rev"))
    cell = score(build(checked(OwnTask, own), 0), model, Temperature(1.0), ScoringOptions(keep=False))

    plain = SentenceTransformer(small_model, device="cpu")
    plain.max_seq_length = WINDOW
    unit = [plain.encode(list(texts.values()), normalize_embeddings=True) for texts in (queries, corpus)]
    cosine = unit[0].astype(np.float64) @ unit[1].T.astype(np.float64)
    place = {document: k for k, document in enumerate(corpus)}
    assert len(cell.relevant) == 2 * QUERIES
    beyond = 0
    for row in cell.relevant:
        own = cosine[list(queries).index(row["query"])]
        value = own[place[row["document"]]]
        # Equal pieces tie, and rounding may exchange two that nearly do.
        assert (own > value + 1e-6).sum() < row["rank"] <= (own > value - 1e-6).sum()
        beyond += row["rank"] > 1000
    assert beyond > 3
