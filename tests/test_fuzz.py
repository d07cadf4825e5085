"""Inputs that nobody thought of: whatever a reader, a configuration or a schedule is given, an answer or one sentence.

The same examples are drawn in each run of the suite. `TEMPSCALE_FUZZ=20 python -m pytest tests/test_fuzz.py` draws twenty
times as many, others each time. Each test also asks that both answers came up: none passes on nothing.
"""

import decimal
import importlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_sources import COMPRESS
from whole_run import as_lines, encodable

from jobs import config, corpus, inputs, pair_chunks, runs, sources, vectors
from jobs.diagnose_config import DiagnoseConfig
from jobs.errors import UsageError
from jobs.evaluate_config import EvaluateConfig
from jobs.pairs_config import PairsConfig
from jobs.strict import checked
from jobs.tune_config import TuneConfig
from tempscale.temperature import Temperature

MORE = int(os.environ.get("TEMPSCALE_FUZZ", "1"))
pytestmark = pytest.mark.timeout(120 + 120 * MORE)


def drawn(examples):
    return settings(max_examples=examples * MORE, deadline=None, derandomize=MORE == 1, database=None)


def sentence(error):
    """The text of an error, if it is one line that says something."""
    text = str(error)
    assert len(text) > 10
    assert not set(text) & set("\n\r")
    assert "Traceback" not in text
    return text


class Rejects:
    """What is recorded of rows that are left out."""

    def __init__(self):
        self.rows = []

    def add(self, text_id, place, reason):
        assert text_id is None or text_id.encode().decode() == text_id
        self.rows.append((place, sentence(reason)))

    def flush(self):
        pass


def read(source, **options):
    """The usable texts of a source and its rejected rows; or None and the sentence that refuses it."""
    settled = config.resolve({"corpus": {"source": str(source), **options}})
    own = "embedding_column" in options
    rows, content = (vectors.rows, vectors.Reader(settled.corpus)) if own else (sources.rows, corpus.usable_text)
    counts, rejects = corpus.Counts(), Rejects()
    try:
        found = list(corpus.usable(rows(settled.corpus), settled, counts, rejects, lambda more: None, content))
    except UsageError as error:
        return None, sentence(error)
    assert counts.read == len(found) + len(rejects.rows)
    assert (counts.usable, counts.rejected) == (len(found), len(rejects.rows))
    assert len({text_id for text_id, _ in found}) == len(found)
    for text_id, text in found:
        assert text_id.encode().decode() == text_id
        if not own:
            assert text.strip()
            assert text.encode().decode() == text
    return found, rejects.rows


# --- rows of a corpus -------------------------------------------------------------------------------------------------

HALVES = st.sampled_from(["\ud800", "half \udc00 a character", "\udfff\ud800"])
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(2**63), 2**64, 1e308])
BLANKS = st.sampled_from(["", " \n", "\u3000"])
LEAVES = st.none() | st.booleans() | NUMBERS | st.text(max_size=12) | BLANKS | HALVES
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
WORDS = st.text(min_size=1, max_size=12)
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
    def check(data, headed):
        file.write_bytes(head * headed + data)
        texts, rejected = read(file)
        answers.add("refused" if texts is None else "rows" if texts else "none")
        if texts is not None and kind == "txt":
            lines = (head * headed + data).split(b"\n")
            assert len(texts) + len(rejected) == len(lines) - (lines[-1] == b"")

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
    assert {f"{not_it} {name}" for name in ("float", "datetime", "date", "list", "Unreadable")} <= answers
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


def test_any_row_of_pairs_gives_pairs_or_is_rejected_with_a_reason(tmp_path):
    file, answers = tmp_path / "pairs.jsonl", set()
    texts = WORDS | JSON | st.lists(WORDS | LEAVES, max_size=3)
    ids = WORDS | JSON | st.lists(WORDS | st.integers(), max_size=3)
    optional = {"text_a": texts, "text_b": texts, "id": ids, "id_a": ids, "id_b": ids}

    @drawn(300)
    @given(st.lists(st.fixed_dictionaries({}, optional=optional) | JSON, min_size=1, max_size=8))
    @example([{"text_a": "a", "text_b": ["b", 3]}])
    def check(records):
        file.write_text(as_lines(records))
        settled = checked(PairsConfig, {"pairs": {"source": str(file)}})
        counts, rejects = pair_chunks.Counts(), Rejects()
        try:
            found = list(pair_chunks._pairs(settled, counts, rejects, lambda more: None))
        except UsageError as error:
            answers.add(sentence(error).split("'")[2][:20])
            return
        assert counts.rows == len(records)
        assert sum(counts.reasons.values()) == len(rejects.rows)
        for pair in found:
            for side in (pair.a, pair.b):
                assert side.text.strip()
                assert side.text_id.encode()
        rows = {place.split("[")[0] for place in [*(pair.place for pair in found), *(place for place, _ in rejects.rows)]}
        assert rows == {f"pairs.jsonl:{k}" for k in range(len(records))}
        answers.update(["pairs"] * bool(found), ["rejected"] * bool(rejects.rows))

    check()
    assert {"pairs", "rejected", " has no column "} <= answers


