"""What an audit says in words for each state of its figures: tests/golden/audit-sentences.txt has every sentence."""

import itertools
import re
import shlex

import polars as pl
import pytest
from golden_words import same
from pages import RUN, tables_of, without_errors

from tempscale_jobs.audit.advice import advice
from tempscale_jobs.audit.verdict import answer
from tempscale_jobs.audit.words import in_words, labelled, protocol
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.text import Edges, interval_name
from tempscale_jobs.urls import masked

GAPS = {"up": 0.08, "noise": 0.01, "down": -0.08, "absent": None}
PREFIXES = {"up": 0.02, "noise": 0.001, "down": -0.02, "absent": None}
NOTHING_WRONG = {"gap": 0.001, "prefix": 0.001, "exposed": (1.01, 1.0, 0.99)}
OWN_VECTORS = {"source": "v.parquet", "embedding_column": "vector", "length_column": "tokens", "dims": 64}
IN_ORDER = {"cosine_beside": 0.41, "cosine_mean": 0.06, "factor": 2.31, "correlation": 0.3, "alike": True, "whole": True}
PROMPTS = {"document": "passage: ", "query": "query: "}


def of_model(**known):
    return {"models": {"MiniLM": {"max_length": 256} | known}}


def configured(**sections):
    return {"config": RUN["config"] | sections}


def of_corpus(**counts):
    return {"corpus": RUN["corpus"] | counts}


def summed(tables, **columns):
    """The tables with other columns of collapse_summary."""
    return tables | {"collapse_summary": tables["collapse_summary"].with_columns(**columns)}


def variants():
    """Each state of the figures by its name: tables, and what run.json has of its own."""
    for (gap, value), (prefix, other) in itertools.product(GAPS.items(), PREFIXES.items()):
        yield f"gap {gap}, prefix gap {prefix}", tables_of(gap=value, prefix=other), {}
    wins = (1.5, 1.0, 0.5)
    yield "the gap within noise, and moved within it", tables_of(gap=0.01, change=0.002), {}
    yield "no temperature lowers the gap", tables_of(change=0.017), {}
    yield "a temperature that lowers it within noise", tables_of(change=-0.001), {}
    yield "no error is known", without_errors(tables_of()), {}
    unknown = pl.lit(None, pl.Float64)
    yield "no error of the prefix gap is known", summed(tables_of(), prefix_gap_se_superpopulation=unknown), {}
    yield "nothing but cosines was measured", tables_of(gap=None, prefix=None, socm=None), {}
    yield "short texts win, long ones lose", tables_of(exposed=wins), {}
    yield "long texts win, which is beyond noise among three", tables_of(exposed=(0.5, 1.0, 1.33)), {}
    for fair in ((0.95, 1.0, 1.05), (0.89, 1.0, 1.11)):
        yield f"exposures of {fair} are within noise, 2.2 errors among three too", tables_of(exposed=fair), {}
    yield "texts that are cut win", tables_of(exposed=(0.5, 1.5, 0.5)), {}
    yield "the same in chunks", tables_of(exposed=(0.5, 1.5, 0.5)), configured(embedding={"long": "chunk"})
    asked = tables_of(exposed=(1.0, 1.0, 1.5), asked_by=("corpus", "queries"), queries=1409)
    yield "long texts win the queries", asked, {}
    yield "lengths were not measured, and short texts win", tables_of(gap=None, exposed=wins), {}
    fine = summed(tables_of(**NOTHING_WRONG), truncated_share=0.01)
    yield "nothing is wrong", fine, {}
    yield "nothing is wrong, and nothing was searched", fine | {"exposure": fine["exposure"].clear()}, {}
    whole, finer = of_corpus(usable=120), configured(analysis={"intervals": [0, 16, 32, 64, 128]})
    yield "no gap of a whole corpus", tables_of(gap=None), whole
    yield "no gap, and nearly all texts fill the window", summed(tables_of(gap=None), truncated_share=0.99), whole
    yield "no gap of a whole corpus by fine intervals", tables_of(gap=None), whole | finer
    yield "no error of a whole corpus: intervals make no documents", without_errors(tables_of()), whole
    yield "embeddings of one's own", tables_of(exposed=wins), configured(corpus=OWN_VECTORS)
    yield "texts beside one another are alike", tables_of(exposed=wins), of_model(source_order=IN_ORDER)
    gaps = [0, 50, 100, 400, 900, 901]
    yield "edges of which [50, 100) and [900, ∞) hold no text", tables_of(), configured(analysis={"intervals": gaps})
    yield "one pair of two texts", summed(tables_of(), socm_texts=pl.lit(2, pl.Int64)), {}
    yield "prompts of each side", tables_of(), of_model(prompts=PROMPTS)
    yield "one prompt for both sides", tables_of(), of_model(prompts=dict.fromkeys(PROMPTS, "about: "))
    yield "chunks have no window", tables_of(), configured(embedding={"long": "chunk"})
    yield "a temperature of its own", tables_of(), of_model(own_temperature=0.741)
    for similarity in ("dot", "euclidean"):
        yield f"compared by {similarity}", tables_of(), of_model(similarity=similarity)
    for documents, equal in ((5, 5.0), (40, 6.2), (400, 300.0)):
        known = of_model(documents=documents, documents_equal=equal)
        yield f"{documents} documents, as good as {equal} of one size", tables_of(), known


