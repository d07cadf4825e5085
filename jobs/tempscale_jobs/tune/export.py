"""Write a temperature or a correction into a checkpoint with a model card: a plain model for any server."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tempscale.model import checkpoint
from tempscale.temperature import saving
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.fitted import Saved
from tempscale_jobs.errors import RunError, UsageError
from tempscale_jobs.tune.correction_stages import Stage, add, sides
from tempscale_jobs.tune.measured import measured
from tempscale_jobs.tune.model_card import Facts, model_card

_COPIED = ("*.json", "*.txt", "*.model", "*.jinja")
_LEFT = ("model.safetensors.index.json", "data_config.json", "trainer_state.json")
_PROBES = [
    "short",
    "Embeddings of long texts drift together.",
    "Some say that self-attention smooths more, the longer a text is, so that embeddings of long texts drift together; "
    "dividing the attention logits by a temperature is their remedy. " * 12,
]
_TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 5e-3}


class Exported(NamedTuple):
    """An exported checkpoint."""

    folder: str
    difference: float
    """Largest |difference| of embeddings from those of the base model with the temperature attached."""
    dtype: str
    sides: tuple[str, ...] = ("",)
    """The folders in it: one for each side if a correction treats documents and queries differently."""


def export(
    name: str, temperature: Temperature, out: str, saved: Saved | None = None, runs: Sequence[str] = ()
) -> Exported:  # fmt: skip
    """Write a copy of a model with a temperature folded in, and perhaps a correction, checked against the attached model."""
    # A schedule by length or by role, which weights cannot express, is written next to the weights, for `tempscale.load`. A
    # correction becomes stages behind the model's; where its sides differ there is a folder for each.
    target = Path(out).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"--out '{out}' is there already and is not empty; choose another folder")
    try:
        source = checkpoint.resolve(name)
        _check_plain(name, source)
        if saved is not None and not temperature.is_foldable:
            raise UsageError(
                f"τ {temperature.canonical} cannot be folded into weights, so a checkpoint with a correction cannot "
                "have it; export one of both"
            )
        fingerprint = checkpoint.fingerprint(source)
        stages: dict[str, Stage | None] = {"": None}
        if saved is not None:
            _check_fitting(name, source, fingerprint, temperature, saved)
            stages = sides(saved.correction)
        correction = None if saved is None else saved.correction.canonical
        figures = measured(runs, fingerprint, temperature, correction) if runs else ""
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as temporary:
            whole, differences = Path(temporary) / "model", []
            for side, stage in stages.items():
                folder = whole / side
                dtype = _write(source, temperature, folder)
                if stage is not None:
                    add(folder, stage, _hidden(folder))
                difference = _difference(source, folder, temperature, saved, side)
                if not difference <= _TOLERANCE.get(dtype, 1e-5):
                    raise RunError(
                        f"the exported model differs by {difference:.2g} from '{name}' with the temperature attached; "
                        "nothing was left"
                    )
                card = model_card(Facts(name, source, fingerprint, temperature, dtype, difference, saved, side, figures))
                card.save(folder / "README.md")
                differences.append(difference)
            _readable(whole)
            os.replace(whole, target)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"--out '{out}' cannot be written: {error.strerror or error}") from None
    return Exported(str(target), max(differences), dtype, tuple(stages))


def _check_fitting(name: str, source: Path, fingerprint: str, temperature: Temperature, saved: Saved) -> None:
    """Raise if the correction does not fit embeddings of this model under this temperature."""
    from tempscale.model.pooling import load_head

    known, correction = saved.model, saved.correction
    if "fingerprint" in known and known["fingerprint"] != fingerprint:
        raise UsageError(f"the correction was fitted to embeddings of model {known.get('name')}, not of '{name}'")
    if "temperature" in known and known["temperature"] != temperature.canonical:
        raise UsageError(
            f"the correction was fitted to embeddings under τ {known['temperature']}, and this is τ {temperature.canonical}"
        )
    head = load_head(source)
    if head.truncate_dim is not None:
        raise UsageError(
            f"'{name}' keeps {head.truncate_dim} dimensions (truncate_dim) after all stages, so no correction can follow "
            "as a stage; tempscale correct applies it to embeddings"
        )
    if (dimensions := head.width(_hidden(source))) != correction.dim:
        raise UsageError(
            f"{correction.canonical} is for embeddings of {correction.dim} dimensions, and '{name}' gives {dimensions}"
        )


def _check_plain(name: str, source: Path) -> None:
    """Raise if the weights are quantised or an adapter, which folding does not change."""
    from tempscale.model.loading import check_family
    from tempscale.model.settings import Settings

    check_family(source)
    inner = Settings.of(source).transformer
    quantised = checkpoint.read_json(inner / "config.json").get("quantization_config")
    if quantised:
        method = quantised.get("quant_method", "unknown") if isinstance(quantised, dict) else quantised
        raise UsageError(f"model '{name}' is quantised ({method}); export the unquantised model and quantise it afterwards")
    if (inner / "adapter_config.json").is_file():
        raise UsageError(f"model '{name}' is an adapter; merge it into its base model and export that")


def _write(source: Path, temperature: Temperature, folder: Path) -> str:
    """Write the folded model with copies of everything else; return its precision."""
    from transformers.utils import logging as transformers_logging

    from tempscale.model.loading import load_transformer
    from tempscale.model.settings import Settings
    from tempscale.temperature.fold import fold

    transformers_logging.disable_progress_bar()
    model, missing = load_transformer(source, "auto")
    if temperature.is_foldable:
        fold(model, temperature)
    else:
        folder.mkdir(parents=True)
        saving.write(temperature, folder)
    inner = Settings.of(source).transformer
    _copy(source, folder, inner)
    place = folder / inner.relative_to(source)
    # A pooler that the checkpoint does not have is random, so it is not saved.
    state = {key: value for key, value in model.state_dict().items() if key not in missing}
    model.save_pretrained(place, state_dict=state)
    _restore(inner / "config.json", place / "config.json", model)
    return str(model.dtype).removeprefix("torch.")


def _copy(source: Path, folder: Path, inner: Path) -> None:
    """Copy tokenizer, configuration and further stages, but no code, no pickles and no weights of the transformer."""
    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source)
        if relative.parts[0] in ("onnx", "openvino") or any(part.startswith(".") for part in relative.parts):
            continue
        matches = any(file.match(pattern) for pattern in _COPIED) or (
            file.suffix == ".safetensors" and file.parent not in (source, inner)
        )
        if file.is_file() and matches and file.name not in _LEFT:
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / relative)


def _readable(folder: Path) -> None:
    """Give the files the usual permissions of new files; safetensors writes them for the owner only."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~mask)


