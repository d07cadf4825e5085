"""What a flipped bit or a cut end has hit in a run is named and made again, with the same bytes."""

import io
import json
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from rich.console import Console
from whole_run import as_lines, audited, digests, documented, evaluated, flipped, paired

from tempscale_jobs import lifecycle
from tempscale_jobs.audit import summary
from tempscale_jobs.config.evaluate import read_tasks
from tempscale_jobs.embedding import prune
from tempscale_jobs.errors import Damaged, IncompleteRun, UsageError
from tempscale_jobs.evaluate import run as evaluate_run
from tempscale_jobs.pairs import summary as pairs_summary
from tempscale_jobs.runs import mending
from tempscale_jobs.runs.journal import Journal
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

CELL = "cells/model=m/temperature=1.0/task=t"
TEXT = "texts/model=m/temperature={}/part-00000001.parquet"
KEPT = [
    "begun.json", "shards/index.json", "shards/plan.json", "shards/unit-00000000.json", "shards/part-00000000.parquet",
    "texts/model=m/temperature=1.0/part-00000000.parquet", TEXT.format("1.0"), TEXT.format("0.8"),
    "texts/model=other/temperature=1.0/part-00000001.parquet", "rejected/model=m/part-00000001.parquet",
    "rejected/part-00000000.parquet", "partials/groups/model=m/temperature=1.0/part-00000001.parquet",
    "partials/cosine/model=m/temperature=1.0/closed.json", "tables/socm.parquet", "history/part-x.parquet",
    "cache/x.parquet", "queries/shards/index.json", "queries/shards/plan.json", f"queries/{TEXT.format('1.0')}",
    "partials/pairs/model=m/temperature=1.0/part-00000001.parquet", f"{CELL}/items.parquet", f"{CELL}/result.json",
    "cells/model=m/temperature=1.0/task=other/result.json",
    "measured/neighbours/model=m/temperature=1.0/part-00000000.parquet", "measured/run.json",
]  # fmt: skip


@pytest.fixture
def full(tmp_path):
    """A folder with files of all kinds."""
    storage = Storage(str(tmp_path / "run"))
    for name in KEPT:
        storage.write(name, b"1")
    return storage


def mended(storage, command, name):
    """What is missing after a file was damaged."""
    assert mending.mend(storage, command, Damaged("bits", f"{storage.root}/{name}"))
    return sorted(set(KEPT) - set(storage.list("")))


@pytest.mark.parametrize(
    ("command", "name", "others"),
    [
        ("audit", TEXT.format("0.8"), []),
        ("audit", "queries/texts/model=m/temperature=1.0/part-00000001.parquet", []),
        ("audit", "tables/socm.parquet", []),
        ("audit", "partials/groups/model=m/temperature=1.0/part-00000001.parquet", []),
        ("audit", "partials/cosine/model=m/temperature=1.0/closed.json", []),
        ("audit", "shards/unit-00000000.json", ["shards/index.json"]),
        ("audit", "shards/index.json", []),
        ("audit", "queries/shards/index.json", []),
        # What is left of the source is read again, and written over what is there.
        ("audit", "shards/part-00000000.parquet", ["shards/index.json", "shards/unit-00000000.json"]),
        ("audit", "rejected/part-00000000.parquet", ["shards/index.json", "shards/unit-00000000.json"]),
        # A piece is done with all its parts, so one of them goes with what it rejected.
        ("audit", "rejected/model=m/part-00000001.parquet", [TEXT.format("0.8")]),
        ("evaluate", f"{CELL}/items.parquet", [f"{CELL}/result.json"]),
        ("tune", "measured/neighbours/model=m/temperature=1.0/part-00000000.parquet", []),
        ("tune", "measured/run.json", []),
    ],
)  # fmt: skip
def test_only_what_is_damaged_goes_and_what_keeps_it_from_being_made_again(full, command, name, others):
    assert mended(full, command, name) == sorted([name, *others])


@pytest.mark.parametrize("command", ["audit", "pairs"])
@pytest.mark.parametrize(
    "name", ["../another/tables/x.parquet", "history/part-x.parquet", "cache/x.parquet", "begun.json", "2026-11-01/run.json"]
)
def test_what_is_not_the_runs_own_is_not_mended(full, command, name):
    error = Damaged("bits", f"{full.root}/{name}")
    with pytest.raises(Damaged) as raised:
        mending.mend(full, command, error)
    assert raised.value is error
    assert full.list("") == sorted(KEPT)


def test_without_a_plan_the_state_of_the_source_is_that_of_its_index_and_without_both_all_is_made_again(full):
    full.remove("shards/plan.json")
    full.write_json("shards/index.json", {"source_state": {"size": 3}})
    mending.mend(full, "audit", Damaged("bits", f"{full.root}/shards/part-00000000.parquet"))
    assert full.read_json("shards/plan.json")["source_state"] == {"size": 3}
    assert full.exists(TEXT.format("1.0"))
    full.remove("shards/plan.json")
    mending.mend(full, "audit", Damaged("bits", f"{full.root}/shards/index.json"))
    assert not full.exists("texts")
    assert full.exists("begun.json")
    assert full.exists("history/part-x.parquet")


