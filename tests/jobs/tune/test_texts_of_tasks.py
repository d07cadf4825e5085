"""Texts for one τ a layer: of the corpus, or of the tasks where there are some."""

from types import SimpleNamespace

from whole_run import as_lines

from tempscale_jobs.config.strict import checked
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.tune import layers


def test_texts_are_those_of_the_tasks_where_there_are_some(monkeypatch, tmp_path):
    units = ["first", "second"]
    monkeypatch.setattr(layers.tasks, "expand", lambda asked: units)
    monkeypatch.setattr(layers.tasks, "load", lambda unit, seed, tokenizer, intervals: (unit, seed, intervals))
    monkeypatch.setattr(layers.tasks, "texts", lambda task: iter([f"{task[0]} a", f"{task[0]} b"]))
    choosing = SimpleNamespace(intervals=[0, 32])
    config = SimpleNamespace(tasks=["SciFact"], seed=3, choosing=choosing)
    assert [*layers.texts_of_source(config, None)] == ["first a", "first b", "second a", "second b"]
    (tmp_path / "c.jsonl").write_text(as_lines([{"text": "one text"}, {"text": ""}, {"text": "x" * 90}]))
    corpus = {"source": str(tmp_path / "c.jsonl"), "max_characters": 20}
    config = checked(TuneConfig, {"out": str(tmp_path / "run"), "corpus": corpus})
    assert [*layers.texts_of_source(config, None)] == ["one text", "x" * 20]
