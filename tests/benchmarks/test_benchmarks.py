"""The benchmarks' own machinery, on tiny sizes: what is kept, what is fitted, what each row says."""

import json

import pytest

import tempscale
from benchmarks import __main__ as command
from benchmarks import growth, record, workers

pytestmark = pytest.mark.proof

HERE = {"processor": "Some CPU @ 3 GHz", "cores": 2, "system": "Linux x86_64", "gpu": "none"}
ROW = {"what": "a way", "rate": 10.0, "unit": "texts/s", "ratio": 1.0}
THEN = {"on": "2020-01-01", "tempscale": "0.0.1", "torch": "1.0"}


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Empty folders of results and docs, and a machine that is the same everywhere."""
    monkeypatch.setattr(command, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(command, "DOCS", tmp_path / "docs")
    monkeypatch.setattr(record, "machine", lambda: HERE)
    (tmp_path / "docs").mkdir()
    return tmp_path


FILE = "results/some-cpu-3-ghz.json"


def rates(file):
    """The rate of each benchmark of a file, and when it was measured."""
    found = json.loads(file.read_text("utf-8"))
    return {row["benchmark"]: row["rate"] for row in found["results"]}, found["measured"]


def test_what_is_measured_again_leaves_rows_and_versions_of_the_others(tmp_path):
    file = tmp_path / "box.json"
    file.write_text(json.dumps({"machine": HERE, "versions": THEN, "results": [ROW | {"benchmark": "socm"}]}), "utf-8")
    record.put(file, HERE, "growth", [ROW], THEN)
    record.put(file, HERE, "growth", [ROW | {"rate": 11.0}], THEN | {"torch": "2.0"})
    # A file without versions of its own does not get those of today.
    assert rates(file) == ({"socm": 10.0, "growth": 11.0}, {"growth": THEN | {"torch": "2.0"}})


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({}, "some-cpu-3-ghz.json"),
        ({"cores": 64}, "some-cpu-3-ghz-64-cores.json"),
        ({"gpu": "A GPU"}, "some-cpu-3-ghz-a-gpu.json"),
        ({"processor": "Another"}, "another.json"),
    ],
)
def test_machines_of_one_name_do_not_share_a_file(tmp_path, other, name):
    record.put(record.file_of(tmp_path, HERE), HERE, "socm", [ROW], THEN)
    assert record.file_of(tmp_path, HERE | other).name == name


def test_the_command_measures_what_is_named_keeps_the_rest_and_renders(folders, monkeypatch):
    asked = []
    names = ("socm", "growth", "million")
    monkeypatch.setattr(command, "every", lambda: {name: lambda name=name: asked.append(name) or [ROW] for name in names})
    file = folders / FILE
    record.put(file, HERE, "socm", [ROW | {"rate": 7.0}], THEN)
    record.put(file, HERE, "million", [ROW | {"rate": 8.0}], THEN)
    assert command.main(["growth"]) == 0
    assert asked == ["growth"]
    found, measured = rates(file)
    assert found == {"socm": 7.0, "million": 8.0, "growth": 10.0}
    assert measured["socm"] == measured["million"] == THEN
    assert measured["growth"]["tempscale"] == tempscale.__version__
    assert set(record.PACKAGES) < set(measured["growth"])
    page = (folders / "docs" / "performance.md").read_text("utf-8")
    assert all(f"| a way | {rate} texts/s | 1.00 |" in page for rate in ("7.00", "8.00", "10.0"))
    assert command.main([]) == 0  # All but the million, which stays.
    assert asked == ["growth", "socm", "growth"]
    assert rates(file)[0]["million"] == 8.0


def test_what_cannot_be_measured_leaves_what_is_there(folders, monkeypatch, capsys):
    def fails():
        raise RuntimeError("no memory")

    monkeypatch.setattr(command, "every", lambda: {"gpu": list, "socm": lambda: [ROW | {"rate": 12.0}], "growth": fails})
    record.put(folders / FILE, HERE, "gpu", [ROW], THEN)
    assert command.main(["gpu"]) == 0
    assert rates(folders / FILE) == ({"gpu": 10.0}, {"gpu": THEN})
    with pytest.raises(RuntimeError, match="no memory"):
        command.main(["socm", "growth"])
    assert rates(folders / FILE)[0] == {"gpu": 10.0, "socm": 12.0}
    assert command.main(["socn"]) == 2
    assert "socn" in capsys.readouterr().err
    monkeypatch.setattr(command, "every", lambda: pytest.fail("measured"))
    assert command.main(["render"]) == 0
    assert "12.0 texts/s" in (folders / "docs" / "performance.md").read_text("utf-8")


def test_the_exponent_is_the_slope_on_logarithmic_axes():
    rows = [{"size": n, "seconds": 3e-7 * n**2.5, "rate": 1e6 / n} for n in (10, 20, 40, 80)]
    found = growth.series("a", "texts", rows)
    assert found[0]["exponent"] == pytest.approx(2.5)
    assert found[0]["exponent_se"] == pytest.approx(0, abs=1e-6)
    assert [row["ratio"] for row in found] == pytest.approx([1, 0.5, 0.25, 0.125])
    assert {(row["series"], row["grows"], row["exponent"]) for row in found} == {("a", "texts", found[0]["exponent"])}
    bent = growth.series("a", "texts", [row | {"seconds": row["seconds"] + 0.01} for row in rows])
    assert bent[0]["exponent"] < 2.4
    assert bent[0]["exponent_se"] > 0.01
    assert growth.series("a", "texts", rows[:2])[1]["exponent_se"] is None


@pytest.fixture
def known_limits(monkeypatch):
    """Rates of products that need no measuring: a thousand million operations a second and thread."""
    for name in ("product_rate", "gemm_rate"):
        monkeypatch.setattr(workers, name, lambda threads=1: 1e9 * threads)


def operations(tokens):
    """Of MiniLM's products over one text: six layers of four square matrices, two wide ones, and two of attention."""
    return 6 * (2 * tokens * (4 * 384 * 384 + 2 * 384 * 1536) + 4 * tokens * tokens * 384)


