"""The record of nights: parts that do not disturb one another, which night is the baseline, acceptance, pruning, drawing."""

import re
import threading
from dataclasses import replace

import polars as pl
import pyarrow as pa
import pytest
from command_line import in_process
from nights_by_hand import finished_audit, recorded
from nights_by_hand import night_row as row
from whole_run import flipped

from tempscale import Temperature
from tempscale_jobs.cli import records
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.nights import Gate, RecordOfNights
from tempscale_jobs.errors import Damaged, UsageError
from tempscale_jobs.nights import charts
from tempscale_jobs.nights import record as history
from tempscale_jobs.nights.night import (
    PRUNED,
    Night,
    changed_texts,
    check_windows,
    count_changed_texts,
    judge,
    notes_in_brief,
    prune_record,
    pruned,
)
from tempscale_jobs.runs import sealed
from tempscale_jobs.runs.folder import GIVEN, Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.audit import COLLAPSE_SUMMARY
from tempscale_jobs.tables.nights import HISTORY


def baseline(storage, tonight):
    (found,) = history.latest(history.load(storage), [tonight])
    return found


def test_each_run_is_a_part_of_its_own_and_of_those_that_replaced_one_another_the_last_counts(tmp_path):
    storage = recorded(tmp_path, row("2026-11-02", "failed"), row("2026-11-01"))
    assert storage.names() == ["part-20261101T021500-run01.parquet", "part-20261102T021500-run02.parquet"]
    found = pl.read_parquet(tmp_path / "history" / "*.parquet")
    assert found.columns == [c.name for c in HISTORY.columns]
    history.add(storage, [row("2026-11-02", run="again", started="2026-11-02T09:00:00+00:00")])
    assert history.load(storage).select("night", "run").rows() == [("2026-11-01", "run01"), ("2026-11-02", "again")]


def test_writing_a_run_again_changes_nothing_and_many_write_at_once(tmp_path):
    storage = recorded(tmp_path, row("2026-11-01"))
    before = storage.read(storage.names()[0])
    history.add(storage, [row("2026-11-01")])
    history.add(storage, [])  # A run without figures leaves no part.
    assert [storage.read(name) for name in storage.names()] == [before]
    every = [row(f"2026-10-{day:02d}") for day in range(1, 29)]
    threads = [threading.Thread(target=history.add, args=(storage, [one])) for one in every]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert history.load(storage)["night"].to_list() == [*(one["night"] for one in every), "2026-11-01"]


def test_latest_is_the_last_night_that_passed(tmp_path):
    storage = recorded(tmp_path, row("2026-11-01"), row("2026-11-02"), row("2026-11-03", "failed"))
    found = baseline(storage, row("2026-11-04"))
    assert found.row["night"] == "2026-11-02"
    assert found.label == "the night of 2026-11-02 (run run02)"
    # Neither a later night nor the run itself.
    assert baseline(storage, row("2026-11-02")).row["night"] == "2026-11-01"
    for gate, why in (("none", "2026-11-01"), ("failed", "failed")):
        found = baseline(recorded(tmp_path / gate, row("2026-11-01", gate)), row("2026-11-02"))
        assert found.row is None
        assert why in found.label


def test_in_one_undated_folder_each_night_is_kept_and_a_run_is_never_held_to_what_it_replaced(tmp_path):
    monday, tuesday = (row(f"2026-11-0{day}", gate, folder=".") for day, gate in ((2, "passed"), (3, "failed")))
    storage = recorded(tmp_path, monday, tuesday)
    assert history.load(storage)["run"].to_list() == ["run02", "run03"]
    assert baseline(storage, tuesday).row["night"] == "2026-11-02"  # Asked again, it is judged as before.
    assert baseline(storage, row("2026-11-04", folder=".")).row["night"] == "2026-11-02"
    again = row("2026-11-02", run="again", folder=".", started="2026-11-02T09:00:00+00:00")
    assert baseline(storage, again).row is None


