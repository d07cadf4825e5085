"""Nights: judged, recorded, compared; a month of them over a changing corpus."""

import html
import json

import numpy as np
import polars as pl
import pytest
import torch
from nights_by_hand import EDGES, summary
from rich.console import Console
from transformers import AutoTokenizer, BertConfig, BertModel
from whole_run import as_lines, audited, documented

from tempscale_jobs.cli import runs
from tempscale_jobs.config.audit import Gate, resolve
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
SWITCH, COLLAPSE, WHOLE = 20, 25, (1, 2, 20, 25)
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


class Corpus:
    """A corpus that changes from night to night: ids, and which words each has: as written, edited, or lengthened."""

    def __init__(self):
        texts = [text for text in documented("scipy") if len(text["text"]) < 800][::6]
        self.words = {text["id"]: text["text"] for text in texts[:280]}
        self.random = np.random.default_rng(0)
        ids = sorted(self.words)
        self.kinds = dict.fromkeys(ids[:200], "written")
        self.spare = ids[200:]

    def text(self, name, kind):
        words = self.words[name]
        return {"written": words, "edited": f"{words} It was edited.", "longer": " ".join([words] * 30)}[kind]

    def next(self):
        """Three texts are added, two removed and four edited."""
        for _ in range(3):
            self.kinds[self.spare.pop(0)] = "written"
        for name in self.random.choice(sorted(self.kinds), 6, replace=False)[:6]:
            if len([k for k in self.kinds.values() if k == "edited"]) < 4:
                self.kinds[str(name)] = "edited"
        for name in self.random.choice(sorted(self.kinds), 2, replace=False):
            del self.kinds[str(name)]
            self.spare.append(str(name))

    def tonight(self, night):
        """Id to kind; on the night of the collapse most texts are thirty times as long."""
        if night != COLLAPSE:
            return dict(self.kinds)
        return {name: "longer" if place % 6 else kind for place, (name, kind) in enumerate(sorted(self.kinds.items()))}


@pytest.fixture(scope="module")
def month(tmp_path_factory, ray_session, small_model, other_model):
    """Thirty nights: four whole audits, the others judged and recorded from vectors that an audit of all words gave."""
    folder, corpus = tmp_path_factory.mktemp("month"), Corpus()
    kinds = ("written", "edited", "longer")
    everything = folder / "everything.jsonl"
    everything.write_text(
        as_lines({"id": f"{kind}/{name}", "text": corpus.text(name, kind)} for name in corpus.words for kind in kinds)
    )
    vectors = {}
    for model in (small_model, other_model):
        data = settings(folder / "pool" / ("b" if model == other_model else "a"), everything, model, date(1), gate={})
        run = audited(data)
        for row in pl.read_parquet(f"{run.storage.root}/texts/**/*.parquet", hive_partitioning=False).to_dicts():
            vectors[model, row["text_id"]] = row
    nights, corpora = folder / "nights", {}
    record = Storage(str(nights / "history"))
    for night in range(1, 31):
        if night > 1:
            corpus.next()
        tonight, model = corpus.tonight(night), small_model if night < SWITCH else other_model
        corpora[night] = tonight
        lines = [{"id": name, "text": corpus.text(name, kind)} for name, kind in sorted(tonight.items())]
        rows = [vectors[model, f"{kind}/{name}"] for name, kind in sorted(tonight.items())]
        by_hand = summary(
            [r["embedding"] for r in rows], [r["tokens"] for r in rows], truncated=[r["truncated"] for r in rows],
            model="tiny-bert",
        )  # fmt: skip
        if night in WHOLE:
            file = folder / f"{date(night)}.jsonl"
            file.write_text(as_lines(lines))
            run = audited(settings(nights, file, model, date(night), record={"keep_embeddings": 2}))
            done = json.loads((nights / date(night) / "run.json").read_text())
            (measured,) = pl.read_parquet(f"{run.storage.root}/tables/collapse_summary.parquet").to_dicts()
            for figure in FIGURES:
                if by_hand[figure] is None:  # On the night of the collapse no two intervals hold enough texts.
                    assert measured[figure] is None
                else:
                    assert measured[figure] == pytest.approx(by_hand[figure], rel=1e-6, abs=1e-9), (night, figure)
        else:
            done |= {"run": f"night{night:02d}", "night": date(night), "started": f"{date(night)}T02:15:00+00:00"}
            done |= {"changed_texts": dict.fromkeys(done["changed_texts"]), "gate": {"verdict": "none", "failed": []}}
            asked = history.rows(done, [by_hand], date(night), "")
            ask = Gate.model_validate(HELD_TO)
            verdict, failed = gate.verdict(gate.judge(ask, [by_hand], history.latest(history.load(record), asked)))
            done["gate"] = {"verdict": verdict, "failed": failed}
            history.add(record, history.rows(done, [by_hand], date(night), ""))
        if night == SWITCH:  # Otherwise the nights that follow have no baseline.
            history.accept(record, date(SWITCH))
    return nights, corpora


