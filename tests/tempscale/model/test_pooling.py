"""From token embeddings to a text embedding, equal to sentence-transformers stage by stage, or refused by name."""

import json

import numpy as np
import pytest
import torch

from tempscale.model.checkpoint import ModelError
from tempscale.model.encoder import Encoder
from tempscale.model.pooling import Head, Normalize, load_head
from tempscale.model.settings import Settings

TEXTS = ["a", "b c", "the quick brown fox", "0 1 2 3 4 5 6 7 8 9", "mean pooling hides what differs", "!"]
LEGACY = {
    "cls": "cls_token", "mean": "mean_tokens", "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
    "max": "max_tokens",
}  # fmt: skip


@pytest.fixture(scope="module")
def bare(tiny_folder):
    """A transformer without any stage after it."""
    return tiny_folder("bert")


@pytest.fixture
def saved(bare, tmp_path):
    """A function that saves a SentenceTransformer of the given stages and returns it with its folder."""

    def save(*stages):
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.models import Transformer

        torch.manual_seed(0)
        model = SentenceTransformer(modules=[Transformer(str(bare)), *stages], device="cpu")
        for stage in stages:
            for parameter in stage.parameters():
                torch.nn.init.normal_(parameter, std=0.5)
        model.save(str(tmp_path / "saved"))
        return model, tmp_path / "saved"

    return save


def rewrite(folder, stage, change):
    """Replace the config.json of a stage by what `change` makes of it."""
    file = folder / stage / "config.json"
    file.write_text(json.dumps(change(json.loads(file.read_text("utf-8")))), "utf-8")


def legacy(mode):
    """The pooling config that sentence-transformers wrote before its version 5.3."""
    return lambda config: (
        {"word_embedding_dimension": 32} | {f"pooling_mode_{key}": name == mode for name, key in LEGACY.items()}
    )


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


def test_the_poolings_differ_where_a_text_has_several_tokens_and_agree_on_one():
    hidden = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[True, True, True], [True, False, False]])
    cls, mean, last = (Head(pooling, [])(hidden, mask)[0] for pooling in ("cls", "mean", "lasttoken"))
    for one, other in ((cls, mean), (mean, last), (last, cls)):
        assert not torch.allclose(one[0], other[0], atol=1e-2)
        torch.testing.assert_close(one[1], other[1])


def test_stages_come_after_pooling_and_the_result_has_unit_length():
    # Mean (1, 3) -> ReLU keeps it, Linear gives (2·1, −1·3) = (2, −3), over √13.
    linear = torch.nn.Linear(2, 2, bias=False)
    linear.weight.data = torch.tensor([[2.0, 0.0], [0.0, -1.0]])
    hidden = torch.tensor([[[0.0, 2.0], [2.0, 4.0]]])
    found, norms = Head("mean", [torch.nn.ReLU(), linear])(hidden, torch.tensor([[True, True]]))
    np.testing.assert_allclose(found.detach(), np.array([[2, -3]]) / 13**0.5, atol=1e-6)
    np.testing.assert_allclose(norms.detach(), [13**0.5], atol=1e-6)


# --- saved by sentence-transformers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["new", "legacy"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "weightedmean", "lasttoken"])
def test_a_saved_model_of_all_stages_equals_its_own_encode(saved, pooling, form):
    from sentence_transformers.models import Dense, LayerNorm, Normalize, Pooling

    model, folder = saved(Pooling(32, pooling_mode=pooling), Dense(32, 12), LayerNorm(12), Normalize())
    if form == "legacy":
        rewrite(folder, "1_Pooling", legacy(pooling))
    else:
        assert "pooling_mode" in json.loads((folder / "1_Pooling" / "config.json").read_text("utf-8"))
    encoder = Encoder.load(folder, device="cpu")
    assert encoder.head.pooling == pooling
    found, expected = encoder.encode(TEXTS).embeddings.numpy(), model.encode(TEXTS)
    assert found.shape == (len(TEXTS), 12)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert np.abs(found - found[0]).max() > 0.1


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("activation", ["Tanh", "Identity", "ReLU", "GELU", "SiLU", "Sigmoid"])
def test_every_activation_equals_its_own_encode(saved, activation, bias):
    from sentence_transformers.models import Dense, Pooling

    dense = Dense(32, 12, bias=bias, activation_function=getattr(torch.nn, activation)())
    model, folder = saved(Pooling(32), dense)
    found = Encoder.load(folder, device="cpu").encode(TEXTS).embeddings.numpy()
    np.testing.assert_allclose(found, unit(model.encode(TEXTS)), atol=1e-5)


