"""`--by`: every figure of groups again from the vectors, by a full sort of all cosines and definitions by hand."""

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import in_process, said
from whole_run import as_lines, documented, read_parts, read_record, read_report, read_tables

from tempscale.collapse import tiles
from tempscale.collapse.exposure import Units, change, exposure
from tempscale.stats.errors import documents_error
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.steps import by_group, slots

K, DIM, TEXTS, QUERIES, PLANTED = 6, 16, 240, 90, 0.7
TABLES = ("group_exposure", "group_cosine")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def planted(rows, moved):
    """Unit vectors about nothing; those of the source `wiki` are moved by a fixed vector."""
    return unit(rows + PLANTED * np.outer(moved, np.full(rows.shape[1], rows.shape[1] ** -0.5)) * rows.shape[1] ** 0.5)


def made():
    """The rows of the corpus, and of the queries."""
    random = np.random.default_rng(2)
    kind = random.choice(["wiki", "forum", "rare", "odd"], TEXTS, p=[0.45, 0.4, 0.1, 0.05])
    vectors = planted(random.normal(size=(TEXTS, DIM)), kind == "wiki").astype(np.float32)
    texts = {
        "id": [f"t{k}" for k in range(TEXTS)], "length": random.integers(1, 90, TEXTS), "vector": vectors.tolist(),
        "source": [None if k % 5 == 0 else name for k, name in enumerate(kind)], "year": random.integers(2019, 2022, TEXTS),
        "page": [f"page {k}" for k in random.integers(0, 40, TEXTS)], "nested": [[1]] * TEXTS,
    }  # fmt: skip
    asking = planted(random.normal(size=(QUERIES, DIM)), random.random(QUERIES) < 0.5).astype(np.float32)
    queries = {"id": [f"q{k}" for k in range(QUERIES)], "vector": asking.tolist()}
    queries |= {"source": random.choice(["wiki", "forum", "unseen"], QUERIES).tolist()}
    return pa.table(texts), pa.table(queries)


def audited(folder, out, *more, corpus="texts.parquet", by=("source", "year"), queries=True):
    command = [
        "audit", "--corpus", str(folder / corpus), "--embedding-column", "vector", "--length-column", "length", "--out",
        str(out), "--neighbours", str(K), "--intervals", "0,40", *(word for name in by for word in ("--by", name)), *more,
    ]  # fmt: skip
    if queries:
        command += ["--queries", str(folder / "queries.parquet"), "--queries-embedding-column", "vector"]
    return in_process(*command)


@pytest.fixture(scope="module")
def run(tmp_path_factory, ray_session):
    """An audit by two columns, of texts of documents, with queries that have one of the columns."""
    folder = tmp_path_factory.mktemp("by-group")
    for name, table in zip(("texts", "queries"), made(), strict=True):
        pq.write_table(table, folder / f"{name}.parquet")
    code, _, err = audited(folder, folder / "run", "--document-column", "page", "--what-if", "bits", "--workers", "1")
    assert code == 0, err
    return folder


def groups_of(values):
    """The group of each value, and the groups, by the definition of both."""
    names = ["(none)" if value is None else str(value) for value in values]
    large = sorted((n for n in set(names) if names.count(n) >= 30), key=lambda n: (-names.count(n), n))
    return ["(others)" if n not in large else n for n in names], [*large, *(["(others)"] if set(names) - {*large} else [])]


def nearest(similarity, itself):
    moved = similarity.copy()
    if itself:
        np.fill_diagonal(moved, -np.inf)
    return np.argsort(-moved, axis=1, kind="stable")[:, :K]


def data():
    texts, queries = made()
    vectors, asking = (unit(np.array(t["vector"].to_pylist(), np.float64)).astype(np.float32) for t in (texts, queries))
    return texts.to_pydict(), vectors.astype(np.float64), queries.to_pydict(), asking.astype(np.float64)


def pages(names):
    return np.unique(names, return_inverse=True)[1]


