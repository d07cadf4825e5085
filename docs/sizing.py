"""How large a job is, for docs/operations.md: `python docs/sizing.py` measures rates, `docs/generate.py` renders them.

The estimates are those of `tempscale audit --plan` (audit/plan.py), from rates measured on one core of this machine for
the real MiniLM and for a random model of 24 layers and 1,024 dimensions: time does not depend on the weights.
"""

from __future__ import annotations

import io
import json
import math
import re
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from threadpoolctl import threadpool_limits

from tempscale.collapse import tiles
from tempscale.collapse.aggregates import Precision
from tempscale_jobs.audit import plan
from tempscale_jobs.config.audit import resolve, with_quick_start
from tempscale_jobs.config.sections import QUICK_START_CORPUS
from tempscale_jobs.runs.journal import duration
from tempscale_jobs.steps.blocks import HELD_BYTES

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "benchmarks" / "results"
RATES = RESULTS / "sizing.json"
TEXTS, CORES = (10_000, 100_000, 1_000_000), (2, 16)
_TEXTS_OF_LARGE = 12
OF_ALL_PAIRS = {1_000_000: ("1.3 GB", "1.6 GB"), 10_000_000: ("18 GB", "16 GB"), 100_000_000: ("770 GB", "160 GB")}
"""Texts all of whose pairs are compared, the size of their lists of neighbours, and of their embeddings in blocks."""
CARDS, SHEET_OPERATIONS, LEAST_SHARE = (8, 64), 60e12, 0.1
"""Numbers of GPUs, and for a card that nobody has timed: its float32 operations a second, and the least share of them."""
DIM, READ_BYTES = 384, 200e6
"""Dimensions of the embeddings, and bytes that a GPU's threads read in a second, as from object storage."""
QUICK_START = {"corpus": {"source": QUICK_START_CORPUS}}


def rendered(page: str, found: dict[str, Any]) -> str:
    """The page with the measured tables between its marks."""
    printed = "".join(f"    {line}\n" for line in found["printed"])
    parts = {"plan": f"Of the quick start's texts it prints:\n\n{printed}", "sizing": _table(found)}
    parts["all pairs"] = _all_pairs(_cosine_rates(RESULTS))
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
        "Estimates of the same code for the default configuration (temperatures τ 1.0 and 0.8), from rates measured on one "
        f"core of {found['processor']}, for texts with a mean of {found['models'][0]['rates']['mean_tokens']:.0f} tokens:",
        "",
        f"| model | texts | {' | '.join(f'{n} cores: time | memory' for n in CORES)} | disk |",
        "| --- | --- | " + "--- | " * (2 * len(CORES) + 1),
    ]
    for model in found["models"]:
        rates = plan.Rates(**model["rates"])
        name = f"{model['name']}, {rates.width:,} dimensions"
        for texts in TEXTS:
            plans = [plan.estimated(settings, texts, [rates], cores) for cores in CORES]
            each = " | ".join(f"{duration(one.seconds)} | {_gib(one.memory_bytes)}" for one in plans)
            lines.append(f"| {name if texts == TEXTS[0] else ''} | {texts:,} | {each} | {_gib(plans[0].disk_bytes)} |")
    return "\n".join(line.rstrip() for line in lines) + "\n"


class Rate(NamedTuple):
    """Pairs a second of the cosine stage with ten nearest texts."""

    machine: str
    """The processor or the GPU;"""
    precision: str
    """of a GPU its precision, empty for a processor,"""
    pairs: float
    """pairs a second of one core or one GPU,"""
    dim: int
    """and the dimensions of the embeddings."""


def _cosine_rates(results: Path) -> list[Rate]:
    """Of every machine that was measured."""
    rates = []
    for file in sorted(results.glob("*.json")):
        found = json.loads(file.read_text("utf-8"))
        for row in found.get("results", []):
            if not row["what"].endswith("10 nearest") or row["unit"] != "pairs/s":
                continue
            if row["benchmark"] == "stage":
                rates.append(Rate(found["machine"]["processor"], "", row["rate"] / row["workers"], DIM))
            elif row["benchmark"] == "gpu":
                rates.append(Rate(found["machine"]["gpu"], row["what"].split(", ")[-2], row["rate"], 768))
    return rates


