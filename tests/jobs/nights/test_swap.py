"""Another model behind the same texts: nearest texts that stay, and thresholds carried over, from pairs one by one."""

import json
import math
import subprocess
import sys
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from command_line import in_process, said
from nights_by_hand import finished_audit, summary_row
from whole_run import documented, read_parts

from tempscale.collapse.aggregates import BINS
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import compare, words
from tempscale_jobs.report.findings import Findings
from tempscale_jobs.report.text import share_with_error
from tempscale_jobs.runs.folder import numbered, place
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.carried import Pairs, carried
from tempscale_jobs.tables.audit import COSINE_HISTOGRAM, EXCERPTS, NEIGHBOURS
from tempscale_jobs.tables.audit import texts as table_of_texts

EDGES, K, TEXTS = (0, 10, 20), 4, 120
ENOUGH = 30
"""Texts of a length of which thresholds are told."""


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def corpus(count=TEXTS, seed=0):
    """Vectors of an old and a new model that agree in part, lengths, and the text of each id."""
    random = np.random.default_rng(seed)
    old = random.normal(size=(count, 6)) + 0.6
    new = old @ random.normal(size=(6, 5)) + 0.8 * random.normal(size=(count, 5))
    ids = [f"t{k:03d}" for k in random.permutation(count)]
    return {
        "ids": ids, "old": unit(old).astype(np.float32), "new": unit(new).astype(np.float32),
        "tokens": random.integers(1, 26, count), "contents": [f"text of {name}" for name in ids],
    }  # fmt: skip


def cosines(vectors):
    return vectors.astype(np.float64) @ vectors.astype(np.float64).T


def binned(values):
    """Pairs in each of all bins."""
    counts = [0] * BINS
    for cosine in values:
        counts[min(BINS - 1, max(0, math.floor((cosine + 1) / 2 * BINS)))] += 1
    return counts