@pytest.mark.soak
def test_a_month_is_recorded_whole_and_the_embeddings_of_the_last_two_nights_stay(month):
    nights, _ = month
    found = history.load(Storage(str(nights / "history")))
    assert found["night"].to_list() == [date(night) for night in range(1, 31)]
    assert found["run"].n_unique() == 30
    prints = found["model_fingerprint"].to_list()
    assert len(set(prints[: SWITCH - 1])) == len(set(prints[SWITCH - 1 :])) == 1
    assert prints[0] != prints[-1]
    kept = {night: bool(list((nights / date(night) / "texts").rglob("*.parquet"))) for night in WHOLE}
    assert kept == {1: False, 2: False, 20: False, 25: True}  # With the 25th the 24th stays.


@pytest.mark.soak
def test_exactly_the_nights_of_the_switch_and_of_the_collapse_fail(month):
    nights, _ = month
    found = history.load(Storage(str(nights / "history")))
    assert found.filter(pl.col("gate") != "passed")["night"].to_list() == [date(SWITCH), date(COLLAPSE)]
    _, reason = found.filter(pl.col("gate") == "failed")["gate_reason"].to_list()
    for named in ("cosine_mean of tiny-bert at 1.0", "rose", date(COLLAPSE - 1)):
        assert named in reason
    assert reason.partition(";")[0] in html.unescape((nights / date(COLLAPSE) / "report.html").read_text())


@pytest.mark.soak
def test_the_switch_of_the_model_fails_and_is_no_drift(month):
    nights, _ = month
    done = json.loads((nights / date(SWITCH) / "run.json").read_text())
    assert (done["gate"]["verdict"], done["gate"]["not_compared"]) == ("failed", [])
    (reason,) = done["gate"]["failed"]
    assert "2026-11-19 (tiny-bert)" in reason
    table = pl.read_parquet(nights / date(SWITCH) / "tables" / "gate.parquet")
    assert table["verdict"].to_list() == ["held", "held", "failed", "not comparable", "not comparable"]
    assert reason in html.unescape((nights / date(SWITCH) / "report.html").read_text())


@pytest.mark.soak
def test_the_first_night_passes_and_says_that_there_was_no_baseline(month):
    nights, _ = month
    done = json.loads((nights / date(1) / "run.json").read_text())
    assert (done["gate"]["verdict"], len(done["gate"]["first_nights"])) == ("passed", 1)
    assert gate.FIRST_NIGHT in (nights / date(1) / "report.html").read_text()


@pytest.mark.soak
def test_changed_texts_are_counted_against_the_night_before(month):
    nights, corpora = month
    before, after = corpora[1], corpora[2]
    both = set(before) & set(after)
    counted = {
        "texts_added": len(set(after) - both), "texts_removed": len(set(before) - both),
        "texts_edited": sum(before[name] != after[name] for name in both),
    }  # fmt: skip
    assert min(counted.values()) > 0
    assert json.loads((nights / date(2) / "run.json").read_text())["changed_texts"] == counted
    (row,) = history.load(Storage(str(nights / "history"))).filter(pl.col("night") == date(2)).to_dicts()
    assert {key: row[key] for key in counted} == counted


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
    assert "cosine_mean of tiny-bert at 1.0" in capsys.readouterr().out
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
