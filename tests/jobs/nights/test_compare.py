"""What changed between two runs: the parts add up, the same texts are told apart from others, and the words say so."""

import shutil
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from nights_by_hand import finished_audit, summary_row
from whole_run import as_lines, audited, documented

from tempscale_jobs.cli.records import compare as print_comparison
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights import compare, words
from tempscale_jobs.runs.storage import Storage

pytestmark = pytest.mark.proof

EDGES = [0, 32, 64, 100]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, ray_session, small_model):
    """Run a; b with texts added, removed, edited and lengthened; c, a at another temperature; d, as a with no texts left."""
    folder = tmp_path_factory.mktemp("compare")
    texts = documented("pyarrow")[:150]
    changed = [dict(text) for text in texts[10:]]
    for text in changed[:5]:
        text["text"] = " ".join([text["text"]] * 6)
    corpora = {"a": texts, "b": [*changed, *documented("pyarrow")[150:170]], "c": texts}
    for name, records in corpora.items():
        (folder / f"{name}.jsonl").write_text(as_lines(records))
        audited(
            {
                "out": str(folder / name), "corpus": {"source": str(folder / f"{name}.jsonl")}, "execution": {"workers": 1},
                "embedding": {"models": [small_model], "temperatures": [0.5 if name == "c" else 1.0]},
                "analysis": {"socm_sample": 0, "probe_sample": 0, "neighbours": 0, "intervals": EDGES},
            }
        )  # fmt: skip
    shutil.copytree(folder / "a", folder / "d", ignore=shutil.ignore_patterns("part-*.parquet"))
    return {name: str(folder / name) for name in (*corpora, "d")}


def embedded(folder):
    return pl.read_parquet(f"{folder}/texts/**/*.parquet", hive_partitioning=False).sort("text_id")


def mean_cosines(vectors):
    cosine = vectors.astype(np.float64) @ vectors.astype(np.float64).T
    return (cosine.sum(1) - np.diag(cosine)) / (len(vectors) - 1)


def figure(found, name="cosine_mean"):
    (row,) = found.figures.filter(pl.col("figure") == name).to_dicts()
    return row


def test_a_run_and_itself_differ_in_nothing(runs):
    found = compare.compare(runs["a"], runs["a"])
    assert figure(found)["change"] == 0
    assert figure(found)["change_same_texts"] == 0
    assert found.changed == [{"added": 0, "removed": 0, "edited": 0}]
    assert not [line for line in words.sentences(found) if "differs" in line]


def test_changed_texts_are_counted_and_the_same_ones_told_apart(runs):
    found = compare.compare(runs["a"], runs["b"])
    assert found.changed == [{"added": 20, "removed": 10, "edited": 5}]
    row = figure(found)
    assert row["same_texts"] == 135
    assert row["change_same_texts"] == pytest.approx(0, abs=1e-6)  # One model, one temperature: the same texts stay put.
    assert row["change_of_corpus"] == pytest.approx(row["change"], abs=1e-6)
    said = " ".join(words.sentences(found))
    for named in ("150 texts in A", "160 texts in B", "20 added", "10 removed", "5 edited", "135 texts"):
        assert named in said


def test_what_a_temperature_does_is_told_on_the_same_texts(runs):
    found = compare.compare(runs["a"], runs["c"])
    a, c = (np.stack(embedded(runs[name])["embedding"].to_numpy()) for name in ("a", "c"))
    difference = mean_cosines(c) - mean_cosines(a)
    row = figure(found)
    assert row["change_same_texts"] == pytest.approx(difference.mean(), rel=1e-9)
    assert row["change_same_texts_se"] == pytest.approx(2 * difference.std(ddof=1) / np.sqrt(150), rel=1e-9)
    assert row["change_of_corpus"] == pytest.approx(0, abs=1e-6)
    assert abs(row["change"]) > 1e-4
    said = " ".join(words.sentences(found))
    for named in ("τ 1.0 in A", "τ 0.5 in B", "150 texts", "the temperature moved it"):
        assert named in said
    # The gap of the same texts is between the same ends.
    which = np.searchsorted(EDGES, embedded(runs["a"])["tokens"].to_numpy(), side="right") - 1
    enough = [k for k in range(len(EDGES)) if (which == k).sum() >= 30]
    for name, value in (("a", "value_a_same_texts"), ("c", "value_b_same_texts")):
        vectors = np.stack(embedded(runs[name])["embedding"].to_numpy())
        short, long = (mean_cosines(vectors[which == k]).mean() for k in (enough[0], enough[-1]))
        assert figure(found, "collapse_gap")[value] == pytest.approx(long - short, rel=1e-9)


