"""The key of a cache: each of its parts alone makes another key, and a key stays what it is from one version to the next."""

from dataclasses import replace
from importlib import metadata

import pytest
from prepared import scoped

from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.sections import Encoding
from tempscale_jobs.runs.folder import Model, Run
from tempscale_jobs.runs.storage import Storage
from tempscale_jobs.steps import cache
from tempscale_jobs.steps.cache import Cache
from tempscale_jobs.workers.cluster import Cluster

MODEL = Model("mini", "path/mini", "f" * 16, 256, document_prompt="passage: ", query_prompt="query: ")
GIVEN = {
    "cache": Cache("store", Encoding(), 100_000), "cluster": Cluster(workers=2, gpus=0), "model": MODEL,
    "temperature": Temperature.of("0.8"),
}  # fmt: skip
BY_ROLE = Temperature.by_role(query=1.0, document=0.8)


def encoding(**other):
    return {"cache": replace(GIVEN["cache"], encoding=Encoding(**other))}


def key(**other):
    return cache.key(**GIVEN | other)


@pytest.fixture
def versions(monkeypatch):
    """The versions of packages, which a test may set."""
    known = {"torch": "2.13.0+cpu", "transformers": "5.17.2"}
    monkeypatch.setattr(metadata, "version", known.__getitem__)
    return known


DIFFERENT = {
    "another model": {"model": replace(MODEL, fingerprint="e" * 16)},
    "another window": {"model": replace(MODEL, max_length=128)},
    "another prompt": {"model": replace(MODEL, document_prompt="")},
    "another temperature": {"temperature": Temperature.of("0.9")},
    "long texts in chunks": encoding(long="chunk"),
    "texts cut elsewhere": {"cache": replace(GIVEN["cache"], max_characters=1000)},
    "a GPU": {"cluster": Cluster(workers=2, gpus=1)},
    "another role's prompt": {"cache": replace(GIVEN["cache"], role="query")},
    **{f"in {precision}": encoding(precision=precision) for precision in ("bfloat16", "tf32")},
    **{name: encoding(**{name: True}) for name in ("compiled", "packed")},
}


def test_no_two_of_these_settings_share_a_key(versions):
    every = [key(), *(key(**other) for other in DIFFERENT.values())]
    assert len({cache.folder(own) for own in every}) == len(every)


@pytest.mark.parametrize(("name", "version"), [("torch", "2.14.0+cpu"), ("torch", "3.13.0"), ("transformers", "5.18.0")])
def test_another_version_of_what_computes_makes_another_key(versions, name, version):
    before = key()
    versions[name] = version
    assert cache.folder(key()) != cache.folder(before)


def test_a_patch_of_the_same_version_keeps_the_key(versions):
    before = key()
    versions |= {"torch": "2.13.1+cu130", "transformers": "5.17.9"}
    assert key() == before


def test_a_role_counts_where_the_temperature_tells_roles_apart(versions):
    roles = [replace(GIVEN["cache"], role=role) for role in ("query", "document")]
    without_prompts = replace(MODEL, document_prompt="", query_prompt="")
    by_role, alike = (
        [key(cache=own, model=without_prompts, temperature=temperature) for own in roles]
        for temperature in (BY_ROLE, GIVEN["temperature"])
    )
    assert by_role[0] != by_role[1]
    assert alike[0] == alike[1]


def test_what_decides_no_embedding_is_in_no_key(versions):
    elsewhere = replace(MODEL, label="other", name="elsewhere/mini", seen="1", revision="abc")
    same = {"cache": replace(GIVEN["cache"], root="other"), "cluster": Cluster(workers=5, gpus=0), "model": elsewhere}
    assert key(**same) == key()
    assert key(**encoding(token_budget=77, tune_batches=True)) == key()


def test_a_gpu_in_bfloat16_holds_its_weights_in_it(versions):
    gpu = {"cluster": Cluster(workers=2, gpus=1)} | encoding(precision="bfloat16")
    assert key(**gpu)["precision"] == "bfloat16 weights"
    assert key(**encoding(precision="bfloat16"))["precision"] == "bfloat16"


def test_a_key_is_what_earlier_versions_wrote(versions):
    """Another folder here throws away the caches that people have."""
    assert key(model=replace(MODEL, document_prompt="")) == {
        "format": 1, "model": "f" * 16, "temperature": "0.8", "role": None, "max_length": 256, "long": "truncate",
        "precision": "float32", "max_characters": 100_000, "device": "cpu",
        "versions": {"torch": "2.13", "transformers": "5.17"},
    }  # fmt: skip
    assert cache.folder(key(model=replace(MODEL, document_prompt=""))) == "5ef5bbfa423daa5e7fdaff1c"


def test_nothing_is_added_to_a_folder_of_other_settings(tmp_path):
    run = Run(Storage(str(tmp_path / "run")), [MODEL], [Temperature.of("0.8")], "2026-11-27")
    to, store = replace(GIVEN["cache"], root=str(tmp_path / "cache")), Storage(str(tmp_path / "cache"))
    name = f"{cache.folder(key(cache=to))}/{cache.KEY}"
    store.write_json(name, {"theme": "dark"})
    refusal = cache.add_texts(scoped(run, MODEL, cluster=GIVEN["cluster"]), to, parts=0)
    assert name in refusal
    assert store.list("") == [name]
    assert store.read_json(name) == {"theme": "dark"}
