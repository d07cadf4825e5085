"""tempscale export --correction: a correction as stages that sentence-transformers has anyway, a folder for each side."""

import json
import shutil

import numpy as np
import pytest
import torch
from command_line import in_process, said
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer

from tempscale import Encoder
from tempscale.correction.fit import fit
from tempscale.model import checkpoint

pytestmark = pytest.mark.proof

NO_STAGES = {
    "length": "on the lengths", "centre_by_length": "on the lengths", "csls(5, 0.5)": "on the texts that ask",
    "centre_by(language)": "on the documents' values of 'language'",
}  # fmt: skip
"""What each of these depends on, which is no embedding."""
TEXTS = ["a short text", "attention is a low-pass filter that gets stronger with length " * 12, "zeros and ones " * 40]


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def fitted(minilm, tmp_path_factory):
    """Every kind of correction, fitted to random directions about the model's own embeddings, as in tune's files."""
    folder, random = tmp_path_factory.mktemp("corrections"), np.random.default_rng(0)
    own = Encoder.load(minilm, device="cpu").encode(TEXTS).embeddings.numpy()
    documents = torch.from_numpy(unit(own[0] + 0.1 * random.standard_normal((500, 384))).astype(np.float32))
    queries = torch.from_numpy(unit(own[1] + 0.1 * random.standard_normal((200, 384))).astype(np.float32))
    tokens, asked = torch.arange(1, 501), torch.arange(1, 201)
    of = {"name": "minilm", "fingerprint": checkpoint.fingerprint(minilm), "temperature": "1.0"}
    found = {}
    for recipe in ("centre", "centre(unit)", "remove_top(2)", "whiten(0.5)", *NO_STAGES):
        correction = fit(recipe, documents, tokens, queries, asked, groups=["de", "en"] * 250)
        file = folder / f"{recipe}.json"
        file.write_text(json.dumps({"model": of, "corrections": [{"task": "a"} | correction.as_data()]}))
        found[recipe] = correction, file
    one = fit("whiten(0.5)", documents)
    (folder / "one.json").write_text(json.dumps(one.as_data()))
    found["both sides alike"] = one, folder / "one.json"
    return found


def export(minilm, file, out, *more):
    code, stdout, stderr = in_process("export", "--model", str(minilm), "--correction", str(file), "--out", str(out), *more)
    return code, said(stdout + stderr)


def by_hand(correction, side, rows):
    """The equations, typed; `rows` are unit embeddings in float64."""
    mean = correction.of_queries if side == "queries" else correction.of_documents
    if correction.recipe.kind == "centre":
        if correction.canonical == "centre":
            return rows - mean if side == "queries" else rows
        return unit(rows - mean)
    return unit((rows - mean) @ correction.matrix)


@pytest.mark.parametrize("recipe", ["centre", "centre(unit)", "remove_top(2)", "whiten(0.5)"])
def test_sentence_transformers_gives_corrected_vectors_of_each_side(minilm, fitted, tmp_path, recipe):
    correction, file = fitted[recipe]
    code, told = export(minilm, file, tmp_path / "m")
    assert (code, sorted(place.name for place in (tmp_path / "m").iterdir())) == (0, ["documents", "queries"]), told
    plain = SentenceTransformer(str(minilm), device="cpu").encode(TEXTS).astype(np.float64)
    for side in ("documents", "queries"):
        found = SentenceTransformer(str(tmp_path / "m" / side), device="cpu").encode(TEXTS)
        np.testing.assert_allclose(found, by_hand(correction, side, plain), atol=1e-5)
        moved = np.abs(found - plain).max() > 1e-2
        assert moved == ((recipe, side) != ("centre", "documents"))
        assert not list((tmp_path / "m" / side).rglob("*.bin"))
        card = ModelCard.load(tmp_path / "m" / side / "README.md").text
        assert f"`{correction.canonical}`, of {side}" in card
        assert correction.digest in card
    assert f"{tmp_path}/m/documents, {tmp_path}/m/queries" in told


