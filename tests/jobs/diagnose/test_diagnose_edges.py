"""`tempscale diagnose` where something is missing or odd: what it says, and what it leaves out."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from golden_words import same
from safetensors.torch import load_file, save_file
from whole_run import as_lines, diagnosed, documented, read_record, read_tables, rejected

from tempscale.model.sequences import Tokens
from tempscale.model.tokens import Tokenizer
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.strict import checked
from tempscale_jobs.diagnose import looks, repeated, sampling, two_texts
from tempscale_jobs.diagnose.findings import decide
from tempscale_jobs.diagnose.words import of_model, of_models
from tempscale_jobs.errors import UsageError
from tempscale_jobs.runs.folder import Model
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.tables.diagnose import EQUAL_NORMS, HEADS, KINDS
from tempscale_jobs.workers import actor

pytestmark = pytest.mark.proof

EDGES = [0, 32, 64]


def run(out, rows, model, temperatures=(1.0, 0.7), max_length=96, **diagnosis):
    file = out.parent / f"{out.name}.jsonl"
    file.write_text(as_lines(rows))
    asked = {
        "out": str(out), "corpus": {"source": str(file)}, "execution": {"workers": 1},
        "embedding": {"models": [model], "temperatures": list(temperatures), "max_length": max_length},
        "diagnosis": {"texts": 12, "intervals": EDGES, "repeated_pairs": 0} | diagnosis,
    }  # fmt: skip
    diagnosed(asked)
    return read_tables(out)


def texts(count):
    chosen = [row["text"][:200] for row in documented("pyarrow") if len(row["text"]) > 200]
    return [{"id": f"t{k}", "text": text} for k, text in enumerate(chosen[:count])]


def test_texts_that_the_model_fails_on_are_rejected_and_the_others_looked_into(tmp_path, ray_session, small_model):
    """The word embedding of «pipe» is no number."""
    broken = tmp_path / "broken"
    shutil.copytree(small_model, broken)
    weights = load_file(broken / "model.safetensors")
    (token,) = Tokenizer(broken)(["pipe"]).ids[0][1:-1]
    weights["embeddings.word_embeddings.weight"][token] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    tables = run(tmp_path / "run", [*texts(6), {"id": "bad", "text": "a pipe is no number here"}], str(broken))
    for name in ("layers", "heads", "map"):
        assert set(tables[name]["text_id"]) == {f"t{k}" for k in range(6)}
    assert tables["layer_summary"]["spread_mean"].null_count() == 0
    assert set(rejected(tmp_path / "run")) == {"bad"}
    assert read_record(tmp_path / "run")["looked_into"] == {"texts": 7, "rejected": {"broken": 1}}
    with pytest.raises(UsageError, match=r"model broken .* any text"):
        run(tmp_path / "none", [{"id": f"p{k}", "text": "pipe " * (k + 2)} for k in range(3)], str(broken))


def test_a_text_of_one_token_is_left_out(tmp_path, ray_session, tiny_folder):
    """Decoders without special tokens have such texts."""
    folder = tiny_folder("qwen2")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": None}))
    assert Tokenizer(folder)(["a", "ab"]).lengths == [1, 2]
    rows = [{"id": f"t{k}", "text": "abcdefgh"[k] + "hgfedcba"[: k + 1]} for k in range(6)] + [{"id": "one", "text": "a"}]
    tables = run(tmp_path / "run", rows, str(folder), max_length=32)
    assert set(tables["layers"]["text_id"]) == {f"t{k}" for k in range(6)}
    assert tables["layer_summary"].filter(pl.col("layer") >= 0)["rho_mean"].null_count() == 0
    assert tables["heads"]["sigma_a"].null_count() == 0


def test_one_text_and_a_schedule_are_looked_into(tmp_path, ray_session, small_model):
    schedule = {"by_length": {"0": 1.0, "64": 0.8}}
    tables = run(tmp_path / "run", texts(1), small_model, [1.0, schedule, {"by_layer": [0.9, 0.8]}])
    assert "two_texts" not in tables
    assert len(tables["map"]) == 0
    assert set(tables["diagnose_findings"]["finding"]) == {"length", "temperature"}


def test_what_cannot_be_asked_is_a_sentence(small_model):
    for data, words in (
        ({"corpus": {"source": "x", "embedding_column": "v"}}, "no layers"),
        ({"corpus": {"source": "x", "sample": 5}, "diagnosis": {"versions_of": "d"}}, "a sample would separate"),
        ({"diagnosis": {"texts": 5001}}, r"diagnosis\.texts"), ({"diagnosis": {"texts": 0}}, r"diagnosis\.texts"),
        ({"diagnosis": {"pair": ("a", "a")}}, "twice"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=words):
            checked(DiagnoseConfig, data)
    model = Model("tiny", small_model, "", 10**6)
    looks.check_memory(model, 512, 2)
    with pytest.raises(UsageError, match=r"200,000 tokens .* --max-length"):
        looks.check_memory(model, 200_000, 2)


def test_repeated_tokens_stay_inside_the_window_and_need_words():
    for window, lengths in ((5, []), (100, [8, 16, 32, 64]), (131_072, [8, 16, 32, 64, 128, 256, 512])):
        assert repeated.lengths_up_to(window) == lengths
    words = {"▁the": 5, "ing": 6, "▁of": 7, "▁12": 8, "<s>": 9}
    assert sorted(repeated.ordinary(SimpleNamespace(vocabulary=lambda: words), 4, 0)) == [5, 7]


def finding(name, change, error, texts=40, tau=1.0, model="m", layers="last"):
    own = {"finding": name, "layers": layers, "change": change, "change_se": error, "texts": texts}
    return own | {"tau": tau, "temperature": f"τ {tau}", "model": model}


SPECTRUM = [
    {"temperature": f"τ {tau}", "interval": edge, "texts": 20, "over_bound_share": share}
    for tau in (1.0, 0.8)
    for edge, share in ((0, 0.0), (32, 0.5), (64, 0.25))
]
WAYS = {"falls": (-0.5, 0.1), "rises": (0.5, 0.1), "is noise": (0.1, 0.1), "has no known error": (0.5, None)}


def tables_of(*rows):
    """The tables with these rows of `diagnose_findings`, behind a first temperature at which nothing was found."""
    tables = {table.name: pl.DataFrame(pl.from_arrow(table.schema().empty_table())) for table in (HEADS, EQUAL_NORMS)}
    found = pl.DataFrame([finding("temperature", 0.0, 0.0), *rows], infer_schema_length=None)
    tables |= {"diagnose_findings": found, "spectrum_by_length": pl.DataFrame(SPECTRUM)}
    return tables | {"findings": decide(tables).frame()}


def test_what_is_said_of_each_finding():
    """tests/golden/diagnose-sentences.txt has every sentence."""
    cases = {
        f"{name} {way}": [finding(name, *WAYS[way])] for name in ("length", "versions", "versions_cosine") for way in WAYS
    }
    cases |= {f"at τ {tau} it {way}": [finding("temperature", *WAYS[way], tau=tau)] for tau in (0.8, 1.2) for way in WAYS}
    cases["versions of 4 documents"] = [finding("versions", *WAYS["rises"], 4)]
    held, broken = {"worst": 0.4, "broken": 0, "over": 0.0}, {"worst": 1.2, "broken": 3, "over": 0.25}
    lines = []
    for name, rows in cases.items():
        lines += [f"# {name}", *of_model(tables_of(*rows), [{"temperature": "τ 1.0"} | held], EDGES)]
    lines += ["# theorems do not hold", *of_model(tables_of(), [{"temperature": "τ 0.8"} | broken], EDGES)]
    models = [finding("model", *moved, model=name) for name, moved in zip("bcde", WAYS.values(), strict=True)]
    lines += ["# other models beside a", *of_models(tables_of(*models), "a")]
    same("diagnose-sentences.txt", "\n".join(lines) + "\n")


def test_a_text_that_does_not_tokenise_is_rejected_and_the_others_are_counted(tmp_path, monkeypatch):
    storage, shard = Storage(str(tmp_path)), "shards/part-00000003.parquet"
    storage.write_table(shard, pa.table({"text_id": ["a", "b", "c"], "text": ["one", "two", "three"]}))
    tokens = Tokens([[1, 2], [0], [1, 2, 3]], [False] * 3, None, {1: "the tokenizer fails with ValueError: no"})
    monkeypatch.setattr(actor, "tokenizer", lambda how: lambda texts, isolate: tokens)
    sampling.write_shard(storage, shard, Model("tiny", "tiny", "", 64), 3)
    lengths = storage.read_table("partials/lengths/model=tiny/part-00000003.parquet")
    assert lengths.to_pydict() == {"text_id": ["a", "c"], "tokens": [2, 3]}
    (row,) = storage.read_table("rejected/model=tiny/lengths-00000003.parquet").to_pylist()
    assert row == {"text_id": "b", "place": shard, "reason": tokens.failed[1]}


@pytest.fixture
def worker(tmp_path, tiny_folder):
    """A worker in this process, with a small model of single letters under two temperatures."""
    model = Model("tiny", str(tiny_folder("bert")), "", 64)
    return actor.ModelActor(Storage(str(tmp_path / "run")), model, [1.0, 0.7], {"token_budget": 200}, 0)


def test_a_text_whose_layers_cannot_be_looked_into_is_rejected_and_the_others_are(worker, monkeypatch):
    work = pa.table({"text_id": ["a", "b"], "text": ["some letters", "other letters"]})
    failing = worker.encoder.tokenizer(["other letters"]).ids[0]
    look = looks.Glance.of

    def guarded(self, model, ids):
        if ids == failing:
            raise RuntimeError("shapes differ\nin the second line")
        return look(self, model, ids)

    monkeypatch.setattr(looks.Glance, "of", guarded)
    looks.write_layers(worker, 4, work)
    for kind in KINDS:
        found = [worker.storage.read_table(name).column("text_id").to_pylist() for name in worker.storage.list(kind)]
        assert [set(ids) for ids in found] == [{"a"}, {"a"}]
    (row,) = worker.storage.read_table("rejected/model=tiny/part-00000004.parquet").to_pylist()
    assert (row["text_id"], row["place"]) == ("b", "piece 4")
    assert row["reason"].endswith(": shapes differ")


@pytest.mark.parametrize(("tokens", "pairs"), [(2, 0), (3, 2)])
def test_no_token_is_repeated_where_special_ones_fill_the_text(worker, tokens, pairs):
    repeated.write_cosines(worker, 1, repeated.Repeated(tokens, pairs=2, seed=0))
    names = worker.storage.list("partials/repeated")
    assert len(names) == 2
    for table in map(worker.storage.read_table, names):
        assert table.column("tokens").to_pylist() == [tokens] * pairs
        assert all(abs(cosine) < 1 for cosine in table.column("cosine").to_pylist())


def test_a_vocabulary_that_knows_neither_word_tells_nothing_of_the_ends():
    assert repeated.special_tokens(lambda texts, prompt: Tokens([[1, 3, 2]], [False])) == ([], [])
    known = {"0": [1, 5, 2, 2], "a": [1, 6, 7, 2, 2]}
    assert repeated.special_tokens(lambda texts, prompt: Tokens([known[texts[0]]], [False])) == ([1], [2, 2])


def test_a_named_text_that_the_model_fails_on_is_said_with_the_mend(worker, monkeypatch):
    hidden, failing = worker.encoder.hidden_states, worker.encoder.tokenizer(["zzz"]).ids[0]

    def guarded(ids, mask, tokens):
        if failing in [row[own].tolist() for row, own in zip(ids, mask, strict=True)]:
            raise IndexError("index out of range in self")
        return hidden(ids, mask, tokens)

    monkeypatch.setattr(worker.encoder, "hidden_states", guarded)
    work = pa.table({"a": ["one"], "b": ["two"], "text_a": ["some letters"], "text_b": ["zzz"], "keep": [True]})
    with pytest.raises(UsageError, match=r"model tiny .* text 'two' .*index out of range in self.* --pair"):
        two_texts.write_pair(worker, 0, work)


def test_special_tokens_are_left_out_of_word_embeddings_and_unknown_words_are_not(small_model):
    tokenizer = Tokenizer(Path(small_model))
    around, table = tokenizer.around(), torch.eye(30522)
    (words, unknown, nothing) = tokenizer(["pipe the pipe", "\U0001f9a9", ""]).ids
    found = looks.mean_words(table, [words, unknown, nothing], around)
    pipe, the = words[1], words[2]
    np.testing.assert_allclose(found[0, [pipe, the]], np.array([2, 1]) / 5**0.5, atol=1e-6)
    assert np.flatnonzero(found[0]).tolist() == sorted([pipe, the])
    assert np.flatnonzero(found[1]).tolist() == [unknown[1]]
    assert np.flatnonzero(found[2]).tolist() == sorted(nothing)  # There is nothing else.


class Placed:
    """A model that knows where it is."""

    def __init__(self, device):
        self.device, self.moves = torch.device(device), []

    def parameters(self):
        yield SimpleNamespace(device=self.device)

    def to(self, device):
        self.device = torch.device(device)
        self.moves.append(self.device.type)


FULL = torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("device", "errors", "found"),
    [
        ("cuda", [], True), ("cuda", [FULL], True), ("cuda", [FULL] * 2, True), ("cuda", [FULL] * 3, False),
        ("cpu", [MemoryError()], False), ("cuda", [RuntimeError("another kernel fails")], False),
    ],
)  # fmt: skip
def test_a_text_that_a_gpu_cannot_hold_is_looked_into_on_the_processor(device, errors, found):
    """Where no memory holds it either the model is left where it was; another failure is tried once."""
    model, answers, seen = Placed(device), iter([*errors, "figures"]), []

    def look():
        seen.append(model.device.type)
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    with nullcontext() if found else pytest.raises(type(errors[-1])):
        assert looks.fitting(model, look) == "figures"
    assert seen == [device, device, "cpu"][: len(errors) + found]
    assert model.moves == (["cpu", "cuda"] if len(seen) == 3 else [])
