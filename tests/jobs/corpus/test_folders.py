"""Which files of a folder or glob are a corpus: no hidden ones, none twice, none of a table that keeps replaced rows."""

import json
import os
from pathlib import Path

import fsspec
import pytest
from whole_run import sharded

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.corpus import sources
from tempscale_jobs.corpus.preview import preview
from tempscale_jobs.corpus.shards import TextShards
from tempscale_jobs.corpus.stream import SourceReader
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.storage import Storage


def settled(source, **options):
    return resolve({"corpus": {"source": str(source), **options}})


def texts(source, **options):
    """The texts of a source as they are read."""
    found = (row.text for row in sources.rows(settled(source, **options).corpus))
    return [text.decode() if isinstance(text, bytes) else text for text in found]


def left_out(source):
    return sources.left_out(settled(source).corpus, None)


def write(folder, *names):
    """Files of one text each, which is the file's name."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"text": name}) + "\n")
    return folder


DATA = ["a.jsonl", "b/c.jsonl", "lang=en/_year=2026/e.jsonl", "lang=en/d.jsonl"]
HIDDEN = [
    ".ipynb_checkpoints/a-checkpoint.jsonl", "_temporary/0/a.jsonl", "b/.cache/x/y.jsonl", "b/_a.jsonl", "._a.jsonl",
    "..2026_11/a.jsonl", "_delta/a.jsonl", "lost+found.jsonl/.x.jsonl",
]  # fmt: skip


@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("pattern", ["", "/**/*.jsonl", "/**"])
def test_hidden_names_are_no_part_of_a_folder_and_that_is_said(tmp_path, hidden, pattern):
    folder = write(tmp_path / "corpus", *DATA)
    assert texts(f"{folder}{pattern}") == DATA
    assert left_out(f"{folder}{pattern}") == ""
    write(folder, hidden)
    assert texts(f"{folder}{pattern}") == DATA
    if pattern != "/**/*.jsonl" or Path(hidden).name[0] in "._":
        assert ", 1 hidden" in left_out(f"{folder}{pattern}")
        assert next(part for part in hidden.split("/") if part[0] in "._") in left_out(f"{folder}{pattern}")


def test_what_is_left_out_is_in_the_note_and_in_the_plan(tmp_path):
    folder = write(tmp_path / "corpus", *DATA, "_x.jsonl", ".y/z.jsonl")
    settings = resolve({"corpus": {"source": str(folder)}, "out": str(tmp_path / "run")})
    contents = TextShards(settings.corpus, settings.embedding, settings.out)
    looked, stream = preview(contents, 9, 0, settings.out), SourceReader(Storage(settings.out), contents, 0, settings.out)
    assert stream.index.analysed == looked.usable == len(DATA)
    assert "2 hidden" in stream.described()
    assert "2 hidden" in looked.left_out


@pytest.mark.parametrize("name", [".hidden", "_private", "..data", "_delta"])
def test_what_is_named_is_read_even_where_it_is_hidden(tmp_path, name):
    folder = write(tmp_path / name, "a.jsonl", "_b.jsonl", ".c.jsonl", "b/d.jsonl")
    assert texts(folder) == texts(f"{folder}/") == texts(f"{folder}/**/*.jsonl") == ["a.jsonl", "b/d.jsonl"]
    assert texts(folder / "_b.jsonl") == ["_b.jsonl"]
    assert texts(f"{folder}/_*.jsonl") == ["_b.jsonl"]
    assert texts(f"{folder}/.[a-z].jsonl") == [".c.jsonl"]
    assert texts(f"{tmp_path}/{name[0]}*/a.jsonl") == ["a.jsonl"]
    with pytest.raises(UsageError, match="is not there"):
        texts(f"{tmp_path}/*/a.jsonl")


def test_a_folder_of_hidden_names_alone_is_refused_with_them(tmp_path):
    write(tmp_path / "corpus", "_a.jsonl", ".b/c.jsonl")
    with pytest.raises(UsageError, match=r"hidden ones \(2\)"):
        texts(tmp_path / "corpus")


def test_a_volume_of_kubernetes_is_read_once(tmp_path):
    folder = write(tmp_path / "volume", "..2026_11/a.jsonl", "..2026_11/sub/b.jsonl")
    os.symlink("..2026_11", folder / "..data")
    for name in ("a.jsonl", "sub"):
        os.symlink(f"..data/{name}", folder / name)
    expected = ["..2026_11/a.jsonl", "..2026_11/sub/b.jsonl"]
    for source in (folder, folder / "..data", folder / "..2026_11", f"{folder}/**/*.jsonl"):
        assert texts(source) == expected, source
    assert texts(folder / "..data" / "a.jsonl") == expected[:1]


def test_links_to_folders_are_followed_and_no_file_is_read_twice(tmp_path):
    write(tmp_path / "other", "x.jsonl", "deep/y.jsonl")
    folder = write(tmp_path / "corpus", "a.jsonl", "b/c.jsonl")
    os.symlink(tmp_path / "other", folder / "more")
    assert texts(folder) == texts(f"{folder}/**/*.jsonl") == ["a.jsonl", "b/c.jsonl", "deep/y.jsonl", "x.jsonl"]
    assert texts(f"{folder}/*/*.jsonl") == ["b/c.jsonl", "x.jsonl"]
    assert left_out(folder) == ""
    os.symlink(folder / "a.jsonl", folder / "0.jsonl")
    os.symlink(tmp_path / "other", folder / "again")
    os.symlink(tmp_path / "other" / "x.jsonl", folder / "z.jsonl")
    assert sorted(texts(folder)) == ["a.jsonl", "b/c.jsonl", "deep/y.jsonl", "x.jsonl"]
    assert texts(folder)[0] == "a.jsonl"
    files = [os.path.relpath(file, folder) for file in sources.expand(settled(folder).corpus, None)[1]]
    assert "a.jsonl" in files, "a file has its own name, not that of a link"
    assert ", 2 linked twice" in left_out(folder)


@pytest.mark.parametrize("links", [[("loop", ".")], [("b/up", "..")], [("one", "two"), ("two", "one"), ("b/x", "../b")]])
def test_loops_of_links_end(tmp_path, links):
    folder = write(tmp_path / "corpus", "a.jsonl", "b/c.jsonl")
    for name, to in links:
        os.symlink(to, folder / name)
    assert texts(folder) == texts(f"{folder}/**/*.jsonl") == ["a.jsonl", "b/c.jsonl"]


@pytest.mark.parametrize("to", ["nowhere/a.jsonl", "z.jsonl", "../../.git/annex/objects/x.jsonl"])
@pytest.mark.parametrize("pattern", ["", "/*.jsonl", "/**/*.jsonl"])
def test_a_link_to_nothing_is_refused_before_its_state_is_asked(tmp_path, to, pattern):
    folder = write(tmp_path / "corpus", "a.jsonl")
    os.symlink(to, folder / "z.jsonl")
    for look in (lambda source: sources.state(settled(source).corpus), texts):
        with pytest.raises(UsageError, match=r"z\.jsonl"):
            look(f"{folder}{pattern}")


@pytest.mark.parametrize(("link", "to", "pattern", "expected"), [
    ("part-1", "other", "part-*/*.jsonl", ["other/b.jsonl", "part-0/a.jsonl"]),
    ("latest", "other", "latest*/*.jsonl", ["other/b.jsonl"]),
    ("part-0/more", "../other", "part-*/**/*.jsonl", ["other/b.jsonl", "part-0/a.jsonl"]),
    ("part-0/up", "..", "part-*/**/b.jsonl", []),
    ("part-0/up", "..", "part-*/up/part-*/*.jsonl", []),
    ("z", "other", "[oz]*/*.jsonl", ["other/b.jsonl"]),
])  # fmt: skip
def test_a_glob_goes_through_a_link_to_a_folder_beside_it(tmp_path, link, to, pattern, expected):
    folder = write(tmp_path / "h", "part-0/a.jsonl", "other/b.jsonl")
    os.symlink(to, folder / link)
    if expected:
        assert sorted(texts(f"{folder}/{pattern}")) == expected
    else:  # From itself, nothing is entered.
        with pytest.raises(UsageError):
            texts(f"{folder}/{pattern}")


@pytest.mark.parametrize("pattern", ["", "/*/*.jsonl", "/**/*.jsonl", "/l*/*.jsonl"])
def test_what_a_volume_keeps_for_its_repair_is_hidden(tmp_path, pattern):
    folder = write(tmp_path / "volume", "lang/a.jsonl", "lost+found/#1/b.jsonl", "lost+found/c.jsonl")
    assert texts(f"{folder}{pattern}") == ["lang/a.jsonl"]
    assert texts(f"{folder}/lost+found/*.jsonl") == ["lost+found/c.jsonl"]


# Tables that keep replaced rows, and data sets that were saved.

TABLES = {
    "Delta": "_delta_log/00000000000000000000.json", "Hudi": ".hoodie/hoodie.properties",
    "Iceberg": "metadata/00001-ab.metadata.json", "Iceberg of Hadoop": "metadata/v1.metadata.json",
}  # fmt: skip


def table_of(kind, folder):
    """The files of a table of which a part was replaced, as its library leaves them."""
    write(folder, TABLES[kind], "metadata/snap-1.avro", "data/dt=1/old.jsonl", "data/dt=1/new.jsonl")
    return folder


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("place", ["", "memory:/"])
def test_a_table_and_a_part_of_one_are_refused_by_the_name_of_the_table(tmp_path, kind, place):
    lake = write(tmp_path / "lake", "a.jsonl")
    table = table_of(kind, lake / "orders")
    for file in [file for file in lake.rglob("*") if place and file.is_file()]:
        fsspec.filesystem("memory").pipe(str(file), file.read_bytes())
    inside = ["data", "data/dt=1", "data/dt=1/*.jsonl", "data/*/*.jsonl", "d*/*/*.jsonl", "data/**"]
    inside += [""] if kind != "Delta" else []  # A Delta table is read by its log.
    above = [str(lake), f"{lake}/**/*.jsonl", f"{lake}/*/data/*/*.jsonl"]
    for source in [*above, *(f"{table}/{part}" for part in inside)]:
        with pytest.raises(UsageError, match=f"/orders' is .*{kind.split()[0]}") as caught:
            texts(f"{place}{source}")
        assert caught.value.exit_code == 2
    assert texts(f"{place}{table}/data/dt=1/new.jsonl") == ["data/dt=1/new.jsonl"]


@pytest.mark.parametrize("mark", ["metadata/croissant.metadata.json", "metadata/x.jsonl", "data/_delta_log"])
def test_what_only_looks_like_a_table_is_read(tmp_path, mark):
    folder = write(tmp_path / "corpus", "data/a.jsonl", "data/b/c.jsonl", mark)
    assert texts(folder / "data") == texts(f"{folder}/data/**/*.jsonl") == ["data/a.jsonl", "data/b/c.jsonl"]
    assert texts(f"{folder}/d*/*.jsonl") == ["data/a.jsonl"]


@pytest.mark.parametrize("kind", TABLES)
def test_a_table_none_of_whose_files_is_chosen_is_no_matter(tmp_path, kind):
    folder = write(tmp_path / "lake", "texts/a.jsonl")
    table_of(kind, folder / "orders")
    assert texts(f"{folder}/*/*.jsonl") == texts(f"{folder}/t*/*") == texts(f"{folder}/**/a.jsonl") == ["texts/a.jsonl"]


def saved(folder, state):
    """The files that `save_to_disk` writes beside the data; a state that is a list names the files of the data."""
    write(folder, "dataset_info.json", "a.jsonl")
    named = {"_data_files": [{"filename": name} for name in state]} if isinstance(state, list) else state
    (folder / "state.json").write_text(named if isinstance(state, str) else json.dumps(named))
    return folder


@pytest.mark.parametrize("state", [
    *(["a.jsonl", name] for name in ("../diary.txt", "/etc/hostname", "sub/b.jsonl", "gone.jsonl", "", "..", "./a.jsonl")),
    "", "{", "[]", "{}", '{"_data_files": null}', '{"_data_files": ["a.jsonl"]}', '{"_data_files": [{"filename": 1}]}',
    {"_data_files": [{"filename": "a.jsonl"}], "_indices_data_files": [{"filename": "indices.arrow"}]},
])  # fmt: skip
def test_a_saved_data_set_names_files_of_its_folder_alone_in_their_own_order(tmp_path, state):
    (tmp_path / "diary.txt").write_text("private\n")
    write(tmp_path / "saved", "sub/b.jsonl")
    with pytest.raises(UsageError, match=r"saved/state\.json'") as caught:
        texts(saved(tmp_path / "saved", state))
    assert caught.value.exit_code == 2
    assert texts(saved(tmp_path / "saved", ["a.jsonl"])) == ["a.jsonl"]


@pytest.mark.parametrize(("folder", "to", "read"), [
    ("saved", "../diary.txt", False), ("saved", "a.jsonl", True),
    ("hub/snapshots/1/train", "../../../blobs/x", True), ("hub/snapshots/1", "../../blobs/x", True),
    ("hub/snapshots/1", "../../../diary.txt", False),
])  # fmt: skip
def test_a_link_of_a_saved_data_set_leads_to_no_other_folder(tmp_path, folder, to, read):
    (tmp_path / "diary.txt").write_text("private\n")
    write(tmp_path / "hub" / "blobs", "x")
    own = saved(tmp_path / folder, ["b.jsonl"])
    os.symlink(to, own / "b.jsonl")
    if read:
        assert len(texts(own)) == 1
    else:
        with pytest.raises(UsageError, match=r"state\.json"):
            texts(own)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_data_set_that_was_saved_is_read_in_its_order(tmp_path, shards):
    datasets = pytest.importorskip("datasets")
    rows = [{"id": f"t{k:02}", "text": f"text {k}"} for k in range(24)]
    data = datasets.Dataset.from_list(rows)
    data.save_to_disk(tmp_path / "saved", num_shards=shards)
    (tmp_path / "saved" / "cache-1.arrow").write_bytes(b"of a map")
    assert texts(tmp_path / "saved") == [row["text"] for row in rows]
    data.select(range(23, -1, -2)).save_to_disk(tmp_path / "some")
    assert texts(tmp_path / "some") == [row["text"] for row in rows[::-2]]
    assert sharded(Storage(str(tmp_path / "run")), settled(tmp_path / "saved")).analysed == 24


def test_a_data_set_of_several_splits_is_refused_with_their_names(tmp_path):
    datasets = pytest.importorskip("datasets")
    one = datasets.Dataset.from_list([{"text": "x"}])
    datasets.DatasetDict({"train": one, "held-out": one}).save_to_disk(tmp_path / "saved")
    with pytest.raises(UsageError, match="train, held-out"):
        texts(tmp_path / "saved")
    assert texts(tmp_path / "saved" / "held-out") == ["x"]


# Brackets in names.


@pytest.mark.parametrize("name", ["data[1]", "a?b", "every*thing", "[x]", "run [2026-11-27]", "x]y["])
def test_a_name_that_is_there_is_no_pattern(tmp_path, name):
    folder = write(tmp_path / name, "a.jsonl", "b[2].jsonl", "sub[3]/c.jsonl")
    write(tmp_path / "data1", "wrong.jsonl")
    assert texts(folder) == ["a.jsonl", "b[2].jsonl", "sub[3]/c.jsonl"]
    assert texts(folder / "b[2].jsonl") == ["b[2].jsonl"]
    assert texts(f"{folder}/*.jsonl") == ["a.jsonl", "b[2].jsonl"]
    assert texts(f"{folder}/sub[3]/*.jsonl") == texts(f"{folder}/**/c.jsonl") == ["sub[3]/c.jsonl"]
    assert texts(f"{tmp_path}/data[0-9]/*.jsonl") == ["wrong.jsonl"]  # There is no such name.


def test_a_remote_folder_has_the_same_files(tmp_path):
    memory = fsspec.filesystem("memory")
    names = ["a.jsonl", "b[2].jsonl", "sub/c.jsonl", "sub/_d.jsonl", ".e/f.jsonl", "_SUCCESS", "lang=en/g.jsonl"]
    for name in names:
        memory.pipe(f"/folders[1]/{name}", json.dumps({"text": name}).encode() + b"\n")
    source = "memory://folders[1]"
    assert texts(source) == texts(f"{source}/**/*.jsonl") == ["a.jsonl", "b[2].jsonl", "lang=en/g.jsonl", "sub/c.jsonl"]
    assert texts(f"{source}/*.jsonl") == ["a.jsonl", "b[2].jsonl"]
    assert texts(f"{source}/b[2].jsonl") == ["b[2].jsonl"]
    assert texts(f"{source}/.e") == [".e/f.jsonl"]
    assert ", 2 hidden" in left_out(source)
