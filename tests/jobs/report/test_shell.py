"""Printed commands write to a new folder next to the run, and not to another bucket."""

import pytest

from tempscale_jobs.report.screen import Screen, print_table
from tempscale_jobs.report.shell import folder_for


@pytest.mark.parametrize(
    ("root", "before"),
    [("runs/a", "runs/a-"), ("runs/a/", "runs/a-"), ("s3://b", "s3://b/"), ("s3://b/", "s3://b/"), ("s3://b/x", "s3://b/x-"),
     ("/", "/"), ("-o", "./-o-"), ("file:///r", "file:///r-")],
)  # fmt: skip
def test_a_new_folder_is_where_the_run_may_write(root, before):
    found = folder_for(["audit"], root, "more")
    assert found.startswith(f"{before}more-")
    assert found != folder_for(["pairs"], root, "more")


@pytest.mark.parametrize("columns", ["0", "-3", "1", "40"])
def test_a_terminal_of_no_width_shows_what_is_printed(columns, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", columns)
    Screen().print("error: sentence", soft_wrap=True)
    assert "sentence" in capsys.readouterr().out


def test_cells_of_tables_show_no_secret(capsys):
    print_table(Screen(width=200), ["folder"], [["s3://KEY:SECRET@bucket/x"]])
    printed = capsys.readouterr().out
    assert "SECRET" not in printed
    assert "bucket/x" in printed
