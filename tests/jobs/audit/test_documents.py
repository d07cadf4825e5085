"""An audit of texts that come in documents: the same figures, other errors, and what is said where nobody names them."""

import json

import numpy as np
import pytest
from nights_by_hand import summary
from whole_run import as_lines, audited, documented, read_parts, read_record, read_tables, rejected, sharded

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.corpus.rows import named_document
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

TEXTS, GROUPS = 200, 12


def settings(out, corpus, small_model, **corpus_settings):
    return {
        "out": str(out), "corpus": {"source": str(corpus)} | corpus_settings,
        "embedding": {"models": [small_model], "temperatures": [1.0], "max_length": 128},
        "analysis": {"intervals": [0, 32, 64, 100], "probe_sample": 60, "neighbours": 4, "socm_groups": GROUPS},
        "execution": {"cache": str(out.parent / "cache")},
    }  # fmt: skip


def book(text_id):
    """A part of a docstring's module; none for every twentieth."""
    number = sum(map(ord, text_id))
    return None if number % 20 == 0 else f"{'.'.join(text_id.split('.')[:2])} {number % 3}"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    place = tmp_path_factory.mktemp("books") / "texts.jsonl"
    place.write_text(as_lines([text | {"book": book(text["id"])} for text in documented("pyarrow")[:TEXTS]]), "utf-8")
    return place


@pytest.fixture(scope="module")
def named(ray_session, tmp_path_factory, corpus, small_model):
    out = tmp_path_factory.mktemp("named") / "run"
    audited(settings(out, corpus, small_model, document_column="book"))
    return out


@pytest.fixture(scope="module")
def unnamed(named, corpus, small_model):
    """The same without the column, from the cache of the other."""
    out = named.parent / "unnamed"
    audited(settings(out, corpus, small_model))
    return out


def numbered(ids):
    """A number for each book, and one for each text without."""
    names = [book(i) or f"the text {i}" for i in ids]
    order = sorted(set(names))
    return np.array([order.index(name) for name in names])


def test_figures_are_the_same_and_their_errors_are_those_of_documents_by_hand(named, unnamed):
    texts = read_parts(named, "texts", "1.0").sort("text_id")
    document = numbered(texts["text_id"].to_list())
    by_hand = summary(
        np.stack(texts["embedding"].to_list()), texts["tokens"].to_numpy(), truncated=texts["truncated"].to_numpy(),
        document=document,
    )  # fmt: skip
    own, other = (read_tables(out)["collapse_summary"].row(0, named=True) for out in (named, unnamed))
    texts_of = np.bincount(document)
    assert own["documents"] == int(len(document) ** 2 / np.square(texts_of).sum())
    assert 12 < own["documents"] < len(texts_of)
    assert other["documents"] is None
    for name in ("cosine_mean", "collapse_gap", "truncated_share", "spread_mean", "prefix_gap", "exposure_long"):
        error = f"{name.removesuffix('_mean')}_se_superpopulation"
        assert own[name] == other[name]
        assert own[error.removesuffix("_superpopulation")] == other[error.removesuffix("_superpopulation")]
        assert own[error] != other[error]
        if name in ("cosine_mean", "collapse_gap", "truncated_share"):
            assert own[error] == pytest.approx(by_hand[error], rel=1e-4), name
    assert own["gap_documents"] == by_hand["gap_documents"]
    assert own["prefix_documents"] < own["prefix_texts"]


def test_cells_of_the_probe_and_of_length_have_the_errors_of_documents_too(named, unnamed):
    for table in ("length_collapse", "prefix_probe", "exposure"):
        name = "exposure" if table == "exposure" else "cosine"
        mine, theirs = (read_tables(out)[table] for out in (named, unnamed))
        assert mine[f"{name}_se"].equals(theirs[f"{name}_se"])
        assert not mine[f"{name}_se_superpopulation"].equals(theirs[f"{name}_se_superpopulation"])


def test_no_document_has_texts_in_groups_of_two_sets(named):
    groups = read_parts(named, "partials/groups", "1.0")["text_id"].to_list()
    assert json.loads(next((named / "partials" / "socm").rglob("done.json")).read_text())["by_document"]
    found = [{book(i) or f"the text {i}" for i in group} for group in groups]
    assert len(set().union(*found)) == sum(map(len, found))  # As many groups as sets, so no book is in two groups.
    assert 10 <= len(groups) <= GROUPS
    row = read_tables(named)["collapse_summary"].row(0, named=True)
    assert row["socm_freedom"] <= len(groups) - 1
    assert row["socm_se"] <= row["socm_se_superpopulation"]


