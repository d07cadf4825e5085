"""From token embeddings to a text embedding, equal to sentence-transformers stage by stage, or refused by name."""

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers_cases import change, pooling

from tempscale.model.checkpoint import ModelError
from tempscale.model.pooling import Head, load_head


@pytest.fixture(scope="module")
def bare(tiny_folder):
    """A transformer without any stage after it."""
    return tiny_folder("bert")


@pytest.fixture(scope="module")
def whole(bare, tmp_path_factory):
    """The folder of a model of all stages; tests edit copies."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, LayerNorm, Pooling, Transformer

    folder = tmp_path_factory.mktemp("saved")
    stages = [Transformer(str(bare)), Pooling(32), Dense(32, 12), LayerNorm(12)]
    SentenceTransformer(modules=stages, device="cpu").save(str(folder))
    return folder


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


# --- pooling by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("cls", [(3, 4), (7, 0)]), ("mean", [(2, 4), (7, 0)]), ("lasttoken", [(1, 4), (7, 0)]),
        ("weightedmean", [(5 / 3, 4), (7, 0)]),
    ],
)  # fmt: skip
def test_pooling_by_hand(pooling, expected):
    # Text 1 has the tokens (3, 4) and (1, 4); text 2 the token (7, 0); 99 stands at padded places.
    hidden = torch.tensor([[[3.0, 4.0], [1.0, 4.0], [99.0, -99.0]], [[7.0, 0.0], [99.0, 99.0], [99.0, 99.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    found, norms = (column.numpy() for column in Head(pooling, [])(hidden, mask))
    np.testing.assert_allclose(norms, np.linalg.norm(expected, axis=1), atol=1e-6)
    np.testing.assert_allclose(found, unit(np.array(expected, dtype=float)), atol=1e-7)


@pytest.mark.parametrize("pooling", ["cls", "mean", "weightedmean", "lasttoken"])
def test_padding_and_scale_change_nothing(pooling):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 7, 5, generator=generator, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([[7], [3], [1]])
    noise = 1e3 * torch.randn(3, 4, 5, generator=generator, dtype=torch.float64)
    head = Head(pooling, [])
    padded = head(torch.cat([hidden.masked_fill(~mask.unsqueeze(-1), 1e6), noise], 1), torch.nn.functional.pad(mask, (0, 4)))
    torch.testing.assert_close(padded, head(hidden, mask))
    unit, norms = head(hidden, mask)
    torch.testing.assert_close(head(3 * hidden, mask), (unit, 3 * norms))
    torch.testing.assert_close(unit.norm(dim=1), torch.ones(3, dtype=torch.float64))


def test_stages_come_after_pooling_and_the_result_has_unit_length():
    # Mean (1, 3) -> ReLU keeps it, Linear gives (2·1, −1·3) = (2, −3), over √13.
    linear = torch.nn.Linear(2, 2, bias=False)
    linear.weight.data = torch.tensor([[2.0, 0.0], [0.0, -1.0]])
    hidden = torch.tensor([[[0.0, 2.0], [2.0, 4.0]]])
    found, norms = Head("mean", [torch.nn.ReLU(), linear])(hidden, torch.tensor([[True, True]]))
    np.testing.assert_allclose(found.detach(), np.array([[2, -3]]) / 13**0.5, atol=1e-6)
    np.testing.assert_allclose(norms.detach(), [13**0.5], atol=1e-6)


# --- what is refused --------------------------------------------------------------------------------------------------


def dense(**values):
    """An edit of the dense stage's config.json."""
    return lambda folder: change(folder / "2_Dense", "config.json", **values)


def norm(**values):
    """An edit of the layer norm's config.json."""
    return lambda folder: change(folder / "3_LayerNorm", "config.json", **values)


def of_stages(*kinds):
    """An edit of modules.json: other stages."""
    rows = [{"idx": k, "path": str(k), "type": f"sentence_transformers.models.{kind}"} for k, kind in enumerate(kinds)]
    return lambda folder: (folder / "modules.json").write_text(json.dumps(rows))


def text(content):
    """An edit of modules.json: no list of stages."""
    return lambda folder: (folder / "modules.json").write_text(content)


def pickled(folder):
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")


