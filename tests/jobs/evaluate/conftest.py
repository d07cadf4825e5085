"""One run of `tempscale evaluate` on a small model, looked at by several files, and the same vectors worked out by hand."""

import math

import numpy as np
import pytest
from by_hand_attention import by_hand
from score_tasks import LONGEST, relevance, rows_of, settings, tasks_in, write_tasks
from whole_run import documented, evaluated, read_tables


@pytest.fixture(scope="session")
def task_texts():
    """Ninety docstrings, none the beginning of another."""
    found = [row["text"] for row in documented("pyarrow") if 80 < len(row["text"]) < 600]
    return [text for k, text in enumerate(found) if not any(o[:40] == text[:40] for o in found[:k])][:90]


@pytest.fixture(scope="session")
def task_files(once, task_texts):
    """The folder of the tasks' files."""
    return once("tasks", lambda folder: write_tasks(folder, task_texts))


@pytest.fixture(scope="session")
def finished(once, task_files, small_model):
    return (
        once("evaluate", lambda folder: evaluated(settings(folder / "run", small_model, tasks_in(task_files))), ray=True)
        / "run"
    )


@pytest.fixture(scope="session")
def tables(finished):
    return read_tables(finished)


@pytest.fixture(scope="session")
def token_ids(small_model):
    """A function of a text."""
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(small_model)
    return lambda text, cut=True: own(text.strip(), truncation=cut, max_length=LONGEST, verbose=False)["input_ids"]


@pytest.fixture(scope="session")
def plain_vectors(small_model, token_ids):
    """A function that embeds texts at τ by attention typed out in float64, each text alone; the model does not normalise."""
    import torch
    from transformers import AutoModel

    made = {}

    def embed(texts, tau, unit=True):
        new = [text for text in texts if (text, tau) not in made]
        if new:
            model = AutoModel.from_pretrained(small_model).eval().double()
            with torch.no_grad(), by_hand(model, tau, []):
                for text in new:
                    hidden = model(input_ids=torch.tensor([token_ids(text)])).last_hidden_state[0]
                    made[text, tau] = hidden.mean(0).numpy()
        found = np.stack([made[text, tau] for text in texts])
        return found / np.linalg.norm(found, axis=1, keepdims=True) if unit else found

    return embed


@pytest.fixture(scope="session")
def searched(task_texts, plain_vectors):
    """By (query τ, document τ): each query's NDCG@10 and @100, and the rank of each relevant document, by hand."""
    rows, found = rows_of(task_texts), {}

    def search(query_tau, document_tau):
        if (query_tau, document_tau) not in found:
            queries = plain_vectors([row["text"] for row in rows["queries"]], query_tau)
            documents = plain_vectors([row["text"] for row in rows["corpus"]], document_tau)
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
