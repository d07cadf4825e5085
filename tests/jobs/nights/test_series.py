"""A night of another model, or measured in another way: it fails or begins a series, and everything says so."""

import polars as pl
import pytest
from nights_by_hand import summary_row

from tempscale import Temperature
from tempscale_jobs.config.nights import Gate, RecordOfNights
from tempscale_jobs.config.strict import checked
from tempscale_jobs.nights import charts, notify, page
from tempscale_jobs.nights import gate as checks
from tempscale_jobs.nights import night as nights
from tempscale_jobs.nights import record as history
from tempscale_jobs.nights.night import Night
from tempscale_jobs.report.page import page as page_of
from tempscale_jobs.runs.folder import Run
from tempscale_jobs.runs.storage import Storage

OWN = {"embedding_column": "vector"}
OTHERS = {
    "another model": ({}, {"fingerprint": "bbbb"}),
    "another window": ({}, {"max_length": 256}),
    "another prompt": ({}, {"prompts": {"document": "passage: "}}),
    "another precision": ({}, {"computed_in": {"precision": "bfloat16"}}),
    "your own vectors": (OWN, {"fingerprint": "", "dimensions": 8}),
}
KNOWN = {"texts": 1000, "corpus_texts": 1000, "cosine_se": 0.0, "cosine_se_superpopulation": 0.001}


def of(fingerprint="aaaa", **more):
    return {"fingerprint": fingerprint, "max_length": 512} | more


class Nights:
    """Nights in one folder, each judged and entered into the record as the end of an audit does."""

    def __init__(self, folder):
        self.folder, self.record = folder, Storage(str(folder / "history"))

    def end(self, night, models=None, *, corpus=None, measured=(1.0,), cosine=0.3, **gate):
        """The entry of run.json about the gate; `cosine` is the mean cosine of every model."""
        models = {"m": of()} if models is None else models
        asked = checked(Gate, {"baseline": "latest", "drift": {"cosine_mean": 0.02}} | gate)
        run = Run(Storage(str(self.folder / night)), [], [Temperature(tau) for tau in measured], night)
        settings = {"corpus": corpus or {}, "embedding": {"precision": "float32"}, "analysis": {}}
        facts = {
            "run": f"run{night[-2:]}", "night": night, "started": f"{night}T02:00:00", "finished": "", "tempscale": "",
            "corpus": {"source": "", "fingerprint": ""}, "config": settings, "models": models,
        }  # fmt: skip
        rows = [summary_row(model, str(tau), tau=tau, cosine_mean=cosine, **KNOWN) for model in models for tau in measured]
        tonight = Night(run, asked, RecordOfNights(history=self.record.root), "")
        facts["gate"] = nights.judge(tonight, facts, rows)
        nights.enter(tonight, facts, rows)
        return facts["gate"]

    def table(self, night):
        return pl.read_parquet(self.folder / night / "tables" / "gate.parquet")

    def row(self, night, model="m"):
        (row,) = history.load(self.record).filter(pl.col("night") == night, pl.col("model") == model).to_dicts()
        return row


@pytest.fixture
def kept(tmp_path):
    return Nights(tmp_path)


def series(table):
    return dict(table.filter(pl.col("check") == "series").select("model", "verdict").iter_rows())


def test_a_first_night_passes_and_is_a_baseline(kept):
    judged = kept.end("2026-11-01")
    assert (judged["verdict"], judged["failed"], judged["checks"]) == ("passed", [], 0)
    assert len(judged["first_nights"]) == 1
    assert series(kept.table("2026-11-01")) == {"m": "first night"}
    assert kept.end("2026-11-02")["checks"] == 1
    assert kept.end("2026-11-03", cosine=0.4)["verdict"] == "failed"


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_no_drift_fails_until_the_night_is_accepted(kept, other):
    corpus, model = OTHERS[other]
    changed = {"models": {"m": of() | model}, "corpus": corpus}
    kept.end("2026-11-01")
    for night in ("2026-11-02", "2026-11-03"):  # The night after is no baseline of its own either.
        judged = kept.end(night, **changed)
        assert (judged["verdict"], len(judged["failed"]), judged["first_nights"]) == ("failed", 1, [])
        assert "2026-11-01" in judged["failed"][0]
        assert series(kept.table(night)) == {"m": "failed"}
    history.accept(kept.record, "2026-11-02")
    assert kept.end("2026-11-04", **changed)["verdict"] == "passed"
    assert kept.table("2026-11-04")["baseline"].to_list() == ["the night of 2026-11-02 (run run02)"]
    assert kept.end("2026-11-05", **changed, cosine=0.4)["verdict"] == "failed"


