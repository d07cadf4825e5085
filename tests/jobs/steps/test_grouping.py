"""Texts in groups by a column: the largest by name, the others joined into one."""

import datetime

import numpy as np
import pyarrow as pa

from tempscale_jobs.corpus.readers import Unreadable
from tempscale_jobs.corpus.rows import Counts, digest_of, usable, usable_text
from tempscale_jobs.corpus.sources import NO_COLUMN, Row
from tempscale_jobs.steps.grouping import NOWHERE, OTHERS, Grouping, digests


class Values(list):
    """Values by place; a text has one of another column before it."""

    def __getitem__(self, places):
        found = np.empty(len(places), dtype=object)
        for k, place in enumerate(places.tolist()):
            found[k] = ["other column", super().__getitem__(place)]
        return found


def grouped(values):
    return Grouping.of("kind", np.array([digest_of(value) for value in values]), Values(values), 1)


def shuffled(counts, seed=0):
    values = [name for name, texts in counts.items() for _ in range(texts)]
    return np.random.default_rng(seed).permutation(values).tolist()


def test_groups_of_fewer_than_30_texts_are_joined_and_the_largest_come_first():
    values = shuffled({"a": 30, "b": 40, "c": 29, "d": 40, "e": 1})
    found = grouped(values)
    assert found.names == ("b", "d", "a", OTHERS)
    assert found.texts.tolist() == [40, 40, 30, 30]
    names = ["b", "d", "a"]
    assert [found.names[code] for code in found.code] == [value if value in names else OTHERS for value in values]
    assert (found.joined, found.joined_names) == (2, ("c", "e"))


def test_no_group_is_joined_where_all_are_large():
    found = grouped(shuffled({"a": 30, "b": 31}))
    assert (found.names, found.joined, found.joined_names) == (("b", "a"), 0, ())


def test_of_thousands_of_groups_the_50_largest_have_names_and_ten_of_the_others():
    counts = {f"tenant {k}": 30 + k for k in range(60)} | {f"small {k}": 1 for k in range(2000)}
    found = grouped(shuffled(counts))
    assert found.names == (*(f"tenant {k}" for k in range(59, 9, -1)), OTHERS)
    assert found.texts[-1] == 2000 + sum(range(30, 40))
    assert (found.joined, found.joined_names) == (2010, tuple(f"tenant {k}" for k in range(9, -1, -1)))


def test_queries_are_in_the_groups_of_the_corpus():
    found = grouped(shuffled({"a": 30, "b": 40, "c": 3})).of_queries(np.array([*map(digest_of, ("a", "b", "c", "x")), 0]))
    assert found.code.tolist() == [1, 0, 2, 2, NOWHERE]
    whole = grouped(shuffled({"a": 30, "b": 40})).of_queries(np.array([digest_of("b"), digest_of("x")]))
    assert whole.code.tolist() == [0, NOWHERE]


def test_a_value_is_read_as_text_and_one_that_cannot_be_is_refused_by_the_name_of_its_column():
    values = {
        "de": "de", None: "(none)", "": "(none)", float("nan"): "(none)", 7: "7", 2.5: "2.5", True: "True", b"\xff": "ff",
        datetime.date(2026, 1, 2): "2026-01-02", NO_COLUMN: None,
    }  # fmt: skip
    rows = [Row(f"row {k}", f"id {k}", "a text", groups={"kind": value}) for k, value in enumerate(values)]
    counts = Counts()
    assert [row.groups for row in usable(rows, None, counts, None, usable_text)] == [(name,) for name in values.values()]
    refused = [[1], {"a": 1}, np.zeros(2), "\ud800", Unreadable()]
    rows = [Row(f"row {k}", f"id {k}", "a text", groups={"other": "x", "kind": value}) for k, value in enumerate(refused)]
    assert list(usable(rows, None, counts, None, usable_text)) == []
    assert [reason.removeprefix("the value of 'kind', named by --by, ") for reason in counts.reasons] == [
        "is no text or number but list", "is no text or number but dict", "is no text or number but ndarray",
        "is not valid UTF-8", "cannot be read",
    ]  # fmt: skip


def test_digests_of_two_columns():
    table = pa.chunked_array([[["a", "b"]], [["b", None], ["a", "c"]]], pa.list_(pa.string()))
    a, b, c = map(digest_of, "abc")
    assert digests(table, 2).tolist() == [[a, b], [b, 0], [a, c]]
