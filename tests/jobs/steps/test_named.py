"""Texts that are found most: planted ones have the right kind, and without them the same is found as in another audit."""

import math

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from whole_run import audited, read_tables

from tempscale.collapse import tiles
from tempscale.collapse.exposure import exposure
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.steps import named

K, EDGES, DIM, TEXTS, QUERIES = 5, [0, 64, 100], 24, 230, 90
PLANTED = ["hub", "tiny", "copy0", "copy1", "copy2"]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Vectors around one direction, with their mean, a tiny text near it, and three copies; queries are around it too."""
    folder, random = tmp_path_factory.mktemp("named"), np.random.default_rng(3)
    centre = unit(random.normal(size=DIM))
    texts = unit(random.normal(size=(TEXTS, DIM)) / DIM**0.5 + 0.6 * centre)
    queries = unit(random.normal(size=(QUERIES, DIM)) / DIM**0.5 + 0.6 * centre)
    mean = unit(texts.mean(0))
    copied = unit(2 * mean + unit(random.normal(size=DIM)))
    near = unit(mean + 0.5 * unit(random.normal(size=DIM)))
    planted = np.stack([mean, near, *(unit(copied + 0.01 * random.normal(size=DIM)) for _ in range(3))])
    rows = {f"t{k}": (row, int(random.integers(10, 300))) for k, row in enumerate(texts)}
    rows |= {name: (row, 4 if name == "tiny" else 70) for name, row in zip(PLANTED, planted, strict=True)}
    write(folder / "texts.parquet", rows)
    write(folder / "queries.parquet", {f"q{k}": (row, 20) for k, row in enumerate(queries)})
    return folder, rows, queries.astype(np.float32).astype(np.float64)


def write(file, rows):
    vectors = pa.array([row.astype(np.float32).tolist() for row, _ in rows.values()], pa.list_(pa.float32()))
    table = {"id": list(rows), "vector": vectors, "tokens": pa.array([tokens for _, tokens in rows.values()])}
    pq.write_table(pa.table(table), file)


@pytest.fixture(scope="module")
def run(corpus, tmp_path_factory, ray_session):
    """A function that makes a run of some of the texts, and gives its folder."""

    def run(asked_by, without=(), workers=1, out=None, **settings):
        folder, rows, _ = corpus
        out = out or tmp_path_factory.mktemp("run") / "out"
        if not (out.parent / "texts.parquet").exists():
            write(out.parent / "texts.parquet", {name: row for name, row in rows.items() if name not in without})
        own = {"embedding_column": "vector", "length_column": "tokens"}
        asking = {"queries": {"source": str(folder / "queries.parquet")} | own} if asked_by == "queries" else {}
        audited({
            "out": str(out), "corpus": {"source": str(out.parent / "texts.parquet")} | own,
            "execution": {"workers": workers}, "analysis": {"neighbours": K, "intervals": EDGES},
        } | asking | settings)  # fmt: skip
        return out

    return run


@pytest.fixture(scope="module")
def runs(run):
    """The same texts, asked by themselves and by queries."""
    return {asked_by: run(asked_by) for asked_by in ("corpus", "queries")}


def by_hand(corpus, asked_by, without=()):
    """The ids, lengths and vectors of the texts, and the places of each asker's nearest, by a full sort in float64."""
    _, rows, queries = corpus
    ids = [name for name in rows if name not in without]
    vectors = np.stack([rows[name][0] for name in ids]).astype(np.float32).astype(np.float64)
    similarity = (queries if asked_by == "queries" else vectors) @ vectors.T
    if asked_by == "corpus":
        np.fill_diagonal(similarity, -np.inf)
    return ids, np.array([rows[name][1] for name in ids]), vectors, np.argsort(-similarity, axis=1)[:, :K]


def tail(slots, texts, count):
    """P(X ≥ count) of Binomial(slots, 1/texts)."""
    p = 1 / texts
    return sum(math.comb(slots, x) * p**x * (1 - p) ** (slots - x) for x in range(count, slots + 1))