def test_the_parts_of_all_cells_add_up_to_the_change(runs):
    for other in ("b", "c"):
        found = compare.compare(runs["a"], runs[other])
        parts = found.intervals.select(pl.col("by_cosine").sum(), pl.col("by_lengths").sum()).row(0)
        assert sum(parts) == pytest.approx(figure(found)["change"], abs=1e-6)
    # Under another temperature the lengths are the same: nothing of the change is theirs.
    assert parts[1] == pytest.approx(0, abs=1e-12)
    assert abs(parts[0]) > 1e-4


def test_the_texts_that_moved_most_are_those_that_became_longer(runs):
    found = compare.compare(runs["a"], runs["b"])
    a, b = embedded(runs["a"]), embedded(runs["b"])
    both = sorted(set(a["text_id"]) & set(b["text_id"]))
    near = [
        dict(zip(both, mean_cosines(np.stack(t.filter(pl.col("text_id").is_in(both))["embedding"].to_numpy())), strict=True))
        for t in (a, b)
    ]
    first = found.texts.row(0, named=True)
    assert first["text_id"] == max(both, key=lambda name: abs(near[1][name] - near[0][name]))
    assert first["nearness_a"] == pytest.approx(near[0][first["text_id"]], rel=1e-9)
    assert first["nearness_b"] == pytest.approx(near[1][first["text_id"]], rel=1e-9)
    assert first["edited"]
    assert first["tokens_b"] > first["tokens_a"]
    assert first["cosine_to_itself"] < 0.999
    assert set(found.texts.head(5)["edited"]) == {True}


def test_pruned_embeddings_leave_figures_and_say_what_is_not_known(runs):
    found = compare.compare(runs["a"], runs["d"])
    assert figure(found)["change"] == pytest.approx(0, abs=1e-9)
    assert figure(found)["change_same_texts"] is None
    assert found.texts.is_empty()
    assert found.intervals.height > 3
    moved = compare.compare(runs["b"], runs["d"])
    assert moved.changed == [dict.fromkeys(("added", "removed", "edited"))]
    assert not any(" added" in line for line in words.sentences(moved))


def test_the_command_prints_it_and_leaves_tables(runs, tmp_path, capsys):
    print_comparison(runs["a"], runs["b"], out=str(tmp_path / "out"))
    found, printed = compare.compare(runs["a"], runs["b"]), capsys.readouterr().out
    for table in ("figures", "intervals", "texts"):
        assert pl.read_parquet(tmp_path / "out" / f"compared_{table}.parquet").equals(getattr(found, table))
    moved_most = found.texts.row(0, named=True)
    assert f"{moved_most['tokens_a']} → {moved_most['tokens_b']}" in printed
    assert "mean cosine" in printed


def left(folder, **means):
    """A finished audit of these mean cosines by model."""
    rows = [summary_row(model, cosine_mean=mean, texts=10) for model, mean in means.items()]
    return finished_audit(folder, *rows, config={"analysis": {"intervals": EDGES}})


def test_what_is_no_audit_or_has_no_model_in_common_is_refused(tmp_path):
    a, b, c = (left(tmp_path / "a", one=0.1, two=0.2), left(tmp_path / "b", three=0.3), left(tmp_path / "c", one=0.2))
    Storage(c).write_json("run.json", Storage(c).read_json("run.json") | {"command": "diagnose"})
    for other, named in ((b, "/a.*/b"), (c, "/c.*diagnose"), (str(tmp_path), str(tmp_path))):
        with pytest.raises(UsageError, match=named):
            compare.compare(a, other)