@pytest.mark.parametrize("which", ["2026-11-02", "run02", "nights/2026-11-02/", "/srv/nights/2026-11-02"])
def test_a_failed_run_is_the_baseline_once_accepted_by_its_night_id_or_folder(tmp_path, which):
    storage = recorded(tmp_path, row("2026-11-01"), row("2026-11-02", "failed"))
    assert baseline(storage, row("2026-11-03")).row["night"] == "2026-11-01"
    assert history.accept(storage, which)["night"] == "2026-11-02"
    assert baseline(storage, row("2026-11-03")).row["night"] == "2026-11-02"


def test_accepting_what_is_not_there_or_is_several_is_an_error(tmp_path):
    storage = recorded(tmp_path, row("2026-11-01", name="a"), row("2026-11-01", name="b", run="other", folder="b/1"))
    for which, named in (("2026-12-24", "2026-12-24.*2026-11-01"), ("2026-11-01", "2 runs.*other, run01")):
        with pytest.raises(UsageError, match=named):
            history.accept(storage, which)
    assert not (tmp_path / "history" / "accepted").exists()
    with pytest.raises(UsageError):
        history.open_record(str(tmp_path / "elsewhere"))


@pytest.mark.parametrize(("model", "other"), [("aaaa", False), ("bbbb", True)])
def test_a_model_switch_with_a_new_temperature_is_one_and_a_new_temperature_alone_begins_a_series(tmp_path, model, other):
    storage = recorded(tmp_path, row("2026-11-01", temperature="1.0"))
    found = baseline(storage, row("2026-11-02", model=model, temperature="0.8"))
    assert (found.row, found.first, found.other) == (None, not other, other)
    with_the_old = [row("2026-11-02", model="bbbb", temperature="0.8"), row("2026-11-02", temperature="1.0")]
    added = history.latest(history.load(storage), with_the_old)
    assert (added[0].first, added[1].row["night"]) == (True, "2026-11-01")
    assert baseline(storage, row("2026-11-02", model="bbbb", temperature="0.8", name="law")).first


@pytest.mark.parametrize(
    ("last_night", "tonight", "named"),
    [("a", "a", ""), ("ab", "b", "a"), ("b", "a", "b"), ("ab", "ab", ""), ("a", "ab", ""), ("abc", "b", "ac")],
)
def test_models_of_the_night_before_that_a_night_does_not_measure_are_named(tmp_path, last_night, tonight, named):
    storage = recorded(tmp_path, row("2026-11-01", model="a"))
    history.add(storage, [row("2026-11-02", model=model) for model in last_night])
    found = history.gone(history.load(storage), [row("2026-11-03", model=model) for model in tonight])
    assert len(found) == len(named)
    assert all(f"model-{model}" in sentence for model, sentence in zip(named, found, strict=True))


@pytest.mark.words
def test_a_night_that_was_compared_with_none_is_no_baseline_unless_accepted_and_the_first_one_is(tmp_path):
    switched = '{"max_length": 256}'
    assert baseline(recorded(tmp_path), row("2026-11-01")).first
    storage = recorded(tmp_path, row("2026-11-01"), row("2026-11-02", measured=switched, compared=False))
    found = baseline(storage, row("2026-11-03", measured=switched))
    assert (found.row, found.first, found.other) == (None, False, True)
    assert found.label == "it is measured otherwise than on 2026-11-01: max_length was 512 and is 256"
    history.accept(storage, "2026-11-02")
    assert baseline(storage, row("2026-11-03", measured=switched)).row["night"] == "2026-11-02"


@pytest.mark.words
def test_a_setting_that_older_nights_did_not_write_has_its_old_value(tmp_path):
    old = pa.table({name: [value] for name, value in row("2026-11-01").items() if name != "compared"})
    storage = Storage(str(tmp_path / "history"))
    storage.write_table("part-20261101T021500-run01.parquet", old)  # A record of last month.
    assert baseline(storage, row("2026-11-02", measured='{"max_length": 512, "prompts": {}}')).row["night"] == "2026-11-01"
    found = baseline(storage, row("2026-11-02", measured='{"max_length": 512, "prompts": {"query": "?"}}'))
    assert found.label == "it is measured otherwise than on 2026-11-01: prompts was {} and is {'query': '?'}"


