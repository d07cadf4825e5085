"""What an audit found, as values: the state of each figure from its error, what it rests on, and the table of it."""

import json

import polars as pl
import pytest
from command_line import in_process
from pages import EDGES, tables_of
from whole_run import checked_json, read_record, read_tables

from tempscale_jobs.audit.findings import by_correction, decide, exposed
from tempscale_jobs.report.findings import Finding, Findings, changed, state
from tempscale_jobs.report.text import Edges, interval_name
from tempscale_jobs.tables.findings import FINDINGS


def found(**figures):
    return decide(tables_of(**figures), EDGES)


def states(findings, *figures, temperature="1.0"):
    return [findings.of(figure, "MiniLM", temperature).state for figure in figures]


@pytest.mark.parametrize(
    ("value", "error", "expected"),
    [
        (None, None, "absent"), (None, 0.1, "absent"), (0.5, None, "unknown"), (0.1, 0.1, "noise"), (0.196, 0.1, "noise"),
        (0.197, 0.1, "up"), (-0.197, 0.1, "down"), (0.0, 0.0, "noise"), (1e-9, 0.0, "up"),
    ],
)  # fmt: skip
def test_a_state_is_what_the_error_allows(value, error, expected):
    assert state(value, error) == expected


@pytest.mark.parametrize(
    ("before", "after", "errors", "expected"),
    [
        (0.52, 1.29, (0.02, 0.02), "overshoots"), (1.29, 0.52, (0.02, 0.02), "overshoots"),
        (0.52, 1.29, (0.02, 0.2), "fairer"), (0.52, 1.29, (0.2, 0.2), "noise"), (0.52, 1.29, (0.02, None), "noise"),
        (0.52, 1.1, (0.02, 0.02), "fairer"), (0.52, 0.9, (0.02, 0.02), "fairer"), (0.9, 0.52, (0.02, 0.02), "less fair"),
        (1.1, 1.5, (0.02, 0.02), "less fair"), (0.9, 0.88, (0.02, 0.02), "noise"), (0.0, 1.0, (0.0, 0.0), "fairer"),
        (1.0, 0.0, (0.0, 0.0), "less fair"), (0.99, 1.2, (0.02, 0.02), "overshoots"),
    ],
)  # fmt: skip
def test_what_a_correction_does_to_an_exposure(before, after, errors, expected):
    assert by_correction(before, after, errors) == expected


def test_a_share_is_compared_with_what_is_fair():
    assert state(1.3, 0.1, 1.0) == "up"
    assert state(0.9, 0.1, 1.0) == "noise"
    assert state(0.7, 0.1, 1.0, z=4.0) == "noise"


def test_what_a_figure_rests_on_names_its_texts_and_lengths():
    findings = found()
    gap, prefix, socm = (findings.of(name, "MiniLM", "1.0") for name in ("collapse_gap", "prefix_gap", "socm_mean"))
    for part in ("0–99", "400+"):
        assert part in gap.rests_on
    for part in ("31 texts", "32", "256"):
        assert part in prefix.rests_on
    assert "40 texts" in socm.rests_on
    assert gap.not_shown
    assert prefix.not_shown
    assert str(gap) == "0.080 ± 0.020"


def test_a_change_under_another_temperature_is_a_finding_of_that_temperature():
    findings = found()
    moved = findings.of(changed("collapse_gap"), "MiniLM", "0.8")
    assert (moved.state, moved.value) == ("down", pytest.approx(-0.017))
    assert findings.of(changed("cosine_mean"), "MiniLM", "0.8").state == "noise"
    assert findings.named(changed("collapse_gap"), "MiniLM") == [moved]
    assert states(findings, changed("collapse_gap")) == ["absent"]


def test_exposures_are_tested_together():
    """The error is .05: for three lengths together a difference of 2.39 errors is needed, for one alone 1.96."""
    findings = found(exposed=(1.0 + 2.2 * 0.05, 1.0 - 2.6 * 0.05, 1.0))
    names = [exposed(edge, "corpus") for edge in EDGES]
    assert states(findings, *names) == ["noise", "down", "noise"]
    assert states(found(exposed=(1.5, 1.0, 0.5)), *names) == ["up", "noise", "down"]
    assert states(found(), *names) == ["absent"] * 3