@pytest.mark.soak
def test_the_cache_knows_no_documents(named, unnamed, corpus, small_model):
    """What came from the cache has this run's documents."""
    again = named.parent / "again"
    audited(settings(again, corpus, small_model, document_column="book"))
    (plan,) = (again / "partials" / "cache").glob("*/plan.json")
    assert json.loads(plan.read_text())["found"] == TEXTS
    columns = ["text_id", "document"]
    mine, cached = (read_parts(out, "texts", "1.0").sort("text_id").select(columns) for out in (named, again))
    assert mine.equals(cached)
    assert 0 < mine["document"].null_count() < TEXTS
    assert read_parts(unnamed, "texts", "1.0")["document"].null_count() == TEXTS


def test_run_and_report_say_what_is_taken_for_independent(named, unnamed):
    (own,), (other,) = (read_record(out)["models"].values() for out in (named, unnamed))
    count = read_tables(named)["collapse_summary"]["documents"][0]
    assert own["documents"] == len(set(numbered(read_parts(named, "texts", "1.0")["text_id"].to_list())))
    assert int(own["documents_equal"]) == count < own["documents"]
    assert "source_order" not in own
    assert f"{own['documents']} documents" in (named / "report.html").read_text("utf-8")
    assert not other["source_order"]["alike"]  # Random weights, and docstrings in the order of their names.
    assert "--document-column" not in (unnamed / "report.html").read_text("utf-8")


def test_texts_sorted_by_length_are_not_called_alike(ray_session, tmp_path):
    random = np.random.default_rng(0)
    tokens = np.sort(random.integers(1, 200, 600))
    vectors = random.normal(size=(600, 8)) + 0.02 * tokens[:, None]
    rows = [{"id": f"t{k}", "v": own.tolist(), "n": int(n)} for k, (own, n) in enumerate(zip(vectors, tokens, strict=True))]
    (tmp_path / "sorted.jsonl").write_text(as_lines(rows), "utf-8")
    source = {"source": str(tmp_path / "sorted.jsonl"), "embedding_column": "v", "length_column": "n"}
    audited({"out": str(tmp_path / "run"), "corpus": source, "analysis": {"intervals": list(range(0, 200, 20))}})
    (entry,) = read_record(tmp_path / "run")["models"].values()
    assert not entry["source_order"]["alike"], entry


def test_embeddings_of_ones_own_come_in_documents_too(ray_session, tmp_path):
    random = np.random.default_rng(1)
    document = np.repeat(np.arange(60), 5)
    vectors = 2 * random.normal(size=(60, 8))[document] + random.normal(size=(300, 8))
    rows = [{"id": f"t{k:03d}", "v": vectors[k].tolist(), "n": 40, "of": int(document[k])} for k in range(300)]
    (tmp_path / "texts.jsonl").write_text(as_lines(rows), "utf-8")
    source = {"source": str(tmp_path / "texts.jsonl"), "embedding_column": "v", "length_column": "n"}
    audited({"out": str(tmp_path / "unnamed"), "corpus": source})
    audited({"out": str(tmp_path / "run"), "corpus": source | {"document_column": "of"}})
    row = read_tables(tmp_path / "run")["collapse_summary"].row(0, named=True)
    units = vectors.astype(np.float32)
    units = units / np.linalg.norm(units, axis=1, keepdims=True)
    by_hand = summary(units, np.full(300, 40), document=document)
    assert row["documents"] == 60
    assert row["cosine_se_superpopulation"] == pytest.approx(by_hand["cosine_se_superpopulation"], rel=1e-5)
    # Where nobody names them, their order tells.
    (entry,) = read_record(tmp_path / "unnamed")["models"].values()
    order, cosine = entry["source_order"], units @ units.T
    assert order["alike"]
    assert order["cosine_beside"] == pytest.approx(np.diag(cosine, 1).mean(), abs=1e-6)
    assert order["cosine_mean"] == pytest.approx(cosine[np.triu_indices(300, 1)].mean(), abs=1e-6)
    assert "--document-column" in (tmp_path / "unnamed" / "report.html").read_text("utf-8")


def test_a_document_that_is_no_name_is_a_reason(tmp_path):
    of = [["a list"], {"a": 1}, True, None, float("nan"), "", 3.0, 3]
    rows = [{"id": f"t{k}", "text": f"the text of number {k}", "of": own} for k, own in enumerate(of)]
    (tmp_path / "texts.jsonl").write_text(as_lines(rows), "utf-8")
    source = {"source": str(tmp_path / "texts.jsonl"), "document_column": "of", "max_rejected": 1}
    config = resolve({"out": str(tmp_path / "run"), "corpus": source})
    assert sharded(Storage(config.out), config).analysed == 5
    found = rejected(tmp_path / "run")
    assert [found[f"t{k}"].rpartition(" ")[2] for k in range(3)] == ["list", "dict", "bool"]
    assert all("the document" in reason for reason in found.values())
    assert named_document(b"\xff")[0] is None
