"""`tempscale diagnose` on documents in versions of different length, and on two models at once."""

import json
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from pages import specs_of
from tiny import save_bert
from whole_run import as_lines, diagnosed, documented, read_report, read_tables

from tempscale import Encoder
from tempscale_jobs.config.audit import Embedding
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.diagnose import versions
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.text import with_error
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

TEXTS, TAUS = 20, [1.0, 0.7]


@pytest.fixture(scope="module")
def rows():
    """Eighteen documents in three versions, one of two equal ones, one alone, and two texts of none."""
    longest = sorted((row["text"] for row in documented("pyarrow")), key=len)[-18:]
    found = [
        {"id": f"{k}-{size}", "of": str(k), "text": text[:size]} for k, text in enumerate(longest) for size in (60, 150, 400)
    ]
    found += [{"id": f"same-{k}", "of": "same", "text": "two texts of one length"} for k in range(2)]
    found += [{"id": f"none-{k}", "of": None, "text": f"a text of no document, {k}"} for k in range(2)]
    return [*found, {"id": "alone", "of": "one", "text": "a document that has one version only"}]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("versions") / "texts.jsonl"
    file.write_text(as_lines(rows))
    return file


@pytest.fixture(scope="module")
def other_model(small_model, tmp_path_factory):
    """Another model of the same tokenizer: three layers instead of two."""
    folder = tmp_path_factory.mktemp("other") / "backbone"
    return save_bert(folder, small_model, 5, num_hidden_layers=3, initializer_range=0.4)


def settings(out, corpus, models, **diagnosis):
    return {
        "out": str(out), "corpus": {"source": str(corpus)}, "seed": 1,
        "embedding": {"models": models, "temperatures": TAUS, "max_length": 96},
        "diagnosis": {"texts": TEXTS, "intervals": [0, 32, 64], "repeated_pairs": 0, "versions_of": "of"} | diagnosis,
        "execution": {"workers": 1},
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_session, corpus, small_model, other_model):
    out = tmp_path_factory.mktemp("diagnose") / "run"
    diagnosed(settings(out, corpus, [small_model, other_model]))
    return out


@pytest.fixture(scope="module")
def tables(finished):
    return read_tables(finished)


def test_whole_documents_are_looked_into_the_same_by_every_model(tables):
    by_model = [set(own["text_id"]) for _, own in tables["layers"].group_by("model", maintain_order=True)]
    assert by_model[0] == by_model[1]
    documents = {text_id.split("-")[0] for text_id in by_model[0]}
    assert by_model[0] == {f"{k}-{size}" for k in documents for size in (60, 150, 400)}
    assert len(documents) == TEXTS // 3
    own = dict(tables["map"].select("text_id", "document").unique().iter_rows())
    assert own == {text_id: text_id.split("-")[0] for text_id in by_model[0]}


@pytest.mark.parametrize("tau", TAUS)
def test_findings_hold_the_content_and_are_those_of_a_plain_pass(tables, rows, small_model, tau):
    texts = {row["id"]: row["text"] for row in rows}
    model = tables["layers"]["model"].unique(maintain_order=True)[0]
    mine = {name: t.filter((pl.col("model") == model) & (pl.col("tau") == tau)) for name, t in tables.items()}
    documents = sorted(set(mine["map"]["document"]))
    n = len(documents)
    for layers in ("last", "all"):
        heads = mine["heads"].filter((pl.col("layer") == pl.col("layer").max()) | pl.lit(layers == "all"))
        sigma = dict(heads.group_by("text_id").agg(pl.col("sigma_a").mean()).iter_rows())
        moved = np.array([sigma[f"{k}-400"] - sigma[f"{k}-60"] for k in documents])
        found = {row["finding"]: row for row in mine["diagnose_findings"].filter(pl.col("layers") == layers).to_dicts()}
        assert set(found) - {"length"} == {"temperature", "versions"}
        assert found["versions"]["texts"] == n
        assert found["versions"]["change"] == pytest.approx(moved.mean(), rel=1e-9)
        assert found["versions"]["change_se"] == pytest.approx(moved.std(ddof=1) / np.sqrt(n), rel=1e-9)
    found = {row["finding"]: row for row in mine["diagnose_findings"].to_dicts()}
    encoder = Encoder.load(small_model, temperature=tau, device="cpu", max_length=96)
    of_sizes = (encoder.encode([texts[f"{k}-{size}"] for k in documents]).embeddings.double().numpy() for size in (60, 400))
    short, long = (((vectors @ vectors.T).sum(1) - 1) / (n - 1) for vectors in of_sizes)
    assert found["versions_cosine"]["change"] == pytest.approx((long - short).mean(), abs=1e-5)
    # The error is that of means over all pairs of texts: 2·sd of the documents' own means/√n.
    error = 2 * (long - short).std(ddof=1) / np.sqrt(n)
    assert found["versions_cosine"]["change_se"] == pytest.approx(error, rel=1e-3)


