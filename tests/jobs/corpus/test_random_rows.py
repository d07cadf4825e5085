"""Rows that nobody thought of: each is a text, an embedding, or rejected with a reason."""

import decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from random_inputs import BLANKS, HALVES, JSON, NUMBERS, SECONDS, WORDS, drawn, read
from whole_run import as_lines, encodable

pytestmark = [pytest.mark.proof, pytest.mark.timeout(SECONDS)]

TEXT = WORDS | WORDS | BLANKS | HALVES | st.integers() | JSON
ID = WORDS | st.integers(0, 1) | st.sampled_from(["0", "1"]) | HALVES | st.floats() | JSON
RECORDS = st.fixed_dictionaries({}, optional={"text": TEXT, "id": ID, "more": JSON})


def usable_by_hand(records):
    """The places of the records that are texts, each with its id or None."""
    found, seen = {}, set()
    for place, record in enumerate(records):
        text, own = (record.get("text"), record.get("id")) if isinstance(record, dict) else (None, None)
        if not isinstance(text, str) or not text.strip() or not encodable(text):
            continue
        if isinstance(own, float) and ((own.is_integer() and abs(own) <= 2**53) or own != own):
            own = None if own != own else int(own)
        own = None if own == "" else own
        if own is not None and (type(own) not in (int, str) or not encodable(str(own)) or str(own) in seen):
            continue
        found[place] = None if own is None else str(own)
        seen.add(found[place])
    return found


def test_any_json_row_is_a_text_or_rejected_with_a_reason(tmp_path):
    file, answers = tmp_path / "rows.jsonl", set()

    @drawn(400)
    @given(st.lists(RECORDS | JSON, max_size=12))
    @example(
        [{"text": "a", "id": "x"}, {"text": "b", "id": "x"}, {"text": 1}, {"text": {}}, {"text": None}, {"text": ""}, 3, {}]
    )
    @example([{"text": "a", "id": 1.5}, {"text": "b", "id": "\ud800"}, {"text": "half \udc00"}])
    @example([[]])
    def check(records):
        file.write_text(as_lines(records))
        texts, rejected = read(file)
        objects = [record for record in records if isinstance(record, dict)]
        if records and isinstance(records[0], list):
            assert "is a JSON array" in rejected
        elif objects and not any("text" in record for record in objects):
            assert "has no column 'text'" in rejected
        else:
            wanted = usable_by_hand(records)
            assert [text for _, text in texts] == [records[place]["text"] for place in wanted]
            assert all(own in (None, given) for own, (given, _) in zip(wanted.values(), texts, strict=True))
            left = [place for place in range(len(records)) if place not in wanted]
            assert [place for place, _ in rejected] == [f"rows.jsonl:{place}" for place in left]
            answers.update(reason for _, reason in rejected)
            answers.update(["a text"] * bool(texts))
            return
        answers.add("a refused file")

    check()
    assert {
        "a text", "a refused file", "the id appeared before", "the id is not valid UTF-8", "the line is not a JSON object",
        "the id is neither a string nor a whole number but float", "the record has no column 'text'", "the text is null",
        "the text is empty", "the text is not valid UTF-8", "not a text but int", "not a text but dict",
    } <= answers  # fmt: skip


@pytest.mark.parametrize("kind", ["jsonl", "csv", "tsv", "txt"])
def test_any_bytes_are_rows_or_refused(tmp_path, kind):
    file, answers = tmp_path / f"rows.{kind}", set()
    head = {"jsonl": b'{"text": "a first row"}\n', "csv": b"id,text\n", "tsv": b"id\ttext\n", "txt": b""}[kind]
    row = {"jsonl": b'\n{"text": "more"}\n', "csv": b"\n7,more\n", "tsv": b"\n7\tmore\n", "txt": b"\nmore\n"}[kind]
    marks = [b'"', b",", b"\t", b"\n", b"\r", b"{", b"[" * 3000, b"\xef\xbb\xbf", b"\x00"]
    pieces = st.binary(max_size=12) | st.sampled_from(marks) | st.just(row)

    @drawn(150)
    @given(st.lists(pieces, max_size=12).map(b"".join), st.booleans())
    @example(b'[{"text": "an array"}]', False)
    def check(data, headed):
        file.write_bytes(head * headed + data)
        texts, rejected = read(file)
        answers.add("refused" if texts is None else "rows" if texts else "none")
        if texts is not None and kind == "txt":
            lines = (head * headed + data).removeprefix(b"\xef\xbb\xbf").split(b"\n")
            assert len(texts) + len(rejected) == sum(bool(line.strip()) for line in lines)

    check()
    assert {"rows", "none"} | ({"refused"} if kind != "txt" else set()) <= answers


