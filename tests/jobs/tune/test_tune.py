"""`tempscale tune` on a small model: what it chooses and says, its files, and that nothing but the data decides them."""

import dataclasses
import io
import json
import os
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from command_line import parsed, said
from golden_words import ending, masked, same
from pages import specs_of
from rich.console import Console
from whole_run import as_lines, checked_json, documented, read_record, read_report, read_tables, tuned

from tempscale import Encoder, Temperature
from tempscale.choosing.by_layer import Cosines, LayerTemperatures, layer_temperatures
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.given import read_temperature
from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.tune import TuneConfig, default_candidates
from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.findings import changed
from tempscale_jobs.runs.folder import begin, described, window
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.tune import COLLAPSE, INTERVALS
from tempscale_jobs.tune import collapse, layers
from tempscale_jobs.tune import words as tune_sentences

TOKENS, SEED = 96, 3
STEPS = {"by_length": {"0": 1.0, "64": 0.7}}
STEPS_TEXT = "by_length(0: 1.0, 64: 0.7)"


def settings(out, corpus, small_model, temperatures=(1.0, 0.5, STEPS), workers=1, **choosing):
    return {
        "out": str(out), "corpus": {"source": str(corpus)}, "seed": SEED,
        "embedding": {"models": [small_model], "temperatures": list(temperatures), "max_length": TOKENS},
        "choosing": {"intervals": [0, 32, 64], "layer_tokens": 64, "layer_steps": 2, "layer_texts": 8, "probe_sample": 40,
                     "neighbours": 5} | choosing,
        "execution": {"workers": workers},
    }  # fmt: skip


def run(data):
    """The run, and what it told of its progress."""
    told = io.StringIO()
    return tuned(data, console=Console(file=told, width=200)), told.getvalue()


@pytest.fixture(scope="module")
def texts():
    return [row["text"] for row in documented("pyarrow")[:200]]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    file = tmp_path_factory.mktemp("corpus") / "texts.jsonl"
    file.write_text(as_lines(documented("pyarrow")[:200]))
    return file


@pytest.fixture(scope="module")
def finished(tmp_path_factory, ray_session, corpus, small_model):
    """Without labels, with a search for one τ a layer; nothing beats τ 1."""
    out = tmp_path_factory.mktemp("tune") / "run"
    return run(settings(out, corpus, small_model))[0]


@pytest.fixture(scope="module")
def gained(tmp_path_factory, ray_session, corpus, small_model):
    """From a reference at which long texts are found too often, on one worker: something does beat it."""
    out = tmp_path_factory.mktemp("gained") / "run"
    return run(settings(out, corpus, small_model, (0.5, 1.0), workers=1, layers=False, keep_neighbours=0.3))[0]


def table(run, which):
    return pl.read_parquet(f"{run.storage.root}/tables/{which.name}.parquet")


def chosen(run):
    """What temperature.json holds, as --temperature reads it."""
    return Temperature.of(read_temperature(f"{run.storage.root}/temperature.json"))


# ---------------------------------------------------------------------------------------------- without labels


@pytest.mark.proof
def test_every_candidate_has_its_row_and_one_is_chosen(finished):
    searched = Temperature.by_layer(finished.storage.read_json("layers.json")["temperatures"])
    rows = table(finished, COLLAPSE)
    assert rows["temperature"].to_list() == ["1.0", "0.5", "by_length(0: 1.0, 64: 0.7)", searched.canonical, "1.0"]
    assert rows["correction"].to_list() == [None] * 4 + ["length"]
    assert rows["chosen"].to_list() == [True, False, False, False, False]
    assert chosen(finished) == Temperature(1.0)
    assert rows.columns == [column.name for column in COLLAPSE.columns]
    intervals = table(finished, INTERVALS)
    assert intervals["interval"].to_list() == [0, 64] * 4
    assert (intervals["texts"] >= 30).all()
    assert (intervals.filter(pl.col("temperature") == "0.5")["change_se"] > 0).all()
    # Short texts are as they were under a schedule that begins at 64 tokens.
    assert intervals.filter((pl.col("temperature") == STEPS_TEXT) & (pl.col("interval") == 0))["change"].to_list() == [0]
    assert not list(Path(finished.storage.root, "measured").rglob("excerpts.parquet"))


