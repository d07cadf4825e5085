"""The tables of `tempscale evaluate` on a small model against plain float64 passes of transformers."""

import math

import numpy as np
import oracles
import polars as pl
import pytest
from scipy import stats
from score_tasks import DOCUMENTS, EDGES, LONGEST, QUERIES, TAUS, one, relevance, rows_of

mteb = pytest.importorskip("mteb")


def answers():
    """The documents that answer each query."""
    return {query: {d for d, score in scores.items() if score > 0} for query, scores in relevance().items()}


@pytest.fixture(scope="module")
def compared(task_texts, plain_vectors):
    """By task of sentence pairs and τ: gold scores and cosines."""
    rows = rows_of(task_texts)

    def compare(task, tau):
        pairs = rows[{"alike": "pairs"}.get(task, task)]
        first, second = (plain_vectors([pair[side] for pair in pairs], tau) for side in ("sentence1", "sentence2"))
        return np.array([pair["score"] for pair in pairs]), (first * second).sum(1)

    return compare


@pytest.fixture(scope="module")
def classified(task_texts, plain_vectors, tables):
    """By τ: what is right and its entropy (experiment, text) by classifiers learned here; the texts tested, and all seen."""
    from sklearn.linear_model import LogisticRegression

    rows = rows_of(task_texts)["labels"]
    tested = tables["evaluation_items"].filter(task="sizes", tau=1.0)["item"].to_list()
    test, train = ([row for row in rows if (row["id"] in tested) is there] for there in (True, False))
    labels, order, draws = [row["label"] for row in train], list(range(len(train))), []
    for _ in range(4):
        np.random.RandomState(42).shuffle(order)
        draws.append([k for name in ("long", "short") for k in [k for k in order if labels[k] == name][:6]])
    seen = [train[k]["text"] for k in sorted({k for draw in draws for k in draw})] + [row["text"] for row in test]

    def classify(tau):
        right, entropy = [], []
        learned, asked = (plain_vectors([row["text"] for row in part], tau, unit=False) for part in (train, test))
        learned, asked = learned.astype(np.float32), asked.astype(np.float32)
        for draw in draws:
            draw = [k for k in order if k in draw]
            fitted = LogisticRegression(max_iter=100, random_state=42).fit(learned[draw], [labels[k] for k in draw])
            p = fitted.predict_proba(asked)
            right.append([name == row["label"] for name, row in zip(fitted.predict(asked), test, strict=True)])
            entropy.append(-(p * np.log(p)).sum(1))
        return np.array(right, dtype=float), np.array(entropy)

    return classify, [row["id"] for row in test], seen


def share_cut(task_texts, small_model):
    """The share of texts that have more tokens than the window holds."""
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(small_model)
    return np.mean([len(own(text)["input_ids"]) > LONGEST for text in task_texts])


@pytest.mark.parametrize("tau", TAUS)
def test_retrieval_is_that_of_plain_cosines(tables, searched, task_texts, small_model, token_ids, tau):
    (values, ranks), (first, _) = searched(tau, tau), searched(1.0, 1.0)
    items = tables["evaluation_items"].filter(task="found", tau=tau)
    assert items["item"].to_list() == list(relevance())
    lengths = {row["id"]: len(token_ids(row["text"])) for name in ("queries", "corpus") for row in rows_of(task_texts)[name]}
    for row in items.to_dicts():
        assert row["ndcg_at_10"] == row["value"] == pytest.approx(values[row["item"], 10], abs=1e-9)
        assert row["ndcg_at_100"] == pytest.approx(values[row["item"], 100], abs=1e-9)
        assert row["tokens"] == lengths[row["item"]]
    relevant = tables["evaluation_relevant"].filter(task="found", tau=tau).to_dicts()
    assert {(row["query"], row["document"]): row["rank"] for row in relevant} == ranks
    assert all((row["tokens"], row["found"]) == (lengths[row["document"]], DOCUMENTS) for row in relevant)

    row = one(tables["evaluation"], task="found", tau=tau)
    own, base = (np.array([v[query, 10] for query in relevance()]) for v in (values, first))
    assert (row["type"], row["metric"], row["items"]) == ("Retrieval", "ndcg_at_10", QUERIES)
    assert row["score"] == pytest.approx(own.mean(), abs=1e-5)
    shared = answers().values()
    assert row["score_se"] == pytest.approx(oracles.sharing_error(own, shared), rel=1e-6)
    assert row["score_se"] != pytest.approx(oracles.standard_error(own), rel=1e-3)
    assert row["change"] == pytest.approx(own.mean() - base.mean(), abs=2e-5)
    assert row["change_se"] == pytest.approx(oracles.sharing_error(own - base, shared), rel=1e-6, abs=1e-12)
    assert row["relative"] == pytest.approx((own.mean() - base.mean()) / base.mean(), abs=1e-3)
    told = [row["text"] for name in ("corpus", "queries") for row in rows_of(task_texts)[name]]
    assert row["truncated_share"] == pytest.approx(share_cut(told, small_model))
    assert 0.05 < own.mean() < 0.95


