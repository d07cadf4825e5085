"""The commands over finished runs: a checkpoint of a chosen temperature, the record of nights, reports, and the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tempscale_jobs.cli.options import AS_JSON, argument, option
from tempscale_jobs.cli.start import answered

if TYPE_CHECKING:
    from tempscale_jobs.report.sections import Section

app = typer.Typer()
_MOST = 1_000_000
"""Most nights that an option may name, because a table cannot be cut at a number of any size."""
_WITH_REPORT = ("audit", "diagnose", "evaluate", "pairs", "tune", "verify")
"""The commands whose runs have a report."""


@app.command(
    rich_help_panel="Temperature",
    epilog="Exit codes: 0 written · 2 the model, temperature, correction or folder cannot be used.\n\n"
    "Embed queries and the whole index again, together: vectors of the two models do not mix.",
)
@answered
def export(
    out: Annotated[
        str, option("Model and temperature", "The new checkpoint's folder; must be new or empty.", metavar="DIR")
    ],
    model: Annotated[
        str | None,
        option("Model and temperature", "Folder or hub name (default: the installed demo MiniLM).", metavar="M"),
    ] = None,
    tau: Annotated[float | None, option("Model and temperature", "Attention temperature in (0, 2].", metavar="T")] = None,
    temperature: Annotated[
        str | None,
        option(
            "Model and temperature",
            "One by layer, head, length or role as data, TOML or JSON: by_layer = [1.0, 0.9, …].",
            metavar="FILE",
        ),
    ] = None,
    correction: Annotated[
        str | None,
        option(
            "Model and temperature",
            "A fitted correction, centre, whiten or remove_top, from corrections/ of a run of tempscale tune; where it "
            "treats documents and queries otherwise, DIR gets a folder for each.",
            metavar="FILE",
        ),
    ] = None,
    fitted_on: Annotated[
        str | None, option("Model and temperature", "Of a file with corrections of several tasks, whose.", metavar="TASK")
    ] = None,
    measured: Annotated[
        list[str] | None,
        option(
            "The model card",
            "A finished run of audit, evaluate or tune whose figures the card tells; repeat it for several.",
            metavar="RUN",
        ),
    ] = None,
    push: Annotated[
        str | None,
        option(
            "The hub",
            "Repository of the Hugging Face hub that gets the checkpoint, private unless --public; with a folder for each "
            "side, one for each: NAME-documents and NAME-queries.",
            metavar="USER/NAME",
        ),
    ] = None,
    public: Annotated[bool, option("The hub", "Make a new repository public.")] = False,
) -> None:
    """Fold a temperature, or a correction, into a plain safetensors checkpoint, with tokenizer, stages and a model card.

    Any server that runs the base model runs it. A schedule by length or role, which weights cannot express, is written
    beside them: tempscale.load gives a SentenceTransformer with it attached.
    """
    from tempscale_jobs.config.given import read_temperature, temperature_of
    from tempscale_jobs.errors import UsageError

    if (tau is not None and temperature is not None) or (tau is None and temperature is None and correction is None):
        raise UsageError("give either --tau T or --temperature FILE, or --correction FILE")
    if public and push is None:
        raise UsageError("--public is for the repository that --push names")
    if fitted_on is not None and correction is None:
        raise UsageError("--fitted-on names one of the corrections in a file; give it by --correction")
    value = temperature_of((1.0 if tau is None else tau) if temperature is None else read_temperature(temperature))
    from tempscale.model.checkpoint import default_model
    from tempscale_jobs.config import fitted
    from tempscale_jobs.tune.export import export as fold_and_write

    saved = None if correction is None else fitted.load(correction, fitted_on)
    repositories = dict[str, str]()
    if push is not None:
        from tempscale_jobs.tune import push as hub
        from tempscale_jobs.tune.correction_stages import sides

        for side in [""] if saved is None else sides(saved.correction):
            repositories[side] = f"{push}-{side}".rstrip("-")
            hub.check(repositories[side])  # Before anything is computed.
    checkpoint = fold_and_write(model or default_model(), value, out, saved, measured or ())
    if saved is not None:
        folders = ", ".join(f"{checkpoint.folder}/{side}".rstrip("/") for side in checkpoint.sides)
        _say(
            f"checkpoint: {folders}\n"
            f"  correction {saved.correction.canonical}, {checkpoint.dtype}; largest difference from correcting embeddings: "
            f"{checkpoint.difference:.1g}\n"
            "  compare vectors by the inner product"
        )
    else:
        _say(
            f"checkpoint: {checkpoint.folder}\n"
            f"  temperature {value.canonical}, {checkpoint.dtype}; largest difference from attaching it: "
            f"{checkpoint.difference:.1g}\n"
            + ("" if value.is_foldable else "  no weight can express it: load the folder with tempscale.load\n")
            + "  embed queries and the whole index again, together: vectors of the two models do not mix"
        )
    for side, name in repositories.items():
        what = value.canonical if saved is None else saved.correction.canonical
        _say(f"  pushed to {hub.push(name, f'{checkpoint.folder}/{side}'.rstrip('/'), f'tempscale export: {what}', public)}")


@app.command(
    rich_help_panel="Nights",
    epilog="Exit codes: 0 done · 2 the folder holds no record, or the options do not fit.\n\nExamples:\n\n"
    "  tempscale history nights                          every night's figures with their errors, and a page of them\n\n"
    "  tempscale history nights --accept 2026-11-25      that change was meant: later nights are compared with it\n\n"
    "  tempscale history nights --prune --keep 7         embeddings of the last seven nights stay, tables of all",
)
@answered
def history(
    folder: Annotated[str, argument("FOLDER", "The folder of the nights, or of their record.")],
    accept: Annotated[
        str | None,
        option(
            "The gate",
            "Accept a run on purpose, by its night, id or folder: it may then be the baseline `latest`.",
            metavar="RUN",
        ),
    ] = None,
    prune: Annotated[
        bool,
        option("The run", "Remove the embeddings of old nights; tables, reports and the record stay.", "--prune"),
    ] = False,
    keep: Annotated[
        int | None, option("The run", "prune: nights whose embeddings stay.", metavar="N", min=1, max=_MOST)
    ] = None,
    last: Annotated[int, option("The run", "How many nights to print.", metavar="N", min=1, max=_MOST)] = 30,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Print and draw the record of nights; accept a run as baseline; remove old nights' embeddings."""
    from tempscale_jobs.errors import UsageError

    if prune != (keep is not None):
        raise UsageError("--prune and --keep N belong together: tempscale history FOLDER --prune --keep 7")
    if prune and accept is not None:
        raise UsageError("--accept and --prune are two things; do one after the other")
    if as_json and (prune or accept is not None):
        raise UsageError("--json prints the record; leave it out with --accept and --prune")
    from tempscale_jobs.nights import night, record, terminal
    from tempscale_jobs.nights import page as nights_page
    from tempscale_jobs.report import page
    from tempscale_jobs.report.screen import print_table, screen
    from tempscale_jobs.runs.storage import Storage
    from tempscale_jobs.urls import masked

    storage = record.open_record(folder)
    if accept is not None:
        row = record.accept(storage, accept)
        _say(f"accepted: the night of {row['night']} (run {row['run']}); later nights are compared with it")
        return
    if keep is not None:
        removed = night.prune_record(storage, None, keep)
        _say(f"the embeddings of {len(removed)} nights removed: {', '.join(removed)}" if removed else "nothing to remove")
        return
    nights, damaged = record.read(storage)
    for sentence in record.damage_in_words(damaged, storage):
        _say(sentence)
    if nights.is_empty():
        raise UsageError(f"the record in '{masked(storage.root)}' holds no run that can be read")
    if as_json:
        print(terminal.document_of_nights(storage.root, nights).as_json())
        return
    print_table(screen(), nights_page.heads(), nights_page.table(nights, last))
    for line in nights_page.reasons(nights, last):
        screen().print(line, highlight=False, soft_wrap=True, markup=False)
    storage.write("history.html", page.page(nights_page.report_of(nights), {}).html.encode())
    place = Storage(storage.root).path("history.html") if storage.is_local else f"{masked(storage.root)}/history.html"
    screen().print(f"\ndrawn   {place}", highlight=False, soft_wrap=True, markup=False)


