"""`centre_by(column)` as a candidate of `tempscale tune`: the column is read with the documents of a user's retrieval."""

import shlex

import numpy as np
import polars as pl
import pytest
import torch
from command_line import in_process, parsed, said
from score_tasks import retrieval_in
from whole_run import as_lines, documented, tuned

from tempscale import Encoder
from tempscale.correction.fit import fit
from tempscale.correction.values import Correction
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.errors import UsageError
from tempscale_jobs.evaluate import tasks
from tempscale_jobs.tune import words

pytestmark = pytest.mark.proof

SEED, WINDOW, RECIPE = 5, 32, "centre_by(source)"


@pytest.fixture(scope="module")
def texts():
    """Documents; and queries, the end of every one of them."""
    found = list(dict.fromkeys(row["text"] for row in documented("numpy") if 60 < len(row["text"]) < 2000))[:260]
    return {f"d{k}": text[:90] for k, text in enumerate(found)}, {f"q{k}": text[-45:] for k, text in enumerate(found)}


def sources(names):
    """A source of each document: two large ones, and ten of few."""
    return [None if k % 13 == 0 else ("wiki" if k % 2 else "forum") if k % 5 else f"few {k % 10}" for k in range(len(names))]


@pytest.fixture
def task(tmp_path, texts):
    made = retrieval_in(tmp_path, "ends", *texts, {f"q{k}": [f"d{k}"] for k in range(len(texts[1]))})
    rows = zip(texts[0].items(), sources(texts[0]), strict=True)
    (tmp_path / "corpus.jsonl").write_text(as_lines({"id": i, "text": text, "source": s} for (i, text), s in rows))
    return made


def settings(out, task, small_model, recipe=RECIPE):
    return {
        "out": str(out), "seed": SEED, "execution": {"workers": 1}, "tasks": [task],
        "embedding": {"models": [small_model], "temperatures": [1.0, 0.5], "max_length": WINDOW},
        "choosing": {"layers": False, "corrections": [recipe]},
    }  # fmt: skip


def test_it_is_fitted_with_the_groups_of_the_documents_and_scored(tmp_path, ray_session, task, texts, small_model):
    run = tuned(settings(tmp_path / "run", task, small_model))
    encoder = Encoder.load(small_model, device="cpu", max_length=WINDOW)
    documents, queries = (torch.cat([encoder.encode([text]).embeddings for text in side.values()]) for side in texts)
    held = np.array([keyed_hash(f"held out {name}", SEED) / 2**64 < 0.5 for name in texts[1]])
    groups = [source or "(none)" for source in sources(texts[0])]
    expected = fit(RECIPE, documents, None, queries[~held], groups=groups)
    (data,) = run.storage.read_json("corrections/centre_by-source.json")["corrections"]
    found = Correction.of(data)
    assert found.canonical == RECIPE
    assert found.mean_of == expected.mean_of
    assert len(set(found.mean_of.values())) == 3  # Two, and all others; those without a source are of no other group.
    np.testing.assert_allclose(found.of_groups, expected.of_groups, atol=1e-5)
    similarity = found.queries(queries).double() @ found.documents(documents, groups=groups).double().T
    names = np.array(list(texts[0]))
    values = []
    for k in np.flatnonzero(held):
        ranked = sorted(range(len(names)), key=lambda j: (float(similarity[k, j]), names[j]), reverse=True)
        values.append(1 / np.log2(ranked.index(k) + 2) if ranked.index(k) < 10 else 0.0)
    table = pl.read_parquet(f"{run.storage.root}/tables/tuning_scores.parquet")
    (row,) = table.filter(correction=RECIPE).to_dicts()
    assert row["held_score"] == pytest.approx(np.mean(values), abs=1e-6)
    assert table["correction"].to_list() == [None, None, RECIPE]  # To leave it is a candidate, as ever.
    exposure = pl.read_parquet(f"{run.storage.root}/tables/tuning_exposure.parquet")
    assert exposure["correction"].unique(maintain_order=True).to_list() == [None, RECIPE]


def test_documents_without_the_column_are_refused_before_ray(tmp_path, task, small_model, monkeypatch):
    other = settings(tmp_path / "run", task, small_model, "centre_by(language)")
    named = r"corpus.jsonl.* has no column 'language'; .*'source': name one with --correction 'centre_by\(COLUMN\)'"
    with pytest.raises(UsageError, match=named) as caught:
        tuned(other)
    assert caught.value.exit_code == 2
    monkeypatch.setattr(tasks, "_READ_BYTES", 0)  # Of a large corpus the first row is read.
    with pytest.raises(UsageError, match=named):
        tuned(other)


def test_a_value_that_is_no_group_is_refused_by_its_row(tmp_path, task, texts, small_model):
    rows = [{"id": key, "text": text, "source": ["a"]} for key, text in texts[0].items()]
    (tmp_path / "corpus.jsonl").write_text(as_lines(rows))
    with pytest.raises(UsageError, match=r"corpus.jsonl:0: the value of 'source', named by --correction, is no text or nu"):
        tuned(settings(tmp_path / "run", task, small_model))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"tasks": ["SciFact"]}, r"centre_by\(language\) reads the column 'language'.*'SciFact'"),
        ({"corpus": {"source": "texts.jsonl"}}, r"centre_by\(language\) is chosen by scores.*--task retrieval:FOLDER"),
        ({"choosing": {"corrections": ["centre_by(a/b)"]}}, "'a/b'; rename it"),
    ],
)
def test_where_no_document_has_the_column_it_is_refused_with_a_way_out(more, named):
    with pytest.raises(UsageError, match=named) as caught:
        checked(TuneConfig, {"choosing": {"corrections": ["length", "centre_by(language)"]}} | more)
    assert caught.value.exit_code == 2


def test_the_command_line_takes_it(tmp_path):
    code, out, err = in_process("tune", "--correction", "centre_by(language)", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "centre_by(language) is chosen by scores" in said(out + err)


def test_a_chosen_one_is_followed_by_commands_that_need_no_option_for_the_column():
    choice = {"chosen": "1.0", "changed": True, "correction": "centre_by(a b)", "by": "scores", "foldable": True}
    for line, side in zip(words.then({"choice": choice, "config": {}}, "runs/tune"), (None, "queries"), strict=True):
        ((name, given),) = parsed(shlex.split(line))
        assert (name, given["side"], given["length_column"]) == ("correct", side, None)
        assert given["correction"] == "runs/tune/corrections/centre_by-a b.json"