def _restore(before: Path, after: Path, model: Any) -> None:
    """Keep the base model's config.json, except for the saved class and references to remote code."""
    config = json.loads(before.read_text("utf-8"))
    config["architectures"] = [type(model).__name__]
    for key in ("auto_map", "_name_or_path"):
        config.pop(key, None)
    after.write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def _hidden(folder: Path) -> int:
    """The width of token embeddings."""
    from transformers import AutoConfig

    from tempscale.model.settings import Settings

    return int(AutoConfig.from_pretrained(Settings.of(folder).transformer).hidden_size)


def _difference(source: Path, folder: Path, temperature: Temperature, saved: Saved | None, side: str) -> float:
    """Largest difference of an embedding entry from the base model's with the temperature attached, corrected if `saved`."""
    from tempscale.model.encoder import Encoder

    attached = Temperature(1.0) if temperature.is_foldable else saving.read(folder)
    new, old = Encoder.load(folder, attached, device="cpu"), Encoder.load(source, temperature, device="cpu")
    if temperature.roles:
        outputs = (
            (encoder.encode(_PROBES, moments=False, role=role) for encoder in (new, old)) for role, _ in temperature.roles
        )
        return max(float((one.embeddings - other.embeddings).abs().max()) for one, other in outputs)
    output, expected = new.encode(_PROBES, moments=False), old.encode(_PROBES, moments=False).embeddings
    if saved is None or (side == "documents" and not sides(saved.correction)[side]):
        return float((output.embeddings - expected).abs().max())
    corrected = saved.correction.queries(expected) if side == "queries" else saved.correction.documents(expected)
    return float((output.norms[:, None] * output.embeddings - corrected).abs().max())
