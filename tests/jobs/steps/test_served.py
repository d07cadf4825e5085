"""`--results`: recall, its errors and what is missed, by loops over all cosines from the definitions."""

import json

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import in_process
from whole_run import as_lines, as_toml, audited, documented, read_record, read_report, read_tables

from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError
from tempscale_jobs.steps.served import returned

K, EDGES, DIM = 6, [0, 40, 80], 8
TEXTS, COPIES, QUERIES = 300, 4, 240
"""Each vector is that of four texts, so that ties end most lists."""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """Texts and queries with vectors and lengths, and a function that audits them with some results."""
    folder, random = tmp_path_factory.mktemp("served"), np.random.default_rng(4)
    vectors = np.repeat(random.normal(size=(TEXTS // COPIES, DIM)), COPIES, axis=0)[random.permutation(TEXTS)]
    lengths, asked = random.integers(1, 120, TEXTS), random.normal(size=(QUERIES, DIM))
    asked_lengths = random.integers(2, 120, QUERIES)
    for name, rows, sizes in (("texts", vectors, lengths), ("queries", asked, asked_lengths)):
        ids = [f"{name[0]}{k}" for k in range(len(rows))]
        columns = {"id": ids, "vector": rows.tolist(), "size": sizes, "doc": [f"d{k // 8}" for k in range(len(rows))]}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
    return Index(folder, vectors, lengths, asked, asked_lengths)


class Index:
    """What is audited, and its cosines in float64."""

    def __init__(self, folder, vectors, lengths, asked, asked_lengths):
        self.folder, self.lengths, self.asked_lengths = folder, lengths, asked_lengths
        self.cosine = unit(asked) @ unit(vectors).T
        self.interval = np.searchsorted(EDGES, lengths, side="right") - 1

    def settings(self, out, **more):
        data = {
            "out": str(out), "quick": True, "execution": {"workers": 1}, "seed": 3,
            "analysis": {"intervals": EDGES, "neighbours": K},
            "results": {"source": str(out.parent / f"{out.name}.parquet")},
        }  # fmt: skip
        for section, name in (("corpus", "texts"), ("queries", "queries")):
            source = str(self.folder / f"{name}.parquet")
            data[section] = {"source": source, "embedding_column": "vector", "length_column": "size"}
        return more | {key: value | more.get(key, {}) if isinstance(value, dict) else value for key, value in data.items()}

    def audited(self, out, lists, observers=(), **more):
        """The folder of an audit with these results: by query, the numbers of texts, the nearest first."""
        pq.write_table(as_table(lists), out.parent / f"{out.name}.parquet")
        audited(self.settings(out, **more), observers=observers)
        return out

    def exact(self, out):
        """The numbers of the nearest texts of each query, as the run found them."""
        (file,) = (out / "queries" / "neighbours").rglob("*.parquet")
        table = pl.read_parquet(file).to_dicts()
        return {int(row["text_id"][1:]): [int(text[1:]) for text in row["neighbours"]] for row in table}


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def as_table(lists, first=1):
    rows = [(f"q{q}", f"t{text}", rank) for q, texts in lists.items() for rank, text in enumerate(texts, first)]
    return pa.table(dict(zip(("query_id", "text_id", "rank"), zip(*rows, strict=True), strict=True)))


def right(cosine, served, k):
    """Of the first k served texts, those among the k nearest, where ties are broken so that these are most."""
    kth = sorted(cosine, reverse=True)[k - 1]
    nearer = sum(cosine[text] > kth + 1e-6 for text in served[:k])
    equal = sum(abs(cosine[text] - kth) <= 1e-6 for text in served[:k])
    return nearer + min(equal, k - sum(cosine > kth + 1e-6))


def searched(index, random, loss=0.2):
    """Results of an index that loses texts, and orders texts of one cosine in its own way."""
    lists = {}
    for q in range(QUERIES):
        order = sorted(range(TEXTS), key=lambda text: (-round(index.cosine[q, text], 9), random.random()))
        lists[q] = [text for text in order[: 3 * K] if random.random() > loss][: K + 2]
    return lists


def row_of(table, by=None, group=None, k=K):
    """One row of served_recall."""
    found = table.filter(k=k).filter(pl.col("by").is_null() if by is None else (pl.col("by") == by))
    return found.filter(pl.col("group").is_null() if group is None else pl.col("group") == str(group)).row(0, named=True)


@pytest.mark.parametrize("seed", range(5))
def test_returned_has_its_limits(seed):
    random = np.random.default_rng(seed)
    exact = -np.sort(-random.integers(0, 4, (50, K)) / 4.0, axis=1)
    served = random.random((50, K)) < 0.5
    others = random.integers(0, K, 50)
    part = returned(exact, served, others, 1e-6)
    assert ((part >= served) & (part <= 1)).all()
    assert (part[exact > exact[:, -1:]] == served[exact > exact[:, -1:]]).all()
    np.testing.assert_array_equal(returned(exact, served, 0 * others, 1e-6), served)
    places = ((exact == exact[:, -1:]) & ~served).sum(1)
    np.testing.assert_allclose(part.sum(1), served.sum(1) + np.minimum(others, places))


def test_returned_by_hand():
    # Two texts tie for the last two of four places; one is served, and one that ties with them but is not listed.
    part = returned(np.array([[0.9, 0.8, 0.5, 0.5]]), np.array([[True, False, True, False]]), np.array([1]), 1e-6)
    assert part.tolist() == [[1, 0, 1, 1]]
    part = returned(np.array([[0.9, 0.5, 0.5, 0.5]]), np.array([[False, True, False, False]]), np.array([1]), 1e-6)
    assert part.tolist() == [[0, 1, 0.5, 0.5]]


@pytest.fixture(scope="module")
def searched_run(index, ray_session, tmp_path_factory):
    """An audit of such results, some of which are missing, short, or of texts that are gone."""
    lists = searched(index, np.random.default_rng(1))
    for q in (3, 30, 33):
        del lists[q]
    lists[7], lists[8] = lists[7][:2], [TEXTS + 5, *lists[8]]
    lists[QUERIES + 2] = [0, 1]
    out = index.audited(tmp_path_factory.mktemp("searched") / "run", lists)
    return out, lists


def test_recall_is_that_of_a_full_sort_with_ties(index, searched_run):
    out, lists = searched_run
    table = read_tables(out)["served_recall"]
    cosine = np.hstack([index.cosine, np.full((QUERIES, 10), -2.0)])  # Texts that are gone are near to nothing.
    for k in (1, K):
        shares = np.array([right(cosine[q], lists[q], k) / k for q in range(QUERIES) if q in lists])
        row = row_of(table, k=k)
        assert row["recall"] == pytest.approx(shares.mean(), abs=1e-12)
        assert row["recall_se"] == pytest.approx(shares.std(ddof=1) / len(shares) ** 0.5, abs=1e-12)
        assert 0.3 < row["recall"] < 1
        assert (row["queries"], row["without_results"], row["exact"]) == (QUERIES - 3, 3, k * (QUERIES - 3))
        assert row["difference_se"] is None
        assert row["fewer_results"] == sum(len(lists[q]) < k for q in range(QUERIES) if q in lists)
        of_asker = np.searchsorted(EDGES, index.asked_lengths, side="right") - 1
        for b, edge in enumerate(EDGES):
            asks = [q for q in range(QUERIES) if of_asker[q] == b]
            part = row_of(table, "length", edge, k)
            here = [right(cosine[q], lists[q], k) / k for q in asks if q in lists]
            assert part["recall"] == pytest.approx(np.mean(here), abs=1e-12)
            assert (part["queries"], part["without_results"]) == (len(here), len(asks) - len(here))
    plain = [len({*lists[q][:K]} & {*near}) / K for q, near in index.exact(out).items() if q in lists]
    assert np.mean(plain) < row_of(table)["recall"] - 0.05  # So many are right by ties alone.


def test_recall_by_the_length_of_the_exact_text_adds_up(index, searched_run):
    out, lists = searched_run
    table, exact = read_tables(out)["served_recall"], index.exact(out)
    slots, missed = [[] for _ in EDGES], set()
    for q, near in exact.items():
        if q not in lists:
            continue
        served, kth = lists[q][:K], index.cosine[q, near[-1]]
        others = sum(t < TEXTS and t not in near and index.cosine[q, t] >= kth - 1e-6 for t in served)
        places = [t for t in near if t not in served and index.cosine[q, t] <= kth + 1e-6]
        for text in near:
            value = 1.0 if text in served else min(others, len(places)) / len(places) if text in places else 0.0
            slots[index.interval[text]].append((q, value))
            missed |= {text} if value < 1 else set()
    never = missed - {text for texts in lists.values() for text in texts[:K]}
    for b, edge in enumerate(EDGES):
        row = row_of(table, "text_length", edge)
        queries, values = np.array(slots[b]).T
        assert (row["exact"], row["queries"]) == (len(values), len(set(queries)))
        assert row["recall"] == pytest.approx(values.mean(), abs=1e-12)
        assert (row["without_results"], row["fewer_results"]) == (None, None)
        errors = without_each(slots, b)
        assert (row["recall_se"], row["difference_se"]) == tuple(pytest.approx(error, rel=0.01) for error in errors)
    whole = row_of(table)
    for by in ("length", "text_length"):
        rows = [row_of(table, by, edge) for edge in EDGES]
        assert sum(row["exact"] for row in rows) == whole["exact"]
        assert sum(row["exact"] * row["recall"] for row in rows) == pytest.approx(whole["exact"] * whole["recall"])
    assert sum(row_of(table, "text_length", edge)["never_served"] for edge in EDGES) == whole["never_served"]
    assert whole["never_served"] == len(never) > 0
    assert whole["exact_texts"] == len({text for q, near in exact.items() if q in lists for text in near})


def without_each(slots, b):
    """Errors of the recall of a length, and of its difference from all, from leaving out each query (jackknife)."""
    sums = {q: np.zeros((2, 2)) for part in slots for q, _ in part}
    for place, part in enumerate(slots):
        for q, value in part:
            sums[q] += [[value, 1], [value, 1]] if place == b else [[0, 0], [value, 1]]
    total, count = sum(sums.values()), len(sums)
    left = [(total - one)[:, 0] / (total - one)[:, 1] for one in sums.values()]
    return [((count - 1) * np.var(values)) ** 0.5 for values in ([a for a, _ in left], [a - whole for a, whole in left])]


def test_what_is_unknown_is_counted_and_said(searched_run):
    out, lists = searched_run
    (known,) = read_record(out)["models"].values()
    assert known["served"]["unknown"] == {
        "queries": {"ids": 1, "of": len(lists), "first": f"q{QUERIES + 2}"},
        "texts": {"ids": 1, "of": len({text for texts in lists.values() for text in texts}), "first": f"t{TEXTS + 5}"},
    }
    page = read_report(out)
    for said in ("Served results compared with exact ones", "recall at 6", f"t{TEXTS + 5}", f"q{QUERIES + 2}",
                 "3 of 240 queries", "have fewer than 6 results"):  # fmt: skip
        assert said in page
    figures = {row["figure"]: row for row in read_tables(out)["findings"].to_dicts()}
    assert figures["recall at 6"]["value"] == row_of(read_tables(out)["served_recall"])["recall"]
    assert figures["recall at 6"]["state"] == "measured"


@pytest.mark.proof
def test_other_workers_and_an_interruption_give_the_same_bytes_and_no_piece_is_done_twice(
    index, searched_run, tmp_path, monkeypatch
):
    from tempscale_jobs.corpus import results
    from tempscale_jobs.steps import served

    def stopped(_):
        raise KeyboardInterrupt

    def noted(cluster, function, pieces):
        for piece, result in run_tasks(cluster, function, pieces):
            done.append(piece.number)
            yield piece, result

    out, lists = searched_run
    run_tasks, done, other = served.run_tasks, [], tmp_path / "run"
    monkeypatch.setattr(served, "PAIRS_OF_A_TASK", 100)
    monkeypatch.setattr(served, "run_tasks", noted)
    monkeypatch.setattr(results, "PART", 64)
    with monkeypatch.context() as patch:
        patch.setattr(served._Comparison, "recall", stopped)
        with pytest.raises(KeyboardInterrupt):
            index.audited(other, lists, execution={"workers": 2, "shuffle_seed": 1})
    pieces = sorted(other.rglob("partials/served/**/cosines/*.parquet"))
    assert len(pieces) == len(done) > 3
    pieces[2].unlink()
    done.clear()
    audited(index.settings(other, execution={"workers": 2, "shuffle_seed": 2}))
    assert done == [2]
    for name in ("served_recall", "served_missed"):
        assert (other / "tables" / f"{name}.parquet").read_bytes() == (out / "tables" / f"{name}.parquet").read_bytes()
    assert not list(other.rglob("partials/served/**/cosines/*"))
    for name in ("partials/served/**", "tables"):  # What is damaged in a finished run is made again from the results.
        (file,) = other.rglob(f"{name}/served_recall.parquet")
        file.unlink()
    audited(index.settings(other))
    assert (other / "tables/served_recall.parquet").read_bytes() == (out / "tables/served_recall.parquet").read_bytes()


@pytest.mark.proof
def test_a_sample_of_the_queries_is_compared_in_closed_form(index, searched_run, tmp_path):
    lists = {q: near for q, near in index.exact(searched_run[0]).items() if q % 3}
    out = index.audited(tmp_path / "run", lists, analysis={"cosine": "moments", "exposure_sample": 90})
    row = row_of(read_tables(out)["served_recall"])
    assert row["recall"] == 1.0
    assert row["queries"] + row["without_results"] == 90
    assert row["queries"] == len(index.exact(out).keys() & lists.keys())


def test_a_planted_loss_is_found_within_its_error(index, searched_run, tmp_path):
    random = np.random.default_rng(9)
    lists = {q: [t for t in near if random.random() > 0.07] for q, near in index.exact(searched_run[0]).items()}
    row = row_of(read_tables(index.audited(tmp_path / "run", lists))["served_recall"])
    assert abs(row["recall"] - 0.93) < 2 * row["recall_se"]
    assert row["recall"] == sum(map(len, lists.values())) / (K * QUERIES)
    assert 0.005 < row["recall_se"] < 0.01  # √(.93·.07/6)/√240 is .0067.
    with pytest.raises(UsageError, match=r"results .* changed"):
        index.audited(tmp_path / "run", dict(list(lists.items())[:9]))


@pytest.mark.proof
def test_an_index_that_loses_a_source_is_told_by_its_group(index, searched_run, tmp_path):
    """Every second text of one of two sources is not in the index; its lists are otherwise exact."""
    source = np.array(["wiki", "mail"])[np.arange(TEXTS) % 5 // 3]
    table = pq.read_table(index.folder / "texts.parquet").append_column("source", pa.array(source.tolist()))
    pq.write_table(table, tmp_path / "texts.parquet")
    exact = index.exact(searched_run[0])
    gone = {t for t in range(TEXTS) if source[t] == "mail" and t % 2}
    lists = {q: [t for t in near if t not in gone] for q, near in exact.items()}
    out = index.audited(tmp_path / "run", lists, corpus={"source": str(tmp_path / "texts.parquet")}, by=["source"])
    tables = read_tables(out)
    near = [text for texts in exact.values() for text in texts]
    for name in ("wiki", "mail"):
        row = row_of(tables["served_recall"], "source", name)
        of_group = [text for text in near if source[text] == name]
        assert row["exact"] == len(of_group) > 100
        assert row["recall"] == pytest.approx(np.mean([text not in gone for text in of_group]), abs=0.02), "but for ties"
        assert row["exact_texts"] == len({*of_group})
        assert row["without_results"] is None
    found = {row["figure"]: row for row in tables["findings"].to_dicts()}
    assert found[f"recall at {K} of texts of source mail"]["state"] == "down"
    assert found[f"recall at {K} of texts of source wiki"]["state"] == "up"
    assert "Of nearest texts of source mail it returns" in read_report(out)


def test_a_column_that_has_the_name_of_another_row_is_refused():
    with pytest.raises(UsageError, match="text_length"):
        resolve({"by": ["text_length"], "queries": {"source": "q"}, "results": {"source": "r"}})


def test_an_index_that_loses_a_length_and_a_hub_is_told_by_both(index, searched_run, tmp_path):
    every = index.exact(searched_run[0])
    times = np.bincount([text for near in every.values() for text in near], minlength=TEXTS)
    rare = min(np.flatnonzero(times * (index.interval == 1)).tolist(), key=times.__getitem__)
    exact = {q: near for q, near in every.items() if rare not in near}  # The others get no results, and miss nothing.
    times = np.bincount([text for near in exact.values() for text in near], minlength=TEXTS)
    hub = max(np.flatnonzero(index.interval == 0).tolist(), key=times.__getitem__)
    lists = {q: [t for t in near if index.interval[t] != 2 and t != hub] for q, near in exact.items()}
    first = min(exact)
    short = [t for t in range(TEXTS) if t not in exact[first] and index.interval[t] == 0 and t != hub]
    lists[first] = [*lists[first], *short, hub]
    out = index.audited(tmp_path / "run", lists)
    tables = read_tables(out)
    long = row_of(tables["served_recall"], "text_length", EDGES[2])
    assert (long["recall"], long["recall_se"]) == (0.0, 0.0)
    lost = {text for near in exact.values() for text in near if index.interval[text] == 2}
    assert long["never_served"] == long["exact_texts"] == len(lost)
    assert row_of(tables["served_recall"], "text_length", EDGES[1])["recall"] == 1.0
    whole = row_of(tables["served_recall"])
    assert whole["never_served"] == len(lost) + 1
    assert whole["without_results"] == len(every) - len(exact) > 0
    missed = {row["text_id"]: row for row in tables["served_missed"].to_dicts()}
    assert missed[f"t{hub}"]["exact_times"] == times[hub] > 2
    assert missed[f"t{hub}"]["served_times"] == 1  # Once, beyond the first six.
    assert missed.keys() <= {f"t{text}" for text in (*lost, hub)}
    assert tables["served_missed"]["exact_times"].to_list() == sorted((times[[*lost, hub]]), reverse=True)[: len(missed)]
    assert tables["served_missed"]["exact_times"].min() > 1
    found = {row["figure"]: row for row in tables["findings"].to_dicts()}
    assert found[f"recall at {K} of texts from {EDGES[2]} tokens"]["state"] == "down"
    assert found[f"recall at {K} of texts from {EDGES[1]} tokens"]["state"] == "up"
    assert found["texts never served"]["value"] == whole["never_served"]
    assert f"t{hub}" in read_report(out)


@pytest.mark.proof
def test_errors_are_those_of_documents_where_queries_have_them(index, searched_run, tmp_path):
    _, lists = searched_run
    out = index.audited(tmp_path / "run", lists, queries={"document_column": "doc"})
    cosine = np.hstack([index.cosine, np.full((QUERIES, 10), -2.0)])
    row = row_of(read_tables(out)["served_recall"])
    shares = {q: right(cosine[q], lists[q], K) / K - row["recall"] for q in range(QUERIES) if q in lists}
    documents = sorted({q // 8 for q in shares})
    sums = np.array([sum(value for q, value in shares.items() if q // 8 == d) for d in documents])
    by_hand = (len(sums) / (len(sums) - 1) * (sums**2).sum()) ** 0.5 / len(shares)
    assert row["recall_se"] == pytest.approx(by_hand, rel=1e-9)


# ---------------------------------------------------------------------------------------------- bad input

ROWS = [("q1", "t1", 1), ("q1", "t2", 2), ("q2", "t1", 1)]


def table_of(rows, names=("query_id", "text_id", "rank")):
    return pa.table(dict(zip(names, zip(*rows, strict=True), strict=True)))


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        ([*ROWS, ("q2", "t3", 1)], ["rank 1", "'q2'", "1 of 4 rows"]),
        ([*ROWS, ("q1", "t2", 7)], ["text_id 't2'", "'q1'", "1 of 4 rows"]),
        ([*ROWS, ("q2", "t3", -1)], ["rank -1", "served.parquet:3"]),
        ([*ROWS, (None, "t3", 2)], ["no query_id", "served.parquet:3"]),
        ([*ROWS, ("q2", "", 2)], ["no text_id"]),
        ([("q1", "t1", 1.0), ("q1", "t2", 1.5)], ["rank 1.5", "served.parquet:1"]),
        ([("q1", "t1", "1"), ("q1", "t2", "second")], ["rank 'second'", "served.parquet:1"]),
        ([("who", "t1", 1), ("who else", "t2", 1)], ["none of the 2 values of query_id", "'who'", "id_column"]),
        ([("q1", "gone", 1), ("q2", "lost", 1)], ["none of the 2 values of text_id", "'gone'", "--id-column"]),
    ],
)  # fmt: skip
def test_bad_results_are_refused_before_ray_and_do_not_block_the_folder(index, tmp_path, rows, named):
    pq.write_table(table_of(rows), tmp_path / "served.parquet")
    settings = index.settings(tmp_path / "run") | {"results": {"source": str(tmp_path / "served.parquet")}}
    (tmp_path / "audit.toml").write_text(as_toml(settings))
    code, out, err = in_process("audit", str(tmp_path / "audit.toml"))
    assert code == 2, out + err
    for word in named:
        assert word in " ".join(err.split()), err
    assert "Ray" not in err
    other = resolve(settings | {"results": {"source": str(tmp_path / "other.parquet")}})
    pq.write_table(table_of([("nobody", "t1", 1)]), tmp_path / "other.parquet")
    with pytest.raises(UsageError, match="'nobody'"):  # And not that the folder holds another run.
        audited(settings | {"results": {"source": other.results.source}})


def test_a_missing_column_is_named(index, tmp_path):
    pq.write_table(table_of(ROWS, ("query_id", "doc_id", "rank")), tmp_path / "served.parquet")
    with pytest.raises(UsageError, match="no column 'text_id'; it has 'query_id', 'doc_id', 'rank'"):
        audited(index.settings(tmp_path / "run") | {"results": {"source": str(tmp_path / "served.parquet")}})


def test_more_rows_than_are_compared_are_refused(index, tmp_path, monkeypatch):
    from tempscale_jobs.corpus import results

    monkeypatch.setattr(results, "MOST_ROWS", 2)
    pq.write_table(table_of(ROWS), tmp_path / "served.parquet")
    with pytest.raises(UsageError, match="more than 2 rows"):
        audited(index.settings(tmp_path / "run") | {"results": {"source": str(tmp_path / "served.parquet")}})


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({}, "--queries"), ({"queries": {"source": "q"}, "analysis": {"neighbours": 0}}, "neighbours"),
        ({"queries": {"source": "q"}, "analysis": {"cosine": "moments", "exposure_sample": 0}}, "exposure_sample"),
        ({"queries": {"source": "q"}, "corpus": {"source": "c", "sample": 5}}, "--sample"),
    ],
)  # fmt: skip
def test_results_that_cannot_be_compared_are_refused(more, named):
    with pytest.raises(UsageError, match=named) as caught:
        resolve({"corpus": {"source": "c"}, "results": {"source": "r"}} | more)
    assert caught.value.exit_code == 2


def test_a_run_without_results_has_the_identity_that_it_had_before():
    assert "results" not in resolve({}).identity()
    dated = resolve({"night": "2026-01-02", "results": {"source": "served-{night}.csv"}, "queries": {"source": "q"},
                     "corpus": {"source": "c"}})  # fmt: skip
    assert dated.results.source == "served-2026-01-02.csv"


# ---------------------------------------------------------------------------------------------- the command line


@pytest.mark.proof
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_the_command_line_from_texts_to_tables(ending, tmp_path, small_model, ray_session):
    lines = documented("scipy")
    (tmp_path / "texts.jsonl").write_text(as_lines(lines[:120]))
    (tmp_path / "queries.jsonl").write_text(as_lines(lines[120:150]))
    ids = [line["id"] for line in lines[:120]]
    rows = [(lines[120 + q]["id"], ids[(7 * q + n) % 120], n) for q in range(29) for n in range(5)]  # Ranks from 0.
    names = ("query_id", "text_id", "rank")
    if ending == "csv":
        text = "".join(",".join(map(str, row)) + "\n" for row in [names, *rows])
    else:
        text = as_lines([dict(zip(names, row, strict=True)) for row in rows])
    (tmp_path / f"served.{ending}").write_text(text)
    code, _, err = in_process(
        "audit", "--corpus", str(tmp_path / "texts.jsonl"), "--queries", str(tmp_path / "queries.jsonl"),
        "--results", str(tmp_path / f"served.{ending}"), "--model", small_model, "--neighbours", "5", "--workers", "1",
        "--quick", "--out", str(tmp_path / "run"),
    )  # fmt: skip
    assert code == 0, err
    tables = read_tables(tmp_path / "run")
    (file,) = (tmp_path / "run" / "queries" / "neighbours").rglob("*.parquet")
    near = {row["text_id"]: row["neighbours"] for row in pl.read_parquet(file).to_dicts()}
    hits = [
        len({text for query, text, _ in rows if query == name} & {*near[name]}) for name in near if name != lines[149]["id"]
    ]
    row = row_of(tables["served_recall"], k=5)
    assert row["recall"] == pytest.approx(np.mean(hits) / 5, abs=1e-12)
    assert row["without_results"] == 1
    missed = tables["served_missed"]
    assert len(missed) > 0
    assert set(missed["text_id"]) <= set(tables["excerpts"]["text_id"])
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["results"]["read"] == len(rows)
    assert "Exact nearest texts that the index never returns" in read_report(tmp_path / "run")
    assert not list((tmp_path / "run" / "results").rglob("*.parquet"))