@pytest.mark.parametrize("other", OTHERS)
def test_on_request_it_begins_a_series_whose_later_nights_are_compared_with_it(kept, other):
    corpus, model = OTHERS[other]
    changed = {"models": {"m": of() | model}, "corpus": corpus, "on_other_model": "new-series"}
    kept.end("2026-11-01")
    judged = kept.end("2026-11-02", **changed, cosine=0.9)
    assert (judged["verdict"], len(judged["first_nights"])) == ("passed", 1)
    assert series(kept.table("2026-11-02")) == {"m": "first night"}
    assert kept.end("2026-11-03", **changed, cosine=0.9)["checks"] == 1
    assert kept.end("2026-11-04", **changed, cosine=0.95)["verdict"] == "failed"


def test_your_own_vectors_of_another_width_are_another_model_and_of_a_width_not_written_the_same(kept):
    older, wide, narrow = ({"given": of("", **width)} for width in ({}, {"dimensions": 384}, {"dimensions": 64}))
    kept.end("2026-11-01", older, corpus=OWN)
    judged = kept.end("2026-11-02", wide, corpus=OWN)
    assert (judged["verdict"], judged["first_nights"]) == ("passed", [])
    judged = kept.end("2026-11-03", narrow, corpus=OWN)
    assert judged["verdict"] == "failed"
    assert all(width in judged["failed"][0] for width in ("384", "64"))


def test_nights_that_failed_for_their_model_begin_a_series_once_that_is_asked_for(kept):
    changed = {"m": of("bbbb")}
    kept.end("2026-11-01")
    assert kept.end("2026-11-02", changed)["verdict"] == "failed"
    assert kept.end("2026-11-02", changed, on_other_model="new-series")["verdict"] == "passed"  # The same run, judged again.
    assert kept.end("2026-11-03", changed)["checks"] == 1


def test_back_at_the_accepted_model_its_own_last_night_is_the_baseline(kept):
    kept.end("2026-11-01")
    kept.end("2026-11-02", {"m": of("bbbb")}, cosine=0.5)
    assert kept.end("2026-11-03")["verdict"] == "passed"
    assert kept.table("2026-11-03")["baseline"].to_list() == ["the night of 2026-11-01 (run run01)"]


def test_a_model_that_is_added_begins_a_series_and_one_that_replaces_another_fails(kept):
    a, b, c, d, e = ({name: of(name * 4)} for name in "abcde")
    kept.end("2026-11-01", a)
    assert kept.end("2026-11-02", a | b)["verdict"] == "passed"
    assert series(kept.table("2026-11-02")) == {"b": "first night"}
    assert kept.end("2026-11-03", a | b)["checks"] == 2
    assert kept.end("2026-11-04", a | c)["verdict"] == "failed"
    assert series(kept.table("2026-11-04")) == {"c": "failed"}
    assert kept.end("2026-11-05", a)["verdict"] == "passed"
    # One that is added after another was replaced, and that accepted.
    assert kept.end("2026-11-06", d)["verdict"] == "failed"
    history.accept(kept.record, "2026-11-06")
    assert kept.end("2026-11-07", d | e)["verdict"] == "passed"
    assert series(kept.table("2026-11-07")) == {"e": "first night"}


def test_where_no_night_ever_passed_another_model_fails_on_every_night(kept):
    never, changed = {"thresholds": ["texts >= 2000"]}, {"m": of("bbbb")}
    kept.end("2026-11-01", **never)
    for night in ("2026-11-02", "2026-11-03"):
        assert kept.end(night, changed)["verdict"] == "failed"