GROUPED = '{"max_length": 512, "socm": "groups"}'


def socm(mean, error, **more):
    return {"socm_mean": mean, "socm_se": error, "socm_se_superpopulation": error, "socm_texts": 400} | more


def test_nights_of_groups_and_of_a_sample_are_compared_only_where_they_agree(tmp_path):
    """A record of last month does not say how: over all pairs of a sample. The error is t(31)·√(.01² + .006²)."""
    storage = recorded(tmp_path, row("2026-11-01", **socm(0.60, 0.01)))
    reach = 2.0395 * (0.01**2 + 0.006**2) ** 0.5
    for moved, agrees in ((0.99 * reach, True), (1.01 * reach, False), (-0.99 * reach, True), (-1.01 * reach, False)):
        tonight = row("2026-11-02", measured=GROUPED, **socm(0.60 + moved, 0.006, socm_freedom=31.0))
        found = baseline(storage, tonight)
        assert (found.row is not None) == agrees
        # Which of both ways is which is told in either case.
        assert ("groups" in found.label, "sample" in found.label) == (True, True)
    unknown = baseline(storage, row("2026-11-02", measured=GROUPED, **socm(0.60, None, socm_freedom=5.0)))
    assert unknown.row is None  # Without an error nothing says that they agree.
    without = baseline(storage, row("2026-11-02", measured=GROUPED, **socm(None, None, socm_freedom=None)))
    assert without.row is not None  # A night without SOCM: its other figures are measured as before.
    assert "groups" not in without.label
    other = '{"max_length": 256, "socm": "groups"}'  # Another setting beside the way.
    assert baseline(storage, row("2026-11-02", measured=other, **socm(0.60, 0.01, socm_freedom=31.0))).row is None


def test_another_window_than_last_night_is_refused_unless_one_is_asked_for(tmp_path):
    model = Model("tiny", "tiny", "aaaa", 256)
    for day in ("2026-11-01", "2026-11-02"):
        storage = recorded(tmp_path, row(day, temperature="1.0"))
    run = Run(Storage(str(tmp_path / "2026-11-03")), [model], [Temperature(1.0)], "2026-11-03")
    tonight = Night(run, Gate(), RecordOfNights(history=storage.root), "")
    for asked in (256, 512, "limit"):
        check_windows(tonight, asked)
    with pytest.raises(UsageError) as error:
        check_windows(tonight, None)
    for named in ("2026-11-02", "tiny", "--max-length 512", "--max-length 256"):
        assert named in str(error.value)
    check_windows(replace(tonight, run=replace(run, models=[replace(model, fingerprint="bbbb")])), None)
    check_windows(replace(tonight, record=RecordOfNights(history=storage.root, name="others")), None)


def night_folder(tmp_path, night, run):
    storage = Storage(str(tmp_path / night))
    storage.write_json("run.json", {"run": run})
    embeddings = ("texts/model=m/part.parquet", "factors/f.parquet", "neighbours/n.parquet")
    for name in (*embeddings, "tables/t.parquet", "report.html"):
        storage.write(name, b"x")
    return storage


def test_pruning_keeps_tables_reports_and_the_last_nights(tmp_path):
    every = [f"2026-11-{day:02d}" for day in range(1, 6)]
    folders = {night: night_folder(tmp_path, night, f"run{night[-2:]}") for night in every}
    record = recorded(tmp_path, *map(row, every))
    assert prune_record(record, None, 2) == every[:3]
    for night, folder in folders.items():
        assert folder.exists("texts") == folder.exists("factors") == folder.exists("neighbours") == (night in every[3:])
        assert folder.exists("tables/t.parquet")
        assert folder.exists("report.html")
    assert prune_record(record, None, 2) == []


