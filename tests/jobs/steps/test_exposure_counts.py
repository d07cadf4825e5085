"""Exposure counted by tasks over ranges of texts, queries and documents: the figures of the whole graph in one array."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from oracles import reciprocity
from prepared import laid_out
from tile_grid import grid

from tempscale.collapse.exposure import exposure as plain
from tempscale.collapse.neighbours import NOBODY, PowerSums, skewness
from tempscale_jobs.config.sections import Execution
from tempscale_jobs.steps import slots
from tempscale_jobs.tables import parts
from tempscale_jobs.workers import cluster as sessions

pytestmark = pytest.mark.proof

TEXTS, QUERIES, K, EDGES = 90, 25, 5, (0, 10, 20)
KEY = {"model": "m", "temperature": "1.0", "tau": 1.0}


@pytest.fixture(scope="module")
def cluster(ray_session):
    with sessions.session(Execution.model_validate({"workers": 2, "shuffle_seed": 3})) as found:
        yield found


def texts(documents):
    random = np.random.default_rng(1)
    interval = np.sort(random.integers(0, 3, TEXTS)).astype(np.int16)
    named = random.integers(0, documents, TEXTS) if documents else None
    return laid_out([f"t{k}" for k in range(TEXTS)], 10 * interval, interval, EDGES, documents=named, corpus_texts=120)


def written(tiling, asker, label):
    """The graph in parts of unlike sizes."""
    files = []
    for k, rows in enumerate(np.split(np.arange(len(label)), [3, 20])):
        name = tiling.found("corpus", k)
        columns = {"asker": asker[rows].astype(np.int32), "place": parts.fixed_lists(label[rows].astype(np.int32))}
        tiling.storage.write_table(name, parts.found(K).build(columns))
        files.append(name)
    return files


@pytest.mark.parametrize(
    ("who", "documents"), [*itertools.product(("every text", "a sample", "queries"), (0, 20)), ("every text", 4)]
)
def test_ranges_of_any_width_give_the_figures_of_the_whole_graph(cluster, tmp_path, monkeypatch, who, documents):
    layout, random = texts(documents), np.random.default_rng(7)
    sample = {"every text": np.arange(TEXTS), "a sample": np.sort(random.permutation(TEXTS)[:30])}.get(who)
    own, asker = sample is not None, np.arange(QUERIES) if sample is None else sample
    label = np.array([[j for j in random.permutation(TEXTS) if not own or j != i][:K] for i in asker], dtype=np.int32)
    label[4, 2:] = NOBODY
    named = random.integers(0, 12, QUERIES) if documents and not own else None
    tiling = replace(grid(tmp_path), neighbours=K)
    graph = slots.Graph(written(tiling, asker, label), len(asker), own, len(asker) in (TEXTS, QUERIES), named)
    for width in (7, 1000):
        monkeypatch.setattr(slots, "UNITS_OF_A_TASK", width)
        counted = slots.count(cluster, tiling, layout, graph)
        rows = slots.exposure_rows(counted, graph, layout, KEY)
        assert [row["k"] for row in rows] == [1] * 3 + [K] * 3
        for k, mine in ((1, rows[:3]), (K, rows[3:])):
            population = layout.population(TEXTS) if own else np.inf
            found = plain(
                label[:, :k], layout.interval, 3, own, population=population, documents=layout.documents,
                query_documents=named, sample=sample if own else None,
            )  # fmt: skip
            for name, expected in (
                ("exposure", found.exposure), ("exposure_se", found.corrected), ("exposure_se_superpopulation", found.error),
                ("slots_share", found.slots_share), ("texts_share", found.texts_share),
            ):  # fmt: skip
                few = documents == 4 and name.endswith("_superpopulation")  # Too few documents for this error.
                assert [row[name] for row in mine] == ([None] * 3 if few else expected.tolist())
            occurrence = np.bincount(label[:, :k][label[:, :k] != NOBODY], minlength=TEXTS)
            hubness = None if who == "a sample" else skewness(PowerSums.of(occurrence))
            assert {row["k_occurrence_skewness"] for row in mine} == {hubness}
            both_ways = reciprocity(label[:, :k]) if who == "every text" else None
            assert {row["reciprocity"] for row in mine} == {both_ways}
        hubs = slots.ranked(KEY, "hub", counted[-1].most, counted[-1].times, layout)
        best = sorted(range(TEXTS), key=lambda j: (-occurrence[j], layout.key[j]))[:20]
        assert [(row["text_id"], row["value"]) for row in hubs] == [(f"t{j}", occurrence[j]) for j in best]
