"""From token embeddings to a text embedding: the stages in a sentence-transformers `modules.json`.

Every stage is applied or refused by name; none is skipped. As in sentence-transformers, a folder without `modules.json` gets
mean pooling, or the last token if its model is generative.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from torch import Tensor, nn

from tempscale.model.checkpoint import ModelError, read_json
from tempscale.model.known_settings import OLDER_POOLINGS, STAGES, check
from tempscale.model.settings import Settings
from tempscale.second_order.moments import power_of_two

POOLINGS = ("cls", "mean", "weightedmean", "lasttoken")
"""The text embedding: the first token, the mean, the mean weighted by position (1, 2, …), or the last token."""
_LIBRARY = "sentence_transformers."
"""The start of a known stage's full name: another library's class of the same name may do anything."""
_ACTIVATIONS: dict[str, type[nn.Module]] = {
    "Tanh": nn.Tanh, "Identity": nn.Identity, "ReLU": nn.ReLU, "GELU": nn.GELU, "SiLU": nn.SiLU, "Sigmoid": nn.Sigmoid,
}  # fmt: skip


class Head(nn.Module):
    """Pooling and the stages after it; the output is a unit vector and the norm that the stages gave it."""

    def __init__(
        self, pooling: str, stages: list[nn.Module], include_prompt: bool = True, truncate_dim: int | None = None
    ) -> None:
        super().__init__()
        self.pooling = pooling
        self.truncate_dim = truncate_dim
        """The first dimensions of the result that are kept; None for all."""
        self.include_prompt = include_prompt
        """Whether the tokens of a prompt are pooled too; otherwise prompts are refused."""
        self.stages = nn.Sequential(*stages)

    def forward(
        self, hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]
    ) -> tuple[Float[Tensor, "text out"], Float[Tensor, " text"]]:
        """Unit embeddings of right-padded token embeddings, and their norms before; the mask is True at tokens."""
        return self.finish(self.pool(hidden, mask))

    def pool(self, hidden: Float[Tensor, "text token dim"], mask: Bool[Tensor, "text token"]) -> Float[Tensor, "text dim"]:
        """The unscaled vector of each text before the further stages; for «mean» μ = (1/n)Σ_j x_j (S2 eq. 2)."""
        if self.pooling == "cls":
            return hidden[:, 0]
        if self.pooling == "lasttoken":
            return hidden[torch.arange(hidden.shape[0], device=hidden.device), mask.sum(1) - 1]
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        if self.pooling == "weightedmean":
            weight = weight * torch.arange(1, hidden.shape[1] + 1, device=hidden.device, dtype=hidden.dtype).unsqueeze(-1)
        return (hidden * weight).sum(1) / weight.sum(1)

    def finish(self, pooled: Float[Tensor, "text dim"]) -> tuple[Float[Tensor, "text out"], Float[Tensor, " text"]]:
        """Apply the further stages to the output of `pool`: u/‖u‖ and ‖u‖ of each result u; 0 stays 0."""
        result = self.stages(pooled)[:, : self.truncate_dim]
        scale = power_of_two(result)  # Squares of tiny or huge numbers vanish or overflow.
        scaled = result * scale
        unit = nn.functional.normalize(scaled, dim=-1, eps=torch.finfo(scaled.dtype).tiny)
        return unit, torch.linalg.vector_norm(scaled, dim=-1) / scale.squeeze(-1)

    def check_prompt(self, prompt: str) -> None:
        """Raise if texts cannot have this prompt under this head."""
        if prompt and not self.include_prompt:
            raise ModelError(
                "the model leaves the tokens of a prompt out of its pooling (include_prompt is false), which is not "
                "supported; embed its texts without prompts: --prompts none"
            )

    @property
    def keeps_means(self) -> bool:
        """Whether embeddings are the token means scaled to unit length, so that their cosine gives d_μ."""
        only_scaled = self.truncate_dim is None and all(isinstance(stage, (Normalize, nn.Identity)) for stage in self.stages)
        return only_scaled and self.pooling == "mean"

    def width(self, hidden: int) -> int:
        """Dimensions of a text embedding, given those of a token embedding."""
        for stage in self.stages:
            hidden = stage.linear.out_features if isinstance(stage, Dense) else hidden
        return hidden if self.truncate_dim is None else min(hidden, self.truncate_dim)


class Normalize(nn.Module):
    """Scale each embedding to unit length."""

    def forward(self, embeddings: Float[Tensor, "text dim"]) -> Float[Tensor, "text dim"]:
        """u/‖u‖; 0 stays 0."""
        return nn.functional.normalize(embeddings, dim=-1)


class Dense(nn.Module):
    """A linear layer, its activation and, if the checkpoint has one, a residual connection."""

    def __init__(self, linear: nn.Linear, activation: nn.Module, residual: nn.Module | None) -> None:
        super().__init__()
        self.linear, self.activation, self.residual = linear, activation, residual

    def forward(self, embeddings: Float[Tensor, "text dim"]) -> Float[Tensor, "text out"]:
        """activation(Wu + b), plus the residual if there is one; not scaled."""
        projected: Tensor = self.activation(self.linear(embeddings))
        return projected if self.residual is None else projected + self.residual(embeddings)


def load_head(folder: Path) -> Head:
    """The pooling and further stages of a model folder; those of `SentenceTransformer(folder)` if it names none."""
    settings = Settings.of(folder)
    modules = settings.stages
    if not (folder / "modules.json").is_file():
        return Head(_of_plain(folder), [])
    kinds = [_kind(str(module.get("type", "")), folder) for module in modules]
    if len(kinds) < 2 or kinds[0] != "Transformer" or kinds[1] != "Pooling":
        raise ModelError(f"{folder}/modules.json has stages {kinds}; expected Transformer, Pooling and then others")
    file = folder / modules[1]["path"] / "config.json"
    config = read_json(file)
    check("Pooling", config, file)
    stages = [_fitting(kind, folder / module["path"]) for kind, module in zip(kinds[2:], modules[2:], strict=True)]
    return Head(_pooling(config, folder), stages, bool(config.get("include_prompt", True)), settings.truncate_dim)


def _kind(name: str, folder: Path) -> str:
    """The class of a stage, if its full name is one of sentence-transformers."""
    kind = name.rsplit(".", 1)[-1]
    if not name.startswith(_LIBRARY) or kind not in STAGES:
        raise ModelError(f"{folder}/modules.json has a stage of the unknown type '{name}'; supported: {_supported()}")
    if STAGES[kind].treatment == "refused":
        raise ModelError(
            f"{folder}/modules.json has a stage '{name}', which {STAGES[kind].reason}; supported: {_supported()}"
        )
    return kind


def _supported() -> str:
    return ", ".join(kind for kind, setting in STAGES.items() if setting.treatment == "obeyed")


def _of_plain(folder: Path) -> str:
    """The pooling of a folder without stages: the last token if the model is generative, else the mean."""
    config = read_json(folder / "config.json")
    classes = config.get("architectures") if isinstance(config, dict) else None
    writes = isinstance(classes, list) and bool(classes) and str(classes[0]).endswith("ForCausalLM")
    return "lasttoken" if writes and config.get("is_causal", True) else "mean"


def _pooling(config: dict[str, Any], folder: Path) -> str:
    mode = config.get("pooling_mode")
    modes = [mode] if isinstance(mode, str) else list(mode or [])
    if "pooling_mode" not in config:
        modes = [name for key, name in OLDER_POOLINGS.items() if config.get(key)] or ["mean"]
    if len(modes) != 1 or modes[0] not in POOLINGS:
        names = " + ".join(map(str, modes)) or "nothing"
        raise ModelError(f"{folder} pools by {names}; supported poolings: {', '.join(POOLINGS)}")
    return str(modes[0])


def _fitting(kind: str, folder: Path) -> nn.Module:
    """The stage, or a ModelError if its configuration and weights do not fit each other."""
    try:
        return _stage(kind, folder)
    except ModelError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = (
            f"{type(error).__name__} {str(error).strip().splitlines()[-1].strip() if str(error).strip() else ''}".strip()
        )
        raise ModelError(f"{folder}: the {kind} stage's config.json and model.safetensors do not fit: {reason}") from None


def _stage(kind: str, folder: Path) -> nn.Module:
    file = folder / "config.json"
    config = {} if kind in ("Normalize", "Dropout") and not file.is_file() else read_json(file)
    if kind in ("Transformer", "Pooling"):
        raise ModelError(f"{folder}: a second stage '{kind}' is not supported")
    check(kind, config, file)
    if kind == "Normalize":
        return Normalize()
    if kind == "Dropout":
        return nn.Identity()
    if kind == "Dense":
        return _dense(config, folder)
    loaded = {key.removeprefix("norm."): value for key, value in _weights(folder).items()}
    _check_shape(loaded["weight"], (int(config["dimension"]),))
    norm = nn.LayerNorm(int(config["dimension"]))
    norm.load_state_dict(loaded)
    return norm


def _check_shape(weight: Tensor, shape: tuple[int, ...]) -> None:
    """Raise unless weights have the shape in config.json, before memory of that size is allocated."""
    if weight.shape != shape:
        raise ValueError(f"config.json says weights of shape {list(shape)}, and the file has {list(weight.shape)}")


def _dense(config: dict[str, Any], folder: Path) -> Dense:
    name = str(config.get("activation_function", "torch.nn.Tanh"))
    activation = name.rsplit(".", 1)[-1]
    if not name.startswith("torch.nn.") or activation not in _ACTIVATIONS:
        raise ModelError(
            f"{folder}/config.json has activation_function '{name}'; supported, all of torch.nn: {', '.join(_ACTIVATIONS)}"
        )
    size_in, size_out = int(config["in_features"]), int(config["out_features"])
    loaded = _weights(folder)
    _check_shape(loaded["linear.weight"], (size_out, size_in))
    residual: nn.Module | None = None
    if config.get("use_residual"):
        residual = nn.Identity() if size_in == size_out else nn.Linear(size_in, size_out, bias=False)
    dense = Dense(nn.Linear(size_in, size_out, bias=bool(config.get("bias", True))), _ACTIVATIONS[activation](), residual)
    dense.load_state_dict(loaded)
    return dense


def _weights(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    file = folder / "model.safetensors"
    if not file.is_file():
        raise ModelError(f"{folder} has no model.safetensors; pickled weights are not loaded")
    return load_file(str(file))
