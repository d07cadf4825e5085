"""How large a job is, for docs/operations.md: `python docs/sizing.py` measures rates, `docs/generate.py` renders them.

The estimates are those of `tempscale audit --plan` (audit/plan.py), from rates measured on one core of this machine for
the real MiniLM and for a random model of 24 layers and 1,024 dimensions: time does not depend on the weights.
"""

from __future__ import annotations

import io
import json
import re
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from threadpoolctl import threadpool_limits

from tempscale_jobs.audit import plan
from tempscale_jobs.config.audit import resolve, with_quick_start
from tempscale_jobs.config.sections import QUICK_START_CORPUS
from tempscale_jobs.runs.journal import duration

HERE = Path(__file__).resolve().parent
RATES = HERE.parent / "benchmarks" / "results" / "sizing.json"
TEXTS, CORES = (10_000, 100_000, 1_000_000), (2, 16)
_TEXTS_OF_LARGE = 12
QUICK_START = {"corpus": {"source": QUICK_START_CORPUS}}


def rendered(page: str, found: dict[str, Any]) -> str:
    """The page with the measured tables between its marks."""
    printed = "".join(f"    {line}\n" for line in found["printed"])
    parts = {"plan": f"Of the quick start's texts it prints:\n\n{printed}", "sizing": _table(found)}
    for name, part in parts.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end of {name} -->)", re.DOTALL)
        page, count = pattern.subn(lambda marks, part=part: f"{marks[1]}\n{part}\n{marks[2]}", page)
        assert count == 1, f"operations.md has {count} marks of {name}"
    return page


def page() -> str:
    """docs/operations.md with the current rates."""
    return rendered((HERE / "operations.md").read_text("utf-8"), json.loads(RATES.read_text("utf-8")))


def _table(found: dict[str, Any]) -> str:
    """Time, memory and disk by texts and model, under the default configuration."""
    settings = resolve({"corpus": {"source": "texts.parquet"}})
    lines = [
        f"Estimates of the same code for the default configuration (τ 1.0 and 0.8), from rates measured on one core of "
        f"{found['processor']}, for texts with a mean of {found['models'][0]['rates']['mean_tokens']:.0f} tokens:",
        "",
        f"| model | texts | {' | '.join(f'{n} cores: time | memory' for n in CORES)} | disk |",
        "| --- | --- | " + "--- | " * (2 * len(CORES) + 1),
    ]
    for model in found["models"]:
        rates = plan.Rates(**model["rates"])
        for texts in TEXTS:
            plans = [plan.estimated(settings, texts, [rates], cores) for cores in CORES]
            each = " | ".join(f"{duration(one.seconds)} | {_gib(one.memory_bytes)}" for one in plans)
            lines.append(
                f"| {model['name']}, {rates.width:,} dimensions | {texts:,} | {each} | {_gib(plans[0].disk_bytes)} |"
            )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def measure() -> dict[str, Any]:
    """Rates of both models on one core, and what `--plan` prints for the quick start."""
    from rich.console import Console

    from tempscale_jobs.corpus.preview import preview
    from tempscale_jobs.corpus.shards import Texts
    from tempscale_jobs.runs.folder import find_models
    from tempscale_jobs.runs.provenance import processor

    settings = resolve(QUICK_START)
    found, *_ = preview(Texts(settings.corpus, settings.embedding, settings.out), 2000, settings.seed, settings.out)
    texts = [item.text for item in found]
    small = plan.measured(settings, find_models(settings)[0], texts)
    with tempfile.TemporaryDirectory() as folder:
        settings = resolve(QUICK_START | {"embedding": {"models": [_large(folder)]}})
        large = plan.measured(settings, find_models(settings)[0], texts[:: len(texts) // _TEXTS_OF_LARGE])
    # The lengths of the whole corpus: those of so few texts would be chance.
    large = replace(large, mean_tokens=small.mean_tokens, long_share=small.long_share)
    named = (("all-MiniLM-L6-v2, 6 layers", small), ("a BERT of 24 layers", large))
    quick = resolve(with_quick_start({}) | {"execution": {"workers": 2}})
    screen = io.StringIO()
    plan.print_plan(quick, Console(file=io.StringIO()), Console(file=screen, width=110))
    printed = [line.rstrip() for line in screen.getvalue().splitlines() if line.strip()]
    models = [{"name": name, "rates": asdict(replace(rates, lengths=()))} for name, rates in named]
    return {"processor": processor(), "printed": printed, "models": models}


def _large(folder: str) -> str:
    """A random BERT of 24 layers and 1,024 dimensions, with MiniLM's tokenizer."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from tempscale.model.checkpoint import default_model

    torch.manual_seed(0)
    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    BertModel(BertConfig(vocab_size=30522, **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(default_model()).save_pretrained(folder)
    return folder


if __name__ == "__main__":
    with threadpool_limits(1):
        found = measure()
    RATES.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", "utf-8")
    print(f"written to {RATES}; now: python docs/generate.py")