@pytest.mark.proof
def test_the_layers_are_searched_on_long_texts_and_their_search_lowers_its_objective(finished, texts, small_model):
    found = finished.storage.read_json("layers.json")
    encoder = Encoder.load(small_model, device="cpu", max_length=TOKENS)
    long = [text for text in texts if len(encoder.tokenizer([text], 64).ids[0]) == 64]
    looked = sorted(set(long), key=lambda text: keyed_hash(text, SEED + 1))[:8]
    ids = [encoder.tokenizer(looked, n).ids for n in (32, 64)]
    expected = layer_temperatures(encoder, *ids, steps=2, seed=SEED)
    assert found["temperatures"] == expected.temperatures
    assert found["objective_after"] == pytest.approx(expected.after.objective, abs=1e-6)
    assert found["objective_after"] < found["objective_before"]
    assert (found["texts"], found["tokens"]) == (8, 64)


@pytest.mark.proof
def test_where_nothing_beats_noise_no_command_follows(finished, capsys):
    out = said(text := ending("tune", finished.storage.root, capsys))
    (row,) = table(finished, COLLAPSE).filter(pl.col("temperature") == "1.0", pl.col("correction").is_null()).to_dicts()
    for told in (
        "Leave it at 1: of 4 other", f"is {row['exposure_long']:.3g} (1", f"{finished.storage.root}/report.html",
    ):  # fmt: skip
        assert told in out
    assert "tempscale export" not in out
    same("tune-ending.txt", masked(text, finished.storage.root))


@pytest.mark.proof
def test_a_correction_by_length_is_a_candidate_by_the_neighbours_that_the_audit_counted(finished, gained):
    for run in (finished, gained):
        own = table(run, COLLAPSE).filter(pl.col("correction") == "length").row(0, named=True)
        first = table(run, COLLAPSE).row(0, named=True)
        counted = pl.read_parquet(f"{run.storage.root}/measured/tables/exposure_corrected.parquet")
        short, long = counted.filter(pl.col("k") == pl.col("k").max(), pl.col("texts") >= 30).sort("interval").to_dicts()
        assert own["exposure_long"] == pytest.approx(long["exposure"], abs=1e-12)
        # Before, of the texts that ask for both: those that the correction was not fitted to.
        near, texts = (
            pl.concat(pl.read_parquet(part, columns=["text_id", column], hive_partitioning=False) for part in sorted(
                Path(run.storage.root, "measured", kind).rglob(f"temperature={first['temperature']}/*.parquet")
            ))
            for kind, column in (("neighbours", "neighbours"), ("texts", "tokens"))
        )  # fmt: skip
        held = near.filter(pl.col("text_id").map_elements(lambda i: keyed_hash(i, SEED) % 2 == 1, pl.Boolean))
        assert long["queries"] == len(held) < 0.6 * len(near)
        shown = held.explode("neighbours")["neighbours"]
        of_long = texts.filter(pl.col("tokens") >= long["interval"])["text_id"]
        before = float(shown.is_in(of_long.to_list()).mean()) / (len(of_long) / len(near))
        assert own["exposure_long_change"] == pytest.approx(long["exposure"] - before, abs=1e-9)
        assert own["short_kept"] == pytest.approx(short["neighbours_kept"], abs=1e-12)
        assert 0 < own["short_kept"] < 1
        assert (own["prefix_gap_change"], own["rise"]) == (0, 0)
        (measured,) = Path(run.storage.root, "measured/corrections").rglob("*.json")
        assert Path(run.storage.root, "corrections/length.json").read_bytes() == measured.read_bytes()


def test_a_chosen_correction_is_followed_by_the_commands_that_apply_it():
    choice = {"chosen": "1.0", "changed": True, "correction": "centre_by_length", "by": "collapse", "foldable": True}
    documents, queries = tune_sentences.then({"choice": choice, "config": {}}, "runs/tune")
    for line, side in ((documents, None), (queries, "queries")):
        ((name, given),) = parsed(line.split())
        assert name == "correct"
        assert (given["correction"], given["side"], given["length_column"]) == (
            "runs/tune/corrections/centre_by_length.json", side, "TOKENS",
        )  # fmt: skip


def test_what_betters_the_reference_is_chosen_and_its_export_printed(gained, small_model, capsys):
    first, row, _ = table(gained, COLLAPSE).to_dicts()
    assert (first["temperature"], row["temperature"], row["chosen"]) == ("0.5", "1.0", True)
    assert first["exposure_long"] > row["exposure_long"] > 1
    assert chosen(gained) == Temperature(1.0)
    assert not gained.storage.exists("layers.json")
    out = ending("tune", gained.storage.root, capsys)
    (words,) = (shlex.split(line) for line in out.splitlines() if "tempscale export" in line)
    assert words[:-1] == ["tempscale", "export", "--model", small_model, "--tau", "1.0", "--out"]
    assert words[-1].startswith(f"{gained.storage.root}-checkpoint")


