"""`--precision auto`: what the processors decide, that it is decided once, and that everything else follows it."""

import io
import json

import pytest
import torch
from prepared import scoped
from whole_run import as_lines, audited, digests, paired, read_record

from tempscale import Encoder
from tempscale.model.loading import round_weights
from tempscale_jobs.errors import UsageError
from tempscale_jobs.nights.record import measured
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.provenance import processor
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps.precision import cosines_to_float32, in_float32, measure
from tempscale_jobs.workers import bfloat16
from tempscale_jobs.workers.actor import ModelActor
from tempscale_jobs.workers.bfloat16 import Processor, Settled, decided
from tempscale_jobs.workers.cluster import Cluster

pytestmark = pytest.mark.proof

AMX = Processor("Xeon", "amx_bf16, avx512_bf16")
H100 = Processor("H100", "tensor cores")
OLD = Processor("EPYC", "")


@pytest.mark.parametrize(
    ("asked", "seen", "precision", "why"),
    [
        ("auto", [AMX], "bfloat16", "amx_bf16, avx512_bf16 of Xeon"),
        ("auto", [H100, H100], "bfloat16", "tensor cores of H100"),
        ("auto", [OLD], "float32", "EPYC cannot"),
        ("auto", [AMX, OLD], "float32", "EPYC cannot"),
        ("bfloat16", [OLD, AMX, OLD], "bfloat16", "as asked, but EPYC cannot"),
        ("auto", [], "float32", "no worker answered"),
        ("bfloat16", [AMX], "bfloat16", "amx_bf16, avx512_bf16 of Xeon"),
        ("bfloat16", [], "bfloat16", ""),
    ],
)
def test_every_processor_of_the_run_decides(asked, seen, precision, why):
    found = decided(asked, seen)
    assert (found.asked, found.precision) == (asked, precision)
    assert found.why.startswith(why)


@pytest.mark.parametrize(
    ("flags", "instructions"),
    [
        ("fpu sse2 avx2 avx512f avx512_bf16 amx_bf16 amx_tile", "amx_bf16, avx512_bf16"),
        ("avx512f avx512_bf16", "avx512_bf16"),
        ("fpu avx2 avx512f avx512_vnni", ""), ("avx512_bf16x", ""), (None, ""),
    ],
)  # fmt: skip
def test_the_flags_of_a_cpu_by_hand(monkeypatch, flags, instructions):
    def listed(path, **how):
        if flags is None:
            raise FileNotFoundError(path)
        return io.StringIO(f"processor\t: 0\nmodel name\t: A\nvmx flags\t: amx_bf16\nflags\t\t: {flags}\n")

    monkeypatch.setattr("builtins.open", listed)
    assert bfloat16.here() == Processor(processor(), instructions)


@pytest.mark.parametrize(("capability", "instructions"), [((7, 5), ""), ((8, 0), "tensor cores"), ((9, 0), "tensor cores")])
def test_a_gpu_has_tensor_cores_for_it_from_ampere_on(monkeypatch, capability, instructions):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "T4")
    assert bfloat16.gpu_here() == Processor("T4", instructions)


def test_a_sick_gpu_decides_nothing(monkeypatch):
    def sick():
        raise RuntimeError("CUDA unknown error")

    monkeypatch.setattr(torch.cuda, "get_device_capability", sick)
    assert bfloat16.gpu_here() is None


def test_the_workers_of_this_machine_answer(ray_session):
    assert bfloat16.workers(Cluster(1, 0)) == [bfloat16.here()]


@pytest.fixture
def audit(tmp_path, ray_session, small_model, monkeypatch):
    """Audits a few texts on processors that are given; returns run.json."""
    source = tmp_path / "texts.jsonl"
    source.write_text(as_lines({"id": f"t{k}", "text": f"the bridge over river {k} " * (k % 7 + 1)} for k in range(40)))

    def audit(name, precision, seen=(), **execution):
        monkeypatch.setattr(bfloat16, "workers", lambda cluster: list(seen))
        data = {
            "out": str(tmp_path / name), "corpus": {"source": str(source)},
            "embedding": {"models": [small_model], "precision": precision, "temperatures": [1.0]},
            "analysis": {"socm_sample": 0, "probe_sample": 0}, "execution": {"workers": 1} | execution,
        }  # fmt: skip
        audited(data)
        return read_record(tmp_path / name)

    return audit