def dyadic(found, asks, group, of_query, of_text):
    """Share of the results of askers of a group that stay in it, and its error from results that share a unit."""
    results = [(of_query[q], of_text[j], float(group[j])) for q in np.flatnonzero(asks) for j in found[q]]
    share = np.mean([same for *_, same in results])
    units, dyads = {}, {}
    for one, other, same in results:
        e = (same - share) / len(results)
        for end in {one, other}:
            units[end] = units.get(end, 0.0) + e
        if one != other:
            pair = frozenset((one, other))
            dyads[pair] = dyads.get(pair, 0.0) + e
    nodes, only_dyads = (sum(value**2 for value in sums.values()) for sums in (units, dyads))
    return share, (nodes - only_dyads if nodes > only_dyads else only_dyads) ** 0.5


@pytest.mark.parametrize("by", ["source", "year"])
def test_exposure_and_what_stays_are_those_of_a_full_search(run, by):
    texts, vectors, queries, asking = data()
    group, names = groups_of(texts[by])
    code, documents = np.array([names.index(name) for name in group]), pages(texts["page"])
    table = read_tables(run / "run")["group_exposure"].filter(by=by)
    assert table["group"].unique(maintain_order=True).to_list() == names
    assert ("(others)" in names) == (by == "source")
    for asked_by, similarity in (("corpus", vectors @ vectors.T), ("queries", asking @ vectors.T)):
        own = asked_by == "corpus"
        whole = nearest(similarity, own)
        of_query, units = (documents, documents) if own else (1000 + np.arange(QUERIES), documents)
        asker = group if own else [n if n in names[:-1] else "(others)" for n in queries["source"]]
        for k in (1, K):
            found = whole[:, :k]
            kinds = {"population": TEXTS} if own else {}
            figures = exposure(found, code, len(names), own, documents=documents, **kinds)
            for g, name in enumerate(names):
                row = table.filter(asked_by=asked_by, k=k, group=name).row(0, named=True)
                assert row["texts"] == group.count(name)
                assert row["slots_share"] == pytest.approx((code[found] == g).mean())
                assert row["exposure"] == pytest.approx((code[found] == g).mean() / (code == g).mean())
                assert row["exposure_se"] == pytest.approx(figures.corrected[g])
                assert row["exposure_se_superpopulation"] == pytest.approx(figures.error[g])
                if not own and by == "year":  # The queries lack the column.
                    assert (row["stays"], row["stays_se"], row["stays_expected"]) == (None, None, None)
                    continue
                asks = np.array([n == name for n in asker])
                if not asks.any():
                    assert row["stays"] is None
                    continue
                share, error = dyadic(found, asks, code == g, of_query, units)
                assert row["stays"] == pytest.approx(share)
                assert row["stays_expected"] == pytest.approx((group.count(name) - own) / (TEXTS - own))
                expected = error if asks.sum() >= 30 and error else None
                assert row["stays_se"] == (None if expected is None else pytest.approx(expected, rel=1e-9))


def cosines(rows, code, a, b):
    """Each text's mean cosine with the other texts of group b, for the texts of a."""
    return np.array(
        [np.mean([rows[i] @ rows[j] for j in np.flatnonzero(code == b) if j != i]) for i in np.flatnonzero(code == a)]
    )


def error_by_definition(rows, code, a, b, documents=None):
    """Hájek's projection: the sum over texts, or documents, of what each adds to the mean."""
    weights = [2.0] if a == b else [1.0, 1.0]
    sets = [cosines(rows, code, a, b)] if a == b else [cosines(rows, code, a, b), cosines(rows, code, b, a)]
    if documents is not None:
        return documents_error(sets, weights, [documents[code == g] for g in ([a] if a == b else [a, b])])
    return sum(w**2 * x.var(ddof=1) / len(x) for w, x in zip(weights, sets, strict=True)) ** 0.5


