"""`tempscale verify`: faults that sentence-transformers planted in an index are found and named, clean indexes pass."""

import hashlib
import json
import shutil
import unicodedata

import numpy as np
import polars as pl
import pytest
from command_line import in_process, said
from golden_words import ending, masked, same
from planted_vectors import ROWS, WINDOW
from sentence_transformers import SentenceTransformer, models
from sentence_transformers.quantization import quantize_embeddings
from whole_run import as_toml, audited, digests, read_record, read_tables

from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.verify import explain
from tempscale_jobs.verify.summary import EDITED, OF_ANOTHER, PROBABLY_EDITED

PLANTED = {
    "pooled by cls": lambda embed, texts: embed(texts, pooling="cls"),
    "pooled by max": lambda embed, texts: embed(texts, pooling="max"),
    "embedded with the prompt 'query: '": lambda embed, texts: embed([f"query: {text}" for text in texts]),
    "cut to a window of 16 tokens": lambda embed, texts: embed(texts, window=16),
    "cut at 100 characters": lambda embed, texts: embed([text[:100] for text in texts]),
    "stored as float16": lambda embed, texts: embed(texts).astype(np.float16).astype(np.float64),
    "cut to the first 32 of 64 dimensions": lambda embed, texts: embed(texts) * (np.arange(64) < 32),
    "2 times as long": lambda embed, texts: 2 * embed(texts),
    PROBABLY_EDITED: lambda embed, texts: embed([text.replace(" ", " very ", 1) for text in texts]),
}
EACH = 4


@pytest.fixture(scope="module")
def index(tmp_path_factory, texts, embed):
    """An index with a few rows of each fault, in the last third of its rows, and what was planted by id."""
    vectors, planted, row = embed(texts), {}, ROWS - EACH * (len(PLANTED) + 2)
    for cause, made in PLANTED.items():
        rows = list(range(row, row + EACH))
        vectors[rows] = made(embed, [texts[k] for k in rows])
        planted |= dict.fromkeys(rows, cause)
        row += EACH
    right = embed(texts)
    vectors[row] = right[row - 1]
    vectors[row + 2] = right[3]
    vectors[row + 4] = 0
    vectors[row + 6] = np.nan
    planted |= {row: "of the row above", row + 2: OF_ANOTHER, row + 4: "zero", row + 6: "not finite"}
    file = tmp_path_factory.mktemp("index") / "index.parquet"
    day = ["2026-11-24" if k in planted else f"2026-11-0{k % 9 + 1}" for k in range(ROWS)]
    pl.DataFrame(
        {"id": [f"d{k}" for k in range(ROWS)], "text": texts, "embedding": vectors.astype(np.float32).tolist(), "day": day}
    ).write_parquet(file)
    return file, {f"d{k}": cause for k, cause in planted.items()}


