"""`audit --quick`: the first temperature without SOCM, worst pairs and probe; it is never a baseline."""

import pytest
from command_line import in_process
from whole_run import as_lines, documented, read_record, read_tables

from tempscale_jobs.audit.findings import decide
from tempscale_jobs.config.audit import resolve
from tempscale_jobs.config.nights import Gate
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import record as history
from tempscale_jobs.runs.storage import Storage

EDGES = "0,64,100"


def test_a_quick_configuration_leaves_out_what_the_file_asks_for_and_keeps_what_was_written():
    analysis = {"socm_groups": 40, "socm_se": 0.01, "probe_se": 0.004, "neighbours": 7}
    data = {"quick": True, "embedding": {"temperatures": [0.9, 0.8]}, "analysis": analysis}
    config = resolve(data)
    assert [temperature.canonical for temperature in config.temperatures()] == ["0.9"]
    assert (config.analysis.socm_sample, config.analysis.probe_sample, config.analysis.neighbours) == (0, 0, 7)
    assert config.embedding.temperatures == [0.9, 0.8]
    assert resolve(data | {"analysis": {"socm_top_over": "corpus"}}).analysis.socm_top_over == "sample"
    whole = resolve(data | {"quick": False})
    assert (whole.analysis.socm_sample, len(whole.temperatures())) == (None, 2)
    assert "quick" not in whole.identity()
    assert config.identity()["quick"] is True


@pytest.mark.parametrize(
    ("gate", "named"),
    [
        ({"thresholds": ["socm_mean >= 0.2"]}, "socm_mean"), ({"thresholds": ["socm_groups > 9"]}, "socm_groups"),
        ({"thresholds": ["prefix_gap <= 1"]}, "prefix_gap"), ({"baseline": "latest"}, "prefix_gap, socm_mean"),
        ({"temperatures": [0.8], "thresholds": ["cosine_mean <= 1"]}, "0.8"),
    ],
)  # fmt: skip
def test_checks_of_figures_that_it_does_not_have_are_refused_by_name(gate, named):
    with pytest.raises(UsageError, match=named) as caught:
        resolve({"quick": True, "gate": gate})
    assert caught.value.exit_code == 2
    resolve({"gate": gate})


def test_the_other_checks_are_held():
    drift = {"baseline": "latest", "drift": {"cosine_mean": 0.02, "collapse_gap": 0.02}}
    for gate in (drift, {"thresholds": ["collapse_gap <= 0.2"]}):
        assert resolve({"quick": True, "gate": gate}).gate == Gate.model_validate(gate)


@pytest.fixture(scope="module")
def quick(tmp_path_factory, ray_session, small_model):
    """The command of a quick audit, and its folder."""
    folder = tmp_path_factory.mktemp("quick")
    (folder / "texts.jsonl").write_text(as_lines(documented("pyarrow")[:120]))
    command = [
        "audit", "--corpus", str(folder / "texts.jsonl"), "--model", small_model, "--intervals", EDGES, "--workers", "1",
        "--out", str(folder / "run"),
    ]  # fmt: skip
    code, out, err = in_process(*command, "--quick")
    assert code == 0, err
    for left_out in ("SOCM", "prefix probe", "worst pairs", "report so far"):
        assert left_out not in err
    assert "  tempscale audit --corpus" in out
    return command, folder / "run"


def test_its_tables_have_one_temperature_and_no_second_order(quick):
    tables = read_tables(quick[1])
    (row,) = tables["collapse_summary"].to_dicts()
    assert (row["tau"], row["texts"]) == (1.0, 120)
    assert row["cosine_mean"] is not None
    assert row["collapse_gap"] is not None
    assert len(tables["exposure"].filter(asked_by="corpus")) > 2
    for name in ("socm", "socm_pairs", "socm_scatter", "prefix_probe", "temperature_effect"):
        assert tables[name].is_empty(), name
    found = decide(tables, [0, 64, 100])
    absent = [name for name in ("collapse_gap", "prefix_gap", "socm_mean") if found.at(name, row).state == "absent"]
    assert absent == ["prefix_gap", "socm_mean"]


def test_it_says_that_it_is_quick_and_another_configuration_is_refused_in_its_folder(quick):
    command, out = quick
    assert read_record(out)["config"]["quick"] is True
    code, _, err = in_process(*command)
    assert code == 2
    assert "quick was True, now None" in err
    assert in_process(*command, "--quick")[0] == 0


def test_it_is_never_a_baseline(quick):
    command, out = quick
    assert history.load(Storage(str(out / "history"))).is_empty()
    with pytest.raises(UsageError, match="quick audit"):
        history.check_baseline(str(out))
    other = [*command[:-1], str(out.with_name("other")), "--baseline", str(out)]
    for words in (other, ["history", str(out), "--accept", read_record(out)["run"]]):
        assert in_process(*words)[0] == 2