@pytest.mark.parametrize("by", ["source", "year"])
def test_cosines_are_those_of_all_pairs(run, by):
    texts, vectors, *_ = data()
    group, names = groups_of(texts[by])
    code, documents = np.array([names.index(name) for name in group]), pages(texts["page"])
    rows = read_tables(run / "run")["group_cosine"].filter(by=by).to_dicts()
    assert [(r["group_a"], r["group_b"]) for r in rows] == [(a, b) for k, a in enumerate(names) for b in names[k:]]
    for row in rows:
        a, b = names.index(row["group_a"]), names.index(row["group_b"])
        product = vectors[code == a] @ vectors[code == b].T
        pairs = product[np.triu_indices(len(product), 1)] if a == b else product.ravel()
        assert row["pairs"] == len(pairs)
        assert row["cosine_mean"] == pytest.approx(pairs.mean(), abs=1e-10)
        few = min((code == a).sum(), (code == b).sum()) < 30
        expected = None if few else pytest.approx(error_by_definition(vectors, code, a, b, documents), rel=1e-5)
        assert row["cosine_mean_se_superpopulation"] == expected


def test_what_if_has_rows_of_each_group(run):
    texts, vectors, queries, asking = data()
    group, names = groups_of(texts["source"])
    code, signs = (
        np.array([names.index(name) for name in group]),
        [np.where(rows > 0, 1.0, -1.0) for rows in (asking, vectors)],
    )
    table = read_tables(run / "run")["what_if"].filter(by="source")
    assert table["group"].to_list() == names * 2
    before, after = nearest(asking @ vectors.T, False), nearest(signs[0] @ signs[1].T, False)
    moved = change((before, before), code, len(names), Units.of(TEXTS, QUERIES))
    for g, name in enumerate(names):
        as_it_is, bits = (table.filter(group=name, what=what).row(0, named=True) for what in ("", "bits"))
        assert as_it_is["exposure"] == pytest.approx((code[before] == g).mean() / (code == g).mean())
        assert (as_it_is["exposure_change"], moved.change[g]) == (0, 0)
        # Of equally near texts, which are many in bits, others may come first.
        assert bits["exposure"] == pytest.approx((code[after] == g).mean() / (code == g).mean(), abs=0.3)
        asks = [n if n in names[:-1] else "(others)" for n in queries["source"]].count(name)
        assert as_it_is["askers"] == bits["askers"] == asks


def test_which_groups_were_joined_is_in_the_record_and_on_the_page(run):
    joined = next(iter(read_record(run / "run")["models"].values()))["by"]
    texts = made()[0].to_pydict()
    named = ["(none)" if value is None else value for value in texts["source"]]
    small = sorted((n for n in set(named) if named.count(n) < 30), key=lambda n: -named.count(n))
    assert joined["source"] == {"groups": 3, "joined": len(small), "names": small}
    page = said(read_report(run / "run"))
    assert "are joined as (others): rare, odd." in page
    assert "By source" in page
    assert "By year" in page
    assert "stay in source=wiki, where" in page


def test_findings_by_group_are_tested_together(run):
    findings = read_tables(run / "run")["findings"]
    states = dict(findings.select("figure", "state").iter_rows())
    assert states["results that stay in source=wiki, asked by corpus"] == "up"
    assert states["exposure of source=(others), asked by corpus"] in ("noise", "up", "down", "unknown")
    assert states["results that stay in year=2019, asked by corpus"] == "noise"
    assert states["results that stay in year=2019, asked by queries"] == "absent"


@pytest.mark.proof
def test_a_planted_offset_is_found_within_two_errors(run, tmp_path):
    """The expected difference of the mean cosine inside the moved source from that between the two, by simulation."""
    random = np.random.default_rng(9)
    many = 20_000
    moved, still = (planted(random.normal(size=(many, DIM)), np.full(many, one)).mean(0) for one in (True, False))
    expected = moved @ moved - moved @ still
    kind = np.repeat(["wiki", "forum"], 200)
    rows = planted(np.random.default_rng(10).normal(size=(400, DIM)), kind == "wiki")
    table = {"id": [f"t{k}" for k in range(400)], "length": [9] * 400, "vector": rows.tolist(), "source": kind.tolist()}
    pq.write_table(pa.table(table), tmp_path / "texts.parquet")
    code, _, err = audited(tmp_path, tmp_path / "run", by=["source"], queries=False)
    assert code == 0, err
    cells = read_tables(tmp_path / "run")["group_cosine"]
    inside, between = (
        cells.filter(group_a=a, group_b=b).row(0, named=True) for a, b in (("wiki", "wiki"), ("forum", "wiki"))
    )
    error = np.hypot(*(row["cosine_mean_se_superpopulation"] for row in (inside, between)))
    assert expected > 0.2
    assert inside["cosine_mean"] - between["cosine_mean"] == pytest.approx(expected, abs=2 * error)
    assert error < 0.05


