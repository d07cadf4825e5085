"""`tempscale evaluate` on a small model: its tables against plain float64 passes of transformers, and what may go wrong."""

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace
from unittest import mock

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from by_hand_attention import by_hand
from rich.console import Console
from scipy import stats
from whole_run import as_lines, documented

mteb = pytest.importorskip("mteb")

from test_evaluate_sentences import standard_error  # noqa: E402

from jobs import cells, evaluate_report, evaluate_summary, mteb_results, runs, tasks  # noqa: E402
from jobs.commands import render_again  # noqa: E402
from jobs.errors import IncompleteRun, UsageError  # noqa: E402
from jobs.evaluate import evaluate  # noqa: E402
from jobs.evaluate_config import EvaluateConfig  # noqa: E402
from jobs.evaluate_figures import named  # noqa: E402
from jobs.evaluate_sentences import of_model  # noqa: E402
from jobs.headline import with_error  # noqa: E402
from jobs.progress import Journal  # noqa: E402
from jobs.storage import Storage  # noqa: E402
from jobs.strict import checked  # noqa: E402

EDGES, TAUS, LONGEST = [0, 24, 48], [1.0, 0.5], 64
DOCUMENTS, QUERIES, PAIRS = 72, 45, 60


@pytest.fixture(scope="module")
def texts():
    """Ninety docstrings, none the beginning of another."""
    found = [row["text"] for row in documented("pyarrow") if 80 < len(row["text"]) < 600]
    return [text for k, text in enumerate(found) if not any(o[:40] == text[:40] for o in found[:k])][:90]


def rows_of(texts):
    """The rows of every file, by name."""
    generator = np.random.default_rng(1)
    pairs = []
    for k in range(PAIRS):  # The more of another text, the less alike.
        share, first, other = generator.uniform(0, 1), texts[k][:160], texts[(k + 7) % 90]
        second = first[: int(160 * (1 - share))] + other[: int(160 * share)]
        pairs.append({"sentence1": first, "sentence2": second, "score": round(5 * (1 - share), 1)})
    middle = sorted(map(len, texts))[len(texts) // 2]
    return {
        "corpus": [{"id": f"d{k:02}", "text": texts[k][20:]} for k in range(DOCUMENTS)],
        "queries": [{"id": f"q{k:02}", "text": texts[k][: 15 + 11 * k % 150]} for k in range(QUERIES)],
        "pairs": pairs,
        "halves": [pair | {"score": float(pair["score"] > 2.5)} for pair in pairs[::2]],
        "labels": [
            {"id": f"t{k}", "text": text[:220], "label": "long" if len(text) > middle else "short"}
            for k, text in enumerate(texts)
        ],
    }


def relevance():
    """Scores by query and document: two that answer, of which the second answers others too, and one that does not."""
    return {f"q{k:02}": {f"d{k:02}": 2, f"d{(5 * k + 3) % 24 + 48:02}": 1, f"d{(k + 9) % 48:02}": 0} for k in range(QUERIES)}


def written(folder, texts):
    """The files of all tasks in a folder."""
    for name, rows in rows_of(texts).items():
        (folder / f"{name}.jsonl").write_text(as_lines(rows))
    told = [f"{q}\t{d}\t{s}\n" for q, scores in relevance().items() for d, s in scores.items()]
    (folder / "qrels.tsv").write_text("query_id\tdoc_id\tscore\n" + "".join(told))
    return folder


def tasks_in(folder):
    """Tasks of three types over the files of a folder."""
    sides = {name: str(folder / f"{name}.jsonl") for name in ("corpus", "queries")}
    return [
        {"name": "found", "type": "retrieval", "qrels": str(folder / "qrels.tsv")} | sides,
        {"name": "alike", "type": "sts", "source": str(folder / "pairs.jsonl")},
        {"name": "halves", "type": "sts", "source": str(folder / "halves.jsonl")},
        {"name": "sizes", "type": "classification", "source": str(folder / "labels.jsonl"), "experiments": 4,
         "samples_per_label": 6},
    ]  # fmt: skip


def settings(out, small_model, tasks, execution=None, **embedding):
    return {
        "out": str(out), "tasks": tasks, "seed": 3, "analysis": {"intervals": EDGES},
        "embedding": {"models": [small_model], "temperatures": TAUS, "max_length": LONGEST} | embedding,
        "execution": {"workers": 1} | (execution or {}),
    }  # fmt: skip


def run(data, **how):
    with closing(Journal(Console(stderr=True))) as journal:
        return evaluate(checked(EvaluateConfig, data), journal, **how)


def read(out):
    return {file.stem: pl.read_parquet(file) for file in (out / "tables").iterdir()}


def table_bytes(out):
    return {file.name: file.read_bytes() for file in (out / "tables").iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory, texts):
    return written(tmp_path_factory.mktemp("data"), texts)


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_session, folder, small_model):
    out = tmp_path_factory.mktemp("evaluate") / "run"
    run(settings(out, small_model, tasks_in(folder)))
    return out