PLAIN = {
    pa.null(): lambda n: None, pa.bool_(): lambda n: n > 0, pa.int8(): lambda n: n % 100, pa.uint64(): abs,
    pa.float16(): lambda n: np.float16(n % 100), pa.float64(): float, pa.decimal128(22, 3): decimal.Decimal,
    pa.binary(): lambda n: n.to_bytes(8, "big", signed=True), pa.binary(3): lambda n: b"%03d" % (n % 1000),
    pa.binary_view(): lambda n: b"%d" % n, pa.string(): str, pa.large_string(): str, pa.string_view(): str,
    pa.list_(pa.string()): lambda n: [str(n)], pa.large_list(pa.binary()): lambda n: [b"x", None],
    pa.list_(pa.int32()): lambda n: [n % 9] * (n % 3), pa.list_(pa.float32(), 2): lambda n: [1.0, n / 7],
    pa.list_(pa.struct([("text", pa.string())])): lambda n: [{"text": str(n)}],
    pa.struct([("text", pa.string()), ("n", pa.int64())]): lambda n: {"text": str(n), "n": n},
    pa.map_(pa.string(), pa.int8()): lambda n: [(str(n), 1)],
}  # fmt: skip
"""Types of columns, each with a value of it from a whole number."""
TIMES = [
    pa.date32(), pa.date64(), pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("ns"),
    *(pa.timestamp(unit, zone) for unit in ("s", "ms", "us", "ns") for zone in (None, "UTC", "+07:30", "Mars/Olympus")),
]  # fmt: skip


def column(kind, numbers):
    """A column of any type from whole numbers of 64 bits, about a fifth of it null."""
    kept = [n % 5 > 0 for n in numbers]
    if kind in TIMES:  # Read as the number that stands for them: dates that no calendar has are in files too.
        whole = pa.int64() if kind.bit_width == 64 else pa.int32()
        values = [n if kind.bit_width == 64 else n % 2**31 for n in numbers]
        return pa.array([n if keep else None for n, keep in zip(values, kept, strict=True)], whole).view(kind)
    return pa.array([PLAIN[kind](n) if keep else None for n, keep in zip(numbers, kept, strict=True)], kind)


@pytest.mark.parametrize("role", ["text", "id"])
def test_a_column_of_any_arrow_type_is_texts_or_rejected_rows(tmp_path, role):
    file, answers, unwritten = tmp_path / "rows.parquet", set(), set()
    other = {"text": {"id_column": "other"}, "id": {"text_column": "other"}}[role]

    @drawn(20)
    @given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8), st.booleans())
    def check(numbers, encoded):
        words = pa.array([f"words {k}" for k in range(len(numbers))])
        for kind in [*PLAIN, *TIMES]:
            try:
                values = column(kind, numbers)
                pq.write_table(pa.table({role: values.dictionary_encode() if encoded else values, "other": words}), file)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                unwritten.add((kind, encoded))  # There is no such file.
                continue
            texts, rejected = read(file, **other)
            if texts is not None:  # A zone that is none is refused with its file.
                assert len(texts) + len(rejected) == len(numbers)
                answers.update(reason for _, reason in rejected)
                answers.update([kind] * bool(texts))

    check()
    not_it = {"text": "not a text but", "id": "the id is neither a string nor a whole number but"}[role]
    assert {f"{not_it} {name}" for name in ("datetime", "date", "list", "Unreadable")} <= answers
    assert any("float" in answer for answer in answers if isinstance(answer, str))
    assert {pa.string(), pa.large_string(), pa.string_view()} <= answers
    assert len(unwritten) < 20, unwritten


def test_any_value_is_an_embedding_or_rejected_with_a_reason(tmp_path):
    file, answers = tmp_path / "rows.jsonl", set()
    numbers = st.lists(st.floats(-9, 9), min_size=3, max_size=3) | st.lists(NUMBERS, max_size=4)
    records = st.fixed_dictionaries({"v": numbers | JSON, "n": st.integers(1, 600) | JSON}, optional={"id": WORDS | JSON})

    @drawn(300)
    @given(st.lists(records, min_size=1, max_size=8), st.sampled_from([{}, {"dims": 2}, {"bits": True}, {"scale": 0.5}]))
    @example([{"v": [1, 2, 3], "n": 4}, {"v": None, "n": 4}, {"v": "a", "n": 4}, {"v": [1, 2, 3], "n": -1}], {})
    @example([{"v": [1e308, 2, 3], "n": 4}], {})
    @example([{"v": [1.5, 2, 3], "n": 4}], {"bits": True})
    def check(rows, options):
        file.write_text(as_lines(rows))
        found, rejected = read(file, embedding_column="v", length_column="n", **options)
        if found is None:
            answers.add("refused")
            return
        for _, (row, length) in found:
            assert row.dtype == np.float32
            assert np.linalg.norm(row.astype(np.float64)) == pytest.approx(1, abs=1e-5)
            assert 1 <= length < 2**31
        answers.update(["an embedding"] * bool(found), (reason for _, reason in rejected))

    check()
    assert {
        "an embedding", "the embedding is null", "the embedding is no list of numbers", "the embedding is not finite",
        "the embedding is no list of bytes", "the length is no whole number from 1 on",
    } <= answers  # fmt: skip
