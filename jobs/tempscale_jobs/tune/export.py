"""A temperature or a correction in a checkpoint on disk, with its model card: a plain model that any server serves."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import ModelCard, ModelCardData

import tempscale
from tempscale.model import checkpoint
from tempscale.temperature import saving
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.fitted import Saved
from tempscale_jobs.errors import RunError, UsageError
from tempscale_jobs.tune.correction_stages import Stage, add, sides

_COPIED = ("*.json", "*.txt", "*.model", "*.jinja")
_LEFT = ("model.safetensors.index.json", "data_config.json", "trainer_state.json")
_PROBES = [
    "short",
    "Embeddings of long texts drift together.",
    "Self-attention is a low-pass filter that gets stronger with length, so the embeddings of long texts drift together; "
    "dividing the attention logits by a temperature counters it. " * 12,
]
_TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2, "float16": 5e-3}


class Exported(NamedTuple):
    """What `export` left."""

    folder: str
    difference: float
    """Largest |difference| of embeddings between this checkpoint and the base model with the temperature attached."""
    dtype: str
    sides: tuple[str, ...] = ("",)
    """The folders below it: one for each side where a correction treats documents and queries otherwise."""


def export(name: str, temperature: Temperature, out: str, saved: Saved | None = None) -> Exported:
    """Fold a temperature into a copy of a model, check the copy against the attached model, and write it to `out`.

    A schedule by length or by role, which weights cannot express, is written beside the weights, for `tempscale.load`.
    Every other weight, the tokenizer and the sentence-transformers stages are those of the base model. A `saved` correction
    becomes stages behind them; where its sides differ there is a folder for each.

    Raises:
        UsageError: the model, temperature or folder cannot be used.
        RunError: the copy does not compute what the base model with the temperature does; nothing is left.
    """
    target = Path(out).expanduser()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"--out '{out}' is there already and is not empty; choose another folder")
    try:
        source = checkpoint.resolve(name)
        _check_plain(name, source)
        stages: dict[str, Stage | None] = {"": None}
        if saved is not None:
            if not temperature.is_foldable:
                raise UsageError(
                    f"τ {temperature.canonical} cannot be folded into weights, so a checkpoint with a correction cannot "
                    "have it; export one of both"
                )
            _check_fitting(name, source, temperature, saved)
            stages = sides(saved.correction)
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
                _card(name, source, temperature, dtype, difference, saved, side).save(folder / "README.md")
                differences.append(difference)
            _readable(whole)
            os.replace(whole, target)
    except ValueError as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"--out '{out}' cannot be written: {error.strerror or error}") from None
    return Exported(str(target), max(differences), dtype, tuple(stages))


def _check_fitting(name: str, source: Path, temperature: Temperature, saved: Saved) -> None:
    """Raise if the correction is of other embeddings than this model gives under this temperature."""
    from tempscale.model.pooling import load_head

    known, own = saved.model, saved.correction
    if "fingerprint" in known and known["fingerprint"] != checkpoint.fingerprint(source):
        raise UsageError(f"the correction was fitted to embeddings of model {known.get('name')}, not of '{name}'")
    if "temperature" in known and known["temperature"] != temperature.canonical:
        raise UsageError(
            f"the correction was fitted to embeddings under τ {known['temperature']}, and this is τ {temperature.canonical}"
        )
    if (dimensions := load_head(source).width(_hidden(source))) != own.dim:
        raise UsageError(f"{own.canonical} is for embeddings of {own.dim} dimensions, and '{name}' gives {dimensions}")


def _check_plain(name: str, source: Path) -> None:
    """Raise for weights that folding would not reach."""
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
    """Write the folded model with copies of everything else; returns its precision."""
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
    # A pooler that the checkpoint never had is random: it is not made part of it.
    state = {key: value for key, value in model.state_dict().items() if key not in missing}
    model.save_pretrained(place, state_dict=state)
    _restore(inner / "config.json", place / "config.json", model)
    return str(model.dtype).removeprefix("torch.")


def _copy(source: Path, folder: Path, inner: Path) -> None:
    """Copy tokenizer, configuration and further stages, but no code, no pickles and no weights of the transformer itself."""
    for file in sorted(source.rglob("*")):
        relative = file.relative_to(source)
        if relative.parts[0] in ("onnx", "openvino") or any(part.startswith(".") for part in relative.parts):
            continue
        wanted = any(file.match(pattern) for pattern in _COPIED) or (
            file.suffix == ".safetensors" and file.parent not in (source, inner)
        )
        if file.is_file() and wanted and file.name not in _LEFT:
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, folder / relative)


def _readable(folder: Path) -> None:
    """Give the files the permissions that new files have here; safetensors writes for its owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    for file in folder.rglob("*"):
        if file.is_file():
            file.chmod(0o666 & ~mask)