REFUSED = [
    (" max;", pooling(pooling_mode="max")),
    (" max;", pooling(pooling_mode_max_tokens=True)),
    (" cls + mean;", pooling(pooling_mode=["cls", "mean"])),
    (" mean_sqrt_len_tokens;", pooling(pooling_mode="mean_sqrt_len_tokens")),
    (" cls + max;", pooling(pooling_mode_cls_token=True, pooling_mode_max_tokens=True)),
    (" mean_sqrt_len_tokens;", pooling(pooling_mode_mean_sqrt_len_tokens=True)),
    (" mean + weightedmean;", pooling(pooling_mode_weightedmean_tokens=True, pooling_mode_mean_tokens=True)),
    (" nothing;", pooling(pooling_mode=[])),
    ("LSTM'", of_stages("Transformer", "Pooling", "LSTM")),
    ("[]", of_stages()),
    ("['Transformer']", of_stages("Transformer")),
    ("['Dense', 'Pooling']", of_stages("Dense", "Pooling")),
    ("['Transformer', 'Normalize']", of_stages("Transformer", "Normalize")),
    ("['Pooling', 'Transformer']", of_stages("Pooling", "Transformer")),
    ("modules.json", text("")),
    ("modules.json", text("nonsense")),
    ("modules.json", text('{"a": 1}')),
    ("modules.json", text("[1, 2]")),
    ("modules.json", text("null")),
    ("Softplus'", dense(activation_function="torch.nn.Softplus")),
    ("module_input_name = 'token_embeddings'", dense(module_input_name="token_embeddings")),
    ("module_output_name = 'token_embeddings'", dense(module_output_name="token_embeddings")),
    ("2_Dense has no model.safetensors", pickled),
    ("2_Dense", dense(out_features=13)),
    ("2_Dense", dense(bias=False)),
    ("2_Dense", dense(use_residual=True)),
    ("2_Dense", dense(out_features=...)),
    ("3_LayerNorm", norm(dimension=31)),
    ("3_LayerNorm", norm(dimension=...)),
    # Of the shape in the file: no memory is taken for what the configuration asks for.
    ("[12, 32]", dense(in_features=10**7, out_features=10**7)),
    ("[12]", norm(dimension=10**12)),
]


@pytest.mark.parametrize(("named", "edit"), REFUSED)
def test_what_is_refused_is_named(whole, tmp_path, named, edit):
    folder = shutil.copytree(whole, tmp_path / "model")
    load_head(folder)
    edit(folder)
    with pytest.raises(ModelError) as error:
        load_head(folder)
    assert named in str(error.value)


# --- any scale --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1e-30, 1e-23, 1e-14, 1e-9, 1e9, 1e19, 1e30])
def test_embeddings_of_any_scale_have_unit_length_and_their_norm(scale):
    pooled = torch.randn(5, 24, generator=torch.Generator().manual_seed(0))
    expected = pooled.double()
    embeddings, norms = Head("mean", []).finish(pooled * scale)
    assert torch.allclose(embeddings.double(), expected / expected.norm(dim=1, keepdim=True), atol=1e-6)
    assert torch.allclose(norms.double() / scale, expected.norm(dim=1), rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-6, 0.03, 1.0, 7.0, 1e6])
@pytest.mark.parametrize("width", [12, 384, 1024])
def test_ordinary_embeddings_keep_every_bit(width, scale):
    pooled = torch.randn(64, width, generator=torch.Generator().manual_seed(width)) * scale
    embeddings, norms = Head("mean", []).finish(pooled)
    assert torch.equal(embeddings, torch.nn.functional.normalize(pooled, dim=-1))
    assert torch.equal(norms, torch.linalg.vector_norm(pooled, dim=-1))


def test_an_embedding_of_zeros_stays_and_one_that_is_not_finite_too():
    embeddings, norms = Head("mean", []).finish(torch.tensor([[0.0, 0.0], [float("inf"), 1.0], [3.0, 4.0]]))
    assert embeddings[0].tolist() == [0, 0]
    assert not torch.isfinite(embeddings[1]).all()
    assert norms[2] == 5


def test_scaling_leaves_the_gradient():
    pooled = (torch.randn(2, 4, dtype=torch.double) * 1e-20).requires_grad_()
    found = torch.autograd.grad(Head("mean", []).finish(pooled)[1].sum(), pooled)[0]
    assert torch.allclose(found, pooled.detach() / pooled.detach().norm(dim=1, keepdim=True))
