"""`--what-if "centre_by(column)"` with that column among --by: every figure again from the vectors, by a full sort."""

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from whole_run import read_tables

from tempscale.collapse import tiles
from tempscale_jobs.audit.what_if import section
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.steps import what_if
from tempscale_jobs.tables.audit import WHAT_IF_THRESHOLDS

K, DIM, TEXTS, QUERIES = 5, 16, 300, 120
WHAT = ("centre_by(source)", "centre_by(source)+int8", "centre(unit)")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def data():
    """Vectors whose source moves them, of sources of many and of few texts, and queries without one."""
    random = np.random.default_rng(4)
    source = random.permutation(["wiki"] * 150 + ["forum"] * 100 + ["odd"] * 26 + ["rare"] * 24)
    moved = {name: random.normal(size=DIM) for name in ("wiki", "forum", "odd", "rare")}
    rows = unit(random.normal(size=(TEXTS, DIM)) + np.array([moved[name] for name in source])).astype(np.float32)
    asking = unit(random.normal(size=(QUERIES, DIM)) + 0.5 * moved["wiki"]).astype(np.float32)
    return source, rows, random.integers(1, 90, TEXTS), asking


@pytest.fixture(scope="module")
def folder(tmp_path_factory, ray_session, data):
    folder = tmp_path_factory.mktemp("what-if-by-group")
    source, rows, lengths, asking = data
    texts = {"id": [f"t{k}" for k in range(TEXTS)], "length": lengths, "source": source.tolist(), "vector": rows.tolist()}
    pl.DataFrame(texts).write_parquet(folder / "texts.parquet")
    queries = {"id": [f"q{k}" for k in range(QUERIES)], "vector": asking.tolist()}
    pl.DataFrame(queries).write_parquet(folder / "queries.parquet")
    assert audited(folder, "run") == 0
    return folder


def audited(folder, out, workers="1"):
    command = [
        "audit", "--corpus", str(folder / "texts.parquet"), "--embedding-column", "vector", "--length-column", "length",
        "--queries", str(folder / "queries.parquet"), "--queries-embedding-column", "vector", "--by", "source",
        "--neighbours", str(K), "--intervals", "0,40", "--workers", workers, "--out", str(folder / out),
        *(word for what in WHAT for word in ("--what-if", what)),
    ]  # fmt: skip
    code, _, err = in_process(*command)
    print(err)
    return code


def nearest(asking, held):
    return np.argsort(-(asking @ held.T), axis=1, kind="stable")[:, :K]


def by_hand(data):
    """The nearest texts by the vectors as they are, and after the mean of each text's source is taken off it."""
    source, rows, _, asking = data
    rows, asking = rows.astype(np.float64), asking.astype(np.float64)
    groups = np.where(np.isin(source, ["odd", "rare"]), "(others)", source)
    means = {name: rows[groups == name].mean(0) for name in set(groups.tolist())}
    moved = unit(rows - np.array([means[name] for name in groups]))
    return groups, nearest(asking, rows), nearest(unit(asking - asking.mean(0)), moved)


def test_the_mean_of_each_text_s_group_is_taken_off_it(folder, data):
    groups, exact, found = by_hand(data)
    table = read_tables(folder / "run")["what_if"]
    assert table.filter(pl.col("by").is_null())["what"].to_list() == ["", *WHAT]
    (overall,) = table.filter(pl.col("by").is_null(), what=WHAT[0]).to_dicts()
    kept = np.array([len({*a} & {*b}) / K for a, b in zip(exact.tolist(), found.tolist(), strict=True)])
    assert overall["asked_by"] == "queries"
    assert overall["neighbours_kept"] == pytest.approx(kept.mean(), abs=1e-9)
    assert kept.mean() < 0.9
    rows, of_one_mean = (table.filter(by="source", what=what).sort("group") for what in (WHAT[0], WHAT[2]))
    assert (rows["exposure"] - of_one_mean["exposure"]).abs().max() > 0.1
    assert set(rows["group"]) == set(groups.tolist())
    for row in rows.to_dicts():
        inside = groups == row["group"]
        assert row["exposure"] == pytest.approx(inside[found].mean() / inside.mean(), abs=1e-9)
        change = (inside[found].mean() - inside[exact].mean()) / inside.mean()
        assert row["exposure_change"] == pytest.approx(change, abs=1e-9)


def test_other_steps_follow_it(folder):
    table = read_tables(folder / "run")["what_if"].filter(pl.col("by").is_null())
    plain, coded = (table.filter(what=what).row(0, named=True) for what in WHAT[:2])
    assert (plain["vector_bytes"], coded["vector_bytes"]) == (4 * DIM, DIM)
    assert coded["neighbours_kept"] == pytest.approx(plain["neighbours_kept"], abs=0.05)


def test_the_page_has_a_row_for_each_group(folder):
    tables = read_tables(folder / "run") | {"what_if_thresholds": pl.DataFrame(WHAT_IF_THRESHOLDS.schema().empty_table())}
    (table,) = [part.table for part in section("m0", tables, [0, 40])[0].parts if part.table is not None]
    rows = tables["what_if"].filter(by="source", what=WHAT[0]).to_dicts()
    assert [cells[1] for cells in table.rows] == [row["group"] for row in rows]
    at = table.heads.index(WHAT[0])
    for cells, row in zip(table.rows, rows, strict=True):
        assert f"exposure {row['exposure']:.2f}" in cells[at]


@pytest.mark.proof
def test_other_workers_and_other_pieces_give_the_same_bytes(folder, monkeypatch):
    monkeypatch.setattr(what_if, "ASKERS_OF_A_TASK", 40)
    monkeypatch.setattr(tiles, "block_size", lambda texts, dim: 10)  # Of thirty blocks, two are searched together.
    assert audited(folder, "two", workers="2") == 0
    first, second = ((folder / run / "tables" / "what_if.parquet").read_bytes() for run in ("run", "two"))
    assert first == second


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (
            {"by": ["source"]},
            r"'centre_by\(a b\)\+bits' depends on the groups by 'a b', .*: add --by 'a b', or leave it out",
        ),
        ({"by": ["a b"], "queries": None}, "fitted to queries, and none are given"),
        (
            {"by": ["a b"], "analysis": {"what_if": ["centre_by"]}},
            r"centre_by needs the column, such as centre_by\(language\)",
        ),
        ({"by": ["a b"], "analysis": {"what_if": ["centre_by(a b)+centre_by(a b)"]}}, "centre_by twice"),
    ],
)
def test_a_group_that_is_not_read_is_refused_by_name(data, named):
    whole = {"queries": {"source": "q.parquet"}, "analysis": {"what_if": ["centre_by(a b)+bits"]}}
    with pytest.raises(UsageError, match=named) as caught:
        resolve(whole | data)
    assert caught.value.exit_code == 2
    assert resolve(whole | {"by": ["a b"]}).analysis.what_if == ["centre_by(a b)+bits"]