# ---------------------------------------------------------------------------------------------- what its audit measured


@pytest.fixture(scope="module")
def measured(gained):
    """The run of its audit, and what that left under each temperature, the reference first."""
    own = dataclasses.replace(gained, storage=Storage(f"{gained.storage.root}/measured"))
    return own, [collapse.measured(own, own.models[0], temperature) for temperature in (Temperature(0.5), Temperature(1.0))]


@pytest.mark.proof
def test_gap_exposure_and_interval_means_are_those_that_the_audit_tells(measured, tmp_path):
    """The audit's own are compared with plain computations in audit/test_audit.py and audit/test_cosine_ways.py."""
    own, seen = measured
    tables = read_tables(own.storage.root)
    long = set(seen[0].texts.filter(pl.col("group") == 64)["text_id"])
    for each, row in zip(seen, tables["collapse_summary"].to_dicts(), strict=True):
        gap, change = collapse.prefix_gap(each, seen[0])
        assert gap == pytest.approx(row["prefix_gap"], rel=1e-12)
        assert each.probe["text_id"].n_unique() == 40
        assert collapse.exposure(each, seen[0], long)[0] == pytest.approx(row["exposure_long"], rel=1e-12)
        inside = tables["length_collapse"].filter(pl.col("interval_a") == pl.col("interval_b"), tau=row["tau"])
        told = {
            edge: (texts, pytest.approx(mean, abs=1e-6))
            for edge, texts, mean in inside.select("interval_a", "texts_a", "cosine_mean").iter_rows()
        }
        own_means = collapse.by_interval(each, seen[0])
        assert [one["interval"] for one in own_means] == [0, 64]
        assert [(one["texts"], one["cosine_mean"]) for one in own_means] == [told[0], told[64]]
    (effect,) = tables["temperature_effect"].filter(pl.col("figure") == "prefix_gap").to_dicts()
    assert tuple(change) == pytest.approx((effect["change"], effect["change_se_superpopulation"]), rel=1e-9)
    assert effect["change"] != 0
    # Without probe and neighbours there is nothing to read.
    bare = dataclasses.replace(own, storage=Storage(str(tmp_path)))
    nothing = collapse.measured(bare, own.models[0], Temperature(1.0))
    assert (nothing.near, nothing.probe.is_empty()) == ({}, True)
    assert nothing.probe.columns == ["text_id", "group", "inside", "document"]


# ---------------------------------------------------------------------------------------------- run again


@pytest.mark.proof
def test_run_again_it_has_nothing_to_do_and_other_texts_or_settings_are_refused(gained, corpus, small_model):
    out = gained.storage.root
    how = {"temperatures": (0.5, 1.0), "layers": False, "keep_neighbours": 0.3}
    before = {file: file.stat().st_mtime_ns for file in Path(out).rglob("*.*") if file.is_file()}
    again, told = run(settings(out, corpus, small_model, **how))
    assert again.complete
    assert "the run is complete" in told
    assert {file: file.stat().st_mtime_ns for file in Path(out).rglob("*.*") if file.is_file()} == before
    with pytest.raises(UsageError, match=r"choosing\.keep_neighbours was 0\.3, now 0\.5"):
        run(settings(out, corpus, small_model, **how | {"keep_neighbours": 0.5}))
    rows, when = corpus.read_bytes(), corpus.stat()
    try:
        corpus.write_bytes(rows.swapcase())
        os.utime(corpus, ns=(when.st_atime_ns, when.st_mtime_ns))
        with pytest.raises(UsageError, match=r"texts changed .*--fresh"):
            run(settings(out, corpus, small_model, **how))
    finally:
        corpus.write_bytes(rows)