def test_intervals_of_other_edges_are_not_set_side_by_side(tmp_path):
    a, b = left(tmp_path / "a", one=0.1), left(tmp_path / "b", one=0.25)
    record = Storage(b).read_json("run.json")
    Storage(b).write_json("run.json", record | {"config": record["config"] | {"analysis": {"intervals": [0, 50]}}})
    found = compare.compare(a, b)
    assert figure(found)["change"] == pytest.approx(0.15)
    assert found.intervals.is_empty()
    assert found.changed == [{"added": None, "removed": None, "edited": None}]


def of_texts(contents, width=3):
    """Texts with embeddings that turn from one to the next."""
    angles = np.linspace(0, 1, len(contents))
    vectors = np.zeros((len(contents), width))
    vectors[:, 0], vectors[:, 1] = np.cos(angles), np.sin(angles)
    return pl.DataFrame(
        {"text_id": [f"t{k}" for k in range(len(contents))], "content_sha": contents, "tokens": [8] * len(contents),
         "embedding": vectors.tolist(), "document": [None] * len(contents)},
        schema_overrides={"embedding": pl.Array(pl.Float64, width), "document": pl.Int64},
    )  # fmt: skip


def test_a_text_without_a_document_is_its_own_and_one_run_may_name_them_alone():
    texts = of_texts([str(k) for k in range(48)])
    moved = texts["embedding"].to_numpy() + np.repeat(np.random.default_rng(0).normal(0, 0.1, (12, 3)), 4, 0)
    later = texts.with_columns(embedding=pl.Series(moved, dtype=pl.Array(pl.Float64, 3)))
    named = pl.Series([k // 4 for k in range(47)] + [None], dtype=pl.Int64)  # Texts of one document change alike.
    errors = {}
    for which, a, b in (("none", None, None), ("a", named, None), ("b", None, named), ("both", named, named)):
        sides = [one if own is None else one.with_columns(document=own) for one, own in ((texts, a), (later, b))]
        errors[which] = compare.Shared.of(*sides, EDGES).figure("cosine_mean", ())["change_same_texts_se"]
    assert errors["a"] == errors["b"] == errors["both"] > 1.5 * errors["none"]


def test_too_few_texts_in_common_tell_nothing():
    two, four = of_texts(list("ab")), of_texts(list("abcd"))
    assert compare.Shared.of(two, four, EDGES) is None
    edited = compare.Shared.of(four, of_texts(list("abxy")), EDGES)  # Four ids, of which two texts are as they were.
    assert edited.same == 2
    assert edited.figure("cosine_mean", (0, 32)) == {}
    shared = compare.Shared.of(four, four, EDGES)
    assert shared.figure("collapse_gap", (0, 32)) == {}  # All are of the first interval.
    assert shared.figure("cosine_mean", (0, 32))["change_same_texts"] == 0


def test_embeddings_of_another_width_have_no_cosine_to_themselves():
    for width, cosine in ((4, None), (3, pytest.approx(1))):
        (first, *_) = compare.Shared.of(of_texts(list("abcd")), of_texts(list("abcd"), width), EDGES).moved(True)
        assert first["cosine_to_itself"] == cosine


@pytest.mark.parametrize(
    ("fingerprint", "changed", "differs"),
    # An earlier version's fingerprint is of another kind.
    [("sum:1", 0, False), ("sum:2", 0, True), ("ab12", 0, False), ("ab12", 3, True), ("ab12", None, True)],
)
def test_fingerprints_of_two_kinds_tell_nothing_and_texts_do(fingerprint, changed, differs):
    corpus = [SimpleNamespace(record={"corpus": {"fingerprint": one, "analysed": 9}}) for one in (fingerprint, "sum:1")]
    found = SimpleNamespace(a=corpus[0], b=corpus[1], changed=[{"added": changed, "removed": changed, "edited": changed}])
    assert ("differs" in words.corpus_words(found)) == differs