def test_one_folder_where_the_sides_are_alike_and_a_head_that_does_not_normalise(minilm, fitted, tmp_path):
    correction, file = fitted["both sides alike"]
    base = shutil.copytree(minilm, tmp_path / "base")
    modules = json.loads((base / "modules.json").read_text())
    (base / "modules.json").write_text(json.dumps(modules[:2]))  # Without Normalize: norms vary.
    code, told = export(base, file, tmp_path / "m")
    assert code == 0, told
    kinds = [stage["type"].rsplit(".", 1)[-1] for stage in json.loads((tmp_path / "m" / "modules.json").read_text())]
    assert kinds == ["Transformer", "Pooling", "Normalize", "Dense", "Normalize"]
    dense = load_file(tmp_path / "m" / "3_Dense" / "model.safetensors")
    np.testing.assert_allclose(dense["linear.weight"].numpy(), correction.matrix, atol=1e-5, rtol=1e-6)
    raw = SentenceTransformer(str(base), device="cpu").encode(TEXTS).astype(np.float64)
    assert np.abs(np.linalg.norm(raw, axis=1) - 1).min() > 0.1
    found = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, by_hand(correction, "documents", unit(raw)), atol=1e-5)


def test_a_checkpoint_that_names_no_stages_gets_them(tiny_folder, tmp_path):
    folder = tiny_folder("bert")
    assert not (folder / "modules.json").exists()
    width = Encoder.load(folder, device="cpu").encode(TEXTS[:1]).embeddings.shape[1]
    rows = unit(np.random.default_rng(0).standard_normal((200, width))).astype(np.float32)
    correction = fit("remove_top(1)", torch.from_numpy(rows))
    (tmp_path / "c.json").write_text(json.dumps(correction.as_data()))
    code, told = export(folder, tmp_path / "c.json", tmp_path / "m")
    assert code == 0, told
    plain = Encoder.load(folder, device="cpu").encode(TEXTS).embeddings.numpy().astype(np.float64)
    found = SentenceTransformer(str(tmp_path / "m"), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, by_hand(correction, "documents", plain), atol=1e-5)


def test_a_temperature_and_a_correction_of_its_embeddings_together(minilm, fitted, tmp_path):
    correction, _ = fitted["whiten(0.5)"]
    of = {"name": "minilm", "fingerprint": checkpoint.fingerprint(minilm), "temperature": "0.8"}
    (tmp_path / "c.json").write_text(json.dumps({"model": of, "corrections": [correction.as_data()]}))
    code, told = export(minilm, tmp_path / "c.json", tmp_path / "m")
    assert (code, "under τ 0.8, and this is τ 1.0" in told) == (2, True), told
    code, told = export(minilm, tmp_path / "c.json", tmp_path / "m", "--tau", "0.8")
    assert code == 0, told
    rows = Encoder.load(minilm, 0.8, device="cpu").encode(TEXTS).embeddings.numpy().astype(np.float64)
    found = Encoder.load(tmp_path / "m" / "queries", device="cpu").encode(TEXTS).embeddings.numpy()
    np.testing.assert_allclose(found, by_hand(correction, "queries", rows), atol=1e-5)


@pytest.mark.parametrize("recipe", NO_STAGES)
def test_what_is_no_function_of_the_embedding_is_refused_by_name(minilm, fitted, tmp_path, recipe):
    code, told = export(minilm, fitted[recipe][1], tmp_path / "m")
    assert (code, list(tmp_path.iterdir())) == (2, [])
    assert f"{recipe} depends {NO_STAGES[recipe]}" in told
    assert "tempscale correct" in told


def test_a_correction_of_another_model_or_size_is_refused(minilm, fitted, tiny_folder, tmp_path):
    for recipe, named in (("centre", "model minilm"), ("both sides alike", "384 dimensions")):
        code, told = export(tiny_folder("bert"), fitted[recipe][1], tmp_path / "m")
        assert (code, named in told) == (2, True), told
    assert list(tmp_path.iterdir()) == []