def audit_of(folder, model, of, which, **more):
    """A finished audit of these vectors as the steps of an audit leave it; `more` has what differs."""
    n, lengths = len(of["ids"]), of["tokens"]
    row = summary_row(model, tau=1.0, texts=n, cosine_mean=0.1, cosine_se_superpopulation=0.01)
    config = {"analysis": {"intervals": list(EDGES)}, "embedding": {}, "corpus": more.get("corpus", {})}
    root = finished_audit(
        folder, row, config=config, corpus={"fingerprint": more.get("fingerprint", "sum:1"), "analysed": n}, versions={},
        tempscale="0", started="2026-11-01T02:15:00+00:00",
        models={model: {"fingerprint": model * 2, "max_length": 64}},
    )  # fmt: skip
    storage, at = Storage(root), (model, Temperature.of(1.0))
    cosine = cosines(of[which])
    if more.get("histogram", True):
        interval = np.searchsorted(EDGES, lengths, side="right") - 1
        cells = {}
        for i, j in combinations(range(n), 2):
            cells.setdefault(tuple(sorted((interval[i], interval[j]))), []).append(cosine[i, j])
        rows = [
            row_of(model) | {"interval_a": EDGES[a], "interval_b": EDGES[b], "pairs": pairs}
            | {"cosine_from": -1 + 2 * k / BINS, "cosine_to": -1 + 2 * (k + 1) / BINS}
            for (a, b), values in cells.items() for k, pairs in enumerate(binned(values)) if pairs
        ]  # fmt: skip
        storage.write_table("tables/cosine_histogram.parquet", COSINE_HISTOGRAM.build_rows(rows))
    columns = {
        "text_id": of["ids"], "content_sha": of["contents"], "document": of.get("documents", [None] * n),
        "tokens": lengths.astype(np.int32), "truncated": [False] * n, "embedding": list(of[which]),
        "mean_norm": [None] * n, "spread": [None] * n, "within_cosine": [None] * n, "source_row": [None] * n,
    }  # fmt: skip
    whole = table_of_texts(of[which].shape[1]).build(columns)
    near = nearest(of, which)
    graph = NEIGHBOURS.build_rows(
        [{"text_id": name, "neighbours": near[name], "cosines": [float(cosine[i, of["ids"].index(other)]) for other in
          near[name]]} for i, name in enumerate(of["ids"])]
    )  # fmt: skip
    for number, span in enumerate((slice(0, n // 3), slice(n // 3, n))):
        length = span.stop - span.start
        storage.write_table(numbered(place("texts", *at), number), whole.slice(span.start, length))
        storage.write_table(numbered(place("neighbours", *at), number), graph.slice(span.start, length))
    for text_id in more.get("excerpts", ()):
        excerpt = {"text_id": text_id, "characters": 500, "excerpt": f"How {text_id} begins"}
        storage.write_table("tables/excerpts.parquet", EXCERPTS.build_rows([excerpt]))
    return root


def row_of(model):
    return {"model": model, "temperature": "1.0", "tau": 1.0, "schema_version": 1}


def nearest(of, which, among=None, k=K):
    """The ids of the k nearest texts of each text, nearest first."""
    cosine, found = cosines(of[which]), {}
    for i, name in enumerate(of["ids"]):
        others = [j for j in range(len(cosine)) if j != i and (among is None or of["ids"][j] in among)]
        found[name] = [of["ids"][j] for j in sorted(others, key=lambda j: -cosine[i, j])[:k]]
    return found


def reached(counts, cosine):
    """The share of pairs that reach a cosine: whole bins above, and of its own bin the part above."""
    highs = -1 + 2 * np.arange(1, BINS + 1) / BINS
    return np.clip((highs - cosine) * BINS / 2, 0, 1) @ np.array(counts) / sum(counts)


def passed_by(counts, share):
    """The largest cosine that a share of the pairs reach, by halving."""
    low, high = -1.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if reached(counts, middle) >= share else (low, middle)
    return low


def per_text_error(values, documents=None):
    """2·sd/√n of the texts' means; by documents √Σ_g (2·√(G/(G−1))·Σ_{i in g}(v_i − v̄)/n)²."""
    n, mean = len(values), sum(values) / len(values)
    if documents is None:
        return 2 * math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1) / n)
    sums = {}
    for value, document in zip(values, documents, strict=True):
        sums[document] = sums.get(document, 0.0) + value - mean
    return math.sqrt(sum((2 * math.sqrt(len(sums) / (len(sums) - 1)) * part / n) ** 2 for part in sums.values()))


def by_hand(threshold, old, new, documents=None, counts=None):
    """The row of one threshold from both matrices of cosines, pair by pair."""
    n, pairs = len(old), list(combinations(range(len(old)), 2))
    counts = counts or [binned([side[i, j] for i, j in pairs]) for side in (old, new)]
    passes = reached(counts[0], threshold)
    changed = passed_by(counts[1], passes)
    of_text = {"old": [0] * n, "new": [0] * n, "both": [0] * n}
    for i, j in pairs:
        for name, passed in (
            ("old", old[i, j] >= threshold), ("new", new[i, j] >= changed),
            ("both", old[i, j] >= threshold and new[i, j] >= changed),
        ):  # fmt: skip
            of_text[name][i] += passed
            of_text[name][j] += passed
    accepted = sum(of_text["old"]) / 2
    stay, share = sum(of_text["both"]) / sum(of_text["old"]), accepted / len(pairs)
    means = {name: [count / (n - 1) for count in values] for name, values in of_text.items()}
    beyond = per_text_error([a - b for a, b in zip(means["old"], means["new"], strict=True)], documents)
    ends = [passed_by(counts[1], min(1.0, passes * math.exp(sign * 1.96 * beyond / passes))) for sign in (1, -1)]
    ratio = [(b - stay * a) / share for a, b in zip(means["old"], means["both"], strict=True)]
    return {
        "passes": passes, "passes_se": per_text_error(means["old"], documents), "new_threshold": changed,
        "new_threshold_low": ends[0], "new_threshold_high": ends[1], "accepted": accepted, "stay": stay,
        "stay_se": per_text_error(ratio, documents),
    }  # fmt: skip


def is_row(row, expected):
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, abs=1e-9), name


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two finished audits of the same texts under two models, and their vectors."""
    folder, of = tmp_path_factory.mktemp("swap"), corpus()
    return audit_of(folder / "a", "old", of, "old"), audit_of(folder / "b", "new", of, "new"), of


def rows_of(found, table, **of):
    return found.swap[f"swap_{table}"].filter(**of).to_dicts()


def overall(found, table):
    return found.swap[f"swap_{table}"].filter(pl.col("by").is_null()).to_dicts()


# --- thresholds -------------------------------------------------------------------------------------------------------


def test_a_threshold_of_six_texts_by_hand():
    """Under A five texts are alike, 10 of 15 pairs; under B four of them, and each of these with the sixth.

    Each of the five has 4 of its 5 pairs: 2·√((5·(2/15)² + (2/3)²)/5/6) = .26667. Of the 10 pairs 6 stay: texts 0–3 have 3
    of 5 pairs still, so (3/5 − .6·4/5)/(2/3) = .18, text 4 has (0 − .48)/(2/3) = −.72: 2·√((4·.18² + .72²)/5/6) = .29394.
    """
    old, new = np.zeros((6, 6)), np.full((6, 6), 0.1)
    old[:5, :5], new[:4, :4], new[5, :4], new[:4, 5] = 0.9, 0.7, 0.7, 0.7
    for side in (old, new):
        np.fill_diagonal(side, -2)
    pairs = Pairs((old, new), np.zeros(6, dtype=int), None)
    row = carried(0.8, pairs.histograms(), pairs)
    assert (row["over"], row["pairs"], row["accepted"]) == ("sample", 15, 10)
    assert row["passes"] == pytest.approx(2 / 3)
    assert 0.7 - 2 / BINS <= row["new_threshold"] <= 0.7  # The largest cosine that ten pairs reach.
    assert row["stay"] == pytest.approx(0.6)
    assert row["passes_se"] == pytest.approx(0.26667, abs=1e-5)
    assert row["stay_se"] == pytest.approx(0.29394, abs=1e-5)
    assert carried(0.95, pairs.histograms(), pairs)["new_threshold"] is None


@pytest.mark.parametrize("documents", [False, True])
def test_every_figure_of_a_threshold_is_that_of_pairs_one_by_one(two, documents, tmp_path):
    a, b, of = two
    names = None
    if documents:
        names = [k % 24 for k in range(TEXTS)]
        a, b = (audit_of(tmp_path / x, model, of | {"documents": names}, model) for x, model in (("a", "old"), ("b", "new")))
    found = compare.compare(a, b, [0.8, 0.5])
    old, new = cosines(of["old"]), cosines(of["new"])
    rows = overall(found, "thresholds")
    assert [row["threshold"] for row in rows] == [0.8, 0.5]
    for row in rows:
        assert (row["over"], row["pairs"]) == ("corpus", TEXTS * (TEXTS - 1) // 2)
        is_row(row, by_hand(row["threshold"], old, new, names))
    interval = np.searchsorted(EDGES, of["tokens"], side="right") - 1
    long_enough = [b for b in range(len(EDGES)) if (interval == b).sum() >= ENOUGH]
    assert [row["group"] for row in rows_of(found, "thresholds", threshold=0.5, by="length")] == [
        str(EDGES[b]) for b in long_enough
    ]
    for b in long_enough:
        here = np.flatnonzero(interval == b)
        (row,) = rows_of(found, "thresholds", threshold=0.5, group=str(EDGES[b]))
        of_length = None if names is None else [names[k] for k in here]
        is_row(row, by_hand(0.5, old[np.ix_(here, here)], new[np.ix_(here, here)], of_length))


def test_without_a_threshold_those_that_1_in_100_and_1_in_1000_pairs_reach_are_carried_over(two):
    a, b, of = two
    pairs = [cosines(of["old"])[i, j] for i, j in combinations(range(TEXTS), 2)]
    rows = overall(compare.compare(a, b), "thresholds")
    assert [row["threshold"] for row in rows] == [pytest.approx(np.quantile(pairs, 0.99), abs=2e-3)]  # 7 reach 99.9 %.
    assert rows[0]["passes"] == pytest.approx(0.01, abs=2e-3)


def test_one_run_against_itself_changes_nothing(two):
    a, _, _ = two
    found = compare.compare(a, a, [0.6])
    (row,) = overall(found, "thresholds")
    assert abs(row["new_threshold"] - 0.6) <= 2 / BINS
    assert (row["stay"], row["stay_se"]) == (1, 0)
    assert row["new_threshold_low"] == row["new_threshold_high"] == pytest.approx(row["new_threshold"], abs=1e-9)
    assert [one["neighbours_kept"] for one in rows_of(found, "neighbours")] == [1] * 4
    assert rows_of(found, "examples") == []
    plain = compare.compare(a, a)  # One model and temperature, and no threshold: nothing is swapped.
    assert all(table.is_empty() for table in plain.swap.values())
    assert plain.notes == [[]]


def test_neither_the_order_of_texts_nor_a_rotation_of_the_vectors_changes_anything(two, tmp_path):
    a, b, of = two
    found = compare.compare(a, b, [0.5])
    order = np.random.default_rng(5).permutation(TEXTS)
    shuffled = {
        key: values[order] if isinstance(values, np.ndarray) else [values[k] for k in order] for key, values in of.items()
    }
    again = compare.compare(a, audit_of(tmp_path / "b", "new", shuffled, "new"), [0.5])
    for name, table in found.swap.items():
        assert table.equals(again.swap[name]), name
    turn, _ = np.linalg.qr(np.random.default_rng(6).normal(size=(5, 5)))
    turned = of | {"new": (of["new"].astype(np.float64) @ turn).astype(np.float32)}
    rotated = compare.compare(a, audit_of(tmp_path / "c", "new", turned, "new"), [0.5])
    for name in ("swap_neighbours", "swap_examples"):
        assert rotated.swap[name].equals(found.swap[name])
    for row, before in zip(
        rotated.swap["swap_thresholds"].to_dicts(), found.swap["swap_thresholds"].to_dicts(), strict=True
    ):
        assert row["new_threshold"] == pytest.approx(before["new_threshold"], abs=2 / BINS)
        assert row["passes_se"] == before["passes_se"]


def test_errors_of_all_pairs_are_smaller_than_those_of_a_sample_of_texts(two, monkeypatch):
    a, b, _ = two
    (whole,) = overall(compare.compare(a, b, [0.5]), "thresholds")
    monkeypatch.setattr("tempscale_jobs.nights.swap.TEXTS_OF_PAIRS", 60)
    (row,) = overall(compare.compare(a, b, [0.5]), "thresholds")
    assert [row[name] for name in ("passes", "new_threshold", "pairs")] == [
        whole[name] for name in ("passes", "new_threshold", "pairs")
    ]
    assert row["accepted"] < whole["accepted"] / 3
    assert row["stay_se"] > 1.1 * whole["stay_se"]  # That of 60 texts; passes has that of all 120 from a variance of 60.
    assert row["passes_se"] == pytest.approx(whole["passes_se"], rel=0.3)


# --- nearest texts ----------------------------------------------------------------------------------------------------


def test_nearest_texts_that_stay_are_those_of_both_lists(two):
    a, b, of = two
    found = compare.compare(a, b)
    old, new = nearest(of, "old"), nearest(of, "new")
    kept = {name: len({*old[name]} & {*new[name]}) / K for name in of["ids"]}
    (row,) = overall(found, "neighbours")
    assert (row["k"], row["askers"]) == (K, TEXTS)
    values = np.array([*kept.values()])
    assert row["neighbours_kept"] == pytest.approx(values.mean(), abs=1e-12)
    assert row["neighbours_kept_se"] == pytest.approx(values.std(ddof=1) / TEXTS**0.5, abs=1e-12)
    interval = np.searchsorted(EDGES, of["tokens"], side="right") - 1
    for b, edge in enumerate(EDGES):
        (row,) = rows_of(found, "neighbours", group=str(edge))
        assert row["askers"] == (interval == b).sum()
        assert row["neighbours_kept"] == pytest.approx(values[interval == b].mean(), abs=1e-12)
    examples = rows_of(found, "examples")
    assert [one["rank"] for one in examples] == [*range(1, 11)]
    assert sorted(one["kept"] for one in examples) == sorted(round(K * share) for share in kept.values())[:10]
    cosine = cosines(of["old"])
    for one in examples:
        name = one["text_id"]
        assert one["lost"] == [other for other in old[name] if other not in new[name]]
        assert one["gained"] == [other for other in new[name] if other not in old[name]]
    lost = [cosine[of["ids"].index(one["text_id"]), of["ids"].index(one["lost"][0])] for one in examples]
    assert sorted(zip([one["kept"] for one in examples], [-c for c in lost], strict=True)) == [
        (one["kept"], -c) for one, c in zip(examples, lost, strict=True)
    ]


def test_of_two_corpora_only_the_unchanged_texts_of_both_count(two, tmp_path):
    a, _, of = two
    here = np.flatnonzero(np.arange(TEXTS) % 5 > 0)
    some = {key: values[here] if isinstance(values, np.ndarray) else [values[k] for k in here] for key, values in of.items()}
    some["contents"] = ["edited", *some["contents"][1:]]
    found = compare.compare(a, audit_of(tmp_path / "b", "new", some, "new", fingerprint="sum:2"), [0.5])
    common = some["ids"][1:]
    assert found.changed == [{"added": 0, "removed": TEXTS - len(here), "edited": 1}]
    assert "the 95 unchanged texts of both runs" in " ".join(words.sentences(found))
    (row,) = overall(found, "thresholds")
    assert (row["over"], row["pairs"]) == ("sample", 95 * 94 // 2)
    is_row(row, by_hand(0.5, *(cosines(some[which])[1:, 1:] for which in ("old", "new"))))
    lists = nearest(of, "old"), nearest(some, "new")
    kept = []
    for name in common:
        old, new = ([other for other in near[name] if other in common] for near in lists)
        k = min(len(old), len(new))
        kept += [len({*old[:k]} & {*new[:k]}) / k] if k else []
    (row,) = overall(found, "neighbours")
    assert row["askers"] == len(kept)
    assert row["neighbours_kept"] == pytest.approx(np.mean(kept), abs=1e-12)


def test_other_lengths_under_the_new_model_leave_histograms_for_all_pairs_alone(two, tmp_path):
    a, _, of = two
    longer = of | {"tokens": of["tokens"] + 7}
    rows = rows_of(compare.compare(a, audit_of(tmp_path / "b", "new", longer, "new"), [0.5]), "thresholds")
    assert [row["over"] for row in rows] == ["corpus", *["sample"] * (len(rows) - 1)]
    interval = np.searchsorted(EDGES, of["tokens"], side="right") - 1
    first = np.flatnonzero(interval == 0)
    is_row(rows[1], by_hand(0.5, *(cosines(of[which])[np.ix_(first, first)] for which in ("old", "new"))))


def test_vectors_of_a_user_have_the_texts_of_their_ids(two, tmp_path):
    a, _, of = two
    digests = of | {"contents": [f"a vector's {k}" for k in range(TEXTS)]}
    found = compare.compare(a, audit_of(tmp_path / "b", "given", digests, "new", corpus={"embedding_column": "e"}), [0.5])
    assert found.changed == [{"added": 0, "removed": 0, "edited": None}]
    (row,) = overall(found, "thresholds")
    is_row(row, by_hand(0.5, cosines(of["old"]), cosines(of["new"])))


def test_excerpts_are_shown_where_both_runs_show_texts(two, tmp_path):
    a, b, of = two
    name = rows_of(compare.compare(a, b), "examples")[0]["text_id"]
    for shows, excerpt in ((False, None), (True, f"How {name} begins")):
        named = {"excerpts": [name]} if shows else {}
        sides = (
            audit_of(tmp_path / f"a{shows}", "old", of, "old", excerpts=[name]),
            audit_of(tmp_path / f"b{shows}", "new", of, "new", **named),
        )
        found = compare.compare(*sides)
        assert rows_of(found, "examples")[0]["excerpt"] == excerpt
        assert (f"«How {name} begins …»" in " ".join(words.sentences(found))) == shows


# --- what is not known ------------------------------------------------------------------------------------------------


def test_without_embeddings_a_threshold_is_carried_over_and_nothing_is_said_of_what_stays(two, tmp_path):
    a, _, of = two
    known = by_hand(0.5, cosines(of["old"]), cosines(of["new"]))
    for fingerprint in ("sum:1", "sum:2"):
        b = audit_of(tmp_path / fingerprint, "new", of, "new", fingerprint=fingerprint)
        for folder in ("texts", "neighbours"):
            Storage(b).remove(folder)
        found = compare.compare(a, b, [0.5])
        (note,) = found.notes[0]
        assert "embeddings of B are gone" in note
        assert found.swap["swap_neighbours"].is_empty()
        if fingerprint == "sum:2":
            assert "not comparable" in note
            assert found.swap["swap_thresholds"].is_empty()
            continue
        (row,) = rows_of(found, "thresholds")
        is_row(row, {name: known[name] for name in ("passes", "new_threshold")})
        assert [row[name] for name in ("passes_se", "new_threshold_low", "stay", "stay_se")] == [None] * 4


def test_too_few_texts_in_common_are_not_comparable_and_say_so(tmp_path):
    few = corpus(29)
    a, b = (audit_of(tmp_path / which, which, few, which) for which in ("old", "new"))
    found = compare.compare(a, b)
    assert found.notes == [
        ["Searches and thresholds are not comparable: A and B share 29 unchanged texts, and it takes 30."]
    ]
    assert all(table.is_empty() for table in found.swap.values())


def test_a_threshold_that_hardly_a_pair_reaches_is_not_carried_over(two):
    a, b, _ = two
    found = compare.compare(a, b, [0.999])
    (row,) = overall(found, "thresholds")
    assert (row["new_threshold"], row["stay"]) == (None, None)
    assert "0.999 of A is not carried over: fewer than 10 random pairs reach it" in " ".join(words.sentences(found))


def test_runs_without_histograms_or_neighbours_are_compared_by_their_embeddings(two, tmp_path):
    a, _, of = two
    b = audit_of(tmp_path / "b", "new", of, "new", histogram=False)
    Storage(b).remove("neighbours")
    found = compare.compare(a, b, [0.5])
    (row,) = overall(found, "thresholds")
    assert row["over"] == "sample"
    is_row(row, by_hand(0.5, cosines(of["old"]), cosines(of["new"])))
    assert found.notes == [["Which nearest texts stay is not known: no text asked for them in both runs."]]


@pytest.mark.parametrize("value", ["1", "-1", "1.5", "nan", "inf"])
def test_what_is_no_cosine_is_refused_by_its_option(two, value):
    code, _, err = in_process("compare", *two[:2], "--threshold", value)
    assert code == 2
    assert "--threshold" in err
    with pytest.raises(UsageError, match="between -1 and 1"):
        compare.compare(*two[:2], [float(value)])


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_prints_lines_that_fit_a_terminal_and_leaves_tables_and_findings(two, tmp_path):
    a, b, _ = two
    code, out, err = in_process("compare", a, b, "--threshold", ".5", "--out", str(tmp_path / "out"))
    assert code == 0, err
    found = compare.compare(a, b, [0.5])
    (row,), (near,) = overall(found, "thresholds"), overall(found, "neighbours")
    printed = said(out)
    assert f"Your 0.5 of A passes {share_with_error(row['passes'], row['passes_se'])} of random pairs" in printed
    assert "of the pairs you accept today" in printed
    assert "Of the 4 nearest texts of a text in A" in printed
    sentences = out.split("\n\n")[0].splitlines()
    assert max(map(len, sentences)) <= 80
    tables = out[out.index("two texts of") :].splitlines()
    assert max(len(line.rstrip()) for line in tables if "tables" not in line) <= 80
    for name, table in found.swap.items():
        assert pl.read_parquet(tmp_path / "out" / f"{name}.parquet").equals(table)
    data = json.loads(in_process("compare", a, b, "--threshold", ".5", "--json")[1])
    assert "of the pairs you accept today" in data["answers"]["new, τ 1.0"]
    values = {one["figure"]: (one["value"], one.get("error")) for one in data["findings"]}
    assert values["neighbours kept"] == (near["neighbours_kept"], near["neighbours_kept_se"])
    assert values["threshold for 0.5"] == (row["new_threshold"], None)
    assert values["pairs above 0.5 that stay"] == (row["stay"], row["stay_se"])
    assert Findings.read(pl.read_parquet(tmp_path / "out" / "findings.parquet")).as_data() == data["findings"]


def test_it_needs_neither_ray_nor_torch(two):
    code = (
        "import sys; from tempscale_jobs.nights.compare import compare; compare(*sys.argv[1:]); "
        "assert not {'ray', 'torch'} & {*sys.modules}"
    )
    assert subprocess.run([sys.executable, "-c", code, *two[:2]], timeout=120).returncode == 0


# --- real embeddings --------------------------------------------------------------------------------------------------


@pytest.mark.proof
def test_a_threshold_carried_over_from_one_half_passes_as_many_of_the_other(encoder):
    """400 docstrings under MiniLM, and its first 128 dimensions as the new model; 20 random halves, at three thresholds.

    Of the texts of the other half the share that passes the new threshold has an error too: √2 of that of one half. Of 20
    splits 95 % are 19; if each held with 95 %, fewer than 17 would in 1.6 % of all cases.
    """
    chosen = [text["text"][:300] for text in documented("scipy")[::5]][:400]
    old = encoder.encode(chosen, moments=False).embeddings.numpy()
    new = unit(old[:, :128])
    above = cosines(old)[np.triu_indices(len(old), 1)]
    for share in (0.05, 0.01, 0.005):
        threshold = float(np.quantile(above, 1 - share))
        held, stayed = 0, 0
        for seed in range(20):
            order = np.random.default_rng(seed).permutation(len(old))
            rows = []
            for half in np.split(order, 2):
                pairs = Pairs.of((old[half], new[half]), np.zeros(len(half), dtype=int), None)
                rows.append((carried(threshold, pairs.histograms(), pairs), pairs))
            (row, _), (other, pairs) = rows
            accepted, passed = pairs.cosines[0] >= threshold, pairs.cosines[1] >= row["new_threshold"]
            share_passed = passed.sum() / (len(pairs) * (len(pairs) - 1))
            held += abs(share_passed - row["passes"]) <= 1.96 * math.sqrt(2) * row["passes_se"]
            stay = (accepted & passed).sum() / accepted.sum()
            stayed += abs(stay - row["stay"]) <= 1.96 * math.hypot(row["stay_se"], other["stay_se"])
        assert held >= 17, (share, held)
        assert stayed >= 17, (share, stayed)


@pytest.mark.proof
def test_real_audits_of_two_models_are_compared(small_audit, ray_session, tmp_path):
    """A finished audit, and one of its vectors' first dimensions in another order of rows."""
    known = read_parts(small_audit / "run", "texts", "1.0")
    shorter = unit(known["embedding"].to_numpy()[:, :24])
    vectors = known.select("text_id", "tokens").with_columns(embedding=pl.Series(shorter.tolist()))
    vectors.rename({"text_id": "id"}).sample(fraction=1, shuffle=True, seed=1).write_parquet(tmp_path / "vectors.parquet")
    code, _, err = in_process(
        "audit", "--corpus", str(tmp_path / "vectors.parquet"), "--embedding-column", "embedding", "--length-column",
        "tokens", "--out", str(tmp_path / "b"), "--quick", "--intervals", "0,64,100", "--workers", "1",
    )  # fmt: skip
    assert code == 0, err
    found = compare.compare(str(small_audit / "run"), str(tmp_path / "b"))
    old, new = known["embedding"].to_numpy(), shorter.astype(np.float32)
    row = overall(found, "thresholds")[0]
    assert row["over"] == "corpus"
    expected = by_hand(row["threshold"], cosines(old), cosines(new))
    for name in ("passes", "passes_se", "new_threshold", "stay", "stay_se"):
        assert row[name] == pytest.approx(expected[name], rel=0.05), name  # Pairs at a bin's edge differ in float32.
    near = overall(found, "neighbours")[0]
    graphs = [
        {row["text_id"]: row["neighbours"] for row in read_parts(out, "neighbours", "1.0").iter_rows(named=True)}
        for out in (small_audit / "run", tmp_path / "b")
    ]
    kept = [len({*graphs[0][name]} & {*graphs[1][name]}) / len(graphs[0][name]) for name in graphs[0]]
    assert near["neighbours_kept"] == pytest.approx(np.mean(kept), abs=1e-12)
