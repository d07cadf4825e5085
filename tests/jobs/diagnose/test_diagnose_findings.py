"""What a diagnosis found, as values: differences on both sides of their noise, and how far assumptions hold."""

import polars as pl
import pytest
from pages import key

from tempscale_jobs.diagnose.findings import Looked, decide, rows
from tempscale_jobs.diagnose.words import to_do
from tempscale_jobs.tables.diagnose import EQUAL_NORMS, FINDINGS, HEADS


def decided(rows, heads=(), norms=()):
    tables = ((FINDINGS, rows), (HEADS, heads), (EQUAL_NORMS, norms))
    return decide({table.name: pl.DataFrame(pl.from_arrow(table.build_rows(list(own)))) for table, own in tables})


def row(name, change, error, texts=40, tau=1.0, layers="last"):
    return key(tau) | {"finding": name, "layers": layers, "texts": texts, "change": change, "change_se": error}


@pytest.mark.parametrize(
    ("texts", "change", "error", "state"),
    [
        # At 5 degrees of freedom the 95 % need 2.57 errors, at 199 only 1.97.
        (200, 2.2, 1.0, "up"), (200, -2.2, 1.0, "down"), (6, 2.2, 1.0, "noise"), (6, 2.6, 1.0, "up"),
        (4, 9.0, 1.0, "unknown"), (40, 2.0, None, "unknown"), (40, None, None, "absent"), (4, None, None, "absent"),
    ],
)  # fmt: skip
def test_a_difference_is_decided_by_students_t_over_its_texts(texts, change, error, state):
    found = decided([row("versions", change, error, texts)])
    (finding,) = found.rows
    assert finding == found.of("sigma_a_last by version", "MiniLM", "1.0")
    assert (finding.state, finding.value, finding.error) == (state, change, error)
    assert finding.rests_on.startswith("" if state == "absent" else f"{texts} documents")


def test_two_groups_of_texts_have_one_degree_of_freedom_less():
    """2.46 errors are enough at 6 degrees of freedom, and not at 5."""
    states = [decided([row(name, 2.46, 1.0, 7)]).rows[0].state for name in ("length", "model")]
    assert states == ["noise", "up"]


@pytest.mark.parametrize(
    ("length", "temperature", "texts", "expected"),
    [
        ((-0.3, 0.1), (0.2, 0.05), 40, [("tune", True), ("", True)]), ((-0.3, 0.1), (-0.2, 0.05), 40, [("tune", True)]),
        ((-0.3, 0.1), (0.05, 0.05), 40, [("tune", True)]), ((0.3, 0.1), (0.2, 0.05), 40, [("audit", False)]),
        ((-0.1, 0.1), (0.2, 0.05), 40, [("audit", False)]), ((-0.3, None), (0.2, 0.05), 40, [("diagnose", None)]),
        ((None, None), (0.2, 0.05), 40, [("diagnose", None)]), ((None, None), (0.2, 0.05), 500, [("", None)]),
    ],
)  # fmt: skip
def test_what_to_do_follows_from_the_filter_by_length(length, temperature, texts, expected):
    """A temperature is advised only where longer texts are filtered more strongly, beyond noise."""
    rows = [row("length", *length, texts), row("temperature", *temperature, texts, 0.8)]
    tables = {"diagnose_findings": pl.DataFrame(pl.from_arrow(FINDINGS.build_rows(rows))), "findings": decided(rows).frame()}
    run = {"command": "diagnose", "config": {"out": "o", "corpus": {}}, "corpus": {"source": "c.csv", "analysed": 500}}
    steps = to_do(tables, run | {"models": {"MiniLM": {}}})
    assert [command.split()[1] if command else "" for _, command in steps] == [command for command, _ in expected]
    for (text, _), (_, is_cause) in zip(steps, expected, strict=True):
        assert ("filters longer texts more strongly" in text or "weakens" in text) == bool(is_cause)


def test_bounds_and_norms_are_measured():
    places = {"text_id": "t", "tokens": 8, "layer": 0, "sigma_s": 1.0, "tau_s": 1.0, "lambda": 0.1}
    heads = [
        key(1.0) | places | {"head": k, "sigma_a": sigma, "sigma_a_bound": 0.5, "thm2_ratio": ratio}
        for k, (sigma, ratio) in enumerate([(0.4, 0.7), (0.6, None), (0.3, 0.9), (0.1, 0.2)])
    ]
    norms = {"texts": 9, "norm_variation_mean": 0.2, "norm_variation_se": 0.01, "agree_share": None}
    norms |= {"condition_share": 1.0, "spread_within_2_share": 1.0}
    found = decided([], heads, [key(1.0) | norms])
    values = {one.figure: (one.state, one.value, one.error) for one in found.rows}
    assert values == {
        "thm2_ratio": ("measured", 0.9, None), "over_bound_share": ("measured", 0.25, None),
        "norm_variation_mean": ("measured", 0.2, 0.01), "agree_share": ("absent", None, None),
    }  # fmt: skip


def looked(edges, sigma, sources):
    """Texts of these intervals with this σ_a in the last layer and in all, of these documents."""
    ids = [f"t{k:02}" for k in range(len(edges))]
    texts = {"text_id": ids, "source": pl.Series(sources, dtype=pl.String)}
    seen = pl.DataFrame(texts | {"tokens": edges, "interval": edges, "embedding": [[1.0, 0.0]] * len(ids)})
    return Looked(pl.DataFrame(texts | {"all": sigma, "last": sigma}), pl.DataFrame(texts | {"within_cosine": sigma}), seen)


def by_length(*arguments):
    own = looked(*arguments)
    return next(found for found in rows(own, own, own, {}) if (found["finding"], found["layers"]) == ("length", "last"))


def test_the_ends_of_length_are_the_intervals_of_five_texts_or_more():
    sigma = [1.0, 2.0, 3.0, 4.0, 5.0] + [2.0, 2.0, 3.0, 3.0, 3.0] + [99.0] * 4
    found = by_length([0] * 5 + [50] * 5 + [90] * 4, sigma, [None] * 14)
    assert (found["texts"], found["change"]) == (10, pytest.approx(2.6 - 3.0))
    assert found["change_se"] == pytest.approx((2.5 / 5 + 0.3 / 5) ** 0.5)  # Variances of five texts, by hand.
    alone = by_length([0] * 5 + [50] * 4, sigma[:9], [None] * 9)
    assert (alone["change"], alone["change_se"]) == (None, None)


def test_texts_of_one_document_are_one_draw():
    """Each document has a short and a long text, which differ by 1 but for one document: the error is that of the rest."""
    short = [float(k) for k in range(12)]
    long = [value + 1.0 + (value == 5.0) for value in short]
    documents = [f"d{k}" for k in range(12)] * 2
    found = by_length([0] * 12 + [50] * 12, short + long, documents)
    apart = [b - a for a, b in zip(short, long, strict=True)]
    mean = sum(apart) / 12
    expected = (12 / 11 * sum((value - mean) ** 2 for value in apart)) ** 0.5 / 12
    assert found["change"] == pytest.approx(mean)
    assert found["change_se"] == pytest.approx(expected)
    assert found["change_se"] < by_length([0] * 12 + [50] * 12, short + long, [None] * 24)["change_se"] / 5
