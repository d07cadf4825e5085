"""Audits that several files read: a whole one of plain settings, and one with queries, groups and a search for pairs."""

import pytest
from audit_ways import QUERIES, RANKED, TEXTS, settings
from whole_run import as_lines, audited, documented, printed_audit, read_tables


@pytest.fixture(scope="session")
def real_audit(once, minilm, shared_corpora):
    """What `small_audit` has, of the real model and of articles of an encyclopedia."""
    articles = shared_corpora / "wikipedia" / "paragraphs_100k.parquet"
    return once("real-audit", lambda folder: printed_audit(folder, str(minilm), str(articles), 128), ray=True)


@pytest.fixture(scope="session")
def asked_corpus(once):
    """Docstrings, every tenth of them twice under two ids, and some of others as queries."""

    def make(folder):
        found = documented("pyarrow")
        texts = found[: 2 * TEXTS : 2]
        texts += [{"id": f"copy of {text['id']}", "text": text["text"]} for text in texts[::10]]
        (folder / "texts.jsonl").write_text(as_lines(texts))
        (folder / "queries.jsonl").write_text(as_lines(found[1 : 2 * QUERIES : 2]))

    return once("asked-corpus", make) / "texts.jsonl"


@pytest.fixture(scope="session")
def stopped_and_finished(once, asked_corpus, small_model):
    """A run whose bounds left too many pairs, resumed where that number may be held; and what it said first."""
    from tempscale_jobs.errors import UsageError
    from tempscale_jobs.steps import worst

    own = {"socm_top_over": "corpus", "worst_pairs": RANKED}

    def make(folder):
        data = settings(folder / "run", asked_corpus, small_model, **own)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(worst, "SEEDS", 40)  # Fewer than there are texts: the bounds must do their part.
            most = worst.MOST_PAIRS
            patch.setattr(worst, "MOST_PAIRS", RANKED - 2)
            with pytest.raises(UsageError) as said:
                audited(data)
            (folder / "said.txt").write_text(str(said.value), "utf-8")
            patch.setattr(worst, "MOST_PAIRS", most)
            audited(data)

    folder = once("asked", make, ray=True)
    return folder / "run", (folder / "said.txt").read_text("utf-8")


@pytest.fixture(scope="session")
def asked(stopped_and_finished):
    return stopped_and_finished[0]


@pytest.fixture(scope="session")
def asked_tables(asked):
    return read_tables(asked)