def jackknife(figure, n):
    left = np.array([figure(np.delete(np.arange(n), k)) for k in range(n)])
    return math.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("task", ["alike", "halves"])
def test_sentence_pairs_are_those_of_plain_cosines(tables, compared, task_texts, token_ids, task, tau):
    (gold, cosine), (_, base) = compared(task, tau), compared(task, 1.0)
    items = tables["evaluation_items"].filter(task=task, tau=tau)
    assert items["item"].to_list() == [str(k) for k in range(len(gold))]
    np.testing.assert_allclose(items["predicted"], cosine, atol=1e-6)
    assert items["gold"].to_list() == gold.tolist()
    pairs = rows_of(task_texts)["pairs" if task == "alike" else "halves"]
    assert items["tokens"].to_list() == [len(token_ids(p["sentence1"])) + len(token_ids(p["sentence2"])) for p in pairs]

    def rho(predicted):
        return lambda places: stats.spearmanr(predicted[places], gold[places]).statistic

    row, every = one(tables["evaluation"], task=task, tau=tau), np.arange(len(gold))
    change = rho(cosine)(every) - rho(base)(every)
    assert (row["type"], row["metric"], row["items"]) == ("STS", "cosine_spearman", len(gold))
    assert row["score"] == pytest.approx(rho(cosine)(every), abs=1e-5)
    assert row["change"] == pytest.approx(change, abs=2e-5)
    assert row["relative"] == pytest.approx(change / rho(base)(every), abs=1e-4)
    if task == "alike":  # A jackknife of thirty is too rough.
        assert row["score_se"] == pytest.approx(jackknife(rho(cosine), len(gold)), rel=0.15)
        moved = jackknife(lambda places: rho(cosine)(places) - rho(base)(places), len(gold))
        assert row["change_se"] == pytest.approx(moved, rel=0.15)
    assert 0.3 < row["score"] < 0.95


@pytest.mark.parametrize("tau", TAUS)
def test_classification_is_that_of_classifiers_learned_here(tables, classified, small_model, tau):
    classify, ids, seen = classified
    (right, entropy), (base, _) = classify(tau), classify(1.0)
    items = tables["evaluation_items"].filter(task="sizes", tau=tau)
    assert items["item"].to_list() == ids
    assert items["right"].to_list() == right.T.astype(bool).tolist()
    np.testing.assert_allclose(items["value"], right.mean(0), atol=1e-12)
    np.testing.assert_allclose(items["entropy"], entropy.mean(0), atol=1e-4)
    assert items["window"].to_list() == [False] * len(ids)

    row = one(tables["evaluation"], task="sizes", tau=tau)
    assert (row["type"], row["metric"], row["items"]) == ("Classification", "accuracy", len(ids))
    assert row["score"] == pytest.approx(right.mean(), abs=1e-9)
    # Other texts to test on, and other texts to learn from.
    assert row["score_se"] == pytest.approx(
        math.hypot(oracles.standard_error(right.mean(0)), oracles.standard_error(right.mean(1))), rel=1e-9
    )
    moved = right - base
    assert row["change"] == pytest.approx(moved.mean(), abs=1e-9)
    assert row["change_se"] == pytest.approx(
        math.hypot(oracles.standard_error(moved.mean(0)), oracles.standard_error(moved.mean(1)))
    )
    assert row["relative"] == pytest.approx(moved.mean() / base.mean(), abs=1e-9)
    assert row["truncated_share"] == pytest.approx(share_cut(seen, small_model))


def test_means_over_types_and_tasks_have_the_errors_of_independent_tasks(tables):
    rows = {(row["task"], row["tau"]): row for row in tables["evaluation"].to_dicts()}
    weights = {
        ("type", "Retrieval"): {"found": 1}, ("type", "STS"): {"alike": 1 / 2, "halves": 1 / 2},
        ("type", "Classification"): {"sizes": 1},
        ("types", None): {"found": 1 / 3, "alike": 1 / 6, "halves": 1 / 6, "sizes": 1 / 3},
        ("tasks", None): dict.fromkeys(("found", "alike", "halves", "sizes"), 1 / 4),
    }  # fmt: skip
    found = {(row["over"], row["type"], row["tau"]): row for row in tables["evaluation_types"].to_dicts()}
    assert set(found) == {(*key, tau) for key in weights for tau in TAUS}
    for (over, kind, tau), row in found.items():
        mine = weights[over, kind]
        own, base = (sum(w * rows[task, t]["score"] for task, w in mine.items()) for t in (tau, 1.0))
        assert row["tasks"] == len(mine)
        assert row["score"] == pytest.approx(own, abs=1e-12)
        assert row["change"] == pytest.approx(own - base, abs=1e-12)
        assert row["relative"] == pytest.approx((own - base) / base, abs=1e-12)
        error = math.sqrt(sum((w * rows[task, tau]["change_se"]) ** 2 for task, w in mine.items()))
        assert row["change_se"] == pytest.approx(error, rel=1e-9)
        if over == "types" or len(mine) == 1:
            assert row["change_spread_se"] is None
        else:
            spread = oracles.standard_error([rows[task, tau]["score"] - rows[task, 1.0]["score"] for task in mine])
            assert row["change_spread_se"] == pytest.approx(spread, rel=1e-9, abs=1e-12)


