"""`--what-if`: every figure again from the stored embeddings, by a full sort of all similarities and definitions by hand."""

import numpy as np
import polars as pl
import pytest
from command_line import in_process
from whole_run import as_lines, documented, read_tables

from tempscale.collapse.exposure import Units, change, exposure
from tempscale.correction.curve import Curve
from tempscale.stats.sample import keyed_hash
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.errors import UsageError

K, EDGES = 5, (0, 64, 100)
WHAT = ("int8", "bits", "dims:24", "remove_top(1)+dims:48", "tau:0.5")
WITH_QUERIES = ("centre+bits", "length")
TEXTS, QUERIES, ASKERS = 260, 120, 150


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session, small_model):
    """Two audits: one in which texts ask, one with queries."""
    folder = tmp_path_factory.mktemp("what-if")
    lines = documented("scipy")
    (folder / "texts.jsonl").write_text(as_lines(lines[:TEXTS]))
    (folder / "queries.jsonl").write_text(as_lines(lines[TEXTS : TEXTS + QUERIES]))
    common = [
        "audit", "--corpus", str(folder / "texts.jsonl"), "--model", small_model, "--intervals", ",".join(map(str, EDGES)),
        "--neighbours", str(K), "--exposure-sample", str(ASKERS), "--workers", "1", "--quick",
    ]  # fmt: skip
    for name, what, more in (
        ("texts", WHAT, []), ("queries", (*WHAT, *WITH_QUERIES), ["--queries", str(folder / "queries.jsonl")]),
    ):  # fmt: skip
        asked = [word for one in what for word in ("--what-if", one)]
        code, _, err = in_process(*common, *more, *asked, "--out", str(folder / name))
        assert code == 0, err
    return folder


def stored(folder, tau="1.0"):
    """The embeddings of a run under one temperature, in the order of its parts, with ids and tokens."""
    (place,) = folder.glob(f"texts/*/temperature={tau}")
    table = pl.concat([pl.read_parquet(file) for file in sorted(place.glob("*.parquet"))])
    return np.stack(table["embedding"].to_list()).astype(np.float64), table["text_id"].to_list(), table["tokens"].to_numpy()


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def by_hand(what, texts, tokens, queries):
    """Changed texts, changed queries, and the factor of their similarity; variants are fitted to all of these texts."""
    asking = texts if queries is None else queries
    if what == "int8":
        low, step = texts.min(0), (texts.max(0) - texts.min(0)) / 255
        return low + np.rint((texts - low) / step) * step, asking, 1.0
    if what == "bits":
        return np.where(texts > 0, 1.0, -1.0), np.where(asking > 0, 1.0, -1.0), 1 / texts.shape[1]
    if what == "dims:24":
        return unit(texts[:, :24]), unit(asking[:, :24]), 1.0
    if what == "remove_top(1)+dims:48":
        mean = texts.mean(0)
        _, _, (top, *_) = np.linalg.svd(texts - mean)
        moved = [unit((rows - m) - np.outer((rows - m) @ top, top)) for rows, m in ((texts, mean), (asking, asking.mean(0)))]
        return unit(moved[0][:, :48]), unit(moved[1][:, :48]), 1.0
    if what == "centre+bits":
        return *(np.where(rows > rows.mean(0), 1.0, -1.0) for rows in (texts, asking)), 1 / texts.shape[1]
    if what == "length":
        similarity = texts @ asking.mean(0)
        curve = Curve.fitted(tokens, similarity - similarity.mean(), 2)
        ones = np.ones((len(asking), 1))
        return np.hstack([texts, -curve(tokens)[:, None]]), np.hstack([asking, ones]), 1.0
    return texts, asking, 1.0


def nearest(similarity, asking=None):
    """The places of the nearest texts of each row; `asking` are the places of the askers among the texts."""
    moved = similarity.copy()
    if asking is not None:
        moved[np.arange(len(moved)), asking] = -np.inf
    return np.argsort(-moved, axis=1, kind="stable")[:, :K]


def kept(found, exact):
    return np.array([len({*a} & {*b}) / K for a, b in zip(found.tolist(), exact.tolist(), strict=True)])


def asking_texts(ids, count):
    """The places of the texts of smallest keyed hash."""
    return np.sort(np.argsort([keyed_hash(text_id, 0) for text_id in ids])[:count])


