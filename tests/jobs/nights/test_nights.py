"""Nights: judged, recorded, compared; four of them over a changing corpus."""

import html
import json

import polars as pl
import pytest
import torch
from nights_by_hand import EDGES, summary
from rich.console import Console
from transformers import AutoTokenizer, BertConfig, BertModel
from whole_run import as_lines, audited, documented, read_parts, read_record, read_tables

from tempscale_jobs.cli import runs
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import gate
from tempscale_jobs.nights import record as history
from tempscale_jobs.runs.storage import Storage

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1500)]  # Whole audits, beside other tests on two cores.
HELD_TO = {
    "thresholds": ["truncated_share <= 0.9", "texts >= 100"],
    "baseline": "latest",
    "drift": {"cosine_mean": 0.01, "collapse_gap": 0.1},
}
FIGURES = ("cosine_mean", "cosine_se_superpopulation", "collapse_gap", "collapse_gap_se_superpopulation", "gap_texts")


def settings(folder, corpus, model, night, **more):
    return {
        "out": f"{folder}/{{night}}",
        "night": night,
        "corpus": {"source": str(corpus)},
        "embedding": {"models": [model], "temperatures": [1.0]},
        "analysis": {"socm_sample": 0, "probe_sample": 0, "neighbours": 0, "intervals": list(EDGES)},
        "execution": {"workers": 1},
        "gate": HELD_TO,
    } | more


def date(night):
    return f"2026-11-{night:02d}"