def test_nights_are_kept_not_folders_the_running_one_is_spared_and_names_are_pruned_apart(tmp_path):
    every = [(f"2026-11-0{day}", name) for day in (1, 2, 3) for name in ("law", "news")]
    folders = {f"{name}-{night}": night_folder(tmp_path, f"{name}-{night}", f"{name}{night}") for night, name in every}
    rows = [row(night, name=name, run=f"{name}{night}", folder=f"{name}-{night}") for night, name in every]
    record = recorded(tmp_path, *rows)
    assert prune_record(record, None, 2, "news-2026-11-01") == ["law-2026-11-01"]
    assert prune_record(record, "news", 1) == ["news-2026-11-01", "news-2026-11-02"]
    kept = ["law-2026-11-02", "law-2026-11-03", "news-2026-11-03"]
    assert sorted(name for name, folder in folders.items() if folder.exists("texts")) == kept


@pytest.mark.parametrize(
    "named",
    ["../victim", "./../victim", "2026-11-02/../../victim", "link", "link/deeper", "", "..", "a//b", "{root}/victim",
     "file://{root}/victim", "~/victim", "of another run"],
)  # fmt: skip
def test_pruning_touches_no_other_run_and_follows_no_row_and_no_link_out_of_the_nights(tmp_path, named):
    inside = tmp_path / "nights"
    victims = [night_folder(tmp_path, name, "run01") for name in ("victim", "victim/deeper", ".")]
    victims.append(night_folder(inside, "of another run", "somebody else's"))
    record = recorded(
        inside, row("2026-11-01", folder=named.format(root=tmp_path), run="run01"), row("2026-11-02"), row("2026-11-03")
    )
    (inside / "link").symlink_to(tmp_path / "victim")
    night_folder(inside, "2026-11-02", "run02")
    assert prune_record(record, None, 1) == ["2026-11-02"]
    assert all(victim.exists("texts") and not victim.exists(PRUNED) for victim in victims)


def test_a_night_in_a_deeper_folder_and_behind_a_link_among_the_nights_is_pruned(tmp_path):
    deep = night_folder(tmp_path, "2026/11-01", "run01")
    record = recorded(tmp_path, row("2026-11-01", folder="2026/11-01"), row("2026-11-02", folder="link"), row("2026-11-03"))
    other = night_folder(tmp_path, "2026/11-02", "run02")
    (tmp_path / "link").symlink_to("2026/11-02")
    assert sorted(prune_record(record, None, 1)) == ["2026/11-01", "link"]
    assert not deep.exists("texts")
    assert not other.exists("texts")


def tonight(tmp_path, night="2026-11-03"):
    """A run of a night beside the record."""
    out = str(tmp_path / night)
    settings = {"out": out, "night": night, "corpus": {"source": "x"}, "record": {"history": str(tmp_path / "history")}}
    return Night.of(Run(Storage(out), [GIVEN], [], night), resolve(settings))


def test_what_pruning_came_to_is_told_and_its_failure_costs_no_night(tmp_path, monkeypatch):
    every = [f"2026-11-{day:02d}" for day in range(1, 4)]
    folders = [night_folder(tmp_path, night, f"run{night[-2:]}") for night in every]
    recorded(tmp_path, *map(row, every))
    for removed in ("1", "0"):
        assert re.findall(r"\d+", pruned(tonight(tmp_path), 2)) == [removed]
        assert [folder.exists("texts") for folder in folders] == [False, True, True]
    assert folders[0].read_json(PRUNED)["removed"] == ["texts", "factors", "neighbours", "queries", "verify"]

    def refused(self, name):
        raise PermissionError(13, f"Permission denied\nby {self.root}")

    monkeypatch.setattr(Storage, "remove", refused)
    told = pruned(tonight(tmp_path), 1)
    assert "Permission denied" in told
    assert "\n" not in told
    assert [folder.exists("texts") for folder in folders] == [False, True, True]


def texts_of(folder, contents, model="m"):
    """Leave the texts of a run: digests of their contents by id, in parts of two."""
    ids = list(contents)
    for part, first in enumerate(range(0, len(ids), 2)):
        some = ids[first : first + 2]
        table = pa.table({"text_id": some, "content_sha": [contents[text_id] for text_id in some]})
        folder.write_table(f"texts/model={model}/temperature=1.0/part-{part}.parquet", table)