def test_lengths_are_means_of_the_items_of_each_interval(tables):
    items, lengths = tables["evaluation_items"], tables["evaluation_lengths"].to_dicts()
    where = {(row["task"], row["interval"]) for row in lengths}
    assert {task for task, _ in where} == {"found", "sizes"}
    for task, edge in where:
        following = next((e for e in EDGES if e > edge), 10**9)
        mine = {tau: items.filter((pl.col("task") == task) & (pl.col("tau") == tau)
                                  & pl.col("tokens").is_between(edge, following - 1)) for tau in TAUS}  # fmt: skip
        rows = {row["tau"]: row for row in lengths if (row["task"], row["interval"]) == (task, edge)}
        for tau, row in rows.items():
            assert row["items"] == len(mine[tau])
            assert row["windows"] == (0 if task == "sizes" else None)
            for name, change in (("value", "change"), ("entropy", "entropy_change")):
                if name == "entropy" and task == "found":
                    assert row[name] is None
                    continue
                own, base = (mine[t][name].to_numpy() for t in (tau, 1.0))
                assert row[name] == pytest.approx(own.mean(), rel=1e-9)
                assert row[change] == pytest.approx((own - base).mean(), rel=1e-9, abs=1e-12)
                if len(own) > 1:
                    shared = [answers().get(item, {item}) for item in mine[tau]["item"]]
                    errors = [oracles.sharing_error(own, shared), oracles.sharing_error(own - base, shared)]
                    if (task, name) == ("sizes", "value"):  # Other texts to learn from move an accuracy too.
                        drawn, first = (np.array(mine[t]["right"].to_list()).mean(0) for t in (tau, 1.0))
                        errors = [
                            math.hypot(*both)
                            for both in zip(errors, map(oracles.standard_error, (drawn, drawn - first)), strict=True)
                        ]
                    assert row[f"{name}_se"] == pytest.approx(errors[0], rel=1e-6)
                    assert row[f"{change}_se"] == pytest.approx(errors[1], rel=1e-6, abs=1e-12)
                else:
                    assert row[f"{name}_se"] is row[f"{change}_se"] is None
        # The earliest of equal ones.
        best = max(TAUS, key=lambda tau: (rows[tau]["value"], -TAUS.index(tau)))
        assert [tau for tau in TAUS if rows[tau]["best"]] == [best]
    assert {row["best"] for row in lengths if row["tau"] == 0.5} == {True, False}


def test_both_ends_are_a_fifth_by_length_and_then_by_id(tables, task_texts, token_ids, searched):
    lengths = {row["id"]: len(token_ids(row["text"])) for row in rows_of(task_texts)["queries"]}
    lengths |= {row["id"]: len(token_ids(row["text"], cut=False)) for row in rows_of(task_texts)["corpus"]}
    answering = {d for scores in relevance().values() for d, s in scores.items() if s > 0}
    assert sum(lengths[d] > LONGEST for d in answering) > len(answering) / 5, "the cut changes nothing at the end"
    base = searched(1.0, 1.0)
    for tau in TAUS:
        own = searched(tau, tau)
        for figure, names, values in (("ndcg_at_100", set(relevance()), 0), ("rank", answering, 1)):
            ordered = sorted(names, key=lambda name: (lengths[name], name))
            size = math.ceil(len(names) / 5)
            for end, chosen in (("shortest", ordered[:size]), ("longest", ordered[-size:])):
                row = one(tables["evaluation_ends"], tau=tau, figure=figure, end=end)
                keys = [k for k in own[values] if (k[1] if values else k[0]) in chosen and k[1] != 10]
                documents = [key[1] if values else key[0] for key in keys]
                shared = [{f"document {key[1]}", f"query {key[0]}"} if values else answers()[key[0]] for key in keys]
                x, first = (np.array([found[values][key] for key in keys], dtype=float) for found in (own, base))
                assert row["items"] == len(keys) >= size
                assert row["tokens_mean"] == pytest.approx(np.mean([lengths[name] for name in documents]))
                assert row["value"] == pytest.approx(x.mean(), abs=1e-9)
                assert row["value_se"] == pytest.approx(oracles.sharing_error(x, shared), rel=1e-6)
                assert row["change"] == pytest.approx((x - first).mean(), abs=1e-9)
                assert row["change_se"] == pytest.approx(oracles.sharing_error(x - first, shared), rel=1e-6, abs=1e-12)
                assert row["not_found"] == (0 if values else None)
    assert len(keys) > size, "no document answers two queries"


def test_the_scores_are_read_by_mtebs_own_tools(finished, tables):
    found = mteb.ResultCache(finished / "mteb").load_results()
    scores = {
        (model.model_name, result.task_name): result.get_score()
        for model in found.model_results
        for result in model.task_results
    }
    assert len(scores) == 8
    for row in tables["evaluation"].to_dicts():
        assert scores[f"tempscale/tiny-bert_tau-{row['tau']}", row["task"]] == pytest.approx(row["score"], abs=1e-12)
