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
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    RESULT.write_text(json.dumps(measure(), indent=1) + "\n", "utf-8")
    print(f"written to {RESULT}; now: python docs/generate.py")
