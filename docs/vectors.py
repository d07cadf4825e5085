"""How near our vectors are to sentence-transformers': `python docs/vectors.py` measures, `docs/generate.py` renders.

Every supported pooling, alone and with further stages, with and without a Normalize stage, under several windows.
"""

from __future__ import annotations

import json
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

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
    """docs/vectors.md."""
    found = json.loads(RESULT.read_text("utf-8"))
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    lines = [
        "# Whose vectors these are",
        "",
        "Those of `SentenceTransformer(folder).encode(texts)` with its defaults: `out.norms[:, None] * out.embeddings`.",
        f"The table has the largest ‖a − b‖/‖b‖ over {found['texts']} docstrings, from a few to many hundreds of tokens,",
        "a being ours and b theirs.",
        "",
        f"Measured by `python docs/vectors.py` with {versions}; rendered by",
        "`python docs/generate.py`. The tests hold each below 1e-5",
        "(`tests/tempscale/model/test_vectors_of_users.py`), and scores to those of mteb with the plain model",
        "(`tests/jobs/evaluate/test_scores_of_users.py`).",
        "",
        "| model | pooling | further stages | Normalize | window | texts cut | largest difference |",
        "| --- | --- | --- | --- | ---: | ---: | ---: |",
    ]
    asked = {None: "its own, ", "limit": "limit, "}
    lines += [
        f"| {row['model']} | {row['pooling']} | {row['stages'] or '–'} | {'yes' if row['normalised'] else 'no'} "
        f"| {asked.get(row['asked'], '')}{row['window']} | {row['cut']} | {row['away']:.1e} |"
        for row in found["rows"]
    ]
    return "\n".join([*lines, *_settings()]) + "\n"


def _settings() -> list[str]:
    """The settings of a model's files, from `tempscale.model.known_settings`."""
    from tempscale.model.known_settings import CONFIG_NAMES, FILES, SETTINGS, STAGE, STAGES

    lines = [
        "",
        "## Which settings of a model are obeyed",
        "",
        "Obeyed: the vectors are those of `encode` with this setting. Refused: where it is set, the model is refused in",
        "a sentence that names file, key and value, and what to do. Harmless: it changes no vector. A key of these",
        "files that is not in the table is refused too. The tests compare the list with the installed",
        "sentence-transformers, build a model for each setting that is obeyed, and hold the difference below 1e-5",
        "(`tests/tempscale/model/test_known_settings.py`).",
        "",
        f"Where `{STAGE}` is absent or empty, the first of these is read in its place: {', '.join(CONFIG_NAMES[1:])}.",
        "A folder without",
        "`modules.json` is one of transformers alone: like `encode`, ours pools the mean of its tokens (the last token",
        "of a model that writes texts) and reads no file of sentence-transformers. It is refused if its tokenizer has a",
        "chat template, through which sentence-transformers 6 would send the texts.",
        "",
        "What transformers reads (`config.json`, the tokenizer's files) it obeys here as there, because it loads both.",
        "A key of `config.json` that the family's class does not declare is refused unless it is known to change no",
        "vector, is empty, or belongs to the author's own code (`auto_map`), which is never run. The older names of",
        "nomic_bert's settings must say what its class computes. Weights are computed",
        "in float32 or as `--precision` says, whatever precision they are stored in. Texts are padded on the right,",
        "whatever `padding_side` says; left is refused in the families whose positions count the padding (BERT, ELECTRA,",
        "ALBERT, DistilBERT), because there a shorter text of a batch gets other vectors.",
        "",
        "Version 5 has the same vectors but for two things: it removes white space around each text, and lower-cases",
        "with Python's `str.lower`. `python tests/sentence_transformers_cases.py 5.6.1` installs a version of it for",
        "itself and compares: with transformers 5.23.0 its 23 cases are at most 8.0e-07 apart.",
        "Prompts that pooling leaves out (`include_prompt`) are refused.",
        "",
        "| file | key | | what it does |",
        "| --- | --- | --- | --- |",
    ]
    places = {name: f"`config.json` of a {name} stage" if name in STAGES else f"`{name}`" for name in SETTINGS}
    groups = {places[name]: keys for name, keys in SETTINGS.items()}
    groups |= {"`modules.json`: class of a stage": STAGES, "the transformer's folder": FILES}
    for place, keys in groups.items():
        for key, setting in keys.items():
            only = " or ".join(f"`{value!r}`" for value in setting.only if value is not None)
            where = f" in {', '.join(sorted(setting.families))}" if setting.families else ""
            treatment = f"obeyed if {only}, else refused{where}" if only else setting.treatment
            lines.append(f"| {place} | `{key}` | {treatment} | {setting.reason} |")
    return lines


if __name__ == "__main__":
    RESULT.write_text(json.dumps(measure(), indent=1) + "\n", "utf-8")
    print(f"written to {RESULT}; now: python docs/generate.py")