@pytest.mark.proof
@pytest.mark.parametrize("asked_by", ["texts", "queries"])
def test_every_figure_is_that_of_a_full_search(runs, asked_by):
    texts, ids, tokens = stored(runs / asked_by)
    interval = np.searchsorted(EDGES, tokens, side="right") - 1
    if asked_by == "texts":
        asks = asking_texts(ids, ASKERS)
        asker_interval, queries, of_texts = interval[asks], None, {"population": TEXTS, "sample": asks}
    else:
        queries, _, query_tokens = stored(runs / asked_by / "queries")
        asks, asker_interval, of_texts = None, np.searchsorted(EDGES, query_tokens, side="right") - 1, {}
    table = read_tables(runs / asked_by)["what_if"]
    whats = ["", *WHAT, *(WITH_QUERIES if asked_by == "queries" else ())]
    assert table.filter(pl.col("by").is_null())["what"].to_list() == whats
    plain = (texts[asks] if queries is None else queries) @ texts.T
    exact = nearest(plain, asks)
    units = Units.of(TEXTS, 0 if queries is None else QUERIES)
    for what in whats:
        if what == "tau:0.5":
            documents, again, _ = stored(runs / asked_by, "0.5")
            assert again == ids
            asking, scale = documents if queries is None else stored(runs / asked_by / "queries", "0.5")[0], 1.0
        else:
            documents, asking, scale = by_hand(what, texts, tokens, queries)
        similarity = (asking if asks is None else asking[asks]) @ documents.T * scale
        found = nearest(similarity, asks)
        shares, rows = kept(found, exact), table.filter(what=what)
        overall = rows.filter(pl.col("by").is_null()).row(0, named=True)
        assert (overall["k"], overall["askers"]) == (K, len(shares))
        assert overall["collapse_gap"] == gap(similarity, asks, interval)
        assert overall["collapse_gap_change"] == gap(similarity, asks, interval, plain)
        if "bits" in what:  # Which of equally near texts comes first is decided by their ids.
            assert overall["neighbours_kept"] == pytest.approx(shares.mean(), abs=0.05)
            continue
        assert overall["neighbours_kept"] == pytest.approx(shares.mean(), abs=1e-9), what
        assert overall["neighbours_kept_se"] == pytest.approx(shares.std(ddof=1) / len(shares) ** 0.5, abs=1e-9)
        assert overall["near_duplicates"] == int((np.take_along_axis(similarity, found, 1) >= 0.95).sum())
        figures = exposure(found, interval, len(EDGES), queries is None, **of_texts)
        moved = change((exact, found), interval, len(EDGES), units, asks)
        for b, edge in enumerate(EDGES):
            row = rows.filter(group=str(edge)).row(0, named=True)
            assert row["exposure"] == pytest.approx(figures.exposure[b], abs=1e-9)
            assert row["exposure_se"] == pytest.approx(figures.corrected[b], abs=1e-9)
            assert row["exposure_change"] == pytest.approx(moved.change[b], abs=1e-9)
            assert row["exposure_change_se_superpopulation"] == pytest.approx(moved.error[b], abs=1e-9)
            here = asker_interval == b
            assert (row["askers"], row["collapse_gap"]) == (here.sum(), None)
            assert row["neighbours_kept"] == pytest.approx(shares[here].mean(), abs=1e-9)


def gap(similarity, asks, interval, before=None):
    """The mean similarity of asking texts of the longest length with the others of it, less that of the shortest."""
    if asks is None:
        return None
    moved = similarity if before is None else similarity - before
    means = []
    for b in (0, len(EDGES) - 1):
        values = [
            np.mean([moved[row, j] for j in np.flatnonzero(interval == b) if j != place])
            for row, place in enumerate(asks)
            if interval[place] == b
        ]
        means.append(np.mean(values))
    return pytest.approx(means[1] - means[0], abs=1e-6)


@pytest.mark.proof
def test_sizes_of_stored_vectors(runs):
    table = read_tables(runs / "texts")["what_if"].filter(pl.col("by").is_null())
    assert dict(table.select("what", "vector_bytes").iter_rows()) == {
        "": 256, "int8": 64, "bits": 8, "dims:24": 96, "remove_top(1)+dims:48": 192, "tau:0.5": 256,
    }  # fmt: skip


@pytest.mark.proof
def test_other_workers_and_other_pieces_give_the_same_bytes(runs, small_model, tmp_path, monkeypatch):
    from tempscale_jobs.steps import what_if

    first = (runs / "texts" / "tables" / "what_if.parquet").read_bytes()
    monkeypatch.setattr(what_if, "ASKERS_OF_A_TASK", 40)
    command = [
        "audit", "--corpus", str(runs / "texts.jsonl"), "--model", small_model, "--intervals", ",".join(map(str, EDGES)),
        "--neighbours", str(K), "--exposure-sample", str(ASKERS), "--workers", "2", "--quick",
        "--out", str(tmp_path / "run"),
        *(word for one in WHAT for word in ("--what-if", one)),
    ]  # fmt: skip
    code, _, err = in_process(*command)
    assert code == 0, err
    assert (tmp_path / "run" / "tables" / "what_if.parquet").read_bytes() == first


@pytest.mark.parametrize(
    ("data", "named"),
    [
        ({"analysis": {"what_if": ["int4"]}}, "int4"), ({"analysis": {"what_if": ["centre+bits"]}}, "centre"),
        ({"analysis": {"what_if": ["length"]}}, "queries"),
        ({"analysis": {"what_if": ["int8"], "neighbours": 0}}, "neighbours"),
        ({"analysis": {"what_if": ["int8"], "exposure_sample": 0}}, "exposure_sample"),
        ({"analysis": {"what_if": ["tau:0.8"]}, "corpus": {"source": "a", "embedding_column": "e"}}, "tau:0.8"),
        ({"analysis": {"what_if": ["tau:0.8+int8"]}}, "embeds the texts again"),
        ({"analysis": {"what_if": ["tau:-1"]}}, "tau:-1"),
    ],
)  # fmt: skip
def test_what_cannot_be_measured_is_refused_by_name(data, named):
    with pytest.raises(UsageError, match=named) as caught:
        resolve(data)
    assert caught.value.exit_code == 2


def test_more_dimensions_than_a_model_has_are_refused_before_ray(small_model, tmp_path):
    (tmp_path / "texts.jsonl").write_text(as_lines(documented("scipy")[:3]))
    command = "audit", "--corpus", str(tmp_path / "texts.jsonl"), "--model", small_model, "--out", str(tmp_path / "run")
    code, _, err = in_process(*command, "--what-if", "dims:65+int8")
    assert code == 2
    assert "64 dimensions" in err
    assert "Ray" not in err


def test_a_run_without_variants_has_the_identity_that_it_had_before():
    assert "what_if" not in resolve({}).identity()["analysis"]
    asked = resolve({"analysis": {"what_if": ["dims: 08", "dims:8"]}})
    assert asked.identity()["analysis"]["what_if"] == ["dims:8"]