def test_texts_are_compared_with_those_of_the_night_before_unless_they_are_gone(tmp_path):
    recorded(tmp_path, row("2026-11-01"), row("2026-11-02"))
    now, before = tonight(tmp_path), Storage(str(tmp_path / "2026-11-02"))
    this = {"run": "run03", "night": "2026-11-03"}
    before.write_json("run.json", {"run": "run02"})
    unknown = dict.fromkeys(("texts_added", "texts_removed", "texts_edited"))
    texts_of(now.run.storage, {"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"})
    assert count_changed_texts(now, this) == unknown  # The night before was pruned.
    texts_of(before, {"b": "2", "c": "0", "x": "9"})
    texts_of(before, {"b": "2"}, "n")  # Another model's, of the same texts but for those it rejected.
    assert changed_texts(now, this) == {"texts_added": 3, "texts_removed": 1, "texts_edited": 1}
    before.write_json("run.json", {"run": "another"})  # It took the folder.
    assert count_changed_texts(now, this) == unknown
    before.write_json("run.json", {"run": "run02"})
    now.run.storage.remove("texts")
    assert count_changed_texts(now, this) == unknown
    texts_of(now.run.storage, {"a": "1"})
    before.write("run.json", b"{")
    with pytest.raises(Damaged, match=r"run\.json' is damaged"):
        count_changed_texts(now, this)
    assert changed_texts(now, this) == unknown  # Damaged, it costs no more than this.


def measured_by(max_length, **analysis):
    given = {"corpus": {"max_characters": 100}, "embedding": {"long": "truncate", "precision": "float32"}}
    return given | {"analysis": {"intervals": [0, 32], "neighbours": 3} | analysis}, {"max_length": max_length}


def test_a_finished_audit_is_the_baseline_of_what_is_measured_alike(tmp_path):
    settings, window = measured_by(512)
    models = {"model-aaaa": {"fingerprint": "aaaa"} | window}
    measured = {column.name: row("2026-11-01")[column.name] for column in COLLAPSE_SUMMARY.columns}
    storage = Storage(finished_audit(tmp_path / "audit", measured, run="run01", config=settings, models=models))
    table = storage.read_table("tables/collapse_summary.parquet")
    storage.write_table("tables/collapse_summary.parquet", table.drop_columns(["prefix_gap"]))
    alike, longer = (history.measured(*measured_by(length)) for length in (512, 256))
    other = history.measured(*measured_by(512, neighbours=10))
    nights_rows = [
        row("2026-11-02", measured=alike), row("2026-11-02", measured=longer), row("2026-11-02", measured=other),
        row("2026-11-02", model="bbbb", measured=alike), row("2026-11-02", measured=alike) | {"temperature": "0.8"},
    ]  # fmt: skip
    same, *others = history.of_run(storage.root, nights_rows)
    assert storage.root in same.label
    assert same.row["cosine_mean"] == row("2026-11-01")["cosine_mean"]
    assert same.row["prefix_gap"] is None  # The version that made it did not have it.
    assert [found.row for found in others] == [None] * 4
    reasons = ("max_length was 512 and is 256", "neighbours was 3 and is 10", "model", "temperature")
    assert all(reason in found.label for reason, found in zip(reasons, others, strict=True))
    # A model that is added to the baseline's replaces none.
    same, added, changed = nights_rows[0], nights_rows[3], nights_rows[1]
    for tonight, expected in (([same], [False]), ([added], [True]), ([changed], [True]), ([same, added], [False, False])):
        found = history.of_run(storage.root, tonight)
        assert [one.other for one in found] == expected
        assert not any(one.first for one in found)