@pytest.fixture(scope="module")
def tables(finished):
    return read(finished)


@pytest.fixture(scope="module")
def tokenizer(small_model):
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(small_model)
    return lambda text: own(text.strip(), truncation=True, max_length=LONGEST)["input_ids"]


@pytest.fixture(scope="module")
def plain(small_model, tokenizer):
    """A function that embeds texts at τ by attention typed out in float64, each text alone."""
    from transformers import AutoModel

    made = {}

    def embed(texts, tau):
        new = [text for text in texts if (text, tau) not in made]
        if new:
            model = AutoModel.from_pretrained(small_model).eval().double()
            with torch.no_grad(), by_hand(model, tau, []):
                for text in new:
                    hidden = model(input_ids=torch.tensor([tokenizer(text)])).last_hidden_state[0]
                    made[text, tau] = torch.nn.functional.normalize(hidden.mean(0), dim=0).numpy()
        return np.stack([made[text, tau] for text in texts])

    return embed


def one(table, **where):
    """The only row with these values."""
    (row,) = table.filter(**where).to_dicts()
    return row


def clustered_error(values, clusters):
    """√(G/(G−1)·Σ_g(Σ_{i∈g} e_i)²)/n, as for a regression on a constant."""
    total, names = 0.0, sorted(set(clusters))
    for name in names:
        total += sum(v - np.mean(values) for v, c in zip(values, clusters, strict=True) if c == name) ** 2
    return math.sqrt(len(names) / (len(names) - 1) * total) / len(values)


@pytest.fixture(scope="module")
def searched(texts, plain):
    """By (query τ, document τ): each query's NDCG@10 and @100, and the rank of each relevant document, by hand."""
    rows, found = rows_of(texts), {}

    def search(query_tau, document_tau):
        if (query_tau, document_tau) not in found:
            queries = plain([row["text"] for row in rows["queries"]], query_tau)
            documents = plain([row["text"] for row in rows["corpus"]], document_tau)
            cosine, values, ranks = queries @ documents.T, {}, {}
            assert np.diff(np.sort(cosine, axis=1)).min() > 1e-7, "two documents are too close to call"
            for k, (query, scores) in enumerate(relevance().items()):
                order = [rows["corpus"][place]["id"] for place in np.argsort(-cosine[k])]
                for cut in (10, 100):
                    gained = sum(scores.get(d, 0) / math.log2(place + 2) for place, d in enumerate(order[:cut]))
                    values[query, cut] = gained / (2 / math.log2(2) + 1 / math.log2(3))
                ranks |= {(query, d): order.index(d) + 1 for d, s in scores.items() if s > 0}
            found[query_tau, document_tau] = values, ranks
        return found[query_tau, document_tau]

    return search


@pytest.fixture(scope="module")
def compared(texts, plain):
    """By task of sentence pairs and τ: gold scores and cosines."""
    rows = rows_of(texts)

    def compare(task, tau):
        pairs = rows[{"alike": "pairs"}.get(task, task)]
        first, second = (plain([pair[side] for pair in pairs], tau) for side in ("sentence1", "sentence2"))
        return np.array([pair["score"] for pair in pairs]), (first * second).sum(1)

    return compare