@pytest.mark.parametrize("asked_by", ["corpus", "queries"])
def test_every_row_is_that_of_a_full_sort(corpus, runs, asked_by):
    ids, tokens, vectors, near = by_hand(corpus, asked_by)
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    times = np.bincount(near.ravel(), minlength=len(ids))
    copies = (vectors @ vectors.T >= 0.95).sum(1) - 1
    expected, goes, first = [], [], []
    for j in sorted(range(len(ids)), key=lambda j: (-times[j], keyed_hash(ids[j], 0)))[:20]:
        slots, many = times[interval == interval[j]].sum(), (interval == interval[j]).sum()
        assert many >= 30
        hub = times[j] >= 5 * slots / many and tail(int(slots), int(many), int(times[j])) <= 0.01 / len(ids)
        kinds = ["hub"] * bool(hub) + ["copy"] * bool(copies[j]) + ["tiny"] * bool(hub and tokens[j] < 8)
        if hub or copies[j]:
            expected.append((ids[j], ", ".join(kinds), times[j], len(near), tokens[j], copies[j]))
            again = any(vectors[j] @ vectors[other] >= 0.95 for other in first)
            goes.append(hub or again)
            first += [] if again else [j]
    table = read_tables(runs[asked_by])["named_texts"].filter(asked_by=asked_by)
    columns = ("text_id", "kinds", "times", "askers", "tokens", "near_duplicates")
    assert list(table.select(columns).iter_rows()) == expected
    assert table["goes"].to_list() == goes
    assert {name: kinds for name, kinds, *_ in expected if name in ("hub", "tiny")} == {"hub": "hub", "tiny": "hub, tiny"}
    assert {name for name, kinds, *_ in expected if "copy" in kinds} == {"copy0", "copy1", "copy2"}
    assert table["near_duplicates"].to_list().count(2) == 3
    assert table["excerpt"].null_count() == len(table)
    removed = [name for (name, *_), may_go in zip(expected, goes, strict=True) if may_go]
    assert (runs[asked_by] / "remove.txt").read_text() == "".join(f"{name}\n" for name in removed)
    assert {"hub", "tiny"} < set(removed)
    assert len({"copy0", "copy1", "copy2"} - set(removed)) == 1


@pytest.mark.parametrize("asked_by", ["corpus", "queries"])
def test_what_is_found_without_them_is_what_an_audit_without_them_finds(corpus, runs, run, asked_by):
    removed = (runs[asked_by] / "remove.txt").read_text().split()
    again = run(asked_by, without=removed)
    before, after = (read_tables(out)["exposure"].filter(asked_by=asked_by, k=K) for out in (runs[asked_by], again))
    removal = read_tables(runs[asked_by])["removal"]
    by_length = removal.filter(pl.col("interval").is_not_null())
    for suffix in ("", "_se", "_se_superpopulation"):
        for when, table in (("before", before), ("after", after)):
            assert by_length[f"exposure_{when}{suffix}"].to_list() == table[f"exposure{suffix}"].to_list()
    assert by_length["exposure_before"].to_list() != by_length["exposure_after"].to_list()
    ids, tokens, _, near = by_hand(corpus, asked_by)
    left, left_tokens, _, near_left = by_hand(corpus, asked_by, without=removed)
    gone = np.isin(ids, removed)
    times, times_left = np.bincount(near.ravel(), minlength=len(ids)), np.bincount(near_left.ravel(), minlength=len(left))
    staying = np.ones(len(near), bool) if asked_by == "queries" else ~gone
    for row in removal.to_dicts():
        here, here_left = (
            np.ones(len(of), bool) if row["interval"] is None
            else np.searchsorted(EDGES, of, side="right") - 1 == EDGES.index(row["interval"])
            for of in (tokens, left_tokens)
        )  # fmt: skip
        assert (row["texts"], row["removed"], row["askers"]) == (here.sum(), (here & gone).sum(), len(near))
        assert row["times_before"] == pytest.approx(times[here & ~gone].mean(), abs=1e-12)
        assert row["times_after"] == pytest.approx(times_left[here_left].mean(), abs=1e-12)
        never = (times[here] == 0).sum()
        assert (row["never"], row["never_share"]) == ((never, never / here.sum()) if asked_by == "queries" else (None, None))
        assert row["slots_moved"] == sum((here & gone)[place] for place in near[staying].ravel())
        changed = None if row["interval"] is not None else sum(gone[list(places)].any() for places in near[staying])
        assert row["askers_changed"] == changed
    assert removal["times_after"][0] > removal["times_before"][0]


