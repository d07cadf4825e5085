"""The model card of an exported checkpoint: base model, licence, temperature, correction, and advice for users."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import ModelCard, ModelCardData

import tempscale
from tempscale.model import checkpoint
from tempscale.temperature import saving
from tempscale.temperature.schedule import Temperature
from tempscale_jobs.config.fitted import Saved

TAG = "tempscale"
"""The tag of all these cards."""


class Facts(NamedTuple):
    """The facts about an exported checkpoint."""

    name: str
    """The base model's name."""
    source: Path
    """Its folder."""
    fingerprint: str
    """Its fingerprint."""
    temperature: Temperature
    dtype: str
    difference: float
    """The largest difference from the model under the temperature."""
    saved: Saved | None
    """Its correction, if any."""
    side: str
    """The side that is corrected; empty: both."""
    figures: str
    """Measurements as Markdown."""


def model_card(facts: Facts) -> ModelCard:
    """The README.md of a checkpoint."""
    name, source, fingerprint, temperature, dtype, difference, saved, side, figures = facts
    label = checkpoint.label(name)
    is_demo, is_folder = label == checkpoint.DEMO_PACKAGE.replace("_", "-"), Path(name).expanduser().is_dir()
    base = checkpoint.DEFAULT_NAME if is_demo else name if is_folder else name.partition("@")[0]  # NAME or NAME@REVISION
    on_hub = is_demo or not is_folder
    revision = source.name if source.parent.name == "snapshots" else None
    base_name, licence = base if on_hub else label, _licence(source)
    front = ModelCardData(
        library_name="sentence-transformers", pipeline_tag="sentence-similarity", base_model=base if on_hub else None,
        tags=["sentence-transformers", "feature-extraction", TAG], **licence,
    )  # fmt: skip
    introduction = f"""# {base_name} with attention temperature {temperature.canonical}

`{base_name}` with its attention logits divided by the temperature: A = softmax(QKᵀ / (τ√d)), τ = {temperature.canonical}
(Length-Induced Embedding Collapse, arXiv 2410.24200, eq. 6). The temperature is folded into the query weights, so this is
a plain checkpoint: sentence-transformers, transformers and any server of the base model run it as it is, at the same speed.
No weight was trained; every weight but the queries' (and the position bias's, where there is one) is the base model's.
"""
    use = """    from sentence_transformers import SentenceTransformer
    model = SentenceTransformer("path/to/this/folder")
"""
    if not temperature.is_foldable:
        introduction = f"""# {base_name} with attention temperature {temperature.canonical}

`{base_name}` with a schedule of attention temperatures: A = softmax(QKᵀ / (τ√d)), τ = {temperature.canonical}
(Length-Induced Embedding Collapse, arXiv 2410.24200, eq. 6). Weights cannot express it, so it is in `{saving.FILE}`, and all
weights are the base model's. **A program that does not know the file loads the base model, without a word:** load it with
tempscale.
"""
        use = """    import tempscale as ts
    model = ts.load("path/to/this/folder")     # a SentenceTransformer; use encode_query and encode_document
"""
    rows = ""
    if saved is not None:
        correction, side = saved.correction, side or "documents and queries"
        also = "" if temperature.canonical == "1.0" else f" and attention temperature {temperature.canonical}"
        introduction = f"""# {base_name} with the correction {correction.canonical} of {side}{also}

`{base_name}` whose embeddings of {side} are corrected by stages behind its own: each is scaled to unit length, a mean
is taken off, and a matrix applied, where the correction has one. They were fitted to a corpus and to what asks it, by
tempscale, without training. This is a plain checkpoint: sentence-transformers and any server that runs its Dense stages run
it as it is. Compare vectors by the inner product.
"""
        rows = f"| correction | `{correction.canonical}`, of {side} |\n"
        rows += f"| sha256 of the correction | `{correction.digest}` |\n"
    return ModelCard(f"""---
{front.to_yaml()}
---

{introduction}
**Embed queries and the whole index again, together.** Vectors of this checkpoint and of the base model do not mix: a query
embedded by one is not comparable with documents embedded by the other.

{use}
| | |
|---|---|
| base model | `{base_name}` |
| revision | {f"`{revision}`" if revision else "unknown: it was a local folder"} |
| licence | {licence.get("license_name") or licence.get("license") or "the base model's"} |
| sha256 of its weights, configuration and tokenizer | `{fingerprint}` |
| attention temperature | `{temperature.canonical}` |
{rows}| precision | {dtype} |
| largest difference from the base model with the temperature attached | {difference:.1g} |
| written by | tempscale {tempscale.__version__} |

{figures}
The licence is the base model's.
""")


def _licence(source: Path) -> dict[str, Any]:
    """The licence from the base model's card; empty without a readable card."""
    card = source / "README.md"
    if not card.is_file():
        return {}
    try:
        metadata = ModelCard.load(card, ignore_metadata_errors=True).data.to_dict()
    except Exception:  # A card that cannot be read must not prevent the export.
        return {}
    return {key: str(metadata[key]) for key in ("license", "license_name", "license_link") if metadata.get(key)}