@pytest.fixture(scope="module")
def other_model(tmp_path_factory, small_model):
    """The small model's sister: the same shape, other weights."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("model") / "tiny-bert"  # The same name: weights tell models apart.
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=30522, initializer_range=0.3, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(small_model).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def nights(tmp_path_factory, ray_session, small_model, other_model):
    """Four nights: the first, one of other texts, one whose texts are long, one of another model; the figures of each."""
    folder = tmp_path_factory.mktemp("nights")
    texts = [(text["id"], text["text"]) for text in documented("scipy") if len(text["text"]) < 800][::6][:205]
    first, changed = dict(texts[:200]), dict(texts[3:])
    changed |= {name: f"{changed[name]} It was edited." for name, _ in texts[3:7]}
    long = {name: " ".join([text] * 30) if k % 6 else text for k, (name, text) in enumerate(changed.items())}
    found = []
    for night, corpus in enumerate((first, changed, long, changed), 1):
        file, model = folder / f"{night}.jsonl", small_model if night < 4 else other_model
        file.write_text(as_lines({"id": name, "text": text} for name, text in corpus.items()))
        audited(settings(folder, file, model, date(night), record={"keep_embeddings": 2}))
        of_texts = read_parts(folder / date(night), "texts")
        by_hand = summary(
            of_texts["embedding"].to_numpy(), of_texts["tokens"], truncated=of_texts["truncated"], model="tiny-bert"
        )
        (measured,) = read_tables(folder / date(night))["collapse_summary"].to_dicts()
        found.append((by_hand, measured))
    return folder, found


@pytest.mark.soak
def test_nights_are_recorded_with_the_figures_by_hand_and_the_embeddings_of_the_last_two_stay(nights):
    folder, found = nights
    for by_hand, measured in found:
        for figure in FIGURES:  # Where texts are long, no two intervals hold enough of them.
            expected = by_hand[figure]
            assert measured[figure] == (None if expected is None else pytest.approx(expected, rel=1e-6, abs=1e-9)), figure
    record = history.load(Storage(str(folder / "history")))
    assert record["night"].to_list() == [date(night) for night in range(1, 5)]
    assert record["run"].n_unique() == 4
    prints = record["model_fingerprint"].to_list()
    assert len({*prints[:3]}) == 1 < len({*prints})
    kept = [bool(list((folder / date(night) / "texts").rglob("*.parquet"))) for night in range(1, 5)]
    assert kept == [False, False, True, True]
    assert record.select("texts_added", "texts_removed", "texts_edited").row(1) == (5, 3, 4)
    assert list(read_record(folder / date(2))["changed_texts"].values()) == [5, 3, 4]


@pytest.mark.soak
def test_exactly_the_nights_of_long_texts_and_of_another_model_fail(nights):
    folder, _ = nights
    record = history.load(Storage(str(folder / "history")))
    assert record["gate"].to_list() == ["passed", "passed", "failed", "failed"]
    judged = [read_record(folder / date(night))["gate"] for night in range(1, 5)]
    assert [len(one["first_nights"]) for one in judged] == [1, 0, 0, 0]
    pages = [(folder / date(night) / "report.html").read_text().replace("\u00a0", " ") for night in range(1, 5)]
    pages = [html.unescape(page) for page in pages]
    assert gate.FIRST_NIGHT in pages[0]
    drifted, (switched,) = judged[2]["failed"][0], judged[3]["failed"]
    for named in ("(cosine_mean) of tiny-bert at τ 1.0", "rose", date(2)):
        assert named in drifted
    # The other model is no drift: it is compared with the last good night, which is not the one before.
    assert f"{date(2)} (tiny-bert)" in switched
    assert judged[3]["not_compared"] == []
    table = read_tables(folder / date(4))["gate"]
    assert table["verdict"].to_list() == ["held", "held", "failed", "not comparable", "not comparable"]
    assert drifted in pages[2]
    assert switched in pages[3]


# ------------------------------------------------------------------------------- the same run, held to other things


@pytest.fixture(scope="module")
def small(tmp_path_factory, ray_session, small_model):
    """A finished run that was held to nothing, and how to ask for it again."""
    folder = tmp_path_factory.mktemp("small")
    corpus = folder / "corpus.jsonl"
    corpus.write_text(as_lines(documented("pyarrow")[:60]))

    def data(out="run", **more):
        plain = {"out": str(folder / out), "night": None, "gate": {}}
        return settings(folder, corpus, small_model, None) | plain | more

    audited(data())
    return folder, data


def ended(data):
    """The exit code of an audit, as the command line gives it."""
    return runs.audit.__wrapped__(resolve(data), Console(stderr=True), resume=True, plan=False)


def test_a_run_held_to_nothing_ends_with_0_and_has_a_record_of_its_own(small):
    folder, data = small
    assert ended(data()) == 0
    done = json.loads((folder / "run" / "run.json").read_text())
    notes = ("unknown_noise", "first_nights", "gone_models", "not_compared", "unreadable_nights", "without_baseline")
    assert done["gate"] == {"verdict": "none", "failed": [], "checks": 0} | {name: [] for name in notes}
    assert history.load(Storage(str(folder / "run" / "history")))["run"].to_list() == [done["run"]]
    assert pl.read_parquet(folder / "run" / "tables" / "gate.parquet").is_empty()


def test_a_complete_run_is_judged_again_without_measuring_again(small, capsys):
    folder, data = small
    tables = [file for file in (folder / "run" / "tables").iterdir() if file.name != "gate.parquet"]
    before = [file.stat().st_mtime_ns for file in tables]
    assert ended(data(gate={"thresholds": ["cosine_mean <= 0.01"]})) == 1
    assert "(cosine_mean) of tiny-bert at" in capsys.readouterr().out
    done = json.loads((folder / "run" / "run.json").read_text())
    assert done["gate"]["verdict"] == "failed"
    assert done["config"]["gate"]["thresholds"] == ["cosine_mean <= 0.01"]
    assert history.load(Storage(str(folder / "run" / "history")))["gate"].to_list() == ["failed"]
    assert ended(data(gate={"thresholds": ["cosine_mean <= 0.99"]})) == 0
    # A finished run may be a baseline, also its own.
    assert ended(data(gate={"baseline": str(folder / "run"), "drift": {"cosine_mean": 0.0}})) == 0
    table = pl.read_parquet(folder / "run" / "tables" / "gate.parquet")
    assert (table["verdict"].to_list(), table["change"].to_list()) == (["held"], [0])
    assert [file.stat().st_mtime_ns for file in tables] == before


def test_a_gate_for_a_temperature_that_is_not_measured_is_refused():
    for named in (0.9, "0.9", "0.90"):
        with pytest.raises(UsageError, match=r"gate.temperatures.* 0\.9"):
            resolve({"gate": {"thresholds": ["texts >= 1"], "temperatures": [named]}})
    held = resolve({"gate": {"temperatures": ["0.80", 1.0]}}).gate
    assert held.holds_for("0.8")


@pytest.mark.soak
def test_the_same_folder_started_over_keeps_the_record_of_other_nights(small, small_model):
    folder, data = small
    held = {"thresholds": ["texts >= 1"], "baseline": "latest", "drift": {"cosine_mean": 0.0}}
    for night in ("2026-11-01", "2026-11-02"):
        audited(data(out="over", gate=held, night=night), fresh=True)
    record = history.load(Storage(str(folder / "over" / "history")))
    assert record["night"].to_list() == ["2026-11-01", "2026-11-02"]
    assert record["gate"].to_list() == ["passed", "passed"]
    table = pl.read_parquet(folder / "over" / "tables" / "gate.parquet").filter(pl.col("check") == "drift")
    assert table["baseline"].to_list() == [f"the night of 2026-11-01 (run {record['run'][0]})"]


def test_the_night_stands_in_out_and_source():
    found = resolve({"out": "s3://b/nights/{night}", "night": "2026-11-22", "corpus": {"source": "s3://b/{night}/*"}})
    assert (found.out, found.corpus.source) == ("s3://b/nights/2026-11-22", "s3://b/2026-11-22/*")
    queries = {"queries": {"source": "q/{night}.jsonl"}, "night": "2026-11-22"}
    assert resolve({"out": "x"} | queries).queries.source == "q/2026-11-22.jsonl"
    for out, record in (
        ("s3://b/nights/{night}", "s3://b/nights/history"), ("{night}", "history"), ("/{night}", "/history"),
        ("runs/mine", "runs/mine/history"),
    ):  # fmt: skip
        assert resolve({"out": out}).record.history == record
    assert resolve({"out": "runs/mine"}).night is None
    for wrong in ("22.11.2026", "2026-13-01", "tonight"):
        with pytest.raises(UsageError, match="--night"):
            resolve({"night": wrong})


def test_what_a_night_is_held_to_never_asks_for_a_fresh_run():
    plain, held = (resolve(data) for data in ({}, {"gate": HELD_TO, "night": "2026-11-22", "record": {"name": "x"}}))
    assert plain.identity() == held.identity()
