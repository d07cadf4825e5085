"""The `tempscale` command. Help and usage errors answer without importing torch or ray."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import typer

from jobs import cli_cluster, cli_nights, cli_temperature, options
from jobs.answering import EXIT_CODES, NO_GATE, answer

if TYPE_CHECKING:
    from rich.console import Console


app = typer.Typer(
    name="tempscale",
    help="Do your text embeddings collapse, and what to do about it: a distributed audit on Ray.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=False)
def _tempscale() -> None:
    """Keep `tempscale audit` a sub-command."""


@app.command(
    epilog=EXIT_CODES
    + "\n\nExamples:\n\n"
    + "  tempscale audit                                   the quick start: docstrings of installed packages\n\n"
    + "  tempscale audit --corpus texts.parquet --sample 20000 --out runs/mine\n\n"
    + "  tempscale audit --corpus 'logs/*.jsonl.gz' --text-column body --tau 1.0 --tau 0.9 --tau 0.8\n\n"
    + "  tempscale audit nightly.toml --out 'nights/{night}' --baseline latest     every night, held to the last good one"
)
def audit(
    config: options.Config = None,
    corpus: options.Source = None,
    id_column: options.IdColumn = None,
    text_column: options.TextColumn = None,
    embedding_column: options.EmbeddingColumn = None,
    length_column: options.LengthColumn = None,
    dims: options.Dims = None,
    queries: options.Queries = None,
    sample: options.Sample = None,
    limit: options.Limit = None,
    model: options.Models = None,
    tau: options.Taus = None,
    temperature: options.TemperatureFile = None,
    max_length: options.MaxLength = None,
    long: options.Long = None,
    precision: options.Precision = None,
    tune_batches: options.TuneBatches = None,
    intervals: options.Intervals = None,
    socm_sample: options.SocmSample = None,
    socm_se: options.SocmError = None,
    socm_top_over: options.SocmTop = None,
    alpha: options.Alpha = None,
    beta: options.Beta = None,
    paper: options.Paper = False,
    cosine: options.Cosine = None,
    cosine_precision: options.CosinePrecision = None,
    neighbours: options.Neighbours = None,
    seed: options.Seed = None,
    baseline: options.Baseline = None,
    history: options.History = None,
    out: options.Out = None,
    night: options.Night = None,
    resume: options.Resume = True,
    text: options.KeepText = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    address: options.Address = None,
    log_format: options.LogFormat = None,
    plan: options.ShowPlan = False,
) -> None:
    """Measure length collapse and second-order collapse of a corpus, under each temperature.

    Without arguments: a seeded 2,000 of the docstrings of installed Python packages, τ 1.0 and 0.8.
    """
    given = {
        "corpus.source": corpus, "corpus.id_column": id_column, "corpus.text_column": text_column, "corpus.sample": sample,
        "corpus.embedding_column": embedding_column, "corpus.length_column": length_column, "corpus.dims": dims,
        "queries.source": queries, "corpus.limit": limit, "embedding.models": model or None,
        "embedding.max_length": max_length, "embedding.long": long, "embedding.precision": precision,
        "embedding.tune_batches": tune_batches, "analysis.socm_sample": socm_sample, "analysis.socm_cell_se": socm_se,
        "analysis.socm_top_over": socm_top_over, "analysis.socm_alpha": alpha, "analysis.socm_beta": beta,
        "analysis.socm_regularization": options.PUBLISHED_REGULARIZATION if paper else None, "analysis.cosine": cosine,
        "analysis.cosine_precision": cosine_precision,
        "analysis.neighbours": neighbours, "seed": seed, "out": out, "execution.workers": workers,
        "execution.address": address, "execution.cache": cache, "keep_text": text, "gate.baseline": baseline,
        "record.history": history, "night": night, "execution.log_format": log_format,
    }  # fmt: skip

    def run(console: Console) -> int:
        from jobs import commands

        settings = commands.configured(config, given, tau, temperature, intervals)
        return commands.audit(settings, console, fresh=not resume, plan=plan)

    answer(run)


@app.command(
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale pairs --pairs pairs.csv                 columns text_a and text_b, all-MiniLM, τ 1.0 and 0.8\n\n"
    + "  tempscale pairs --pairs mined.jsonl.gz --column-a query --column-b negatives --out runs/negatives\n\n"
    + "  tempscale pairs --pairs sts.parquet --column-a sentence1 --column-b sentence2 --tau 1.0 --paper"
)
def pairs(
    pairs: options.PairsSource,
    column_a: options.ColumnA = None,
    column_b: options.ColumnB = None,
    limit: options.RowLimit = None,
    model: options.Models = None,
    tau: options.Taus = None,
    temperature: options.TemperatureFile = None,
    max_length: options.MaxLength = None,
    long: options.Long = None,
    precision: options.Precision = None,
    alpha: options.Alpha = None,
    beta: options.Beta = None,
    paper: options.Paper = False,
    out: options.PairsOut = None,
    resume: options.Resume = True,
    workers: options.Workers = None,
    address: options.Address = None,
) -> None:
    """Measure second-order collapse (d_μ, d_Σ, SOCM) of explicit pairs of texts, under each temperature.

    Where a column holds lists, such as a query's hard negatives, each text of a list makes a pair.

    Columns id, id_a and id_b are kept where they are there. Standard errors know which pairs share a text.
    """

    def run(console: Console) -> int:
        from jobs import commands, inputs
        from jobs.pairs_config import PairsConfig
        from jobs.strict import checked

        given = {
            "pairs.source": pairs, "pairs.column_a": column_a, "pairs.column_b": column_b, "pairs.limit": limit,
            "embedding.models": model or None, "embedding.max_length": max_length, "embedding.long": long,
            "embedding.precision": precision, "socm.alpha": alpha, "socm.beta": beta,
            "socm.regularization": options.PUBLISHED_REGULARIZATION if paper else None, "out": out,
            "embedding.temperatures": commands.temperatures(tau, temperature) or None,
            "execution.workers": workers, "execution.address": address,
        }  # fmt: skip
        return commands.pairs(checked(PairsConfig, inputs.nested(given)), console, fresh=not resume)

    answer(run)


@app.command(
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale diagnose                                200 docstrings by length, all-MiniLM, τ 1.0 and 0.8\n\n"
    + "  tempscale diagnose --corpus docs.parquet --model ./tuned --model ./backbone --texts 400 --out runs/why"
)
def diagnose(
    corpus: options.Source = None,
    id_column: options.IdColumn = None,
    text_column: options.TextColumn = None,
    sample: options.Sample = None,
    limit: options.Limit = None,
    model: options.Models = None,
    tau: options.Taus = None,
    temperature: options.TemperatureFile = None,
    max_length: options.MaxLength = None,
    texts: options.LookedTexts = None,
    pair: options.NamedPair = None,
    versions_of: options.VersionsOf = None,
    repeated_pairs: options.RepeatedPairs = None,
    text: options.KeepText = None,
    intervals: options.Intervals = None,
    seed: options.Seed = None,
    out: options.DiagnoseOut = None,
    resume: options.Resume = True,
    workers: options.Workers = None,
    address: options.Address = None,
) -> None:
    """Look inside: attention as a filter (σ_a, σ_s), and what each layer does to the tokens of a text (HC, λ, ρ, r, C).

    A sample of texts, as many from each length interval as there are, runs through each model under each temperature.
    """

    def run(console: Console) -> int:
        from jobs import commands, inputs
        from jobs.diagnose_config import DiagnoseConfig
        from jobs.strict import checked

        given = {
            "corpus.source": corpus, "corpus.id_column": id_column, "corpus.text_column": text_column,
            "corpus.sample": sample, "corpus.limit": limit, "embedding.models": model or None,
            "embedding.temperatures": commands.temperatures(tau, temperature) or None,
            "embedding.max_length": max_length, "diagnosis.texts": texts, "diagnosis.pair": pair,
            "diagnosis.versions_of": versions_of, "diagnosis.repeated_pairs": repeated_pairs, "keep_text": text,
            "diagnosis.intervals": None if intervals is None else inputs.read_edges(intervals), "seed": seed, "out": out,
            "execution.workers": workers, "execution.address": address,
        }  # fmt: skip
        return commands.diagnose(checked(DiagnoseConfig, inputs.nested(given)), console, fresh=not resume)

    answer(run)


@app.command(
    epilog="Exit codes: 0 written · 2 a folder holds no finished run, or one of another model."
    + "\n\nExample:\n\n"
    + "  tempscale report runs/audit --with runs/diagnose --with runs/evaluate"
)
def report(run: options.FinishedRun, beside: options.Beside = None) -> None:
    """Write report.html and figures/ again from the tables of a finished run.

    An audit's report also holds what `diagnose` and `evaluate` found of the same model, where --with names their runs.
    """

    def render(console: Console) -> int:
        from jobs.commands import render_again

        console.print(f"report: {render_again(run, beside or ())}", highlight=False, soft_wrap=True, markup=False)
        return 0

    answer(render)


@app.command(epilog="Exit codes: 0 done · 2 the folder is no cache, or the options do not fit.")
def cache(
    folder: options.CacheFolder,
    action: options.CacheAction = "list",
    unused_for: options.UnusedFor = None,
    keep: options.KeepRuns = None,
) -> None:
    """Say what a cache of embeddings holds, or prune it; pruning also merges its many small files.

    Safe beside a run that uses the cache.
    """

    def run(console: Console) -> int:
        from jobs import commands

        return commands.cache(folder, action, unused_for, keep or [], console)

    answer(run)


app.add_typer(cli_temperature.app)
app.add_typer(cli_nights.app)
app.add_typer(cli_cluster.app)


def main() -> None:
    """The console command."""
    # A polite kill ends as Ctrl-C does: the folder stays resumable and Ray is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(3)