# --- damaged files ----------------------------------------------------------------------------------------------------

TABLE = pa.table({"id": [f"t{k}" for k in range(300)], "text": [f"text {k * k} " * (k % 7) for k in range(300)]})
LINES = as_lines(TABLE.to_pylist()).encode()
CSV = b"id,text\n" + b"".join(b't%d,"text, %d"\n' % (k, k * k) for k in range(300))


def parquet(table, **how):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **how)
    return sink.getvalue().to_pybytes()


WHOLE = {
    "plain.parquet": parquet(TABLE, compression="none", use_dictionary=False),
    "snappy.parquet": parquet(TABLE, compression="snappy", data_page_size=512, row_group_size=64),
    "zstd.parquet": parquet(TABLE, compression="zstd", data_page_version="2.0", write_page_checksum=True),
    "delta.parquet": parquet(TABLE, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="gzip"),
    "a.jsonl": LINES, "a.csv": CSV, "a.tsv": CSV.replace(b",", b"\t"), "a.txt": LINES,
    **{f"a.jsonl.{ending}": compress(LINES) for ending, compress in COMPRESS.items()},
    "a.csv.gz": COMPRESS["gz"](CSV), "a.txt.zst": COMPRESS["zst"](LINES),
}  # fmt: skip


def damaged(data, seed):
    """The bytes with one to four damages: some replaced, cut off, left out, put in or doubled."""
    draw = random.Random(seed)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        place, size = draw.randrange(len(data) + 1), draw.choice([1, 1, 2, 4, 16, 64])
        if draw.random() < 0.3:
            place = max(0, len(data) - draw.randrange(200))  # Footers, where most of a format's sense is.
        kind = draw.choice(["replace", "replace", "cut", "leave", "put", "double"])
        some = draw.choice([draw.randbytes(size), b"\xff" * size, b"\x00" * size])
        data = {
            "replace": data[:place] + some + data[place + size :],
            "cut": data[:place],
            "leave": data[:place] + data[place + size :],
            "put": data[:place] + some + data[place:],
            "double": data[: place + size] + data[place:],
        }[kind]
    return data


@pytest.mark.parametrize("name", WHOLE)
def test_a_damaged_file_is_read_or_refused(tmp_path, name):
    file, noticed = tmp_path / name, 0
    file.write_bytes(WHOLE[name])
    whole, blank = read(file)
    assert len(whole) + len(blank) == 300
    assert len(whole) > 200

    @drawn(100)
    @given(st.integers(0, 2**63))
    def check(seed):
        nonlocal noticed
        file.write_bytes(damaged(WHOLE[name], seed))
        texts, told = read(file)
        assert texts is not None or name in told
        noticed += (texts, told) != (whole, blank)

    check()
    assert noticed > 10 * MORE


LAKES = {"delta": "deltalake", "lance": "lance"}


@pytest.mark.parametrize("kind", LAKES)
def test_a_table_of_a_lake_with_a_damaged_file_is_read_or_refused(tmp_path, kind):
    """In a process of its own: Lance's compiled part sometimes ends the one that opens a damaged table."""
    pytest.importorskip(LAKES[kind])
    first, wanted, answers, deaths = random.randrange(2**32) if MORE > 1 else 0, 40 * MORE, [], 0
    while len(answers) + deaths < wanted:
        place = first + len(answers) + deaths
        child = [sys.executable, __file__, kind, str(tmp_path), str(place), str(first + wanted)]
        run = subprocess.run(child, capture_output=True, text=True, check=False)
        answers += run.stdout.split()
        assert run.returncode <= 0, run.stderr[-2000:]
        deaths += run.returncode < 0
    assert set(answers) == {"read", "refused"}
    assert deaths <= (wanted / 20 if kind == "lance" else 0)