def advised(tables, record):
    """What is to be done, for the only model."""
    found = labelled(tables, Edges.of(record))
    return advice(found, found["collapse_summary"].row(0, named=True), record)


def said(tables, own):
    """The answer, the steps and the sentences of the only model."""
    record = RUN | of_model() | own
    edges = Edges.of(record)
    found = labelled(tables, edges)
    lines = [answer(found["collapse_summary"].row(0, named=True), Findings.read(found["findings"]), edges)]
    lines += [line for step in advised(tables, record) for line in (step.text, step.command) if line]
    chunked = record["config"].get("embedding", {}).get("long") == "chunk"
    return [*lines, *in_words(found, edges), *protocol(record["models"]["MiniLM"], edges, chunked)]


def test_what_is_said_of_each_state():
    """All of the first state; of the others what they say that it does not, and how much of it they leave out."""
    usual, lines = [], []
    for name, tables, own in variants():
        found = said(tables, own)
        lines += [f"# {name}: without {len(set(usual) - set(found))} lines", *(line for line in found if line not in usual)]
        usual = usual or found
    text = "\n".join(lines) + "\n"
    assert not re.search(r"(?<![\d,])1 (texts|pairs|rows|tokens)\b", text)
    same("audit-sentences.txt", text)


@pytest.mark.parametrize("source", ["a b.jsonl", masked("https://user:secret@host/texts.jsonl?token=abc")])
def test_commands_are_of_the_same_corpus_and_model_and_none_is_printed_that_has_a_secret(source):
    """With *** for its secret no command would run."""
    corpus = {"source": source, "text_column": "the body", "document_column": None}
    config = configured(corpus=corpus, embedding={"models": ["models/mine"], "long": "truncate"})
    found = advised(tables_of(exposed=(1.5, 1.0, 0.5)), RUN | of_model() | config | of_corpus(source=source))
    commands = [shlex.split(step.command) for step in found if step.command]
    assert len(commands) == (0 if "***" in source else 2)
    for words in commands:
        for option, value in (("--corpus", source), ("--text-column", "the body"), ("--model", "models/mine")):
            assert words[words.index(option) + 1] == value


@pytest.mark.parametrize(
    ("windows", "name"), [((256,), "100–256"), ((256, 512), "100–399"), ((512,), "100–399"), ((64,), "100–399")]
)
def test_an_interval_is_named_up_to_the_window_of_all_models(windows, name):
    models = {str(k): {"max_length": window} for k, window in enumerate(windows)}
    assert interval_name(100, Edges.of(RUN | {"models": models})) == name
    whole = configured(embedding={"long": "chunk"})
    assert interval_name(100, Edges.of(RUN | {"models": models} | whole)) == "100–399"  # Chunks have no window.


def test_the_last_interval_ends_at_the_window():
    assert interval_name(400, Edges.of(RUN | of_model(max_length=512))) == "400–512"
    assert interval_name(400, Edges.of(RUN | of_model(max_length=0))) == "400+"