def with_rows(tables, table, **columns):
    """The tables with other columns in one of them."""
    return tables | {table: tables[table].with_columns(**columns)}


def test_exposures_are_those_of_the_most_neighbours_and_of_who_asks():
    both = tables_of(exposed=(1.5, 1.0, 0.5), asked_by=("corpus", "queries"))
    asked, few = pl.col("asked_by") == "queries", pl.col("k") == 1
    other = pl.when(asked).then(3 - pl.col("exposure")).when(few).then(9.0).otherwise(pl.col("exposure"))
    findings = decide(with_rows(both, "exposure", exposure=other), EDGES)
    for asked_by, expected in (("corpus", [1.5, 1.0, 0.5]), ("queries", [1.5, 2.0, 2.5])):
        assert [findings.of(exposed(edge, asked_by), "MiniLM", "1.0").value for edge in EDGES] == expected


def test_a_length_of_few_texts_has_no_error_and_is_not_tested():
    few = pl.when(pl.col("interval") == 0).then(29).otherwise(30).cast(pl.Int64)
    tables = tables_of(exposed=(1.5, 1.0, 1.0 - 2.3 * 0.05))
    findings = decide(with_rows(tables, "exposure", texts=few), EDGES)
    # Of two lengths together a difference of 2.24 errors is enough.
    assert states(findings, *(exposed(edge, "corpus") for edge in EDGES)) == ["unknown", "noise", "down"]


def test_only_the_changes_that_a_reader_decides_by_are_findings():
    tables = with_rows(tables_of(), "temperature_effect", figure=pl.lit("spread_mean"))
    assert [row.figure for row in decide(tables, EDGES).rows if row.figure.startswith("change")] == []


def test_the_table_gives_the_findings_back():
    findings = found(exposed=(1.5, 1.0, 0.5))
    table = findings.table()
    assert table.schema.names == [column.name for column in FINDINGS.columns]
    assert len(table) == len(findings.rows) > 20
    assert Findings.stored({"findings": findings.frame()}, decide).rows == findings.rows
    assert Findings.stored({}, lambda _: findings) is findings  # As of an older version.
    keys = table.select(["figure", "model", "temperature"]).to_pylist()
    assert len({tuple(key.values()) for key in keys}) == len(keys)


def test_findings_as_data_hold_no_empty_entries():
    finding = Finding("cosine_mean", "m", "1.0", 1.0, "absent", None)
    assert Findings([finding]).as_data() == [
        {"figure": "cosine_mean", "model": "m", "temperature": "1.0", "tau": 1.0, "state": "absent"}
    ]
    commanded = Findings([finding]).with_commands({finding: "tempscale audit"})
    assert commanded.rows[0].command == "tempscale audit"


def test_a_finished_audit_gives_its_verdict_and_findings_as_json(small_audit, ray_session):
    out = small_audit / "run"
    asked = ["audit", str(small_audit / "audit.toml"), "--workers", "1", "--out", str(out), "--json", "--quiet"]
    code, printed, err = in_process(*asked)
    assert (code, err.strip()) == (0, "")
    data, tables = json.loads(printed), read_tables(out)
    assert data == checked_json("audit", out)
    assert data["gate"]["verdict"] == "none"
    (model,) = data["answers"]
    told = {(row["figure"], row["temperature"]): row for row in data["findings"]}
    for row in tables["collapse_summary"].to_dicts():
        for figure in ("cosine_mean", "collapse_gap", "prefix_gap", "socm_mean"):
            finding = told[figure, row["temperature"]]
            assert (finding["model"], finding["value"]) == (model, row[figure])
        longest = interval_name(row["gap_longest"], Edges.of(read_record(out)))
        assert f"of {longest} tokens" in told["collapse_gap", row["temperature"]]["rests_on"]
    assert any("command" in finding for finding in told.values())
    (effect,) = tables["temperature_effect"].filter(figure="collapse_gap").to_dicts()
    assert told[changed("collapse_gap"), effect["temperature"]]["value"] == effect["change"]
