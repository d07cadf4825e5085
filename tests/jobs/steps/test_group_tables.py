"""The cell of each pair of a group, by looking at each pair."""

import numpy as np
import pytest
from prepared import laid_out, scoped

from tempscale import Temperature
from tempscale_jobs.config.audit import Analysis
from tempscale_jobs.errors import IncompleteRun
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import groups
from tempscale_jobs.steps.dealing import deal, document_sets
from tempscale_jobs.steps.group_tables import Cells, MeasuredGroups
from tempscale_jobs.steps.socm_tables import Sample, ranked, scatter
from tempscale_jobs.tables import parts

EDGES, TEXTS = (0, 100, 200), 480
ANALYSIS = Analysis.model_validate({"socm_groups": 12})


@pytest.mark.parametrize("documented", [False, True], ids=["texts", "documents"])
def test_the_cell_of_a_pair_is_that_of_its_texts_in_whatever_order_they_come(documented):
    random = np.random.default_rng(0)
    tokens = random.integers(1, 300, TEXTS)
    document = random.integers(0, 40, TEXTS) * 1_000_003 if documented else None
    ids = [f"t{k:04d}" for k in range(TEXTS)]
    layout = laid_out(ids, tokens, tokens // 100, EDGES, 3, document)
    dealt = deal(layout, ANALYSIS, 12)
    mixed = [random.permutation(len(group.ids)) for group in dealt]  # Not by interval, as groups are dealt.
    names = np.array([group.ids[k] for group, order in zip(dealt, mixed, strict=True) for k in order], dtype=object)
    group = np.repeat(np.arange(len(dealt)), [len(own.ids) for own in dealt])
    first, second = np.nonzero(np.triu(group[:, None] == group, 1))
    at = layout.places(names.tolist())
    nothing = np.zeros(len(first))
    found = MeasuredGroups(names, tokens[at], np.zeros(len(at)), group[first], first, second, nothing, nothing, nothing)
    cells = Cells.of(found, layout, dealt, document_sets(layout, ANALYSIS))
    every = [(a, b) for a in range(3) for b in range(a, 3)]
    assert cells.names == every
    for k in range(len(first)):
        one, other = at[first[k]], at[second[k]]
        a, b = sorted((tokens[one] // 100, tokens[other] // 100))
        inside = documented and document[one] == document[other]
        assert cells.column[k] == every.index((a, b)) + 6 * inside
    assert cells.weights.sum() == pytest.approx(1, rel=1e-12)
    assert (cells.pairs is not None) == documented


def test_a_pair_that_is_no_number_ends_the_run(tmp_path):
    model, temperature = Model("tiny", "tiny", "", 64), Temperature(1.0)
    run = Run(Storage(str(tmp_path)), [model], [temperature], "")
    for d_sigma in (0.5, np.nan):
        group = {"text_id": ["a", "b"], "tokens": [3, 4], "trace": [1.0, 1.0], "d_mu": [0.1], "d_sigma": [d_sigma]}
        table = parts.SOCM_GROUP.build({name: [value] for name, value in group.items()})
        run.storage.write_table(run.part("partials/groups", model, temperature, 0), table)
        if d_sigma == 0.5:
            assert groups.read(scoped(run, model), temperature, 1).value.tolist() == [pytest.approx(0.9 * 0.5)]
    with pytest.raises(IncompleteRun):
        groups.read(scoped(run, model), temperature, 1)


def test_one_text_has_no_pairs_to_rank_or_draw():
    alone = Sample(np.array(["a"], object), np.array([3]), np.array([0]), *(np.full((1, 1), np.nan) for _ in range(3)))
    assert ranked(alone, np.ones((1, 4)), 5) == []
    assert scatter(np.zeros(0), np.zeros(0), 0) == []
