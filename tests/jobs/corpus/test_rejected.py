"""Sources most of whose rows are unusable end a run with 2 as soon as they are read; what decides the width of vectors."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from whole_run import as_lines, sharded

from tempscale_jobs.audit import words
from tempscale_jobs.audit.summary import rejected_share
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.correct import CorrectConfig
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.corpus.preview import preview
from tempscale_jobs.corpus.rows import check_rejected, mention_rejected
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.corpus.vectors import Vectors
from tempscale_jobs.errors import UsageError
from tempscale_jobs.pairs.chunks import chunk
from tempscale_jobs.runs.folder import PLANNED, SHARDED
from tempscale_jobs.runs.storage import Storage


def good(count):
    return [{"id": f"good {k}", "text": f"text {k}"} for k in range(count)]


def read(tmp_path, rows, **options):
    """The index of a corpus of texts; raises what its reading raises."""
    if not (tmp_path / "c.jsonl").exists():
        (tmp_path / "c.jsonl").write_text(as_lines(rows))
    config = resolve({"corpus": {"source": str(tmp_path / "c.jsonl")} | options, "out": str(tmp_path / "run")})
    return sharded(Storage(config.out), config)


# --- too many -----------------------------------------------------------------------------------------------------------

BAD = {
    "empty": lambda k: {"id": f"bad {k}", "text": " "}, "null": lambda k: {"id": f"bad {k}", "text": None},
    "repeated": lambda k: {"id": "good 0", "text": f"text {k}"}, "number": lambda k: {"id": f"bad {k}", "text": k},
    "id": lambda k: {"id": 1.5, "text": f"text {k}"},
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_a_corpus_most_of_whose_rows_are_rejected_is_refused_each_time(tmp_path, kind):
    rows = [*good(3), *map(BAD[kind], range(57))]
    told = []
    for _ in range(2):
        with pytest.raises(UsageError) as error:
            read(tmp_path, rows)
        told.append(str(error.value))
        assert error.value.exit_code == 2
        assert not (tmp_path / "run" / SHARDED).exists()
        assert not (tmp_path / "run" / PLANNED).exists()
        assert list((tmp_path / "run" / "rejected").rglob("*.parquet"))
    assert told[0] == told[1]
    for part in ("57 of 60", "57 × ", "--max-rejected", "0.5", str(tmp_path / "run" / "rejected")):
        assert part in told[0]


@pytest.mark.parametrize(
    ("bad", "options", "holds"),
    [
        (10, {}, True), (11, {}, False), (11, {"max_rejected": 0.6}, True), (19, {"max_rejected": 0.5}, False),
        (90, {"max_rejected": 1}, True), (1, {"max_rejected": 0}, False), (0, {"max_rejected": 0}, True),
        (1, {"max_rejected": 0.1}, True), (2, {"max_rejected": 0.1}, False),
        # Of a sample every row has been read; of a limit no more than the limit.
        (11, {"sample": 2}, False), (10, {"sample": 2}, True), (90, {"limit": 20}, True), (90, {"limit": 21}, False),
    ],
)  # fmt: skip
def test_exactly_the_share_may_be_rejected(tmp_path, bad, options, holds):
    rows = [*good(10), *map(BAD["empty"], range(bad))]
    if holds:
        assert read(tmp_path, rows, **options).read == min(len(rows), options.get("limit", 100))
        if bad:  # A run that goes on is held to the limit of today.
            with pytest.raises(UsageError, match=r" of \d+ .*--max-rejected"):
                read(tmp_path, rows, **options | {"max_rejected": 0.05})
    else:
        with pytest.raises(UsageError, match=r"--max-rejected"):
            read(tmp_path, rows, **options)


@pytest.mark.parametrize(("kind", "setting"), [("corpus", "--max-rejected"), ("queries", "[queries]")])
def test_the_three_most_frequent_reasons_are_named_in_order_and_the_setting(kind, setting):
    given = SimpleNamespace(kind=kind, source="x", max_rejected=0.5)
    with pytest.raises(UsageError) as error:
        check_rejected(given, (58, 60), {"a": 2, "b": 40, "c": 7, "d": 9}, "out")
    told = str(error.value)
    places = [told.index(part) for part in ("40 × b", "9 × d", "7 × c")]
    assert places == sorted(places)
    assert "2 × a" not in told
    assert setting in told
    assert kind == "corpus" or "--max-rejected" not in told


@pytest.mark.parametrize("kind", ["audit", "pairs", "correct"])
def test_the_limit_is_no_part_of_a_run_s_identity(kind):
    def identity(share):
        if kind == "audit":
            return resolve({"corpus": {"source": "x", "max_rejected": share}, "queries": {"source": "y"}}).identity()
        if kind == "pairs":
            return checked(PairsConfig, {"pairs": {"source": "x", "max_rejected": share}}).identity()
        given = {"embeddings": {"source": "x", "max_rejected": share}, "correction": "c"}
        return super(CorrectConfig, checked(CorrectConfig, given)).identity()

    assert identity(0.1) == identity(0.9)
    assert "max_rejected" not in json.dumps(identity(0.1))


@pytest.mark.parametrize(
    ("rows", "lost", "every"),
    [
        ([{"text_a": "a", "text_b": "b"}] * 4 + [{"text_a": None, "text_b": "b"}] * 5, 5, 9),
        ([{"text_a": "a", "text_b": "b"}, {"text_a": "a", "text_b": ["b", None, " ", "", "c"]}], 3, 6),
        ([{"text_a": ["a", "", ""], "text_b": ["b", "c"]}], 4, 6),
        ([{"text_a": "a", "text_b": []}] * 3 + [{"text_a": "a", "text_b": "b"}] * 2, 3, 5),
    ],
)
def test_pairs_are_counted_as_the_rows_name_them(tmp_path, rows, lost, every):
    (tmp_path / "p.jsonl").write_text(as_lines(rows))

    def chunked(share):
        data = {"out": str(tmp_path / "run"), "pairs": {"source": str(tmp_path / "p.jsonl"), "max_rejected": share}}
        config = checked(PairsConfig, data)
        return chunk(Storage(config.out), config.pairs, config.out)

    with pytest.raises(UsageError, match=f"{lost} of {every}"):
        chunked(lost / every - 0.01)
    index = chunked(lost / every + 0.01)
    assert (index.pairs, index.pairs_rejected) == (every - lost, lost)


# --- on the first screen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "mentioned"), [(0.0, False), (0.05, False), (0.0501, True), (0.4, True)])
def test_more_than_one_in_twenty_are_mentioned(share, mentioned):
    told = mention_rejected("rows of the corpus", share, {"the text is empty": 7})
    assert bool(told) == mentioned
    assert ("7 × the text is empty" in told) == mentioned


def test_rows_of_corpus_and_queries_and_texts_that_a_model_rejected_are_mentioned():
    import polars as pl

    tables = {"collapse_summary": pl.DataFrame({"rejected_share": [0.01, 0.3]})}
    run = {name: {"read": 100, "rejected": 1, "rejected_reasons": {"r": 1}} for name in ("corpus", "queries")}
    (told,) = words.left_out(tables, run)
    assert "30.0 %" in told
    run["queries"]["rejected"] = 20
    assert ["30.0 %" in one for one in words.left_out(tables, run)] == [True, False]
    older = {"collapse_summary": pl.DataFrame({"texts": [1]})}
    assert len(words.left_out(older, run)) == 1
    assert words.left_out(older, {}) == []


@pytest.mark.parametrize(
    ("read", "usable", "analysed", "texts", "share", "error"),
    [
        (100, 90, 90, 90, 0.1, 0.0), (100, 90, 90, 81, 0.19, 0.0), (100, 100, 100, 100, 0.0, 0.0),
        (1000, 800, 100, 75, 0.4, 0.8 * np.sqrt(0.25 * 0.75 / 100 * (1 - 100 / 800))),
    ],
)  # fmt: skip
def test_the_share_counts_what_reading_and_the_model_rejected(read, usable, analysed, texts, share, error):
    index = SimpleNamespace(read=read, usable=usable, analysed=analysed, rejected=read - usable)
    found = rejected_share(index, texts)
    assert found["rejected_share"] == pytest.approx(share)
    assert found["rejected_share_se"] == pytest.approx(error)
    assert found["rejected_share_se_superpopulation"] == pytest.approx(np.sqrt(share * (1 - share) / read))


# --- the width of vectors -----------------------------------------------------------------------------------------------


def vectors(tmp_path, widths, **options):
    """The contents and the stream of vectors of these widths."""
    rows = [
        {"id": str(k), "v": [1.0 + k, *[1.0] * (width - 1)] if width else None, "n": 5} for k, width in enumerate(widths)
    ]
    (tmp_path / "v.jsonl").write_text(as_lines(rows))
    given = {"source": str(tmp_path / "v.jsonl"), "embedding_column": "v", "length_column": "n"} | options
    config = resolve({"corpus": given, "out": str(tmp_path / "run")})
    return Vectors("texts/given", config.corpus, config.out), config


def kept(tmp_path, widths, **options):
    """The index, and the ids that are kept."""
    contents, config = vectors(tmp_path, widths, **options)
    storage = Storage(config.out)
    storage.remove("")
    index = SourceReader(storage, contents, 0, config.out).index
    ids = [i for name in storage.list("texts/given") for i in storage.read_table(name)["text_id"].to_pylist()]
    rejected = [r for name in storage.list("rejected") for r in storage.read_table(name)["text_id"].to_pylist()]
    assert sorted(ids + rejected, key=int) == [str(k) for k in range(len(widths))]
    return index, ids


@pytest.mark.parametrize(
    ("widths", "wanted"),
    [
        ([3, *[4] * 199], 4), ([4] * 199 + [3], 4), ([5, 3, *[4] * 9, 5, 5], 4), ([0, 0, 2, *[6] * 5], 6),
        ([3, 4, 4, 3], 3), ([4, 3, 4, 3], 4), ([3, 3, 4, 4, 4], 4),
    ],
)  # fmt: skip
def test_most_rows_decide_the_width_and_the_first_of_equally_frequent_ones(tmp_path, widths, wanted):
    index, ids = kept(tmp_path, widths, max_rejected=1)
    assert ids == [str(k) for k, width in enumerate(widths) if width == wanted]
    assert (index.read, index.analysed, index.rejected) == (len(widths), len(ids), len(widths) - len(ids))


def test_the_options_and_a_plan_are_held_to_the_width_of_most_rows(tmp_path):
    index, _ = kept(tmp_path, [2, *[8] * 20], dims=6)
    assert (index.analysed, len(index.rejected_reasons)) == (20, 1)
    contents, config = vectors(tmp_path, [3, *[4] * 19])
    assert preview(contents, 5, 0, config.out).usable == 19
    with pytest.raises(UsageError, match="--dims 6"):
        kept(tmp_path, [8, *[4] * 20], dims=6)
    with pytest.raises(UsageError, match="scale has 3"):
        kept(tmp_path, [8] * 3, scale=[1.0, 1.0, 1.0])