def _restore(before: Path, after: Path, model: Any) -> None:
    """Keep what the base model's config.json says, but for the class that is saved and what points to remote code."""
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
    """Largest difference of an embedding entry between the new checkpoint and the old one with the temperature attached.

    With a correction: its vectors as sentence-transformers gives them, against the old one's embeddings, corrected.
    """
    from tempscale.model.encoder import Encoder

    attached = Temperature(1.0) if temperature.is_foldable else saving.read(folder)
    new, old = Encoder.load(folder, attached, device="cpu"), Encoder.load(source, temperature, device="cpu")
    if temperature.roles:
        each = ((one.encode(_PROBES, moments=False, role=role) for one in (new, old)) for role, _ in temperature.roles)
        return max(float((one.embeddings - other.embeddings).abs().max()) for one, other in each)
    found, expected = new.encode(_PROBES, moments=False), old.encode(_PROBES, moments=False).embeddings
    if saved is None or (side == "documents" and not sides(saved.correction)[side]):
        return float((found.embeddings - expected).abs().max())
    corrected = saved.correction.queries(expected) if side == "queries" else saved.correction.documents(expected)
    return float((found.norms[:, None] * found.embeddings - corrected).abs().max())


def _card(
    name: str, source: Path, temperature: Temperature, dtype: str, difference: float, saved: Saved | None, side: str
) -> ModelCard:
    """The README.md of the checkpoint: base model, licence, revision, temperature, correction, and what users must do."""
    label = checkpoint.label(name)
    base = checkpoint.DEFAULT_NAME if label == checkpoint.DEMO_PACKAGE.replace("_", "-") else name
    on_hub = not Path(name).expanduser().is_dir() or base != name
    revision = source.name if source.parent.name == "snapshots" else None
    base_name, licence = base if on_hub else label, _licence(source)
    front = ModelCardData(
        library_name="sentence-transformers", pipeline_tag="sentence-similarity", base_model=base if on_hub else None,
        tags=["sentence-transformers", "feature-extraction", "tempscale"], **licence,
    )  # fmt: skip
    said = f"""# {base_name} with attention temperature {temperature.canonical}

`{base_name}` with its attention logits divided by the temperature: A = softmax(QKᵀ / (τ√d)), τ = {temperature.canonical}
(Length-Induced Embedding Collapse, arXiv 2410.24200, eq. 6). The temperature is folded into the query weights, so this is
a plain checkpoint: sentence-transformers, transformers and any server of the base model run it as it is, at the same speed.
No weight was trained; every weight but the queries' (and the position bias's, where there is one) is the base model's.
"""
    use = """    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer("path/to/this/folder")
"""
    if not temperature.is_foldable:
        said = f"""# {base_name} with attention temperature {temperature.canonical}

`{base_name}` with a schedule of attention temperatures: A = softmax(QKᵀ / (τ√d)), τ = {temperature.canonical}
(Length-Induced Embedding Collapse, arXiv 2410.24200, eq. 6). Weights cannot express it, so it is in `{saving.FILE}`, and all
weights are the base model's. **A program that does not know the file loads the base model, without a word:** load it with
tempscale (`pip install tempscale`).
"""
        use = """    import tempscale as ts
    model = ts.load("path/to/this/folder")     # a SentenceTransformer; use encode_query and encode_document
"""
    rows = ""
    if saved is not None:
        own, of = saved.correction, f"{side or 'documents and queries'}"
        also = "" if temperature.canonical == "1.0" else f" and attention temperature {temperature.canonical}"
        said = f"""# {base_name} with the correction {own.canonical} of {of}{also}

`{base_name}` whose embeddings of {of} are corrected by stages behind its own: each is scaled to unit length, a mean is taken
off, and a matrix applied, where the correction has one. They were fitted to a corpus and to what asks it, without training;
see <https://github.com/tempscale/tempscale>, docs/short-texts-win.md. This is a plain checkpoint: sentence-transformers and
any server that runs its Dense stages run it as it is. Compare vectors by the inner product.
"""
        rows = f"| correction | `{own.canonical}`, of {of} |\n| sha256 of the correction | `{own.digest}` |\n"
    return ModelCard(f"""---
{front.to_yaml()}
---

{said}
**Embed queries and the whole index again, together.** Vectors of this checkpoint and of the base model do not mix: a query
embedded by one is not comparable with documents embedded by the other.

{use}
| | |
|---|---|
| base model | `{base_name}` |
| revision | {f"`{revision}`" if revision else "unknown: it was a local folder"} |
| licence | {licence.get("license_name") or licence.get("license") or "the base model's"} |
| sha256 of its weights, configuration and tokenizer | `{checkpoint.fingerprint(source)}` |
| attention temperature | `{temperature.canonical}` |
{rows}| precision | {dtype} |
| largest difference from the base model with the temperature attached | {difference:.1g} |
| written by | tempscale {tempscale.__version__} |

The licence is the base model's.
""")


def _licence(source: Path) -> dict[str, Any]:
    """What the base model's own card says of its licence; nothing where there is no card, or none that can be read."""
    card = source / "README.md"
    if not card.is_file():
        return {}
    try:
        said = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # A card that cannot be read costs no export.
        return {}
    return {key: str(said[key]) for key in ("license", "license_name", "license_link") if said.get(key)}