@pytest.mark.parametrize("width", [32, 12])
def test_a_dense_stage_with_a_residual_equals_its_own_encode(saved, width):
    from sentence_transformers.models import Dense, Pooling

    model, folder = saved(Pooling(32), Dense(32, width, use_residual=True))
    found = Encoder.load(folder, device="cpu").encode(TEXTS).embeddings.numpy()
    np.testing.assert_allclose(found, unit(model.encode(TEXTS)), atol=1e-5)


def test_stages_are_applied_in_their_order(saved):
    from sentence_transformers.models import Dense, LayerNorm, Pooling

    first, folder = saved(Pooling(32), LayerNorm(32), Dense(32, 12))
    found = Encoder.load(folder, device="cpu").encode(TEXTS).embeddings.numpy()
    np.testing.assert_allclose(found, unit(first.encode(TEXTS)), atol=1e-5)
    assert [type(stage).__name__ for stage in load_head(folder).stages] == ["LayerNorm", "Dense"]


def test_the_real_model_has_mean_pooling_and_normalize(minilm):
    head = load_head(minilm)
    assert head.pooling == "mean"
    assert [type(stage) for stage in head.stages] == [Normalize]
    assert Settings.of(minilm).transformer == minilm


def test_a_plain_transformers_folder_gets_mean_pooling(bare):
    head = load_head(bare)
    assert (head.pooling, len(head.stages)) == ("mean", 0)
    from sentence_transformers import SentenceTransformer

    expected = unit(SentenceTransformer(str(bare), device="cpu").encode(TEXTS))
    np.testing.assert_allclose(Encoder.load(bare, device="cpu").encode(TEXTS).embeddings, expected, atol=1e-5)


def test_a_transformer_in_its_own_folder_is_found(saved):
    from sentence_transformers.models import Pooling

    model, folder = saved(Pooling(32))
    (folder / "0_Transformer").mkdir()
    for file in folder.glob("*.*"):
        if file.name != "modules.json":
            file.rename(folder / "0_Transformer" / file.name)
    modules = json.loads((folder / "modules.json").read_text("utf-8"))
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    assert Settings.of(folder).transformer == folder / "0_Transformer"
    # So the folders of sentence-transformers before its version 2 were, with a config.json of its own at the root.
    (folder / "config.json").write_text(json.dumps({"__version__": "0.4.1"}), "utf-8")
    found = Encoder.load(folder, device="cpu").encode(TEXTS).embeddings.numpy()
    np.testing.assert_allclose(found, unit(model.encode(TEXTS)), atol=1e-5)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["new", "legacy"])
def test_max_pooling_is_refused_by_name(saved, form):
    from sentence_transformers.models import Pooling

    _, folder = saved(Pooling(32, pooling_mode="max"))
    if form == "legacy":
        rewrite(folder, "1_Pooling", legacy("max"))
    with pytest.raises(ModelError, match="pools by max; supported poolings: cls, mean, weightedmean, lasttoken"):
        Encoder.load(folder)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"pooling_mode": ["cls", "mean"]}, "cls + mean"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, "cls + max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len_tokens"),
        ({"pooling_mode_weightedmean_tokens": True, "pooling_mode_mean_tokens": True}, "mean + weightedmean"),
        ({"pooling_mode": []}, "nothing"),
    ],
)
def test_other_poolings_and_two_at_once_are_refused_by_name(saved, config, named):
    from sentence_transformers.models import Pooling

    _, folder = saved(Pooling(32))
    rewrite(folder, "1_Pooling", lambda _: config)
    with pytest.raises(ModelError, match=f"pools by {named.replace('+', '[+]')}; supported poolings"):
        load_head(folder)


def test_an_unknown_stage_is_refused_by_name(saved):
    from sentence_transformers.models import LSTM, Pooling

    _, folder = saved(Pooling(32), LSTM(32, 8))
    with pytest.raises(ModelError, match="LSTM'"):
        Encoder.load(folder)