@pytest.mark.proof
def test_another_order_other_workers_and_blocks_and_a_run_that_was_stopped_give_the_same_bytes(run, tmp_path, monkeypatch):
    whole = made()[0]
    pq.write_table(whole.take(np.random.default_rng(3).permutation(TEXTS)), run / "shuffled.parquet")
    monkeypatch.setattr(tiles, "block_size", lambda texts, dim: 50)
    monkeypatch.setattr(slots, "UNITS_OF_A_TASK", 37)
    more = ["--document-column", "page", "--what-if", "bits", "--workers", "2"]
    with monkeypatch.context() as stopped:
        stopped.setattr(by_group, "_cosine_rows", lambda *_: 1 / 0)
        code, *_ = audited(run, tmp_path / "run", *more, corpus="shuffled.parquet")
        assert code == 3
    code, _, err = audited(run, tmp_path / "run", *more, corpus="shuffled.parquet")
    assert code == 0, err
    for name in TABLES:
        first, again = ((out / "tables" / f"{name}.parquet").read_bytes() for out in (run / "run", tmp_path / "run"))
        assert first == again, name


@pytest.mark.proof
def test_texts_keep_their_groups_through_a_sample_and_a_cache(small_model, ray_session, tmp_path):
    lines = [line | {"kind": ["a", "b"][k % 2]} for k, line in enumerate(documented("scipy")[:160])]
    (tmp_path / "texts.jsonl").write_text(as_lines(lines))
    command = [
        "audit", "--corpus", str(tmp_path / "texts.jsonl"), "--model", small_model, "--quick", "--by", "kind", "--sample",
        "120", "--cache", str(tmp_path / "cache"),
    ]  # fmt: skip
    for out in ("one", "two"):
        code, _, err = in_process(*command, "--out", str(tmp_path / out))
        assert code == 0, err
    kinds = {line["id"]: line["kind"] for line in lines}
    for out in ("one", "two"):
        parts = read_parts(tmp_path / out, "texts")
        assert len(parts) == 120
        assert dict(parts.select("text_id", pl.col("groups").list.first()).iter_rows()).items() <= kinds.items()
    from_cache = (tmp_path / "two" / "texts").rglob("part-cached-*.parquet")
    assert sum(pq.read_metadata(file).num_rows for file in from_cache) == 120
    first, second = ((tmp_path / out / "tables" / "group_exposure.parquet").read_bytes() for out in ("one", "two"))
    assert first == second


@pytest.mark.parametrize(
    ("by", "named"),
    [
        (["sauce"], "no column 'sauce'; it has"), (["nested"], "the value of 'nested', named by --by, is no text or number"),
        (["source", "source"], "--by names a column twice"),
    ],
)  # fmt: skip
def test_a_column_that_names_no_groups_is_refused_before_ray(run, tmp_path, by, named):
    code, _, err = audited(run, tmp_path / "run", by=by)
    assert code == 2
    assert named in said(err)
    assert "Ray" not in err


def test_rows_by_length_and_by_a_column_of_this_name_are_not_mixed():
    with pytest.raises(UsageError, match="rows by 'length' already"):
        resolve({"by": ["length"], "analysis": {"what_if": ["int8"]}})


def test_a_run_without_groups_has_the_identity_that_it_had_before():
    assert "by" not in resolve({}).identity()
    assert resolve({"by": ["source"]}).identity()["by"] == ["source"]