@pytest.mark.parametrize(("cores", "counts"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_workers_double_up_to_the_cores(cores, counts):
    assert workers.worker_counts(cores) == counts


def test_scaling_in_workers(minilm, known_limits, monkeypatch):
    import benchmarks.paragraphs

    corpus, asked = [f"text number {k} of a few" for k in range(80)], []

    def step(corpora, count, shard_texts):
        asked.append(([len(own) for own in corpora], count, shard_texts))
        return 1 + 8 / count, [], "a model"  # One second that no worker shares.

    monkeypatch.setattr(benchmarks.paragraphs, "paragraphs", lambda count: (corpus[:count], "made up"))
    monkeypatch.setattr(benchmarks.paragraphs, "embedding_step", step)
    monkeypatch.setattr(workers, "cosine_stage", lambda texts, workers: (12 / workers, 1000 * workers, 3.0))
    rows = workers.measure(80, 400, (1, 2, 4))
    assert asked == [([workers.FIRST, 80], count, 2) for count in (1, 2, 4)]  # Eight pieces for each of four workers.
    assert [(row["series"], row["workers"]) for row in rows] == [
        *(("embedding step", count) for count in (1, 2, 4)), *(("cosine stage", count) for count in (1, 2, 4))
    ]  # fmt: skip
    lengths = tempscale.Encoder.load(minilm, device="cpu").tokenizer(corpus).lengths
    for row in rows[:3]:
        assert row["rate"] == pytest.approx(sum(lengths) / row["seconds"])
        assert row["limit_share"] == pytest.approx(sum(map(operations, lengths)) / row["seconds"] / (1e9 * row["workers"]))
        assert "80 texts (made up)" in row["what"]
    for row in rows[3:]:
        assert row["rate"] == pytest.approx(400 * 399 / 2 / row["seconds"])
        assert row["limit_share"] == pytest.approx(row["rate"] * 2 * 384 / (1e9 * row["workers"]))
        assert row["peak_memory_bytes"] == 1000 * row["workers"]
    assert [row["ratio"] for row in rows] == pytest.approx([1, 9 / 5, 9 / 3, 1, 2, 4])
    assert [row["efficiency"] for row in rows] == pytest.approx([1, 9 / 10, 9 / 12, 1, 1, 1])