@pytest.mark.parametrize(
    "kinds", [[], ["Transformer"], ["Dense", "Pooling"], ["Transformer", "Normalize"], ["Pooling", "Transformer"]]
)
def test_other_orders_of_stages_are_refused_with_what_was_found(tmp_path, kinds):
    modules = [{"idx": i, "path": str(i), "type": f"sentence_transformers.models.{kind}"} for i, kind in enumerate(kinds)]
    (tmp_path / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(ModelError) as error:
        load_head(tmp_path)
    assert f"has stages {kinds}; expected Transformer, Pooling and then others" in str(error.value)


def test_an_unknown_activation_is_refused_by_name(saved):
    from sentence_transformers.models import Dense, Pooling

    _, folder = saved(Pooling(32), Dense(32, 12, activation_function=torch.nn.Softplus()))
    with pytest.raises(ModelError, match="Softplus'; supported"):
        load_head(folder)


@pytest.mark.parametrize("key", ["module_input_name", "module_output_name"])
def test_a_dense_stage_on_tokens_is_refused(saved, key):
    from sentence_transformers.models import Dense, Pooling

    _, folder = saved(Pooling(32), Dense(32, 12))
    rewrite(folder, "2_Dense", lambda config: config | {key: "token_embeddings"})
    with pytest.raises(ModelError, match=f"{key} = 'token_embeddings'"):
        load_head(folder)


def test_a_stage_with_pickled_weights_is_refused(saved):
    from sentence_transformers.models import Dense, Pooling

    _, folder = saved(Pooling(32), Dense(32, 12))
    (folder / "2_Dense" / "model.safetensors").rename(folder / "2_Dense" / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"2_Dense has no model.safetensors; pickled weights are not loaded"):
        load_head(folder)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda config: config | {"out_features": 13}, id="another size"),
        pytest.param(lambda config: config | {"bias": False}, id="a weight too many"),
        pytest.param(lambda config: config | {"use_residual": True}, id="a weight too few"),
        pytest.param(lambda config: {"in_features": 32}, id="no size"),
    ],
)
def test_a_dense_stage_whose_files_do_not_fit_is_refused_in_a_sentence(saved, change):
    from sentence_transformers.models import Dense, Pooling

    _, folder = saved(Pooling(32), Dense(32, 12))
    rewrite(folder, "2_Dense", change)
    with pytest.raises(ModelError, match="2_Dense"):
        load_head(folder)


@pytest.mark.parametrize("config", [{"dimension": 31}, {}])
def test_a_layer_norm_whose_files_do_not_fit_is_refused_in_a_sentence(saved, config):
    from sentence_transformers.models import LayerNorm, Pooling

    _, folder = saved(Pooling(32), LayerNorm(32))
    rewrite(folder, "2_LayerNorm", lambda _: config)
    with pytest.raises(ModelError, match="2_LayerNorm"):
        load_head(folder)


@pytest.mark.parametrize("text", ["", "{", "nonsense"])
def test_a_modules_file_that_is_no_json_is_named(tmp_path, text):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelError, match=r"modules.json cannot be read as JSON"):
        load_head(tmp_path)


@pytest.mark.parametrize("text", ['{"a": 1}', "[1, 2]", '"x"', "null"])
def test_a_modules_file_of_another_shape_is_named(tmp_path, text):
    (tmp_path / "modules.json").write_text(text)
    with pytest.raises(ModelError, match=r"modules.json"):
        load_head(tmp_path)


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


@pytest.mark.parametrize("stage", ["Dense", "LayerNorm"])
def test_a_stage_that_asks_for_more_than_its_weights_takes_no_memory(tmp_path, stage):
    from safetensors.torch import save_file

    from tempscale.model.pooling import _fitting

    name, weight = ("linear.weight", torch.ones(4, 32)) if stage == "Dense" else ("norm.weight", torch.ones(32))
    save_file({name: weight}, str(tmp_path / "model.safetensors"))
    sizes = {"in_features": 10**7, "out_features": 10**7} if stage == "Dense" else {"dimension": 10**12}
    (tmp_path / "config.json").write_text(json.dumps(sizes))
    with pytest.raises(ModelError, match="32"):
        _fitting(stage, tmp_path)
