"""How many texts the prefix probe takes: those of a wanted error, or as many as are asked for."""

import pytest
from whole_run import as_lines, audited, documented, read_tables

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.steps import probe

pytestmark = pytest.mark.proof


def settings(out, corpus, small_model, **analysis):
    return {
        "out": str(out), "corpus": {"source": str(corpus)},
        "embedding": {"models": [small_model], "temperatures": [1.0, 0.7], "max_length": 64},
        "analysis": {"intervals": [0, 32], "socm_sample": 0, "neighbours": 0, "cosine": "moments"} | analysis,
        "execution": {"cache": str(out.parent / "cache")},
    }  # fmt: skip


@pytest.fixture(scope="module")
def corpus(ray_session, tmp_path_factory):
    place = tmp_path_factory.mktemp("long") / "texts.jsonl"
    texts = [text for text in documented("scipy") if len(text["text"]) > 500]
    place.write_text(as_lines(texts[:200]), "utf-8")
    return place


def run(out, *how, **analysis):
    audited(settings(out, *how, **analysis))
    tables = read_tables(out)
    return tables["prefix_probe"], tables["collapse_summary"]


@pytest.mark.soak
def test_a_smaller_error_takes_more_texts_and_as_many_give_the_same(corpus, small_model, tmp_path_factory):
    place = tmp_path_factory.mktemp("probed")
    rough, summary = run(place / "rough", corpus, small_model, probe_se=1.0)
    assert summary["prefix_texts"].to_list() == [64, 64]
    wanted = 0.8 * summary["prefix_gap_se_superpopulation"].max()
    fine, summary = run(place / "fine", corpus, small_model, probe_se=wanted)
    (texts,) = summary["prefix_texts"].unique().to_list()
    assert texts % probe.CHUNK == 0
    assert 80 <= texts <= 160  # (1/0.8)² is 1.56 times as many; errors of 64 texts are known to a tenth.
    assert summary["prefix_gap_se_superpopulation"].max() <= 1.15 * wanted
    asked, _ = run(place / "asked", corpus, small_model, probe_sample=texts)
    assert asked.equals(fine)
    assert (rough["cosine_se_superpopulation"].to_numpy() > fine["cosine_se_superpopulation"].to_numpy()).all()
    # An error that nothing reaches takes all that are long enough.
    every, summary = run(place / "every", corpus, small_model, probe_se=1e-9)
    (texts,) = summary["prefix_texts"].unique().to_list()
    assert 160 < texts <= 200
    assert (every["cosine_se"].to_numpy() == 0).all()


def test_the_last_round_s_texts_are_all_embedded(corpus, small_model, tmp_path, monkeypatch):
    """Errors that fall slower than expected ask for more texts after the last round, too."""
    monkeypatch.setattr(probe, "gap_error", lambda means: 0.0112)
    _, summary = run(tmp_path / "run", corpus, small_model, probe_se=0.01)
    assert summary["prefix_texts"].to_list() == [112, 112]  # 64, 88, 112: 1.12² times as many each, in pieces of 8.


def test_a_number_of_texts_and_a_wanted_error_exclude_each_other():
    with pytest.raises(UsageError, match=r"probe_sample.*probe_se"):
        resolve({"analysis": {"probe_sample": 10, "probe_se": 0.01}})
