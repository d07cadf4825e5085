"""How near our vectors are to sentence-transformers': `python docs/vectors.py` measures, `docs/generate.py` renders.

Every supported pooling, alone and with further stages, with and without a Normalize stage, under several windows.
"""

from __future__ import annotations

import json
import re
import tempfile
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tempscale.model.known_settings import Setting

HERE = Path(__file__).resolve().parent
RESULT = HERE.parent / "benchmarks" / "results" / "vectors.json"
STAGES = ("", "Dense", "Dense, LayerNorm")
WINDOWS = (None, 64, "limit")
"""The checkpoint's own, one that is asked for, and as many tokens as there are positions."""
_TEXTS = 60


def measure() -> dict[str, Any]:
    """The largest ‖a − b‖/‖b‖ over real texts, a ours and b sentence-transformers', for each head and window."""
    from tempscale.model.checkpoint import default_model
    from tempscale.model.pooling import POOLINGS
    from tempscale_jobs.config.sections import Corpus
    from tempscale_jobs.corpus import sources

    rows = sources.rows(Corpus.model_validate({"source": "docstrings:pyarrow"}))
    texts = sorted((row.text for row in rows), key=lambda text: (len(text), text))
    texts = texts[:: len(texts) // _TEXTS]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (pooling, stages, normalised) in enumerate(
            (p, s, n) for p in POOLINGS for s in STAGES for n in (False, True)
        ):
            place = Path(folder) / str(number)
            _save(place, pooling, stages, normalised)
            named = {"model": "a random BERT", "pooling": pooling, "stages": stages, "normalised": normalised}
            found += [named | _compared(place, window, texts) for window in WINDOWS]
    real = {"model": "all-MiniLM-L6-v2", "pooling": "mean", "stages": "", "normalised": True}
    found += [real | _compared(Path(default_model()), window, texts) for window in WINDOWS]
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "sentence-transformers")}
    return {"texts": len(texts), "versions": versions, "rows": found}


def _save(place: Path, pooling: str, stages: str, normalised: bool) -> None:
    """A random BERT with MiniLM's tokenizer and these stages, as sentence-transformers saves it."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Dense, LayerNorm, Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    from tempscale.model.checkpoint import default_model

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    bare = str(place / "bare")
    BertModel(BertConfig(vocab_size=30522, initializer_range=0.3, **sizes)).save_pretrained(bare)
    AutoTokenizer.from_pretrained(default_model()).save_pretrained(bare)
    further = [Dense(64, 32)] if "Dense" in stages else []
    further += [LayerNorm(32)] if "LayerNorm" in stages else []
    further += [Normalize()] if normalised else []
    modules = [Transformer(bare), Pooling(64, pooling_mode=pooling), *further]
    SentenceTransformer(modules=modules, device="cpu").save(str(place))
    (place / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 128, "do_lower_case": False}), "utf-8")


def _compared(folder: Path, window: Any, texts: list[str]) -> dict[str, Any]:
    import numpy as np
    from sentence_transformers import SentenceTransformer

    from tempscale import Encoder

    encoder, model = Encoder.load(folder, max_length=window, device="cpu"), SentenceTransformer(str(folder), device="cpu")
    if window is None:
        assert encoder.tokenizer.max_length == model.max_seq_length
    model.max_seq_length = encoder.tokenizer.max_length
    out, expected = encoder.encode(texts), model.encode(texts)
    away = np.linalg.norm((out.norms[:, None] * out.embeddings).numpy() - expected, axis=1)
    return {
        "asked": window, "window": encoder.tokenizer.max_length, "cut": int(out.truncated.sum()),
        "away": float((away / np.linalg.norm(expected, axis=1)).max()),
    }  # fmt: skip


def page() -> str:
    """docs/vectors.md with the measured differences and the settings of a model's files between its marks."""
    text = (HERE / "vectors.md").read_text("utf-8")
    for name, lines in {"differences": _differences(), "settings": _settings()}.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        part = "\n".join(["", *lines, "", ""])
        text, count = pattern.subn(lambda marks, part=part: f"{marks[1]}{part}{marks[2]}", text)
        assert count == 1, f"vectors.md has {count} marks of {name}"
    return text


def _differences() -> list[str]:
    """The largest difference of each pooling under each window, over further stages."""
    found = json.loads(RESULT.read_text("utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    largest: dict[tuple[str, str], dict[str, float]] = {}
    for row in found["rows"]:
        of_pooling = largest.setdefault((row["model"], row["pooling"]), {})
        window = {None: "its own", "limit": "its limit"}.get(row["asked"], str(row["asked"]))
        of_pooling[window] = max(of_pooling.get(window, 0.0), row["away"])
    windows = list(next(iter(largest.values())))
    stages = ", ".join(f"with {names.replace(', ', ' and ')}" for names in STAGES[1:])
    return [
        f"Measured by `python docs/vectors.py` on {found['texts']} docstrings, from a few to many hundreds of tokens, with",
        f"{versions}. Each cell is the largest of up to six: alone, {stages}, each with and without Normalize.",
        "",
        f"| model | pooling | {' | '.join(f'window: {window}' for window in windows)} |",
        "| --- | --- |" + " ---: |" * len(windows),
        *(f"| {model} | {pooling} | {' | '.join(f'{own[window]:.1e}' for window in windows)} |"
          for (model, pooling), own in largest.items()),
    ]  # fmt: skip


def _settings() -> list[str]:
    """The settings of a model's files, from `tempscale.model.known_settings`, by file and treatment."""
    from tempscale.model.known_settings import FILES, SETTINGS, STAGES

    places = {name: f"`config.json` of a {name} stage" if name in STAGES else f"`{name}`" for name in SETTINGS}
    groups = {places[name]: keys for name, keys in SETTINGS.items()}
    groups |= {"Class of a stage in `modules.json`": STAGES, "Files in the transformer's folder": FILES}
    lines = []
    for place, keys in groups.items():
        by_treatment: dict[str, dict[str, list[str]]] = {}
        for key, setting in keys.items():
            of_treatment = by_treatment.setdefault(treatment(setting), {})
            of_treatment.setdefault(setting.reason, []).append(f"`{key}`")
        lines += ["", f"**{place}**", ""]
        lines += [
            f"- {name}: "
            + " ".join(f"{', '.join(own)} {'each ' * (len(own) > 1)}{reason}." for reason, own in found.items())
            for name, found in by_treatment.items()
        ]
    return lines[1:]


def treatment(setting: Setting) -> str:
    """How a setting is treated, with the values that are obeyed where others are refused."""
    only = " or ".join(f"`{value!r}`" for value in setting.only if value is not None)
    where = f" in {', '.join(sorted(setting.families))}" if setting.families else ""
    return f"obeyed if {only}, else refused{where}" if only else setting.treatment


if __name__ == "__main__":
    RESULT.write_text(json.dumps(measure(), indent=1) + "\n", "utf-8")
    print(f"written to {RESULT}; now: python docs/generate.py")