@pytest.mark.parametrize("tau", TAUS)
def test_models_are_compared_on_the_same_texts(tables, tau):
    layers = tables["layers"].filter(pl.col("tau") == tau)
    first, second = layers["model"].unique(maintain_order=True)
    one, other = (
        layers.filter((pl.col("model") == model) & (pl.col("layer") == layer)).sort("text_id")["within_cosine"].to_numpy()
        for model, layer in ((first, 1), (second, 2))
    )
    moved = other - one
    (row,) = tables["diagnose_findings"].filter((pl.col("finding") == "model") & (pl.col("tau") == tau)).to_dicts()
    assert row["model"] == second
    assert row["change"] == pytest.approx(moved.mean(), rel=1e-9)
    assert row["change_se"] == pytest.approx(moved.std(ddof=1) / np.sqrt(len(moved)), rel=1e-9)


def test_the_report_draws_models_together_and_joins_versions(finished, tables):
    page = read_report(finished)
    (row,) = tables["diagnose_findings"].filter((pl.col("finding") == "model") & (pl.col("tau") == 0.7)).to_dicts()
    versioned = tables["diagnose_findings"].filter((pl.col("finding") == "versions") & (pl.col("tau") == 0.7)).to_dicts()
    assert versioned
    for own in (row, *versioned):
        assert with_error(own["change"], own["change_se"]).lstrip("−") in page
    specs = specs_of(page)
    together = json.dumps(specs["all-together"], ensure_ascii=False)
    summary = tables["layer_summary"].filter(pl.col("interval").is_null())
    for value in pl.concat([summary[f"{name}_mean"].drop_nulls() for name in ("within_cosine", "rho", "lambda", "spread")]):
        assert repr(value) in together
    # Two and three layers: by the share that a text has passed.
    assert "share of layers passed" in together
    assert '"detail": {"field": "document"' in json.dumps(specs["m0-map"])


def test_documents_are_taken_whole_by_hand():
    document_of = {"a": "x", "b": "x", "c": "y", "d": "y", "e": "y", "f": "z", "g": "z"}
    lengths = {"a": 5, "b": 9, "c": 3, "d": 3, "e": 4, "f": 6, "g": 6, "h": 7}
    assert versions.sample(document_of, lengths, 5, 0, "of") == ["a", "b", "c", "d", "e"]
    assert versions.sample(document_of, lengths, 2, 0, "of") == ["a", "b"]
    assert versions.shortest_and_longest(document_of, lengths) == [("a", "b"), ("c", "e")]
    assert versions.shortest_and_longest({}, lengths) == []
    with pytest.raises(UsageError, match=r"column 'of'.*--versions-of"):
        versions.sample({name: name for name in lengths}, lengths, 5, 0, "of")
    with pytest.raises(UsageError, match=r"has 2: .*--texts"):
        versions.sample(document_of, lengths, 1, 0, "of")


def documents_of(folder, rows):
    """What `documents` finds in rows that an audit would read."""
    (folder / "texts.jsonl").write_text(as_lines(rows))
    settings = checked(DiagnoseConfig, {
        "out": str(folder / "run"), "corpus": {"source": str(folder / "texts.jsonl")}, "diagnosis": {"versions_of": "of"},
    })  # fmt: skip
    run, corpus = SimpleNamespace(storage=Storage(settings.out)), settings.candidates()
    contents = TextShards(corpus, Embedding.model_validate({}), settings.out)
    index = SourceReader(run.storage, contents, settings.seed, settings.out).index
    return [versions.documents(run, corpus, "of", settings.out, index) for _ in range(2)]


def test_the_documents_of_the_texts_that_were_read_are_found_once(tmp_path):
    rows = [
        {"id": "a", "text": "one", "of": "x"}, {"id": "b", "text": " ", "of": "x"}, {"id": "c", "of": "x"},
        {"id": "a", "text": "again", "of": "y"}, {"id": "d", "text": "two", "of": 3},
        {"id": "e", "text": "three", "of": 3.0}, {"id": "f", "text": "four", "of": float("nan")},
        {"id": "g", "text": "five", "of": None}, {"id": "h", "text": "six", "of": ""},
    ]  # fmt: skip
    found, again = documents_of(tmp_path, rows)
    # The empty text, the one without, and the second of an id are no texts of the run; four to six name no document.
    assert found == {"a": "x", "d": "3", "e": "3"}
    assert again == found
    for value, kind in ((2.5, "float"), (True, "bool"), ([1], "list")):
        folder = tmp_path / kind
        folder.mkdir()
        with pytest.raises(UsageError, match=f"column 'of' .*--versions-of.* {kind}"):
            documents_of(folder, [{"id": "a", "text": "one", "of": value}])