@pytest.mark.parametrize("wanted", [2, 7])
def test_many_files_are_mended_and_one_that_is_damaged_again_is_not(wanted):
    """Each call finds another damaged file, until the last one is damaged once more."""
    calls = []

    @lifecycle.mended
    def command(config, journal, *, fresh=False):
        calls.append(None)
        if len(calls) > wanted + 3:
            raise AssertionError("it goes on for ever")
        error = Damaged("bits", f"/run/{min(len(calls), wanted)}")
        error.mended = "made again"
        raise error

    with closing(Journal(Console(file=io.StringIO()))) as journal, pytest.raises(Damaged) as raised:
        command(None, journal)
    assert len(calls) == wanted + 1
    assert raised.value.path == f"/run/{wanted}"
    assert str(raised.value) != "bits"
    assert raised.value.mended == ""


def test_a_command_is_run_again_where_something_was_mended_and_not_otherwise(tmp_path):
    calls = []

    @lifecycle.mended
    def command(config, journal, *, fresh=False):
        calls.append(fresh)
        error = Damaged("bits")
        error.mended = "made again" if len(calls) == 1 else ""
        raise error

    with closing(Journal(Console(file=io.StringIO()))) as journal, pytest.raises(Damaged):
        command(None, journal, fresh=True)
    assert calls == [True, False]  # A fresh start is not made twice.


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = documented("pyarrow")
    (folder / "texts.jsonl").write_text(as_lines(texts[:90]))
    (folder / "asked.jsonl").write_text(as_lines(texts[90:120]))
    return folder


def settings_of(out, corpus, model, **more):
    return {
        "out": str(out), "corpus": {"source": str(corpus / "texts.jsonl"), "unit_rows": 40, "unit_bytes": 20_000},
        "queries": {"source": str(corpus / "asked.jsonl")}, "embedding": {"models": [model], "shard_texts": 30},
        "analysis": {"socm_groups": 12, "probe_sample": 20, "intervals": [0, 32, 64]},
        "execution": {"workers": 1} | more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def halfway(tmp_path_factory, ray_session, corpus, small_model):
    """An audit that stopped before its tables, with all that it had made, and the same one to its end."""
    folder = tmp_path_factory.mktemp("halfway")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "summarise", stopped)
        with pytest.raises(IncompleteRun, match="stopped by the test"):
            audited(settings_of(folder / "half", corpus, small_model))
    audited(settings_of(folder / "whole", corpus, small_model))
    return folder


def stopped(*given, **how):
    raise IncompleteRun("stopped by the test")


DAMAGED = [
    "texts/*/temperature=1.0/part-00000001.parquet", "texts/*/temperature=0.8/part-00000000.parquet",
    "shards/index.json", "shards/plan.json", "shards/part-*.parquet", "queries/shards/index.json",
    "queries/texts/*/temperature=1.0/part-00000000.parquet", "partials/cache/*/plan.json",
    "partials/groups/*/temperature=0.8/part-*.parquet", "partials/socm/*/temperature=1.0/done.json",
    "partials/cosine/*/temperature=1.0/closed.json", "partials/cosine/*/temperature=1.0/length_collapse.parquet",
    "partials/cosine/*/temperature=0.8/text_means/*.parquet", "partials/cosine/*/temperature=1.0/tile-*.parquet",
    "partials/exposure/*/temperature=1.0/*.parquet", "partials/prefixes/*/temperature=1.0/*.parquet",
]  # fmt: skip


_ALWAYS = (0, 2, 9)
"""The places in this list that are tried in every run of the suite; the others take a soak."""


