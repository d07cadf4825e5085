"""A collection of Qdrant's own local engine: named vectors, ids of both kinds, changes, and a sentence for each mistake."""

import re
import sys
from uuid import UUID

import pytest
import stored_tables

from tempscale.optional import install
from tempscale_jobs.config.sections import Corpus
from tempscale_jobs.corpus import qdrant, sources, stores
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import UsageError

pytest.importorskip("qdrant_client")


def section(source, **more):
    return Corpus.model_validate({"source": source, "embedding_column": "embedding"} | more)


def values(given):
    return [record.values for record in sources.records(given, Vectors("texts", given, "").columns)]


def opened(folder):
    from qdrant_client import QdrantClient

    return QdrantClient(path=str(folder))


@pytest.fixture
def collection(tmp_path):
    """Points with two named vectors, of which one point has one only, and a payload of several types."""
    from qdrant_client import models

    client, dot = opened(tmp_path), models.Distance.DOT
    vectors = {"title": models.VectorParams(size=2, distance=dot), "body": models.VectorParams(size=3, distance=dot)}
    client.create_collection("docs", vectors)
    point = models.PointStruct
    client.upsert(
        "docs",
        [
            point(id=7, vector={"title": [1, 2], "body": [1, 2, 3]}, payload={"text": "seven", "n": 1}),
            point(id=str(UUID(int=5)), vector={"title": [3, 4], "body": [4, 5, 6]}, payload={"text": "five", "n": 2.5}),
            point(id=2, vector={"body": [7, 8, 9]}, payload={"text": "two", "more": {"a": 1}}),
        ],
    )
    client.close()
    return f"qdrant:{tmp_path}/docs?pickles=trusted"


def test_named_vectors_are_columns_and_missing_ones_null(collection):
    for name, expected in (("body", [[7, 8, 9], [1, 2, 3], [4, 5, 6]]), ("title", [None, [1, 2], [3, 4]])):
        found = values(section(collection, embedding_column=name))
        assert [row["id"] for row in found] == ["2", "7", str(UUID(int=5))]
        assert [row["text"] for row in found] == ["two", "seven", "five"]
        assert [None if row[name] is None else row[name].tolist() for row in found] == expected


def test_payloads_keep_their_types_and_objects_are_json(collection):
    assert {"n", "more", "text", "title", "body", "id"} == set(qdrant.columns(collection))
    (part,) = qdrant.parts(collection, ["n", "more"], (10, 1 << 20))
    (batch,) = qdrant.batches(collection, part.at, ["n", "more"], (0, 3))
    assert batch.to_pydict() == {"n": [None, 1.0, 2.5], "more": ['{"a": 1}', None, None]}


def test_a_part_may_be_read_from_its_middle(collection):
    (part,) = qdrant.parts(collection, ["n"], (10, 1 << 20))
    batches = qdrant.batches(collection, part.at, ["id", "n"], (1, 3))
    assert [batch.to_pydict() for batch in batches] == [{"id": ["7", str(UUID(int=5))], "n": [1.0, 2.5]}]


def test_a_folder_and_what_a_server_answers_tell_that_a_point_changed(collection, monkeypatch):
    """The engine answers as a server does; only `files` says which of them it is."""
    for is_server in (False, True):
        if is_server:
            monkeypatch.setattr(qdrant, "files", lambda source: [])
        given = section(collection, embedding_column="body")
        before = sources.state(given)
        assert sources.changes(given, before) == []
        client = opened(collection.removeprefix("qdrant:").removesuffix("/docs?pickles=trusted"))
        client.set_payload("docs", {"text": f"another {is_server}"}, points=[7])
        client.close()
        assert sources.changes(given, before)


def test_nothing_is_written_to_the_collection(collection, tmp_path):
    def content():
        return {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file() and file.name != ".lock"}

    before = content()
    assert values(section(collection, embedding_column="body"))
    assert content() == before


MISTAKES = {
    "no such collection": ("qdrant:{folder}/nothing?pickles=trusted", "docs"),
    "no folder of the engine": ("qdrant:{folder}/collection/docs?pickles=trusted", "local engine"),
    "no folder": ("qdrant:{folder}/x/docs?pickles=trusted", "local engine"),
    "no collection": ("qdrant:docs", "names no collection"),
    "a setting": ("qdrant:{folder}/docs?vector=body", "'vector'"),
    "a folder that nobody trusts": ("qdrant:{folder}/docs", "pickles=trusted"),
    "no such vector": ("qdrant:{folder}/docs?pickles=trusted", "'embedding'.*'title'"),
    "no server": ("qdrant:http://127.0.0.1:1/docs", "QDRANT_API_KEY"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(collection, tmp_path, monkeypatch, mistake):
    monkeypatch.setenv("QDRANT_API_KEY", "s3cr3t-key")
    source, told = MISTAKES[mistake]
    with pytest.raises(UsageError, match=told) as caught:
        values(section(source.format(folder=tmp_path)))
    assert "s3cr3t" not in str(caught.value)
    assert not (tmp_path / "x").exists()


def test_a_folder_that_another_process_has_open_is_a_sentence(collection, tmp_path):
    client = opened(tmp_path)
    with pytest.raises(UsageError, match="already accessed"):
        sources.check_rows(section(collection, embedding_column="body"), "out", values(section(collection)))
    client.close()


def test_a_missing_driver_is_named(collection, monkeypatch):
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(UsageError, match=re.escape(install("qdrant_client"))):
        stores.of(collection).columns(collection)


def test_an_empty_collection_has_no_row(tmp_path):
    from qdrant_client import models

    client = opened(tmp_path)
    client.create_collection("docs", models.VectorParams(size=stored_tables.DIM, distance=models.Distance.DOT))
    client.close()
    given = section(f"qdrant:{tmp_path}/docs?pickles=trusted", text_column="id")
    with pytest.raises(UsageError, match="no row"):
        sources.check_rows(given, "out", values(given))


def test_a_payload_of_another_type_behind_those_that_are_looked_at_is_a_sentence(tmp_path):
    from qdrant_client import models

    client = opened(tmp_path)
    client.create_collection("docs", models.VectorParams(size=2, distance=models.Distance.DOT))
    points = [
        models.PointStruct(id=k, vector=[1, k], payload={"text": "a", "n": k if k <= 1000 else "many"})
        for k in range(1, 1003)
    ]
    client.upload_points("docs", points)
    client.close()
    given = section(f"qdrant:{tmp_path}/docs?pickles=trusted", length_column="n")
    with pytest.raises(UsageError, match="'n' of collection 'docs' is of type int64"):
        values(given)