@pytest.fixture(scope="module")
def classified(texts, plain, tables):
    """By τ: what is right and its entropy (experiment, text) by classifiers learned here; the texts tested, and all seen."""
    from sklearn.linear_model import LogisticRegression

    rows = rows_of(texts)["labels"]
    tested = tables["evaluation_items"].filter(task="sizes", tau=1.0)["item"].to_list()
    test, train = ([row for row in rows if (row["id"] in tested) is there] for there in (True, False))
    labels, order, draws = [row["label"] for row in train], list(range(len(train))), []
    for _ in range(4):
        np.random.RandomState(42).shuffle(order)
        draws.append([k for name in ("long", "short") for k in [k for k in order if labels[k] == name][:6]])
    seen = [train[k]["text"] for k in sorted({k for draw in draws for k in draw})] + [row["text"] for row in test]

    def classify(tau):
        right, entropy = [], []
        learned, asked = (plain([row["text"] for row in part], tau).astype(np.float32) for part in (train, test))
        for draw in draws:
            draw = [k for k in order if k in draw]
            fitted = LogisticRegression(max_iter=100, random_state=42).fit(learned[draw], [labels[k] for k in draw])
            p = fitted.predict_proba(asked)
            right.append([name == row["label"] for name, row in zip(fitted.predict(asked), test, strict=True)])
            entropy.append(-(p * np.log(p)).sum(1))
        return np.array(right, dtype=float), np.array(entropy)

    return classify, [row["id"] for row in test], seen


def share_cut(texts, small_model):
    """The share of texts that have more tokens than the window holds."""
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(small_model)
    return np.mean([len(own(text)["input_ids"]) > LONGEST for text in texts])


@pytest.mark.parametrize("tau", TAUS)
def test_retrieval_is_that_of_plain_cosines(tables, searched, texts, small_model, tokenizer, tau):
    (values, ranks), (first, _) = searched(tau, tau), searched(1.0, 1.0)
    items = tables["evaluation_items"].filter(task="found", tau=tau)
    assert items["item"].to_list() == list(relevance())
    lengths = {row["id"]: len(tokenizer(row["text"])) for name in ("queries", "corpus") for row in rows_of(texts)[name]}
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
    assert row["score_se"] == pytest.approx(standard_error(own), rel=1e-9)
    assert row["change"] == pytest.approx(own.mean() - base.mean(), abs=2e-5)
    assert row["change_se"] == pytest.approx(standard_error(own - base), rel=1e-9)
    assert row["relative"] == pytest.approx((own.mean() - base.mean()) / base.mean(), abs=1e-3)
    told = [row["text"] for name in ("corpus", "queries") for row in rows_of(texts)[name]]
    assert row["truncated_share"] == pytest.approx(share_cut(told, small_model))
    assert 0.05 < own.mean() < 0.95


def jackknife(figure, n):
    left = np.array([figure(np.delete(np.arange(n), k)) for k in range(n)])
    return math.sqrt((n - 1) / n * ((left - left.mean()) ** 2).sum())


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("task", ["alike", "halves"])
def test_sentence_pairs_are_those_of_plain_cosines(tables, compared, texts, tokenizer, task, tau):
    (gold, cosine), (_, base) = compared(task, tau), compared(task, 1.0)
    items = tables["evaluation_items"].filter(task=task, tau=tau)
    assert items["item"].to_list() == [str(k) for k in range(len(gold))]
    np.testing.assert_allclose(items["predicted"], cosine, atol=1e-6)
    assert items["gold"].to_list() == gold.tolist()
    pairs = rows_of(texts)["pairs" if task == "alike" else "halves"]
    assert items["tokens"].to_list() == [len(tokenizer(p["sentence1"])) + len(tokenizer(p["sentence2"])) for p in pairs]

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
        math.hypot(standard_error(right.mean(0)), standard_error(right.mean(1))), rel=1e-9
    )
    moved = right - base
    assert row["change"] == pytest.approx(moved.mean(), abs=1e-9)
    assert row["change_se"] == pytest.approx(math.hypot(standard_error(moved.mean(0)), standard_error(moved.mean(1))))
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
            spread = standard_error([rows[task, tau]["score"] - rows[task, 1.0]["score"] for task in mine])
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
                    errors = [standard_error(own), standard_error(own - base)]
                    if (task, name) == ("sizes", "value"):  # Other texts to learn from move an accuracy too.
                        drawn, first = (np.array(mine[t]["right"].to_list()).mean(0) for t in (tau, 1.0))
                        errors = [
                            math.hypot(*both)
                            for both in zip(errors, map(standard_error, (drawn, drawn - first)), strict=True)
                        ]
                    assert row[f"{name}_se"] == pytest.approx(errors[0], rel=1e-9)
                    assert row[f"{change}_se"] == pytest.approx(errors[1], rel=1e-9, abs=1e-12)
                else:
                    assert row[f"{name}_se"] is row[f"{change}_se"] is None
        # The earliest of equal ones.
        best = max(TAUS, key=lambda tau: (rows[tau]["value"], -TAUS.index(tau)))
        assert [tau for tau in TAUS if rows[tau]["best"]] == [best]
    assert {row["best"] for row in lengths if row["tau"] == 0.5} == {True, False}