def verify(source, model, out, *options):
    return in_process(
        "verify", "--embeddings", str(source), "--model", str(model), "--max-length", str(WINDOW), "--out", str(out),
        "--workers", "1", *options,
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(index, small_model, ray_session, tmp_path_factory):
    out = tmp_path_factory.mktemp("verify") / "run"
    code, printed, err = verify(index[0], small_model, out, "--sample", "all", "--by", "day", "--json")
    assert code == 1, err
    return out, json.loads(printed)


def test_each_planted_row_is_found_with_its_cause_and_no_other(run, index):
    table = read_tables(run[0])["verified"]
    found = dict(table.filter(pl.col("wrong")).select("text_id", "cause").iter_rows())
    edited = [found.pop(text_id) for text_id, cause in index[1].items() if cause == PROBABLY_EDITED]
    assert set(edited) <= {PROBABLY_EDITED, None}
    assert PROBABLY_EDITED in edited  # A random model makes all texts alike, so that another one may be nearer.
    assert found == {text_id: cause for text_id, cause in index[1].items() if cause != PROBABLY_EDITED}
    assert len(table) == ROWS
    right = table.filter(~pl.col("wrong"))
    assert right["cause"].null_count() == len(right)
    assert right["cosine"].min() > 1 - 1e-9
    assert right["norm_ratio"].to_numpy() == pytest.approx(1.0, abs=1e-5)


def test_cosines_and_norms_are_those_of_the_stored_vectors(run, index, embed, texts):
    stored = np.array(pl.read_parquet(index[0])["embedding"].to_list())
    right = embed(texts)
    table = {row["text_id"]: row for row in read_tables(run[0])["verified"].to_dicts()}
    for k in (0, ROWS - 41, ROWS - 30, ROWS - 15):
        norms = np.linalg.norm(stored[k]), np.linalg.norm(right[k])
        assert table[f"d{k}"]["cosine"] == pytest.approx(stored[k] @ right[k] / np.prod(norms), abs=1e-6)
        assert table[f"d{k}"]["norm_ratio"] == pytest.approx(norms[0] / norms[1], rel=1e-5)


def test_the_summary_counts_all_rows_and_each_group(run, index):
    summary = read_tables(run[0])["verify_summary"]
    total, *causes = summary.filter(pl.col("by").is_null()).to_dicts()
    wrong = len(index[1])
    assert (total["cause"], total["sampled"], total["wrong"]) == ("any", ROWS, wrong)
    assert sum(row["wrong"] for row in causes) == wrong
    assert total["low"] == total["share"] == total["high"] == wrong / ROWS  # All were compared.
    days = {row["group"]: row["wrong"] for row in summary.filter(by="day", cause="any").to_dicts()}
    assert {day: count for day, count in days.items() if count} == {"2026-11-24": wrong}
    assert sum(summary.filter(by="day", cause="any")["sampled"]) == ROWS


def test_the_answer_names_the_group_and_json_the_verdict(run):
    out, document = run
    (answer,) = document["answers"].values()
    assert "day=2026-11-24" in answer
    assert document["verdict"] == "failed"
    states = {row["figure"]: row["state"] for row in document["findings"]}
    assert states["wrong_share"] == "up"
    assert (out / "report.html").read_text("utf-8").count("2026-11-24") >= 1
    assert read_record(out)["verified"]["norms"] == "model"


def test_the_ending_is_that_of_the_golden_file(run, capsys):
    same("verify-ending.txt", masked(ending("verify", run[0], capsys), run[0]))


@pytest.mark.proof
def test_a_finished_run_that_is_started_again_does_nothing(run, index, small_model):
    before = {file: file.stat().st_mtime_ns for file in run[0].rglob("*") if file.is_file() and file.name != "report.html"}
    code, _, err = verify(index[0], small_model, run[0], "--sample", "all", "--by", "day")
    assert code == 1, err
    after = {file: file.stat().st_mtime_ns for file in before}
    assert [file.name for file in before if after[file] != before[file] and file.suffix == ".parquet"] == []


@pytest.mark.proof
def test_two_workers_in_another_order_give_the_same_bytes(run, index, small_model, tmp_path):
    code, _, err = in_process(
        "verify", "--embeddings", str(index[0]), "--model", small_model, "--max-length", str(WINDOW), "--out",
        str(tmp_path / "run"), "--workers", "2", "--sample", "all", "--by", "day",
    )  # fmt: skip
    assert code == 1, err
    assert digests(tmp_path / "run") == digests(run[0])


@pytest.fixture(scope="module")
def clean(texts, embed, tmp_path_factory):
    """A function that writes a clean index in one way of storing it."""
    vectors, folder = embed(texts), tmp_path_factory.mktemp("clean")

    def clean(name, column, **more):
        file = folder / f"{name}.parquet"
        pl.DataFrame({"id": list(range(ROWS)), "text": texts, "embedding": column(vectors), **more}).write_parquet(file)
        return file

    return clean


STORED = {
    "float32": lambda v: v.astype(np.float32).tolist(),
    "float16": lambda v: v.astype(np.float16).astype(np.float64).tolist(),
    "unit": lambda v: (v / np.linalg.norm(v, axis=1, keepdims=True)).tolist(),
    "codes": lambda v: np.clip(np.rint(v / 0.02), -128, 127).astype(int).tolist(),
}


@pytest.mark.proof
@pytest.mark.parametrize("name", STORED)
def test_a_clean_index_passes_however_it_is_stored(name, clean, small_model, ray_session, tmp_path):
    code, printed, err = verify(clean(name, STORED[name]), small_model, tmp_path / "run", "--sample", "50", "--json")
    assert code == 0, printed + err
    record = read_record(tmp_path / "run")["verified"]
    assert (record["format"], record["norms"]) == {
        "float32": ("float32", "model"), "float16": ("float16", "model"), "unit": ("float64", "unit"),
        "codes": ("int8", "unknown"),
    }[name]  # fmt: skip
    assert len(read_tables(tmp_path / "run")["verified"]) == 50


@pytest.mark.proof
def test_codes_with_a_scale_and_an_offset_for_each_dimension_are_those_of_the_model(
    texts, embed, small_model, ray_session, tmp_path
):
    """As sentence-transformers makes them, by ranges of the index itself; three rows are of another prompt."""
    wrong, right = [7, 8, 9], embed(texts).astype(np.float32)
    right[wrong] = embed([f"query: {texts[k]}" for k in wrong])
    codes = quantize_embeddings(right, "int8")
    low, scale = right.min(0), (right.max(0) - right.min(0)) / 255
    pl.DataFrame({"id": [f"d{k}" for k in range(ROWS)], "text": texts, "embedding": codes.tolist()}).write_parquet(
        tmp_path / "index.parquet"
    )
    stored = {"source": str(tmp_path / "index.parquet"), "scale": scale.tolist(), "offset": (low + 128 * scale).tolist()}
    (tmp_path / "codes.toml").write_text(as_toml({"embeddings": stored, "sample": "all", "out": str(tmp_path / "run")}))
    options = "--model", small_model, "--max-length", str(WINDOW), "--workers", "1"
    code, _, err = in_process("verify", str(tmp_path / "codes.toml"), *options)
    assert code == 1, err
    found = read_tables(tmp_path / "run")["verified"].filter("wrong").select("text_id", "cause")
    assert dict(found.iter_rows()) == {f"d{k}": "embedded with the prompt 'query: '" for k in wrong}


@pytest.mark.proof
def test_a_server_in_half_precision_is_not_wrong_where_one_says_so(clean, embed, texts, small_model, ray_session, tmp_path):
    import torch

    half = embed(texts, kind=torch.bfloat16)
    file = clean("half", lambda _: half.tolist())
    code, printed, err = verify(file, small_model, tmp_path / "as-float32", "--sample", "30", "--json")
    assert code == 1, printed + err
    causes = read_tables(tmp_path / "as-float32")["verified"]["cause"]
    assert set(causes.drop_nulls()) <= {"computed in bfloat16", "computed in float16", "stored as bfloat16"}
    code, printed, err = verify(file, small_model, tmp_path / "as-bfloat16", "--sample", "30", "--computed", "bfloat16")
    assert code == 0, printed + err


@pytest.mark.proof
def test_two_tables_are_joined_by_their_ids_and_what_one_lacks_is_counted(texts, embed, small_model, ray_session, tmp_path):
    vectors = embed(texts)
    vectors[7] = vectors[8]
    ids = [f"d{k}" for k in range(ROWS)]
    order = np.random.default_rng(0).permutation(ROWS)
    pl.DataFrame({"id": ids, "text": texts})[10:].write_parquet(tmp_path / "texts.parquet")
    stored = pl.DataFrame({"id": ids, "embedding": vectors.tolist()})[order.tolist()].filter(pl.col("id") != "d11")
    stored.write_parquet(tmp_path / "vectors.parquet")
    options = ("--texts", str(tmp_path / "texts.parquet"), "--sample", "all")
    code, printed, err = verify(tmp_path / "vectors.parquet", small_model, tmp_path / "run", *options, "--json")
    assert code == 0, printed + err
    record = read_record(tmp_path / "run")["verified"]
    assert (record["ids"], sorted(record["missing"].values())) == (ROWS, [1, 10])
    assert set(read_tables(tmp_path / "run")["verified"]["text_id"]) == set(ids[10:]) - {"d11"}
    rejected = pl.concat(
        pl.read_parquet(tmp_path / "run" / name) for name in Storage(str(tmp_path / "run")).list("rejected")
    )
    assert set(rejected["text_id"]) == {*ids[:10], "d11"}
    before = digests(tmp_path / "run", "tables", "partials", "rejected")
    for kind in ("partials/compared", "rejected"):  # The run is made again from both tables.
        file = sorted((tmp_path / "run" / kind).rglob("*.parquet"))[-1]
        file.write_bytes(file.read_bytes()[:-9])
        code, printed, err = verify(tmp_path / "vectors.parquet", small_model, tmp_path / "run", *options, "--json")
        assert code == 0, printed + err
        assert digests(tmp_path / "run", "tables", "partials", "rejected") == before
    sampled = ("--texts", str(tmp_path / "texts.parquet"), "--sample", "20")
    code, printed, err = verify(tmp_path / "vectors.parquet", small_model, tmp_path / "sampled", *sampled, "--json")
    assert code == 0, printed + err
    assert len(read_tables(tmp_path / "sampled")["verified"]) == 20


@pytest.mark.proof
def test_a_vector_without_its_last_normalisation_is_named(texts, minilm, ray_session, tmp_path):
    """Of the real model, whose last stage scales to norm 1."""
    model = SentenceTransformer(str(minilm), device="cpu")
    vectors = model.encode(texts[:40])
    raw = SentenceTransformer(modules=[*model][:-1], device="cpu").encode(texts[3:6])
    vectors[3:6] = raw
    pl.DataFrame({"id": range(40), "text": texts[:40], "embedding": vectors.tolist()}).write_parquet(tmp_path / "i.parquet")
    code, _, err = in_process(
        "verify", "--embeddings", str(tmp_path / "i.parquet"), "--model", str(minilm), "--out", str(tmp_path / "run"),
        "--workers", "1", "--sample", "all",
    )  # fmt: skip
    assert code == 1, err
    wrong = read_tables(tmp_path / "run")["verified"].filter("wrong").select("text_id", "cause")
    assert dict(wrong.iter_rows()) == dict.fromkeys(("3", "4", "5"), "without the last normalisation")


@pytest.mark.proof
@pytest.mark.parametrize("cause", ["without the stages after pooling", "pooled by cls"])
def test_vectors_of_a_model_with_a_dense_stage(cause, texts, small_model, ray_session, tmp_path):
    """Rows that a run explains by one pooling are not tried by the others."""
    transformer, dense = models.Transformer(small_model, max_seq_length=WINDOW), models.Dense(64, 64)
    stages = [transformer, models.Pooling(64), dense]
    SentenceTransformer(modules=stages, device="cpu").save(str(tmp_path / "model"))
    vectors = SentenceTransformer(modules=stages, device="cpu").encode(texts[:40])
    wrong = stages[:2] if cause.startswith("without") else [transformer, models.Pooling(64, pooling_mode="cls"), dense]
    vectors[3:6] = SentenceTransformer(modules=wrong, device="cpu").encode(texts[3:6])
    pl.DataFrame({"id": range(40), "text": texts[:40], "embedding": vectors.tolist()}).write_parquet(tmp_path / "i.parquet")
    code, _, err = verify(tmp_path / "i.parquet", tmp_path / "model", tmp_path / "run", "--sample", "all")
    assert code == 1, err
    found = read_tables(tmp_path / "run")["verified"].filter("wrong").select("text_id", "cause")
    assert dict(found.iter_rows()) == dict.fromkeys(("3", "4", "5"), cause)


@pytest.mark.proof
def test_a_candidate_explains_what_it_has_made(texts, embed, small_model, minilm, ray_session, tmp_path):
    own = SentenceTransformer(small_model, device="cpu")
    own.max_seq_length = WINDOW
    vectors = embed(texts)
    folder = tmp_path / "other"
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    torch.manual_seed(1)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=30522, initializer_range=0.3, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(minilm).save_pretrained(folder)
    other = SentenceTransformer(str(folder), device="cpu")
    other.max_seq_length = WINDOW
    vectors[5:9] = other.encode(texts[5:9])
    pl.DataFrame({"text": texts, "embedding": vectors.tolist()}).write_parquet(tmp_path / "index.parquet")
    options = ("--sample", "all", "--candidate", str(folder), "--max-wrong", "0.5")
    code, printed, err = verify(tmp_path / "index.parquet", small_model, tmp_path / "run", *options)
    assert code == 0, printed + err  # Four of 120 are fewer than the half that may be.
    assert read_tables(tmp_path / "run")["verified"]["cause"].drop_nulls().to_list() == ["of the model other"] * 4


@pytest.mark.proof
def test_rows_beyond_the_first_are_tried_in_the_ways_that_explained_one(
    texts, embed, small_model, ray_session, tmp_path, monkeypatch
):  # fmt: skip
    """The first are those with the smallest hash; the cause of the last row, which none of them has, is not looked for."""

    def place(k):
        return int.from_bytes(hashlib.blake2b(f"d{k}".encode(), digest_size=8, key=bytes(8)).digest(), "big")

    vectors, (*by_cls, last) = embed(texts), sorted(range(10, 20), key=place)
    vectors[by_cls] = embed([texts[k] for k in by_cls], pooling="cls")
    vectors[last] = embed([f"query: {texts[last]}"])[0]
    ids = [f"d{k}" for k in range(ROWS)]
    pl.DataFrame({"id": ids, "text": texts, "embedding": vectors.tolist()}).write_parquet(tmp_path / "index.parquet")
    causes = {}
    for first in (3, len(by_cls), ROWS):
        monkeypatch.setattr(explain, "IN_EVERY_WAY", first)
        monkeypatch.setattr(explain, "AT_ONCE", 2)
        code, _, err = verify(tmp_path / "index.parquet", small_model, tmp_path / f"run {first}", "--sample", "all")
        assert code == 1, err
        wrong = read_tables(tmp_path / f"run {first}")["verified"].filter("wrong")
        causes[first] = dict(wrong.select("text_id", "cause").iter_rows())
    assert causes[ROWS] == {f"d{k}": "pooled by cls" for k in by_cls} | {f"d{last}": "embedded with the prompt 'query: '"}
    assert causes[3] == causes[len(by_cls)] == causes[ROWS] | {f"d{last}": causes[3][f"d{last}"]}
    assert causes[3][f"d{last}"] in (None, PROBABLY_EDITED)


@pytest.fixture(scope="module")
def earlier(texts, embed, small_model, ray_session, tmp_path_factory):
    """An audit of texts, an index of their vectors, and the same index with four of the texts edited, one of them wholly."""
    folder, edited = tmp_path_factory.mktemp("earlier"), [*texts]
    for k in (20, 30, 40):
        edited[k] = texts[k].replace(" ", " very ", 1)
    edited[50] = "Something else altogether."
    ids = [f"d{k}" for k in range(ROWS)]
    pl.DataFrame({"id": ids, "text": texts}).write_parquet(folder / "texts.parquet")
    pl.DataFrame({"id": ids, "text": edited, "embedding": embed(texts).tolist()}).write_parquet(folder / "index.parquet")
    how = {"models": [small_model], "temperatures": [1.0], "max_length": WINDOW}
    audited({
        "out": str(folder / "audit"), "corpus": {"source": str(folder / "texts.parquet")}, "embedding": how,
        "analysis": {"socm_sample": 0, "probe_sample": 0}, "execution": {"workers": 1},
    })  # fmt: skip
    return folder


@pytest.mark.proof
def test_an_earlier_audit_proves_which_texts_were_edited(earlier, small_model, tmp_path):
    options = "--sample", "all", "--earlier", str(earlier / "audit")
    code, _, err = verify(earlier / "index.parquet", small_model, tmp_path / "run", *options)
    assert code == 1, err
    wrong = read_tables(tmp_path / "run")["verified"].filter("wrong")
    assert dict(wrong.select("text_id", "cause").iter_rows()) == {f"d{k}": EDITED for k in (20, 30, 40, 50)}


@pytest.mark.proof
def test_an_earlier_run_that_does_not_know_the_texts_is_refused(earlier, index, run, small_model, tmp_path):
    pruned, cut = tmp_path / "pruned", tmp_path / "cut"
    for folder in (pruned, cut):
        shutil.copytree(earlier / "audit", folder)
    shutil.rmtree(pruned / "texts")
    record = Storage(str(cut)).read_json("run.json")
    record["config"]["corpus"]["max_characters"] = 77
    Storage(str(cut)).write_json("run.json", record)
    other = tmp_path / "other"
    Storage(str(other)).write_json("run.json", {"config": {"lr": 0.1}, "models": {}})
    for folder, named in (
        (run[0], "verify"), (pruned, "pruned"), (cut, "77 characters"), (tmp_path / "none", "run.json"), (other, "no audit"),
    ):  # fmt: skip
        code, _, err = verify(index[0], small_model, tmp_path / "out", "--earlier", str(folder))
        assert code == 2, err
        assert named in said(err)
        assert str(folder) in err.replace("\n", "")


@pytest.mark.parametrize(
    ("table", "options", "named"),
    [
        ({"id": ["a"], "text": ["x"]}, (), "embedding"),
        ({"id": ["a"], "embedding": [[1.0, 2.0]]}, (), "--texts"),
        ({"id": ["a"], "text": [None], "embedding": [[1.0, 2.0]]}, (), "null"),
        ({"id": ["a"], "text": ["x"], "embedding": [None]}, (), "null"),
        ({"id": ["a"], "text": ["x"], "embedding": [[1.0, 2.0]]}, ("--by", "day"), "--by"),
        ({"id": ["a"], "text": ["x"], "embedding": [[1.0, 2.0]]}, ("--sample", "few"), "--sample"),
        ({"id": ["a"], "text": ["x"], "embedding": [[1.0, 2.0]]}, ("--sample", "0"), "--sample"),
    ],
)  # fmt: skip
def test_wrong_input_is_a_sentence_before_ray_starts(table, options, named, small_model, tmp_path):
    pl.DataFrame(table).write_parquet(tmp_path / "index.parquet")
    code, _, err = verify(tmp_path / "index.parquet", small_model, tmp_path / "run", *options)
    assert code == 2, err
    assert named in " ".join(err.replace("│", " ").split())


@pytest.mark.proof
def test_more_dimensions_than_the_model_has_are_refused(texts, small_model, ray_session, tmp_path):
    pl.DataFrame({"text": texts[:9], "embedding": [[1.0] * 65] * 9}).write_parquet(tmp_path / "index.parquet")
    code, _, err = verify(tmp_path / "index.parquet", small_model, tmp_path / "run")
    assert code == 2
    assert "65 dimensions" in " ".join(err.split())


@pytest.mark.proof
def test_text_forms_and_titles_are_recognised(texts, embed, small_model, ray_session, tmp_path):
    strange = [f"  Cafe\u0301 No. {k}\u00a0½ of\n{text[:60].upper()}" for k, text in enumerate(texts[:40])]
    made = {
        "embedded from the text in Unicode's form NFKC": [unicodedata.normalize("NFKC", text) for text in strange],
        "embedded from the title, ' ' and the text": [f"T{k}\n{text}" for k, text in enumerate(strange)],
    }
    vectors = embed(strange)
    for first, forms in zip((0, 5), made.values(), strict=True):
        vectors[first : first + 5] = embed(forms[first : first + 5])
    table = {"text": strange, "embedding": vectors.tolist(), "title": [f"T{k}" for k in range(40)]}
    pl.DataFrame(table).write_parquet(tmp_path / "index.parquet")
    verify(tmp_path / "index.parquet", small_model, tmp_path / "run", "--sample", "all", "--title-column", "title")
    causes = read_tables(tmp_path / "run")["verified"].sort(pl.col("text_id").str.split(":").list.last().cast(int))["cause"]
    assert causes.to_list() == [*(cause for cause in made for _ in range(5)), *[None] * 30]
