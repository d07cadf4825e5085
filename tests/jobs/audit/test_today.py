"""What the first screen says to those who have queries: what to do today, from which cosine on, and what a change costs."""

import shlex

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from whole_run import read_record, read_report, read_tables

from tempscale.stats.sample import keyed_hash
from tempscale_jobs.audit.advice import advice
from tempscale_jobs.audit.words import labelled
from tempscale_jobs.report.text import Edges
from tempscale_jobs.steps.calibration import queries_below, query_card

TEXTS, QUERIES, DIM, K = 600, 200, 16, 10
EDGES = (0, 64, 128)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """Vectors that lean the more towards the queries the shorter their texts are."""
    folder, random = tmp_path_factory.mktemp("today"), np.random.default_rng(5)
    tokens = random.integers(8, 256, TEXTS)
    lean = np.zeros(DIM)
    lean[0] = 1.0
    texts = unit(random.normal(size=(TEXTS, DIM)) + (6 - np.log2(tokens))[:, None] * lean)
    queries = unit(random.normal(size=(QUERIES, DIM)) + 2 * lean)
    for name, vectors in (("texts", texts), ("queries", queries)):
        frame = pl.DataFrame({"id": [f"{name[0]}{k}" for k in range(len(vectors))], "vector": vectors.tolist()})
        frame.with_columns(length=pl.Series(tokens[: len(vectors)])).write_parquet(folder / f"{name}.parquet")
    return folder


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def run(own, ray_session):
    """An audit of them that measures one variant."""
    command = [
        "audit", "--corpus", str(own / "texts.parquet"), "--embedding-column", "vector", "--length-column", "length",
        "--queries", str(own / "queries.parquet"), "--queries-embedding-column", "vector", "--neighbours", str(K),
        "--intervals", ",".join(map(str, EDGES)), "--workers", "1", "--what-if", "int8", "--out", str(own / "run"),
    ]  # fmt: skip
    code, _, err = in_process(*command)
    assert code == 0, err
    return own / "run"


def lines(run, **changed):
    tables, record = read_tables(run) | changed, read_record(run)
    tables = {name: table for name, table in tables.items() if table is not None}  # Without findings they are made again.
    found = labelled(tables, Edges.of(record))
    return advice(found, found["collapse_summary"].row(0, named=True), record)


def first_length(vectors, queries, tokens):
    """The exposure of the shortest texts, by a full sort."""
    near = np.argsort(-(queries @ vectors.T), axis=1)[:, :K]
    short = tokens < EDGES[1]
    return float(short[near].mean() / short.mean())


def test_the_fitted_correction_comes_first_and_its_command_does_what_is_said(run, own):
    (line,) = [line for line in lines(run) if "correct" in line.command]
    assert line.claim.startswith("Texts of 0–63 tokens are found more often than their share")
    assert "and nothing is embedded again. It keeps" in line.claim
    assert "an index that ranks by inner product" in line.lead
    words = shlex.split(line.command)
    assert "length-asked-by-queries.json" in words[words.index("--correction") + 1]
    out = words[words.index("--out") + 1]
    for side, more in ((out, []), (f"{out}-queries", ["--side", "queries", "--embeddings", str(own / "queries.parquet")])):
        again = [*words[1:], *more] if not more else replaced(words[1:], more, side)
        code, _, err = in_process(*again)
        assert code == 0, err
    sides = [np.stack(stored(folder)["vector"].to_list()) for folder in (out, f"{out}-queries")]
    tables, tokens = read_tables(run), pl.read_parquet(own / "texts.parquet")["length"].to_numpy()
    plain = [np.stack(pl.read_parquet(own / f"{name}.parquet")["vector"].to_list()) for name in ("texts", "queries")]
    # The queries that the correction was not fitted to are those that measure it.
    held = np.array([keyed_hash(name, 0) % 2 == 1 for name in stored(f"{out}-queries")["id"]])
    for table, pair in (("exposure", plain), ("exposure_corrected", (sides[0], sides[1][held]))):
        said = tables[table].filter(asked_by="queries", k=K, interval=0)["exposure"].item()
        assert said == pytest.approx(first_length(*pair, tokens), abs=0.01)
    assert abs(np.log(first_length(*sides, tokens))) < abs(np.log(first_length(*plain, tokens))) / 2


def replaced(words, options, out):
    """A command with other values of some options, and another folder."""
    given = dict(zip(options[::2], options[1::2], strict=True)) | {"--out": out}
    kept = [words[0]]
    for option, value in zip(words[1::2], words[2::2], strict=True):
        if option not in given and option != "--length-column":
            kept += [option, value]
    return [*kept, *(word for pair in given.items() for word in pair)]


def stored(folder):
    from pathlib import Path

    return pl.concat([pl.read_parquet(file) for file in sorted(Path(folder, "vectors").glob("*.parquet"))])


def test_a_threshold_and_the_cost_of_a_change_are_on_the_first_screen(run):
    told = " ".join(line.text for line in lines(run))
    row = read_tables(run)["what_if"].filter(pl.col("by").is_null(), what="int8").row(0, named=True)
    assert f"int8 keeps {100 * row['neighbours_kept']:.1f}" in told
    assert "only 1 of 100 pairs of a query and a text reaches it" in told
    table = read_tables(run)["query_cosines"]
    most = query_card(table)[0]["percentiles"]["99"]
    below, _ = queries_below(table, most)
    assert (f"of {QUERIES} queries have no text that reaches it" in told) == (below > 0)
    page = read_report(run)
    assert page.index("only 1 of 100 pairs of a query and a text reaches it") < page.index("In words")


def test_where_no_length_wins_that_is_said_of_the_queries_searches(run):
    tables = read_tables(run)
    fair = tables["exposure"].with_columns(exposure=pl.lit(1.0))
    gap = tables["collapse_summary"].with_columns(collapse_gap=pl.lit(0.5), collapse_gap_se_superpopulation=pl.lit(0.01))
    told = [line.claim for line in lines(run, exposure=fair, collapse_summary=gap, findings=None)]
    assert not any("found more often than their share" in claim for claim in told)
    assert "2 texts take" in told[0], "two texts are found far too often"
    claim = (
        "None of 3 lengths takes more than its share of the results of your queries beyond noise; least certain are texts"
    )
    assert told[1].startswith(claim)


def test_what_was_not_measured_is_named_with_its_command(run):
    last = lines(run, what_if=read_tables(run)["what_if"].clear())[-1]
    assert "was not measured" in last.claim
    assert shlex.split(last.command)[:2] == ["tempscale", "audit"]
    assert "--what-if int8 --what-if bits" in last.command


def test_a_correction_that_is_not_fairer_beyond_noise_is_not_advised(run):
    tables = read_tables(run)
    after = tables["exposure"].select("interval", "asked_by", "k", worse=pl.col("exposure"))
    same = tables["exposure_corrected"].join(after, on=["interval", "asked_by", "k"])
    same = same.with_columns(exposure="worse").drop("worse")
    (line,) = [line for line in lines(run, exposure_corrected=same) if "found more often" in line.claim]
    assert "correct " not in line.command
    assert "fitted" not in line.claim