def test_both_ends_are_a_fifth_by_length_and_then_by_id(tables, texts, tokenizer, searched):
    lengths = {row["id"]: len(tokenizer(row["text"])) for name in ("queries", "corpus") for row in rows_of(texts)[name]}
    answering = {d for scores in relevance().values() for d, s in scores.items() if s > 0}
    assert sum(lengths[d] == LONGEST for d in answering) > len(answering) / 5, "no ties at the end"
    base = searched(1.0, 1.0)
    for tau in TAUS:
        own = searched(tau, tau)
        for figure, names, values in (("ndcg_at_100", set(relevance()), 0), ("rank", answering, 1)):
            ordered = sorted(names, key=lambda name: (lengths[name], name))
            size = math.ceil(len(names) / 5)
            for end, chosen in (("shortest", ordered[:size]), ("longest", ordered[-size:])):
                row = one(tables["evaluation_ends"], tau=tau, figure=figure, end=end)
                keys = [k for k in own[values] if (k[1] if values else k[0]) in chosen and k[1] != 10]
                clusters = [key[1] if values else key[0] for key in keys]
                x, first = (np.array([found[values][key] for key in keys], dtype=float) for found in (own, base))
                assert row["items"] == len(keys) >= size
                assert row["tokens_mean"] == pytest.approx(np.mean([lengths[name] for name in clusters]))
                assert row["value"] == pytest.approx(x.mean(), abs=1e-9)
                assert row["value_se"] == pytest.approx(clustered_error(x, clusters), rel=1e-6)
                assert row["change"] == pytest.approx((x - first).mean(), abs=1e-9)
                assert row["change_se"] == pytest.approx(clustered_error(x - first, clusters), rel=1e-6, abs=1e-12)
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


def as_toml(data):
    """A configuration as TOML; what JSON writes of a plain value is TOML."""
    plain = [
        f"{name} = {json.dumps(value)}" for name, value in data.items() if name != "tasks" and not isinstance(value, dict)
    ]
    tables = [(f"[{name}]", value) for name, value in data.items() if isinstance(value, dict)]
    for head, values in tables + [("[[tasks]]", task) for task in data["tasks"]]:
        plain += [head, *(f"{name} = {json.dumps(value)}" for name, value in values.items())]
    return "\n".join(plain) + "\n"


def results(out):
    return {file: file.stat().st_mtime_ns for file in out.glob("cells/*/*/*/result.json")}


@pytest.mark.soak
def test_a_killed_run_goes_on_in_another_order_with_two_workers_to_the_same_bytes(finished, tmp_path, folder, small_model):
    out = tmp_path / "run"
    data = settings(out, small_model, tasks_in(folder), execution={"workers": 2, "shuffle_seed": 1})
    (tmp_path / "run.toml").write_text(as_toml(data))
    command = [sys.executable, "-m", "jobs", "evaluate", str(tmp_path / "run.toml")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        while not results(out):
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    kept = results(out)
    assert 1 <= len(kept) < 8
    assert not (out / "run.json").exists()
    run(data)
    after = results(out)
    assert len(after) == 8
    assert {file: after[file] for file in kept} == kept, "a finished cell was scored again"
    assert table_bytes(out) == table_bytes(finished)


def test_a_complete_run_does_nothing_and_refuses_other_data(finished, folder, small_model):
    data, before = settings(finished, small_model, tasks_in(folder)), results(finished)
    run(data)
    file = folder / "pairs.jsonl"
    when = file.stat()
    try:
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns + 10**9))
        with pytest.raises(UsageError, match=r"the data of task 'alike' changed since the run in '.*' read it; start over"):
            run(data)
    finally:
        os.utime(file, ns=(when.st_atime_ns, when.st_mtime_ns))
    with pytest.raises(UsageError, match="holds a different run: seed was 3, now 4"):
        run(data | {"seed": 4})
    assert results(finished) == before


MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def broken(tmp_path_factory, ray_session, texts, small_model):
    """A run with pairs of roles over files of which three are of no use, as it ended; and its configuration."""
    folder = written(tmp_path_factory.mktemp("broken"), texts)
    with (folder / "qrels.tsv").open("a") as more:
        more.write(f"q00\t{MARKUP}\t1\n")
    (folder / "labels.jsonl").write_text(as_lines(row | {"label": "one"} for row in rows_of(texts)["labels"]))
    (folder / "empty.jsonl").write_text("")
    found, *others = tasks_in(folder)
    unasked = found | {"name": "unasked", "queries": str(folder / "empty.jsonl")}
    data = settings(folder.parent / "broken-run", small_model, [found, *others, unasked], role_grid=True)
    with pytest.raises(IncompleteRun, match="10 of 14 cells are missing: task 'found': the qrels") as told:
        run(data)
    return folder, data, str(told.value)


def test_what_cannot_be_scored_is_told_and_the_rest_is_there(broken):
    folder, _, sentence = broken
    out = folder.parent / "broken-run"
    assert IncompleteRun.exit_code == 3
    assert "task 'sizes'" in sentence
    assert "task 'unasked'" in sentence
    assert sentence.endswith(f"tables and report in '{out}' hold the others, and the same command goes on")
    assert not (out / "run.json").exists()
    tables = read(out)
    evaluation = tables["evaluation"]
    assert len(evaluation) == 14  # Pairs of roles are for tasks with two sides.
    for row in evaluation.to_dicts():
        there = row["task"] in ("alike", "halves")
        assert (row["problem"] is None) is (row["score"] is not None) is there
    problems = dict(evaluation.drop_nulls("problem").select("task", "problem").iter_rows())
    assert f"1 × a document that is not there, such as '{MARKUP}'" in problems["found"]
    assert "has the one label 'one'; classification needs at least two labels" in problems["sizes"]
    assert "queries" in problems["unasked"] or "a query that is not there" in problems["unasked"]
    assert tables["evaluation_types"]["tasks"].unique().to_list() == [2]
    assert not {"evaluation_roles", "evaluation_lengths", "evaluation_ends", "evaluation_relevant"} & set(tables)
    page = (out / "report.html").read_text("utf-8")
    assert "<strong>10 cells are missing</strong>; the run is incomplete" in page
    assert "such as &#39;&lt;script&gt;alert(1)&lt;/script&gt;&#39;" in page
    assert MARKUP not in page
    assert len(list(out.glob("mteb/results/*/*/*.json"))) == 2 * (2 + 1)  # Beside the results what each model is.


@pytest.fixture(scope="module")
def mended(broken, texts, tmp_path_factory):
    """The same run after its files were mended, and another task's changed; and when results were left before."""
    folder, data, _ = broken
    out, good = folder.parent / "broken-run", written(tmp_path_factory.mktemp("good"), texts)
    before = results(out)
    for name in ("qrels.tsv", "labels.jsonl"):
        shutil.copyfile(good / name, folder / name)
    shutil.copyfile(good / "queries.jsonl", folder / "empty.jsonl")
    (folder / "halves.jsonl").write_text(as_lines(rows_of(texts)["halves"][:20]))
    run(data)
    return out, before


@pytest.mark.soak
def test_mended_files_complete_the_run_and_a_changed_one_is_scored_again(mended):
    out, before = mended
    after = results(out)
    assert {file.parent.name for file in before} == {"task=alike", "task=halves"}
    for file, when in before.items():
        assert (after[file] == when) is (file.parent.name == "task=alike"), file
    assert len(after) == 14
    assert (out / "run.json").exists()
    tables = read(out)
    assert tables["evaluation"]["problem"].null_count() == len(tables["evaluation"]) == 14
    assert set(tables["evaluation"].filter(task="halves")["items"]) == {20}
    assert "missing" not in re.sub(r"<script.*?</script>", "", (out / "report.html").read_text("utf-8"), flags=re.DOTALL)
    both = (tables["evaluation"].filter(task=task).drop("task") for task in ("found", "unasked"))
    assert next(both).equals(next(both))