@app.command(
    rich_help_panel="Nights",
    epilog="Exit codes: 0 done · 2 one of the folders holds no finished audit.\n\nExample:\n\n"
    "  tempscale compare nights/2026-11-24 nights/2026-11-25\n\n"
    "  tempscale compare runs/today runs/new-model --threshold .8",
)
@answered
def compare(
    run_a: Annotated[str, argument("RUN_A", "The folder of a finished audit.")],
    run_b: Annotated[str, argument("RUN_B", "The folder of another one, later.")],
    threshold: Annotated[
        list[float] | None,
        option(
            "The run",
            "A cosine that you accept pairs from in RUN_A: what replaces it in RUN_B (default, under another model or "
            "temperature: those that 1 % and 0.1 % of random pairs reach). Repeatable.",
            "--threshold",
            metavar="C",
        ),
    ] = None,
    out: Annotated[str | None, option("The run", "Also write what was found as Parquet tables.", metavar="DIR")] = None,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Say what changed from one audit to another, whether beyond noise, and what moved it.

    The model, the temperature or the corpus; which lengths; and the texts that moved most. Under another model or
    temperature also which nearest texts stay, and which thresholds replace those in use.
    """
    from tempscale_jobs.errors import visible
    from tempscale_jobs.nights import compare as comparing
    from tempscale_jobs.nights import terminal
    from tempscale_jobs.nights import words as sentences
    from tempscale_jobs.outlets import wrapped
    from tempscale_jobs.report.screen import Screen, print_table, screen
    from tempscale_jobs.urls import hidden, masked

    with Screen(stderr=True).status("comparing"):
        comparison = comparing.compare(run_a, run_b, threshold or ())
    if out is not None:
        comparison.write(out)
    if as_json:
        print(terminal.document_of_comparison(comparison).as_json())
        return
    paper = screen()
    for line in sentences.sentences(comparison):
        text = "\n".join(wrapped(visible(hidden(line)), "  ", "• "))
        paper.print(text, highlight=False, soft_wrap=True, markup=False)
    for heads, lines in sentences.tables(comparison):
        print_table(paper, heads, lines)
    if out is not None:
        paper.print(f"\ntables  {masked(out)}/", highlight=False, soft_wrap=True, markup=False)


@app.command(
    rich_help_panel="Upkeep",
    epilog="Exit codes: 0 written · 2 a folder holds no finished run, or one of another model."
    "\n\nExample:\n\n"
    "  tempscale report runs/audit --with runs/diagnose --with runs/evaluate",
)
@answered
def report(
    run: Annotated[str, argument("RUN", "The folder of a finished run.")],
    others: Annotated[
        list[str] | None,
        option(
            "The run",
            "A finished run of diagnose or evaluate whose findings an audit's report is to hold too.",
            "--with",
            metavar="RUN",
        ),
    ] = None,
) -> None:
    """Write report.html and figures/ again from the tables of a finished run.

    An audit's report also holds what `diagnose` and `evaluate` found of the same model, where --with names their runs.
    """
    from importlib import import_module

    from tempscale_jobs.errors import UsageError
    from tempscale_jobs.report.page import page
    from tempscale_jobs.runs import inventory
    from tempscale_jobs.runs.folder import REPORT, finished
    from tempscale_jobs.urls import masked

    storage = finished(run)
    record, tables = inventory.results(storage)
    if (command := record.get("command", "audit")) not in _WITH_REPORT:
        raise UsageError(f"'{masked(run)}' holds a run of tempscale {command}, which has tables and no report")
    if others and command != "audit":
        raise UsageError(f"--with adds other runs to an audit, and '{masked(run)}' holds a run of tempscale {command}")
    parts = [part for number, other in enumerate(others or []) for part in _findings(other, record, number)]
    report_of = import_module(f"tempscale_jobs.{command}.report").report_of
    page(report_of(tables, record, *([parts] if others else [])), record["config"]).write_to(storage)
    inventory.note(storage, [REPORT, *storage.list("figures")])
    _say(f"report: {masked(storage.root)}/report.html")


def _findings(folder: str, audited: dict[str, Any], number: int) -> list[Section]:
    """What a run of `diagnose` or `evaluate` found of each model of an audit; `number` keeps ids on the page apart."""
    from tempscale_jobs.diagnose import report as diagnose_report
    from tempscale_jobs.errors import UsageError
    from tempscale_jobs.evaluate import report as evaluate_report
    from tempscale_jobs.report.sections import Section
    from tempscale_jobs.runs import inventory
    from tempscale_jobs.runs.folder import finished
    from tempscale_jobs.urls import masked

    storage = finished(folder, "--with ")
    record, tables = inventory.results(storage)
    command = record.get("command", "audit")
    pages = {"diagnose": ("Layers", diagnose_report.parts_of), "evaluate": ("Downstream", evaluate_report.parts_of)}
    if command not in pages:
        raise UsageError(f"--with '{masked(folder)}' holds a run of tempscale {command}; give one of diagnose or evaluate")
    title, parts_of = pages[command]
    models = parts_of(tables, record, f"{title.lower()}{number}m")
    known = {model["fingerprint"] for model in audited["models"].values()}
    same = [model for model in models if record["models"][model.name]["fingerprint"] in known]
    if not same:
        raise UsageError(
            f"--with '{masked(folder)}' looks into {', '.join(model.name for model in models)}, and the audit has "
            f"{', '.join(audited['models'])}: no model is the same"
        )
    whole = f"The whole report: {masked(storage.root)}/report.html"
    return [Section(f"{title}: {part.name}", [part.answer, whole], parts=part.sections, folded=True) for part in same]


@app.command(rich_help_panel="Upkeep", epilog="Exit codes: 0 done · 2 the folder is no cache, or the options do not fit.")
@answered
def cache(
    folder: Annotated[str, argument("DIR", "The folder that --cache named.")],
    action: Annotated[str, argument("[list|prune]", "Say what it holds, or make it smaller.")] = "list",
    unused_for: Annotated[
        int | None,
        option(
            "The run",
            "prune: remove the embeddings of models and temperatures that no run used for so long.",
            metavar="DAYS",
            min=0,
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        option("The run", "prune: remove texts that none of these finished runs holds. Repeatable.", metavar="RUN"),
    ] = None,
) -> None:
    """Say what a cache of embeddings holds, or prune it; pruning also merges its many small files.

    Safe while a run uses the cache.
    """
    from rich.filesize import decimal

    from tempscale_jobs.errors import UsageError
    from tempscale_jobs.report.screen import Screen, print_table
    from tempscale_jobs.steps import prune as cache_upkeep

    console = Screen(stderr=True)
    if action not in ("list", "prune"):
        raise UsageError(f"'{action}' is nothing to do with a cache; say list or prune")
    if action == "list":
        if unused_for is not None or keep:
            raise UsageError("--unused-for and --keep belong to prune: tempscale cache DIR prune …")
        rows = [
            [h.values["name"], h.values["temperature"], f"{h.values.get('max_length')}", f"{h.values.get('precision')}",
             f"{h.texts:,}", f"{h.files:,}", decimal(h.bytes), h.values["last_used"]]
            for h in cache_upkeep.listed(folder)
        ]  # fmt: skip
        print_table(console, ["model", "τ", "window", "precision", "texts", "files", "size", "last used"], rows)
        return
    with console.status("pruning") as status:
        freed = cache_upkeep.prune(folder, unused_for, keep or [], lambda what: status.update(f"pruning {what}"))
    _say(f"freed {decimal(max(0, freed))}")


def _say(sentence: str) -> None:
    """Print to the terminal, not to where tables are printed."""
    from tempscale_jobs.report.screen import Screen

    Screen(stderr=True).print(sentence, highlight=False, markup=False, soft_wrap=True)