def test_a_run_of_another_command_is_no_baseline(tmp_path):
    storage = Storage(str(tmp_path / "folder"))
    for record, told in (({"command": "pairs", "run": "1"}, "pairs"), ({}, "another command")):
        storage.write_json("run.json", record)
        with pytest.raises(UsageError, match=f"folder.*{told}"):
            history.of_run(storage.root, [])
        with pytest.raises(UsageError):
            history.check_baseline(storage.root)


def test_the_record_is_printed_and_drawn(tmp_path, capsys):
    every = [
        row("2026-11-01"), row("2026-11-02", "failed", gate_reason="<b>cosine</b> rose"), row("2026-11-03", model="b2"),
    ]  # fmt: skip
    recorded(tmp_path, *every)
    records.history(str(tmp_path))
    printed = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip().startswith("2026")]
    assert [words[0] for words in printed] == [one["night"] for one in every]
    assert ["failed" in words for words in printed] == [False, True, False]
    assert "model-b2" in (tmp_path / "history" / "history.html").read_text()


def test_two_models_a_night_are_no_switch(tmp_path):
    both = [row(night, model=model, run=f"{night}{model}") for night in ("2026-11-01", "2026-11-02") for model in ("a", "b")]
    assert charts.switches(history.load(recorded(tmp_path, *both))) == []


@pytest.mark.parametrize("options", [["--last"], ["--prune", "--keep"]])
def test_a_number_of_nights_that_no_table_can_have_ends_with_2(tmp_path, options):
    recorded(tmp_path, row("2026-11-01"))
    for number in (10**9, 10**30):
        assert in_process("history", str(tmp_path), *options, str(number))[0] == 2


# --- damage -----------------------------------------------------------------------------------------------------------