@pytest.mark.soak
def test_each_pair_of_roles_is_that_of_plain_cosines(mended, searched, tables):
    found = read(mended[0])
    assert "<h3>Queries and documents apart</h3>" in (mended[0] / "report.html").read_text("utf-8")
    rendered_again_alike(mended[0])
    first, _ = searched(1.0, 1.0)
    cases = {(1.0, 1.0): "neither", (0.5, 0.5): "both", (0.5, 1.0): "query only", (1.0, 0.5): "document only"}
    rows = found["evaluation_roles"].filter(task="found").to_dicts()
    assert {(row["query_tau"], row["document_tau"]): row["case"] for row in rows} == cases
    for row in rows:
        values, _ = searched(row["query_tau"], row["document_tau"])
        own, base = (np.array([v[query, 10] for query in relevance()]) for v in (values, first))
        assert row["score"] == pytest.approx(own.mean(), abs=1e-5)
        assert row["change"] == pytest.approx(own.mean() - base.mean(), abs=2e-5)
        assert row["change_se"] == pytest.approx(standard_error(own - base), rel=1e-9, abs=1e-12)
        assert row["tau"] == (row["query_tau"] if row["query_tau"] == row["document_tau"] else None)
    assert len({row["score"] for row in rows}) == 4
    assert set(found["evaluation_roles"]["task"]) == {"found", "unasked"}
    # One temperature for both gives the same with a grid and without.
    plain = found["evaluation"].filter(pl.col("tau").is_not_null() & (pl.col("task") == "found"))
    assert plain.equals(tables["evaluation"].filter(task="found"))
    assert set(found["evaluation"].filter(task="alike")["tau"]) == set(TAUS)


def test_a_task_of_the_hub_without_network_is_a_sentence_for_each_cell():
    """As a worker works; it has the driver's environment."""
    work = {"unit": tasks.expand(["SciFact"])[0]._asdict(), "temperatures": ["1.0", "0.5"], "state": None, "seed": 0,
            "prompts": "none", "edges": EDGES, "lengths_by": "sentence-transformers/all-MiniLM-L6-v2",
            "max_length": LONGEST}  # fmt: skip
    worker = SimpleNamespace(storage=Storage("unused"), model=runs.Model("m", "m", "f", LONGEST))
    with mock.patch("jobs.actor.tokenizer"):
        report = cells.leave_cells(worker, 0, pa.table({"spec": [json.dumps(work)]}))
    assert set(report["wrong"]) == {"1.0", "0.5"}
    for sentence in report["wrong"].values():
        assert sentence.startswith("task 'SciFact' needs the network, which does not answer (")
        assert sentence.endswith("or give the data as a task of your own")


def test_the_command_line_tells_each_score_of_a_complete_run_and_where_its_report_is(
    finished, tables, tmp_path, folder, small_model
):
    from test_cli import in_process

    (tmp_path / "run.toml").write_text(as_toml(settings(finished, small_model, tasks_in(folder))))
    code, told, err = in_process("evaluate", str(tmp_path / "run.toml"))
    assert code == 0, err
    for task in ("found", "alike", "halves", "sizes"):
        first, other = (one(tables["evaluation"], task=task, tau=tau) for tau in TAUS)
        change = with_error(other["change"], other["change_se"])
        line = rf"{task}, {first['metric']} +{first['score']:.4f} +{other['score']:.4f} \({re.escape(change)}\)"
        assert re.search(line, told), told
    assert f"{finished}/report.html" in told.replace("\n", "")


def test_an_unknown_name_is_a_sentence_with_near_ones_and_blocks_no_folder(tmp_path, small_model):
    for name, words in (
        ("SciFakt", r"no task or benchmark 'SciFakt'; did you mean SciFact or"),
        ("MTEB(eng,v2)", r"did you mean MTEB\(eng, v2\) or"),
        ("zzzzqq", r"'zzzzqq'; mteb.get_tasks\(\) lists its names"),
    ):
        with pytest.raises(UsageError, match=words):
            run(settings(tmp_path / "run", small_model, [name]))
    assert not (tmp_path / "run" / "begun.json").exists()


@pytest.fixture
def copied(finished, tmp_path, folder, small_model):
    """A copy of the finished run, its tasks, and a function that puts its tables together with some cells missing."""
    out = tmp_path / "copy"
    shutil.copytree(finished, out)
    config = checked(EvaluateConfig, settings(out, small_model, tasks_in(folder)))
    units = tasks.expand(config.tasks)

    def without(*cells):
        missing = {("tiny-bert", tau, task): "it was lost" for tau, task in cells}
        opened = runs.begin(config)
        evaluate_summary.summarise(opened, units, missing)
        mteb_results.write(opened, units, missing)
        return read(out)

    return out, without


