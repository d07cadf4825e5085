"""The `tempscale` command. Help and usage errors answer without importing torch or ray."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from jobs.config import AuditConfig

app = typer.Typer(
    name="tempscale",
    help="Do your text embeddings collapse, and what to do about it: a distributed audit on Ray.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXIT_CODES = (
    "Exit codes: 0 done · 1 done and the gate failed · 2 wrong usage, configuration or input · "
    "3 incomplete: the same command goes on where it stopped."
)


@app.callback(invoke_without_command=False)
def _tempscale() -> None:
    """Keep `tempscale audit` a sub-command."""


@app.command(
    epilog=_EXIT_CODES
    + "\n\nExamples:\n\n"
    + "  tempscale audit                                   the quick start: docstrings of installed packages\n\n"
    + "  tempscale audit --corpus texts.parquet --sample 20000 --out runs/mine\n\n"
    + "  tempscale audit --corpus 'logs/*.jsonl.gz' --text-column body --tau 1.0 --tau 0.9 --tau 0.8\n\n"
    + "  tempscale audit nightly.toml --workers 8"
)
def audit(
    config: Annotated[
        Path | None, typer.Argument(metavar="[CONFIG.toml]", help="A configuration; options given here win over it.")
    ] = None,
    corpus: Annotated[
        str | None,
        typer.Option(
            metavar="SRC",
            help="Parquet, JSONL, CSV or text: a file, folder or glob (local, s3://, gs://, hf://datasets/…); "
            "hf:NAME[:CONFIG][:SPLIT]; or docstrings:PKG,…",
            rich_help_panel="Texts",
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(help="Column of the ids (default: id where there is one, else a digest).", rich_help_panel="Texts"),
    ] = None,
    text_column: Annotated[
        str | None, typer.Option(help="Column of the texts (default: text).", rich_help_panel="Texts")
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="A seeded random sample of N texts, stable from night to night.", rich_help_panel="Texts"
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="The first N rows only.", rich_help_panel="Texts")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="M",
            help="Folder or hub name; repeat for several (default: the installed demo MiniLM).",
            rich_help_panel="Model and temperature",
        ),
    ] = None,
    tau: Annotated[
        list[float] | None,
        typer.Option(
            metavar="T",
            help="Attention temperature in (0, 2]; repeat it: changes are told against the first (default: 1.0 0.8).",
            rich_help_panel="Model and temperature",
        ),
    ] = None,
    temperature: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A temperature as data, TOML or JSON: constant = 0.8. Added after --tau.",
            rich_help_panel="Model and temperature",
        ),
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Cut texts at N tokens (default: the model's own limit).",
            rich_help_panel="Model and temperature",
        ),
    ] = None,
    intervals: Annotated[
        str | None,
        typer.Option(
            metavar="EDGES",
            help="Lower edges of the length intervals in tokens (default: 0,32,64,100,200,300,400,500).",
            rich_help_panel="What is measured",
        ),
    ] = None,
    socm_sample: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Texts whose pairs get SOCM; 0 leaves it out (default: 1000).",
            rich_help_panel="What is measured",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of every sample (default: 0).", rich_help_panel="What is measured")
    ] = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="The run folder (default: runs/audit).", rich_help_panel="The run")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume/--fresh", help="Go on with the run in --out, or start it over.", rich_help_panel="The run"),
    ] = True,
    text: Annotated[
        bool,
        typer.Option(
            "--text/--no-text",
            help="Whether excerpts of the worst pairs may stand in tables and report.",
            rich_help_panel="The run",
        ),
    ] = True,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Model actors and tile tasks at once (default: all cores or GPUs).", rich_help_panel="The run"
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="RAY",
            help="A Ray cluster, e.g. auto or ray://host:10001 (default: an in-process Ray).",
            rich_help_panel="The run",
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print the estimated texts, tokens, pairs, time, memory and disk, and stop.",
            rich_help_panel="The run",
        ),
    ] = False,
) -> None:
    """Measure length collapse and second-order collapse of a corpus, under each temperature.

    Without arguments: a seeded 2,000 of the docstrings of installed Python packages, τ 1.0 and 0.8.
    """
    options = {
        "corpus.source": corpus, "corpus.id_column": id_column, "corpus.text_column": text_column, "corpus.sample": sample,
        "corpus.limit": limit, "embedding.models": model or None, "embedding.max_length": max_length,
        "analysis.socm_sample": socm_sample, "seed": seed, "out": out, "execution.workers": workers,
        "execution.address": address, "keep_text": None if text else False,
    }  # fmt: skip
    _answer(
        lambda console: _audit(
            _configured(config, options, tau, temperature, intervals), console, fresh=not resume, plan=plan
        )
    )


@app.command(epilog="Exit codes: 0 written · 2 the folder holds no finished run.")
def report(run: Annotated[str, typer.Argument(metavar="RUN", help="The folder of a finished run.")]) -> None:
    """Write report.html again from the tables of a finished run."""

    def render(console: Console) -> int:
        from jobs.audit import render_again

        console.print(f"report: {render_again(run)}", highlight=False, soft_wrap=True)
        return 0

    _answer(render)


def main() -> None:
    """The console command."""
    # A polite kill ends as Ctrl-C does: the folder stays resumable and Ray is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(3)


def _configured(
    file: Path | None, options: dict[str, Any], tau: list[float] | None, temperature: Path | None, intervals: str | None
) -> AuditConfig:
    """The configuration of the file with the options laid over it."""
    from jobs import config as configuration

    data = configuration.read_toml(str(file)) if file is not None else {}
    taus: list[Any] = list(tau or [])
    if temperature is not None:
        taus.append(configuration.read_temperature(str(temperature)))
    if taus:
        options["embedding.temperatures"] = taus
    if intervals is not None:
        options["analysis.intervals"] = configuration.read_edges(intervals)
    for name, value in options.items():
        if value is not None:
            configuration.lay_over(data, name, value)
    return configuration.resolve(configuration.with_quick_start(data))


def _audit(config: AuditConfig, console: Console, *, fresh: bool, plan: bool) -> int:
    if plan:
        from jobs.plan import print_plan

        print_plan(config, console)
        return 0
    console.print(f"[bold]tempscale audit[/] {config.corpus.source} → {config.out}", highlight=False, soft_wrap=True)
    from jobs.closing import close
    from jobs.progress import Journal

    journal = Journal(console)
    try:
        from jobs.audit import audit as run_audit

        run = run_audit(config, journal, fresh=fresh)
    finally:
        journal.close()
    close(run)
    return 0


def _answer(command: Callable[[Console], int]) -> None:
    """Run a command; what ends it early becomes one sentence and its exit code."""
    from rich.console import Console

    from jobs.errors import RunError

    console = Console(stderr=True)
    try:
        code = command(console)
    except RunError as error:
        console.print(f"[bold red]error:[/] {_plain(error)}", highlight=False, soft_wrap=True)
        code = error.exit_code
    except KeyboardInterrupt:
        console.print(
            "[bold red]interrupted:[/] the same command goes on where this one stopped", highlight=False, soft_wrap=True
        )
        code = 3
    except Exception as error:
        console.print(
            f"[bold red]error:[/] unexpected {type(error).__name__}: {_plain(error)}", highlight=False, soft_wrap=True
        )
        if os.environ.get("TEMPSCALE_DEBUG"):
            traceback.print_exc()
        else:
            console.print("The run is incomplete; set TEMPSCALE_DEBUG=1 to see where it stopped.", soft_wrap=True)
        code = 3
    raise typer.Exit(code)


def _plain(error: BaseException) -> str:
    """The message with rich's markup characters kept as they are."""
    from rich.markup import escape

    return escape(str(error))