def damages(data):
    """What disks and people leave in place of a part."""
    return {
        "flipped": flipped(data, 8 * (len(data) // 3)), "footer": flipped(data, 8 * (len(data) - 60)),
        "cut": data[: len(data) // 2], "empty": b"", "a note": b"do not remove",
        "another table": sealed.parquet(pa.table({"night": ["2026-11-02"]})),
        "some columns": sealed.parquet(pa.table({"night": ["2026-11-02"], "measured": ["{}"]})),
    }  # fmt: skip


@pytest.mark.parametrize("how", damages(bytes(100)))
@pytest.mark.parametrize("day", [1, 2, 3])
def test_a_damaged_part_takes_only_its_own_night_with_it(tmp_path, day, how):
    nights = [f"2026-11-{k:02d}" for k in range(1, 4)]
    storage = recorded(tmp_path, *map(row, nights))
    name = history.part([row(nights[day - 1])])
    whole = storage.read(name)
    storage.write(name, damages(whole)[how])
    found = history.read(storage)
    assert found.damaged == [name]
    assert found.rows["night"].to_list() == [night for night in nights if night != nights[day - 1]]
    assert name in history.damage_in_words(found.damaged, storage)[0]
    assert baseline(storage, row("2026-11-04")).row["night"] == ("2026-11-02" if day == 3 else "2026-11-03")
    assert history.accept(storage, nights[day % 3])["night"] == nights[day % 3]
    assert storage.read(name) == damages(whole)[how]  # It may be all that is left of that night.
    history.add(storage, [row(nights[day - 1])])
    assert history.read(storage).damaged == []
    assert storage.read(name) == whole
    assert history.damage_in_words([], storage) == []


@pytest.mark.parametrize(
    ("column", "value"),
    [("night", pa.array([["x"]])), ("name", pa.array([{"a": 1}])), ("measured", pa.array(["{"])),
     ("measured", pa.array(["[]"])),
     ("measured", pa.array([None], pa.string())), ("cosine_mean", pa.array(["x"])), ("cosine_mean", pa.array([[1.0]])),
     ("night", pa.array([None], pa.string())), ("name", pa.array([b"\xff"])), ("run", pa.array([None], pa.string()))],
)  # fmt: skip
def test_a_foreign_part_takes_no_other_night_with_it(tmp_path, column, value):
    storage = recorded(tmp_path, row("2026-11-01"))
    part = HISTORY.build_rows([row("2026-11-02")])
    part = part.set_column(part.schema.get_field_index(column), column, value)
    storage.write_table("part-20261102T000000-foreign.parquet", part)
    assert history.read(storage).damaged == ["part-20261102T000000-foreign.parquet"]
    assert baseline(storage, row("2026-11-03")).row["night"] == "2026-11-01"


def test_a_night_names_damaged_nights_and_is_judged_as_without_them(tmp_path):
    storage = recorded(tmp_path, row("2026-11-01"), row("2026-11-02"))
    this = row("2026-11-03")
    record = {
        "run": "run03", "night": "2026-11-03", "started": this["started"], "finished": this["finished"], "tempscale": "0",
        "corpus": {"source": "x", "fingerprint": "c"}, "models": {this["model"]: {"fingerprint": "aaaa", "max_length": 9}},
        "config": {"corpus": {}, "embedding": {}, "analysis": {}},
    }  # fmt: skip
    night = replace(tonight(tmp_path), gate=Gate.model_validate({"thresholds": ["cosine_mean <= 1"], "baseline": "latest"}))
    whole = judge(night, record, [this])
    storage.write(history.part([row("2026-11-02")]), b"")
    storage.write(f"part-20261103T021500-{record['run']}.parquet", b"")  # Its own, which it writes again.
    found = judge(night, record, [this])
    assert len(found["unreadable_nights"]) == 1
    assert "part-20261102T021500" in found["unreadable_nights"][0]
    assert "run03" not in found["unreadable_nights"][0]
    assert whole["unreadable_nights"] == []
    assert found["verdict"] == whole["verdict"] == "passed"


def test_texts_are_not_compared_with_the_night_before_the_damaged_one(tmp_path):
    storage = recorded(tmp_path, row("2026-11-01"), row("2026-11-02"))
    now, this = tonight(tmp_path), {"run": "run03", "night": "2026-11-03"}
    for night, run in (("2026-11-01", "run01"), ("2026-11-02", "run02")):
        before = Storage(str(tmp_path / night))
        before.write_json("run.json", {"run": run})
        texts_of(before, {"a": "1"})
    texts_of(now.run.storage, {"a": "1", "b": "2"})
    assert changed_texts(now, this)["texts_added"] == 1
    storage.write(history.part([row("2026-11-02")]), b"")
    assert set(changed_texts(now, this).values()) == {None}
    storage.write(history.part([row("2026-11-02")]), storage.read(history.part([row("2026-11-01")])))
    storage.write(history.part([row("2026-11-01")]), b"")
    assert changed_texts(now, this)["texts_added"] == 1


@pytest.mark.parametrize("data", [b"", b"{", b'{"run": "run01", "checksum": "00000000"}'])
def test_a_night_whose_record_of_itself_is_damaged_keeps_its_embeddings_and_stops_no_other(tmp_path, data):
    nights = [f"2026-11-{day:02d}" for day in range(1, 5)]
    folders = [night_folder(tmp_path, night, f"run{night[-2:]}") for night in nights]
    record = recorded(tmp_path, *map(row, nights))
    folders[0].write("run.json", data)
    assert prune_record(record, None, 1) == nights[1:3]
    assert [folder.exists("texts") for folder in folders] == [True, False, False, True]


def test_a_damaged_baseline_is_not_compared_with_and_ends_no_night(tmp_path):
    audit = Storage(str(tmp_path / "audit"))
    audit.write_json("run.json", {"models": {}})
    audit.write("tables/collapse_summary.parquet", b"PAR1")
    (found,) = history.of_run(audit.root, [row("2026-11-03")])
    assert found.row is None
    assert "collapse_summary" in found.label


def test_notes_in_brief_name_each_kind_once():
    judged = {"first_nights": [], "not_compared": [], "unknown_noise": ["cosine_mean", "socm_mean"]}
    (unknown,) = notes_in_brief(judged)
    assert unknown.startswith("2 ")
    assert notes_in_brief(judged | {"unknown_noise": []}) == []
    assert len(notes_in_brief(judged | {"not_compared": ["a"], "first_nights": ["b"]})) == 3