def test_a_temperature_that_is_added_begins_a_series_and_the_others_are_compared(kept):
    kept.end("2026-11-01")
    judged = kept.end("2026-11-02", measured=(1.0, 0.8), cosine=0.4)
    assert (len(judged["failed"]), len(judged["first_nights"])) == (1, 1)
    table = kept.table("2026-11-02").filter(pl.col("check") == "series")
    assert table["temperature"].to_list() == ["0.8"]


def test_thresholds_hold_for_a_night_that_begins_a_series_and_beside_one_that_fails(kept):
    kept.end("2026-11-01")
    changed, held = {"m": of("bbbb")}, {"thresholds": ["texts >= 2000"]}
    assert len(kept.end("2026-11-02", changed, **held, on_other_model="new-series")["failed"]) == 1
    assert len(kept.end("2026-11-03", changed, **held)["failed"]) == 2


def test_another_model_fails_where_no_drift_is_checked_but_not_at_temperatures_without_a_gate(kept):
    both, changed = {"measured": (1.0, 0.8), "drift": {}}, {"m": of("bbbb")}
    kept.end("2026-11-01", **both)
    assert len(kept.end("2026-11-02", changed, **both)["failed"]) == 2
    judged = kept.end("2026-11-03", changed, **both, temperatures=[0.8], thresholds=["texts >= 2000"])
    assert [" at τ 0.8" in reason for reason in judged["failed"]] == [True, True]


def test_nothing_is_said_of_models_where_no_baseline_is_asked_for(kept):
    kept.end("2026-11-01")
    judged = kept.end("2026-11-02", {"m": of("bbbb")}, baseline=None, thresholds=["texts >= 1"])
    assert (judged["verdict"], judged["first_nights"]) == ("passed", [])


def test_the_verdict_and_what_else_is_to_be_known_are_in_every_place(kept):
    kept.end("2026-11-01")
    failed = kept.end("2026-11-02", {"m": of("bbbb")})
    begun = kept.end("2026-11-03", {"m": of("cccc")}, on_other_model="new-series")
    assert checks.FIRST_NIGHT in nights.verdict_in_words(begun)
    assert checks.FIRST_NIGHT not in nights.verdict_in_words(failed)
    assert [kept.row(night)["gate_reason"] for night in ("2026-11-02", "2026-11-03")] == [failed["failed"][0], ""]
    assert [kept.row(night)["gate_note"] for night in ("2026-11-02", "2026-11-03")] == ["", begun["first_nights"][0]]
    record = history.load(kept.record)
    lines = page.reasons(record, 30)
    assert len(lines) == 3
    assert failed["failed"][0] in lines[1]
    assert begun["first_nights"][0] in lines[2]
    assert page_of(page.report_of(record), {}).html.replace("\u00a0", " ").count(f">{begun['first_nights'][0]}<") == 1
    assert [charts.reason(row) for row in record.to_dicts()][1:] == [failed["failed"][0], begun["first_nights"][0]]
    passed, other = ({"night": "2026-11-03", "gate": judged} for judged in (begun, failed))
    assert len(notify.github_lines(passed)) == 2
    assert notify.github_lines(other) == [line for line in notify.github_lines(other) if line.startswith("::error")]


def test_a_night_names_the_run_that_it_is_compared_with(kept):
    assert "compared_with" not in kept.end("2026-11-01")
    first = kept.end("2026-11-02")["compared_with"]
    assert first.startswith("/")
    assert first.endswith("2026-11-01")


def test_a_record_of_an_older_version_has_no_notes_and_is_shown(kept):
    kept.end("2026-11-01")
    (name,) = kept.record.list("", ".parquet")
    kept.record.write_table(name, kept.record.read_table(name).drop_columns(["gate_note"]))
    record = history.load(kept.record)
    assert page.reasons(record, 30) == []
    assert page_of(page.report_of(record), {}).html