@pytest.mark.parametrize(
    ("taus", "after", "kept"),
    [([0.8, 1.1], 0.4, [0.8, 1.1]), ([0.8, 1.1], 0.5, None), ([0.8, 1.1], 0.6, None), ([0.8, 0.8], 0.4, None)],
)
def test_a_search_that_gains_nothing_or_finds_one_temperature_gives_no_candidate(monkeypatch, taus, after, kept):
    before, asked = Cosines(0.5, 0.5, 0.4, 0.0), []

    def found(encoder, short, long, **settings):
        asked.append((short, long, settings))
        return LayerTemperatures(taus, before, before._replace(objective=after), [])

    monkeypatch.setattr("tempscale.choosing.by_layer.layer_temperatures", found)
    worker = SimpleNamespace(encoder=SimpleNamespace(tokenizer=lambda texts, n: SimpleNamespace(ids=[[n] for _ in texts])))
    told = layers.search_layers(worker, ["a", "b"], {"tokens": 96, "steps": 2, "seed": 3})
    assert asked == [([[32], [32]], [[96], [96]], {"steps": 2, "seed": 3})]
    assert (told["temperatures"], told["objective_before"], told["objective_after"]) == (kept, 0.5, after)


def test_texts_for_the_search_of_layers_are_those_of_the_tasks_where_there_are_some(monkeypatch, tmp_path):
    monkeypatch.setattr(layers.tasks, "expand", lambda asked: ["first", "second"])
    monkeypatch.setattr(layers.tasks, "load", lambda unit, seed, tokenizer, intervals: (unit, seed, intervals))
    monkeypatch.setattr(layers.tasks, "texts", lambda task: iter([f"{task[0]} a", f"{task[0]} b"]))
    config = SimpleNamespace(tasks=["SciFact"], seed=3, choosing=SimpleNamespace(intervals=[0, 32]))
    assert [*layers.texts_of_source(config, None)] == ["first a", "first b", "second a", "second b"]
    rows = [{"text": "   "}, {"text": "one text"}, {"text": ""}, {"text": None}, {"text": "x" * 90}]
    (tmp_path / "c.jsonl").write_text(as_lines(rows))
    corpus = {"source": str(tmp_path / "c.jsonl"), "max_characters": 20}
    config = checked(TuneConfig, {"out": str(tmp_path / "run"), "corpus": corpus})
    assert [*layers.texts_of_source(config, None)] == ["one text", "x" * 20]


@pytest.mark.proof
def test_too_few_long_texts_leave_the_layers_out(tmp_path, small_model):
    corpus = tmp_path / "texts.jsonl"
    corpus.write_text(as_lines([{"id": k, "text": f"text number {k} " * (30 if k < 7 else 1)} for k in range(60)]))
    config = checked(TuneConfig, settings(tmp_path / "run", corpus, small_model))
    begun = begin(config)
    source = layers.SearchTexts(config, {"corpus": "as it was"})
    found = layers.search(begun, None, begun.models[0], source)  # No worker is asked.
    assert found["temperatures"] is None
    assert layers.candidate(found) == []


# ---------------------------------------------------------------------------------------------- report and sentences


@pytest.mark.parametrize("which", [pytest.param("finished", marks=pytest.mark.proof), "gained"])
def test_the_report_stands_alone_and_is_rendered_again_alike(request, which):
    out = request.getfixturevalue(which).storage.root
    page, record = read_report(out), read_record(out)
    assert set(specs_of(page)) == {"t-gap", "t-exposure", "t-intervals"}
    assert tune_sentences.answer(record, read_tables(out)) in page
    assert ("tempscale export" in re.sub("</?span>", "", page)) == record["choice"]["changed"]


def test_findings_are_printed_as_json_and_the_chosen_one_says_what_to_run(gained):
    data, record = checked_json("tune", gained.storage.root), read_record(gained.storage.root)
    assert data["answers"] == {"tiny-bert": tune_sentences.answer(record, read_tables(gained.storage.root))}
    (row,) = (row for row in table(gained, COLLAPSE).to_dicts() if row["chosen"])
    told = {(one["figure"], one["temperature"]): one for one in data["findings"]}
    for figure in ("prefix_gap", "exposure_long"):
        moved = told[changed(figure), row["temperature"]]
        assert (moved["value"], moved["error"]) == (row[f"{figure}_change"], row[f"{figure}_change_se"])
        assert moved["command"].startswith("tempscale export ")


def choice(by, changed, label="1.0", foldable=True):
    facts = {"by": by, "chosen": label, "changed": changed, "candidates": 4, "reason": "it is best", "foldable": foldable}
    models = {"minilm": {"fingerprint": "f", "max_length": 256}}
    return {"choice": facts, "config": {"embedding": {"models": []}}, "models": models}