def read_damaged_tables(kind, folder, first, end):
    """What the child does: print how each table is answered; an error that is no sentence ends it."""
    library, whole, broken = importlib.import_module(LAKES[kind]), Path(folder, f"whole.{kind}"), Path(folder, f"t.{kind}")
    if not whole.exists() and kind == "delta":
        library.write_deltalake(str(whole), TABLE)
    elif not whole.exists():
        library.write_dataset(TABLE, str(whole))
    assert len(read(whole)[0]) > 200
    files = sorted(file.relative_to(whole) for file in whole.rglob("*") if file.is_file())
    for seed in range(int(first), int(end)):
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(whole, broken)
        victim = broken / random.Random(seed).choice(files)
        victim.write_bytes(damaged(victim.read_bytes(), seed))
        print("refused" if read(broken)[0] is None else "read", flush=True)


def test_a_model_folder_with_a_damaged_file_is_fingerprinted_or_refused(tmp_path, tiny_folder):
    whole, broken, answers = tiny_folder("bert"), tmp_path / "model", set()
    files = ["config.json", "tokenizer.json", "tokenizer.json", "tokenizer_config.json"]
    settled = config.resolve({"embedding": {"models": [str(broken)]}})

    @drawn(80)
    @given(st.integers(0, 2**63))
    def check(seed):
        shutil.rmtree(broken, ignore_errors=True)
        shutil.copytree(whole, broken)
        victim = broken / random.Random(seed).choice(files)
        victim.write_bytes(damaged(victim.read_bytes(), seed))
        try:
            assert len(runs.find_models(settled)[0].fingerprint) == 64
        except UsageError as error:
            answers.add("refused")
            sentence(error)
        else:
            answers.add("read")

    check()
    assert answers == {"read", "refused"}


# --- configurations ---------------------------------------------------------------------------------------------------

TELLING = st.sampled_from(
    [0, -1, 1, 2**63, 0.5, math.inf, -math.inf, math.nan, "", "{night}", "nights/{night}", "latest", "float32", "bfloat16",
     "chunk", "corpus", "moments", "texts.jsonl", "2026-11-22", "2026-13-45", "auto", "ray://head", "SciFact", "a\x00b",
     [0, 100], [1.0, 0.8], [{"log_length": 64}], {"by_length": {"0": 1.0, "64": 0.9}}, ["collapse_gap <= 0.1"], ["a", "b"],
     {"cosine_mean": 0.02}, True, None, [], {}]
)  # fmt: skip
KINDS = {
    "audit": config.AuditConfig, "pairs": PairsConfig, "diagnose": DiagnoseConfig, "evaluate": EvaluateConfig,
    "tune": TuneConfig,
}  # fmt: skip
NEEDED = {"pairs": {"pairs": {"source": "p.csv"}}, "evaluate": {"tasks": ["SciFact"]}, "tune": {"tasks": ["SciFact"]}}


def section(model):
    """Some keys of a section, and now and then one that is none, with values that may be meant for them."""
    keys = {}
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *typing.get_args(field.annotation))
        inner = next((kind for kind in kinds if hasattr(kind, "model_fields")), None)
        default = st.just("a" if field.is_required() else field.get_default(call_default_factory=True))
        keys[name] = TELLING | default | JSON if inner is None else section(inner) | section(inner) | TELLING
    chosen = st.lists(st.sampled_from(sorted(keys)), max_size=3, unique=True)
    known = chosen.flatmap(lambda names: st.fixed_dictionaries({name: keys[name] for name in names}))
    strange = st.dictionaries(st.text(max_size=6), JSON, min_size=1, max_size=1)
    return known | known | known | st.builds(lambda one, other: other | one, known, strange)


@pytest.mark.parametrize("command", KINDS)
def test_any_configuration_is_valid_or_one_sentence(command):
    answers = []

    @drawn(400)
    @given(section(KINDS[command]))
    def check(data):
        before = repr(data)
        try:
            found = checked(KINDS[command], NEEDED.get(command, {}) | data)
            found = found.tonight() if command == "audit" else found
        except UsageError as error:
            answers.append("refused")
            sentence(error)
            return
        finally:
            assert repr(data) == before
        answers.append("valid")
        assert all(0 < taus(t, tokens) <= 2 for t in found.temperatures() for tokens in (3, 512))
        told = json.loads(json.dumps(found.identity(), allow_nan=False))  # As begun.json keeps it.
        assert told == found.identity()

    check()
    assert min(answers.count("valid"), answers.count("refused")) > 20