def _all_pairs(rates: list[Rate]) -> str:
    """What all pairs of very many texts take, by machine, from measured rates; of a GPU that was not timed the two ends."""
    slowest = min((rate for rate in rates if not rate.precision), key=lambda rate: rate.pairs)
    of_cards = {name: [rate for rate in rates if rate.precision == name] for name in get_args(Precision)}
    cards = [min(own, key=lambda rate: rate.pairs) for own in of_cards.values() if own]
    shown = cards if len(cards) < 3 else [cards[0], cards[-1]]  # tf32 is nearly as fast as bfloat16.
    heads = ["texts", "pairs", "16 cores", "1,000 cores"]
    heads += [f"{n} GPUs, {rate.precision}" for rate in shown for n in CARDS] or [f"{n} GPUs, not timed" for n in CARDS]
    lines = [
        f"Times are for each temperature, with {slowest.dim} dimensions and the ten nearest texts of each. One core "
        f"({slowest.machine}, [the stage on Ray](dev/performance.md#the-pairwise-stages-on-ray)) compares "
        f"{slowest.pairs / 1e6:.0f} million pairs a second{_of_cards(cards)}. Each GPU is taken to read blocks at "
        f"{READ_BYTES / 1e6:.0f} MB a second while it computes; the longer of both times counts.",
        "",
        f"| {' | '.join([*heads, 'lists of neighbours', 'embeddings in blocks', 'read by GPUs'])} |",
        "| " + "--- | " * (len(heads) + 3),
    ]
    sheet = SHEET_OPERATIONS / (2 * DIM)
    for texts, sizes in OF_ALL_PAIRS.items():
        pairs = texts * (texts - 1) / 2
        times = [_long(pairs / (slowest.pairs * n)) for n in (16, 1000)]
        reads = {n: _read_by_gpus(texts, n) / (READ_BYTES * n) for n in CARDS}
        times += [_long(max(pairs / (rate.pairs * n), reads[n])) for rate in shown for n in CARDS] or [
            f"{_long(max(pairs / sheet / n, reads[n]))} to {_long(pairs / sheet / LEAST_SHARE / n)}" for n in CARDS
        ]
        read = " to ".join(dict.fromkeys(f"{_read_by_gpus(texts, n) / 1e12:.2g} TB" for n in CARDS))
        lines.append(f"| {' | '.join([f'{texts:,}', f'5·10{_raised(pairs)}', *times, *sizes, read])} |")
    if not cards:
        lines += [
            "",
            f"No GPU has been timed, and those columns are computed: {SHEET_OPERATIONS / 1e12:.0f}·10¹² float32 operations "
            "a second, about what the data sheet of an H100 says, all used, and a tenth of them. `make gpu` times a card, "
            "and this table is then written from its rates.",
        ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _read_by_gpus(texts: int, gpus: int) -> float:
    """The bytes of blocks that GPUs read in all.

    Each pair of panels reads both, so the bytes grow with the square of the panels; a small corpus each GPU reads once.
    """
    block = tiles.block_size(texts, DIM)
    count = -(-texts // block)
    panel, size = tiles.panel_size(count, tiles.LARGEST_PANEL_OF_GPUS), 4.0 * DIM * block
    return gpus * count * size if count * size <= HELD_BYTES else (-(-count // panel)) ** 2 * panel * size


def _of_cards(cards: list[Rate]) -> str:
    """The rates of one card in words."""
    if not cards:
        return ""
    each = [f"{card.pairs / 1e9:.0f} in {card.precision}" for card in cards]
    listed = " and ".join(filter(None, [", ".join(each[:-1]), each[-1]]))
    return (
        f"; one GPU ({cards[0].machine}, [one super-tile without Ray](dev/performance.md#on-a-gpu)) in thousand millions "
        f"{listed}, with {cards[0].dim} dimensions. Several GPUs, which were not measured, count as their number times that"
    )


def _long(seconds: float) -> str:
    """Seconds in words, days from two on."""
    if seconds < 1:
        return "below 1 s"
    return f"{seconds / 86_400:.0f} days" if seconds >= 2 * 86_400 else duration(seconds)


def _raised(pairs: float) -> str:
    return f"{math.floor(math.log10(pairs * 1.1))}".translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f} GiB"


def measure() -> dict[str, Any]:
    """Rates of both models on one core, and what `--plan` prints for the quick start."""
    from rich.console import Console

    from tempscale_jobs.corpus.preview import preview
    from tempscale_jobs.corpus.shards import TextShards
    from tempscale_jobs.runs.folder import find_models
    from tempscale_jobs.runs.provenance import processor

    settings = resolve(QUICK_START)
    found, *_ = preview(TextShards(settings.corpus, settings.embedding, settings.out), 2000, settings.seed, settings.out)
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