def test_a_schedule_that_cannot_be_folded_is_attached(tmp_path):
    assert tune_sentences.then(choice("scores", False), "runs/tune") == []
    (folded,) = tune_sentences.then(choice("scores", True, "0.8"), "my runs/tune")
    *words, out = shlex.split(folded)
    assert words == ["tempscale", "export", "--tau", "0.8", "--out"]
    assert out.startswith("my runs/tune-checkpoint")
    config = described(checked(TuneConfig, settings("o", "a.txt", "m")))
    record = choice("collapse", True, "by_length(0: 1.0, 64: 0.7)", foldable=False)
    record |= {"command": "tune", "command_line": {"file": None, "options": {}}, "config": config}
    code, audit = tune_sentences.then(record, "runs/tune")
    data = re.search(r"ts\.attach\(model, (.*?)\)  #", code)[1]
    assert Temperature.of(json.loads(data)) == Temperature.of(STEPS)
    ((name, given),) = parsed(shlex.split(audit))
    assert (name, given["corpus"], given["tau"]) == ("audit", "a.txt", [1.0])
    assert str(given["temperature"]) == "runs/tune/temperature.json"


# ---------------------------------------------------------------------------------------------- what is refused

OWN = {"name": "own", "type": "sts", "source": "pairs.jsonl"}


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"tasks": [OWN], "corpus": {"source": "a.txt"}}, "tasks .* corpus"),
        ({"tasks": [OWN], "execution": {"cache": "c"}}, r"execution\.cache"),
        ({"tasks": [OWN | {"type": "clustering"}]}, "'own': a clustering"),
        ({"embedding": {"temperatures": [1.0, {"by_role": {"query": 1.0, "document": 0.8}}]}}, "by role"),
        ({"corpus": {"source": "a.parquet", "embedding_column": "e"}}, "embedding_column"),
        ({"embedding": {"temperatures": [1.0]}}, r"embedding\.temperatures"),
        ({"embedding": {"temperatures": [1.0, 1.0]}}, "twice"),
        ({"embedding": {"models": ["a", "b"]}}, r"embedding\.models"),
        ({"choosing": {"held_out": 1.0}}, r"choosing\.held_out"),
        ({"choosing": {"layer_tokens": 63}}, r"choosing\.layer_tokens"),
        ({"choosing": {"corrections": ["whitening"]}}, "'whitening'"),
        ({"choosing": {"corrections": ["length", "length(2)"]}}, "length is given twice"),
    ],
)  # fmt: skip
def test_what_cannot_be_chosen_from_is_named(data, named):
    with pytest.raises(UsageError, match=named) as error:
        checked(TuneConfig, data)
    assert "\n" not in str(error.value)


def test_a_corpus_is_sampled_unless_it_is_told_otherwise():
    of = lambda **corpus: checked(TuneConfig, {"corpus": {"source": "a.txt"} | corpus}).texts()  # noqa: E731
    assert (of().sample, of(sample=7).sample, of(limit=9).sample, of(limit=9).limit) == (1000, 7, None, 9)
    assert checked(TuneConfig, {}).texts().sample == 1000
    audit = checked(TuneConfig, {"seed": 5}).audit([Temperature(1.0), Temperature.of(STEPS)])
    assert (audit.corpus.sample, audit.seed, audit.out) == (1000, 5, "runs/tune/measured")
    assert audit.temperatures() == [Temperature(1.0), Temperature.of(STEPS)]


@pytest.mark.parametrize(
    ("tokens", "quarter", "half"), [(512, 128, 256), (8192, 128, 256), (256, 64, 128), (96, 24, 48), (5, 4, 8)]
)
def test_default_schedules_begin_inside_the_window(tokens, quarter, half):
    candidates = default_candidates(tokens)
    assert candidates[:6] == [1.0, 0.95, 0.9, 0.8, 0.7, 0.5]
    assert candidates[6:8] == [{"log_length": quarter // 2}, {"log_length": quarter}]
    steps = [(quarter, 0.9), (quarter, 0.8), (half, 0.8)]
    assert candidates[8:] == [{"by_length": {"0": 1.0, str(edge): tau}} for edge, tau in steps]
    assert len({Temperature.of(candidate) for candidate in candidates}) == 11


def test_candidates_that_are_given_stay_whatever_the_window(corpus, small_model):
    given = checked(TuneConfig, settings("out", corpus, small_model))
    assert given.fitting(96) is given
    data = settings("out", corpus, small_model)
    del data["embedding"]["temperatures"]
    left = checked(TuneConfig, data)
    assert left.fitting(window(left)).embedding.temperatures == default_candidates(96)
    assert left.embedding.temperatures == default_candidates(512)