def damage(file, how):
    whole = file.read_bytes()
    if how == "cut":
        file.write_bytes(whole[: len(whole) // 2])
    elif file.suffix == ".json":
        digits = [k for k, byte in enumerate(whole) if chr(byte).isdigit()]
        file.write_bytes(flipped(whole, 8 * digits[len(digits) // 2]))
    else:
        end = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little") - 32
        file.write_bytes(flipped(whole, 8 * (end // 2)))


@pytest.mark.soak
@pytest.mark.parametrize(
    ("pattern", "how"),
    [
        pytest.param(own, ("flip", "cut")[k % 2], marks=() if k in _ALWAYS else pytest.mark.soak)
        for k, own in enumerate(DAMAGED)
    ],
)
def test_a_damaged_part_of_a_run_is_named_and_made_again(halfway, corpus, small_model, tmp_path, capsys, pattern, how):
    shutil.copytree(halfway / "half", tmp_path / "run")
    if "texts/" in pattern:  # Otherwise nothing would read them any more.
        for later in ("cosine", "exposure", "groups", "socm", "probe", "neighbours"):
            shutil.rmtree(tmp_path / "run" / "partials" / later, ignore_errors=True)
        shutil.rmtree(tmp_path / "run" / "neighbours")
    if "tile" in pattern:
        shutil.rmtree(tmp_path / "run" / "partials" / "exposure")
        for later in (tmp_path / "run" / "partials" / "cosine").rglob("*"):
            if later.is_file() and not later.name.startswith("tile"):
                later.unlink()
    hit = sorted((tmp_path / "run").glob(pattern))
    assert hit, pattern
    damage(hit[-1], how)
    begun = json.loads((halfway / "half" / "begun.json").read_text())
    data = settings_of(tmp_path / "run", corpus, small_model)
    audited(data)
    assert digests(tmp_path / "run") == digests(halfway / "whole")
    said = capsys.readouterr().err.replace("\n", " ")
    if not (how == "cut" and hit[-1].suffix == ".json"):
        assert begun["identity"] == json.loads((tmp_path / "run" / "begun.json").read_text())["identity"]
    assert ("make again what is damaged" in said) or not was_needed(pattern)


def was_needed(pattern):
    """Whether a resumed run reads the file once more: shards are read only to be embedded."""
    return not pattern.startswith(("shards/part", "shards/plan"))


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_what_says_which_run_it_is_is_not_guessed(halfway, corpus, small_model, tmp_path):
    shutil.copytree(halfway / "whole", tmp_path / "run")
    damage(tmp_path / "run" / "begun.json", "flip")
    data = settings_of(tmp_path / "run", corpus, small_model)
    with pytest.raises(
        UsageError, match=r"begun.json' is damaged: .*; it says which run this is, so start over with --fresh"
    ):
        audited(data)
    assert (tmp_path / "run" / "report.html").exists()
    audited(data, fresh=True)
    assert digests(tmp_path / "run") == digests(halfway / "whole")


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_damage_that_comes_back_ends_the_run(halfway, corpus, small_model, tmp_path, monkeypatch):
    shutil.copytree(halfway / "half", tmp_path / "run")
    monkeypatch.setattr(summary, "summarise", broken)
    with pytest.raises(Damaged, match="is damaged"):
        audited(settings_of(tmp_path / "run", corpus, small_model))


def broken(run, *given):
    path = f"{run.storage.root}/tables/none.parquet"
    raise Damaged(f"'{path}' is damaged", path)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_pairs_and_cells_are_made_again(corpus, small_model, tmp_path, monkeypatch):
    rows = [{"text_a": f"a river {k}", "text_b": f"a bridge {k}", "sentence1": f"{k} a", "sentence2": "b", "score": k % 5}
            for k in range(40)]  # fmt: skip
    (tmp_path / "rows.jsonl").write_text(as_lines(rows))
    shared = {"embedding": {"models": [small_model], "temperatures": [1.0, 0.8]}, "execution": {"workers": 1}}
    own = {
        "pairs": (
            paired, {"pairs": {"source": str(tmp_path / "rows.jsonl")}}, pairs_summary, "partials/pairs/*/*/*.parquet"
        ),
        "evaluate": (
            evaluated, {"tasks": read_tasks([f"sts:{tmp_path / 'rows.jsonl'}"], None, None)}, evaluate_run,
            "cells/**/items.parquet",
        ),
    }  # fmt: skip
    for name, (command, more, steps, pattern) in own.items():
        command(shared | more | {"out": str(tmp_path / f"{name}-whole")})
        with monkeypatch.context() as patch:
            patch.setattr(steps, "summarise", stopped)
            with pytest.raises(IncompleteRun, match="stopped by the test"):
                command(shared | more | {"out": str(tmp_path / name)})
        damage(sorted((tmp_path / name).glob(pattern))[0], "flip")
        command(shared | more | {"out": str(tmp_path / name)})
        assert digests(tmp_path / name, "tables") == digests(tmp_path / f"{name}-whole", "tables")


# --- a cache ----------------------------------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_a_damaged_cache_is_as_if_it_were_not_there(halfway, corpus, small_model, tmp_path):
    cache = str(tmp_path / "cache")
    audited(settings_of(tmp_path / "first", corpus, small_model, cache=cache))
    for file in sorted(Path(cache).rglob("bucket-*/*.parquet")):
        damage(file, "flip")
    keys = sorted(Path(cache).rglob("key.json"))
    damage(keys[0], "flip")
    assert len(prune.listed(cache)) == len(keys) - 1
    audited(settings_of(tmp_path / "second", corpus, small_model, cache=cache))
    assert digests(tmp_path / "second", "texts", "tables") == digests(halfway / "whole", "texts", "tables")
    assert len(prune.listed(cache)) == len(keys)