def tables(out):
    return {name: (out / "tables" / f"{name}.parquet").read_bytes() for name in ("named_texts", "removal")}


def test_other_workers_panels_pieces_and_a_stop_give_the_same_bytes(runs, run, monkeypatch, tmp_path):
    first, searched = tables(runs["corpus"]), []
    monkeypatch.setattr(named, "QUERIES_OF_A_TASK", 17)
    monkeypatch.setattr(tiles, "block_size", lambda texts, dim: 50)
    whole, run_tasks = named._without, named.run_tasks

    def stopped(*arguments):
        whole(*arguments)
        raise IncompleteRun("stopped")

    def seen(cluster, function, pieces, **how):
        for piece, result in run_tasks(cluster, function, pieces, **how):
            searched.append(piece.number)
            yield piece, result

    monkeypatch.setattr(named, "run_tasks", seen)
    monkeypatch.setattr(named, "_without", stopped)
    with pytest.raises(IncompleteRun):
        run("corpus", workers=2, out=tmp_path / "out")
    assert len({panel for _, panel in searched}) > 1
    pieces = len(searched)
    assert pieces == len({*searched}) > 8
    monkeypatch.setattr(named, "_without", whole)
    assert tables(run("corpus", out=tmp_path / "out")) == first
    assert len(searched) == pieces  # Finished searches are not made again.
    assert not list((tmp_path / "out").glob("partials/cosine/*/*/near"))


def test_of_many_texts_that_ask_a_sample_asks_again(corpus, run, monkeypatch):
    monkeypatch.setattr(named, "ASKERS", 80)
    out = run("corpus")
    removed = (out / "remove.txt").read_text().split()
    ids, tokens, _, near = by_hand(corpus, "corpus")
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    asks = np.argsort([keyed_hash(name, 0) for name in ids])[:80]
    figures = exposure(near[asks], interval, len(EDGES), population=len(ids), sample=asks)
    removal = read_tables(out)["removal"]
    by_length = removal.filter(pl.col("interval").is_not_null())
    assert by_length["exposure_before"].to_list() == figures.exposure.tolist()
    assert by_length["exposure_before_se"].to_list() == figures.corrected.tolist()
    left, left_tokens, _, near_left = by_hand(corpus, "corpus", without=removed)
    asks_left = np.flatnonzero(np.isin(left, [ids[j] for j in asks]))
    interval = np.searchsorted(EDGES, left_tokens, side="right") - 1
    figures = exposure(near_left[asks_left], interval, len(EDGES), population=len(left), sample=asks_left)
    assert by_length["exposure_after"].to_list() == figures.exposure.tolist()
    assert by_length["exposure_after_se"].to_list() == figures.corrected.tolist()
    assert removal["askers"][0] == 80
    assert removal["askers_changed"][0] == sum(np.isin(ids, removed)[near[j]].any() for j in asks if ids[j] not in removed)


def test_a_quick_audit_names_none(run):
    out = run("corpus", quick=True)
    assert not {"named_texts", "removal"} & read_tables(out).keys()
    assert not (out / "remove.txt").exists()


def test_where_nothing_is_found_too_often_nothing_may_go(run):
    out = run("corpus", without=PLANTED)
    every = read_tables(out)
    assert every["named_texts"].is_empty()
    assert not (out / "remove.txt").exists()
    removal = every["removal"]
    assert removal["removed"].sum() == 0
    assert removal["exposure_before"].to_list() == removal["exposure_after"].to_list()
    assert removal["times_before"].to_list() == removal["times_after"].to_list()