def test_any_text_is_a_configuration_file_or_one_sentence(tmp_path):
    answers = set()
    plain = b'out = "x"\n[corpus]\nsample = 7\n[gate]\nthresholds = ["collapse_gap <= 0.1"]\n'
    deep = st.sampled_from([b"x = " + b"[" * 9000, b"x = " + b"{a=" * 9000, b"[" * 9000])

    @drawn(200)
    @given(st.binary(max_size=40) | deep | st.integers(0, 2**63).map(lambda seed: damaged(plain, seed)))
    def check(data):
        for name, reader in (
            ("run.toml", inputs.read_toml),
            ("t.json", inputs.read_temperature),
            ("t.toml", inputs.read_temperature),
        ):
            file = tmp_path / name
            file.write_bytes(data)
            try:
                found = reader(str(file))
                if name == "run.toml":
                    config.resolve(config.with_quick_start(found))
                else:
                    inputs.temperature_of(found)
            except UsageError as error:
                answers.add((name, "refused"))
                sentence(error)
            else:
                answers.add((name, "valid"))

    check()
    assert {("run.toml", "valid"), ("run.toml", "refused"), ("t.json", "refused"), ("t.toml", "refused")} <= answers


# --- schedules --------------------------------------------------------------------------------------------------------


def taus(temperature, tokens):
    """The smallest τ of a text of so many tokens, which must be a number in (0, 2] like all others."""
    for role in ("query", "document"):
        one = temperature.for_role(role)
        found = [one.of_length(tokens)] if one.by_text or one.tau is not None else np.ravel(one.layers).tolist()
        assert all(0 < tau <= 2 for tau in found)
    return min(found)


SCHEDULES = ["constant", "by_length", "log_length", "by_layer", "by_head", "by_role"]
ODD = [1.0, 0.8, 1, 2, 0, 2.5, "0.9", None, True, math.nan, math.inf, -0.0, 5e-324, 10**400]
TAUS = st.sampled_from(ODD) | st.floats(0.01, 2)
EDGES = st.sampled_from([0, 0, "0", "64", 64, 64.0, -1, " 7 ", "x", None, True, "٣", "²", 10**30]) | st.integers(0, 600)
LAYERS = st.lists(TAUS, max_size=3)
STEPS = st.dictionaries(EDGES, TAUS, max_size=4)
WHOLE_STEPS = st.dictionaries(st.integers(1, 600), st.floats(0.01, 2), max_size=3).map(lambda steps: {0: 1.0} | steps)
ROWS = st.lists(st.fixed_dictionaries({"from": EDGES, "tau": TAUS}, optional={"to": EDGES, "more": EDGES}), max_size=3)
FLAT = st.one_of(
    TAUS,
    (STEPS | WHOLE_STEPS | ROWS).map(lambda steps: {"by_length": steps}),
    (EDGES | JSON).map(lambda n: {"log_length": n}),
    LAYERS.map(lambda taus: {"by_layer": taus}),
    st.lists(LAYERS, max_size=3).map(lambda taus: {"by_head": taus}),
    TAUS.map(lambda tau: {"constant": tau}),
    JSON,
    st.dictionaries(st.sampled_from([*SCHEDULES, "x"]), JSON, max_size=2),
)
ROLES = st.dictionaries(st.sampled_from(["query", "document"]), FLAT, min_size=1).map(lambda roles: {"by_role": roles})
NESTED = ["by_layer(" + "[" * 9000 + ")", "by_role(query: 1, document: by_role(query: 1, document: 2))", "1e999", "1_0"]
TEXTS = st.one_of(
    st.text("by_lengthroad(),:[]{}0123456789. eNaifqu", max_size=24),
    st.builds("{}({})".format, st.sampled_from(SCHEDULES), st.text("0123456789.,: []()-", max_size=12)),
    st.sampled_from(NESTED),
)


def test_any_value_is_a_temperature_of_every_length_or_one_sentence():
    kinds, refused = set(), 0

    @drawn(1500)
    @given(FLAT | ROLES | TEXTS)
    def check(value):
        nonlocal refused
        try:
            found = Temperature.of(value)
        except ValueError as error:
            refused += 1
            sentence(error)
            return
        kinds.add(found.canonical.split("(")[0] if "(" in found.canonical else "constant")
        for tokens in (1, 2, 3, 63, 64, 512, 10**9):
            assert 0 < taus(found, tokens) <= 2
        assert Temperature.of(found.canonical) == found
        assert Temperature.of(json.loads(json.dumps(found.as_data()))) == found
        assert 0 < len(found.slug.encode()) <= 255
        assert not set(found.slug) & set("/\\ ")

    check()
    assert kinds == set(SCHEDULES)
    assert refused > 300


if __name__ == "__main__":
    read_damaged_tables(*sys.argv[1:])