def test_auto_gives_the_bytes_of_what_it_chose_and_says_so(audit, tmp_path):
    records = {name: audit(name, *how) for name, how in {
        "single": ("float32",), "half": ("bfloat16", [AMX]), "old": ("auto", [AMX, OLD]), "new": ("auto", [AMX]),
    }.items()}  # fmt: skip
    tables = {name: digests(tmp_path / name, "tables", "texts") for name in records}
    assert tables["old"] == tables["single"] != tables["half"] == tables["new"]
    known = {name: next(iter(record["models"].values())) for name, record in records.items()}
    assert known["single"]["computed_in"] == {"precision": "float32"}
    assert known["old"]["computed_in"] == decided("auto", [AMX, OLD])._asdict()
    assert known["new"]["computed_in"] == Settled("auto", "bfloat16", "amx_bf16, avx512_bf16 of Xeon")._asdict()
    decisive = {name: measured(record["config"], known[name]) for name, record in records.items()}
    assert decisive["old"] == decisive["single"] != decisive["half"] == decisive["new"]
    assert json.loads(decisive["new"])["precision"] == "bfloat16"


def test_a_run_goes_on_in_the_precision_that_it_began_with(tmp_path, monkeypatch):
    run, found = Run(Storage(str(tmp_path)), [], [], "2026-11-01"), []
    for seen in ([AMX], [OLD]):
        monkeypatch.setattr(bfloat16, "workers", lambda cluster, seen=seen: seen)
        found.append(bfloat16.decide(run, Cluster(1, 0), "auto"))
    assert found == [Settled("auto", "bfloat16", "amx_bf16, avx512_bf16 of Xeon")] * 2
    with pytest.raises(UsageError, match="--precision tf32"):
        bfloat16.decide(Run(Storage(str(tmp_path / "other")), [], [], "2026-11-01"), Cluster(1, 0), "tf32")


@pytest.mark.soak
def test_pairs_follow_it_too(tmp_path, ray_session, small_model, monkeypatch):
    source = tmp_path / "pairs.jsonl"
    source.write_text(as_lines({"text_a": f"the river {k}", "text_b": "a bridge in winter " * k} for k in range(1, 5)))
    found = {}
    for name, precision, seen in (("single", "float32", []), ("old", "auto", [OLD]), ("new", "auto", [AMX])):
        monkeypatch.setattr(bfloat16, "workers", lambda cluster, seen=seen: seen)
        paired(
            {
                "out": str(tmp_path / name), "pairs": {"source": str(source)},
                "embedding": {"models": [small_model], "precision": precision}, "execution": {"workers": 1},
            }
        )  # fmt: skip
        found[name] = digests(tmp_path / name, "tables")
        (model,) = read_record(tmp_path / name)["models"].values()
        assert model["computed_in"]["precision"] == ("bfloat16" if name == "new" else "float32")
    assert found["single"] == found["old"] != found["new"]


def test_what_was_measured_is_not_measured_again(tmp_path):
    run, model = Run(Storage(str(tmp_path)), [], [], "2026-11-22"), Model("tiny", "tiny", "", 64)
    told = {"precision": "bfloat16", "texts": 3, "cosine_least": 0.9991, "cosine_mean": 0.9996}
    name = "partials/precision/model=tiny.json"
    run.storage.write_json(name, told)
    measure(scoped(run, model, range(3), embedding={"precision": "bfloat16"}))  # There is no worker to ask.
    assert run.storage.read_json(name) == told


# --- TF32, and weights that are rounded ---------------------------------------------------------------------------------


def test_tf32_is_for_gpus_that_have_it():
    assert decided("tf32", [H100, H100]) == Settled("tf32", "tf32", "tensor cores of H100")
    for seen in ([AMX], [H100, OLD], [H100, Processor("T4", "")]):
        with pytest.raises(UsageError, match=f"--precision tf32 .* {seen[-1].name}"):
            decided("tf32", seen)


def test_a_worker_whose_weights_are_rounded_is_compared_with_a_model_in_float32(tiny_folder, tmp_path):
    """As on a GPU, on this processor: the weights are rounded, and the check loads them again."""
    folder, storage = str(tiny_folder()), Storage(str(tmp_path))
    worker = ModelActor(storage, Model("tiny", folder, "", 64), [1.0, 0.5], {"token_budget": 60}, 0)
    texts = ["a b c d", "the quick brown fox", "zz", "0 1 2 3 4 5"]
    assert cosines_to_float32(worker, 0, texts)[0] == pytest.approx(1.0, abs=3e-7)
    round_weights(worker.encoder.model)
    with in_float32(worker) as encoder:
        assert encoder is not worker.encoder
        assert next(encoder.model.parameters()).dtype == torch.float32
    (least, total), apart = cosines_to_float32(worker, 0, texts), []
    float32 = Encoder.load(folder, max_length=64, device="cpu")
    assert next(worker.encoder.model.parameters()).dtype == torch.bfloat16
    for temperature in worker.temperatures:
        both = []
        for encoder in (worker.encoder, float32):
            encoder.set_temperature(temperature)
            both.append(encoder.encode(texts, moments=False).embeddings.double())
        apart += (1 - (both[0] * both[1]).sum(1)).tolist()
    assert max(apart) > 1e-6
    assert 1 - least == pytest.approx(max(apart), rel=0.2)
    assert 8 - total == pytest.approx(sum(apart), rel=0.2)