def test_nothing_is_compared_with_a_reference_that_is_missing(copied, tables):
    out, without = copied
    found = without(("1.0", "found"))
    assert [row["problem"] for row in found["evaluation"].filter(task="found").to_dicts()] == ["it was lost", None]
    row = one(found["evaluation"], task="found", tau=0.5)
    assert row["score"] == one(tables["evaluation"], task="found", tau=0.5)["score"]
    assert row["change"] is row["change_se"] is row["relative"] is None
    assert set(found["evaluation_types"]["type"]) == {"STS", "Classification", None}
    assert found["evaluation_types"].filter(over="tasks")["tasks"].to_list() == [3, 3]
    lengths = found["evaluation_lengths"].filter(task="found")
    assert lengths["change"].null_count() == len(lengths) > 1
    labelled = {name: table.with_columns(pl.col("temperature").replace({"1.0": "τ 1.0"})) for name, table in found.items()}
    labelled = {name: named(table) if "split" in table.columns else table for name, table in labelled.items()}
    assert not [sentence for sentence in of_model(labelled, EDGES) if "found" in sentence]
    # mteb's tools would take an old result for one of this run.
    assert len(list(out.glob("mteb/results/*/*/found.json"))) == 1
    record = json.loads((out / "run.json").read_text())
    assert "it was lost" in evaluate_report.render(found, record | {"missing": 1}).html


def test_tables_of_an_earlier_attempt_go_with_their_cells(copied):
    out, without = copied
    every = [(f"{tau}", task) for tau in TAUS for task in ("found", "sizes", "alike", "halves")]
    assert set(without(*every[:2], *every[4:6])) == {"evaluation", "evaluation_items", "evaluation_types"}
    left = without(*every)
    assert set(left) == {"evaluation"}
    page = evaluate_report.render(left, json.loads((out / "run.json").read_text()) | {"missing": 8}).html
    assert "<strong>8 cells are missing</strong>" in page
    assert "<li>No cell was scored.</li>" in page


def test_the_report_stands_alone_tells_every_score_and_is_rendered_again_alike(finished, tables):
    page = (finished / "report.html").read_text("utf-8")
    assert len(page) < 3_000_000
    assert not re.search(r"""<(?:script|link|img|iframe)[^>]+(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert re.findall(r"<h[123]>(.*?)</h[123]>", re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)) == [
        "Does an attention temperature help?", "tiny-bert", "Scores", "By type of task", "By length", "Shortest and longest",
        "How this was made",
    ]  # fmt: skip
    for task, metric, items in (
        ("found", "ndcg_at_10", 45), ("alike", "cosine_spearman", 60), ("halves", "cosine_spearman", 30),
    ):  # fmt: skip
        first, other = tables["evaluation"].filter(task=task).sort("tau", descending=True).to_dicts()
        told = [with_error(first["score"], first["score_se"])]
        told += [f"{other['score']:.3g}"]
        line = rf"{task}<br><span class=\"small\">{metric}, {items}</span></td>" + "".join(
            rf"<td class=\"n\">{re.escape(cell)}" for cell in [f"{told[0]}</td>", f"{told[1]}<br>"]
        )
        change = with_error(other["change"], other["change_se"])
        line += rf"<span class=\"small\">\({re.escape(change)}\)</span></td>"
        assert re.search(line, page), line
    specs = json.loads(re.search(r'<script type="application/json" id="specs">(.*?)</script>', page, re.DOTALL)[1])
    assert set(specs) == {
        f"m0-{key}" for key in ("types", "changes", "best", "ndcg", "rank", "value0", "value1", "entropy1")
    }
    assert all(f'id="{key}"' in page for key in specs)
    rendered_again_alike(finished)


def rendered_again_alike(out):
    whole = (out / "report.html").read_text("utf-8")
    assert ">nan" not in whole.lower()
    assert render_again(str(out)).endswith("report.html")
    assert (out / "report.html").read_text("utf-8") == whole


def test_markup_in_a_name_stays_text(finished, tables):
    record = json.loads((finished / "run.json").read_text())
    named = {
        name: table if name == "evaluation_types" else table.with_columns(pl.col("task").replace({"found": MARKUP}))
        for name, table in tables.items()
    }
    page = evaluate_report.render(named, record).html
    assert MARKUP not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;<br>" in page
    assert "\\u003cscript>alert(1)" in page
