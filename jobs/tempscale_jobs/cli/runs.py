"""The commands that write a run folder; each has an option for every setting of its configuration that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tempscale_jobs.cli.options import CONFIG, HELP_ALL, JSON, PLAN, RESUME, ManyOptions, configured
from tempscale_jobs.cli.start import EXIT_CODES, NO_GATE, addresses, begun, print_end
from tempscale_jobs.config.audit import AuditConfig
from tempscale_jobs.config.correct import CorrectConfig
from tempscale_jobs.config.diagnose import DiagnoseConfig
from tempscale_jobs.config.evaluate import EvaluateConfig, task_names
from tempscale_jobs.config.pairs import PairsConfig
from tempscale_jobs.config.tune import TuneConfig
from tempscale_jobs.config.verify import VerifyConfig

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer()


@app.command(
    cls=ManyOptions,
    rich_help_panel="Measure",
    epilog=EXIT_CODES
    + "\n\nExamples:\n\n"
    + "  tempscale audit                             the quick start\n\n"
    + "  tempscale audit --corpus texts.parquet --sample 20000 --out runs/mine\n\n"
    + "  tempscale audit --corpus 'logs/*.jsonl.gz' --text-column body\n\n"
    + "  tempscale audit nightly.toml --baseline latest        a night",
)
@configured(AuditConfig, CONFIG, RESUME, PLAN, JSON, HELP_ALL)
def audit(config: AuditConfig, console: Console, resume: bool, plan: bool, as_json: bool = False) -> int:
    """Measure length collapse and second-order collapse of a corpus, under each temperature.

    Without arguments: a seeded 300 of scipy's docstrings, τ 1.0 and 0.8, in about a minute.
    """
    if plan:
        from tempscale_jobs.audit.plan import print_plan

        print_plan(config, console)
        return 0
    from tempscale_jobs.errors import UsageError
    from tempscale_jobs.nights import notify
    from tempscale_jobs.nights.gate import notes
    from tempscale_jobs.runs.folder import DONE
    from tempscale_jobs.urls import reason

    with begun(config, config.corpus.source, console) as journal:
        from tempscale_jobs.audit.run import audit as run_audit

        try:
            run = run_audit(config, journal, fresh=not resume)
        except Exception as error:  # What is no usage error is incomplete, whatever it is.
            code = 2 if isinstance(error, UsageError) else 3
            notify.post_unfinished(config, reason(error, *addresses), code)
            raise
        judged = run.storage.read_json(DONE)["gate"]
        journal.outcome = "; ".join([f"gate {judged['verdict']}", *judged["failed"], *notes(judged)])
    print_end(config, run, as_json)
    return 1 if judged["verdict"] == "failed" else 0


@app.command(
    rich_help_panel="Measure",
    epilog=EXIT_CODES
    + "\n\nExamples:\n\n"
    + "  tempscale verify --embeddings index.parquet --model ./tuned         columns id, text and embedding\n\n"
    + "  tempscale verify --embeddings index.parquet --by source --by ingested --sample 20000\n\n"
    + "  tempscale verify --embeddings index.parquet --computed float16 --candidate ./last-year --max-wrong 0.001",
)
@configured(VerifyConfig, CONFIG, RESUME, JSON)
def verify(config: VerifyConfig, console: Console, resume: bool, as_json: bool = False) -> int:
    """Verify that stored vectors are a model's: embed a sample again, count what is not, and say why.

    Wrong rows are embedded again under what people get wrong (pooling, prompt, window, another row, …) until one explains
    them.
    """
    with begun(config, config.embeddings.source, console) as journal:
        from tempscale_jobs.verify.run import verify as run_verify

        run = run_verify(config, journal, fresh=not resume)
    print_end(config, run, as_json)
    from tempscale_jobs.runs.folder import DONE, load_tables
    from tempscale_jobs.verify.terminal import fails

    return 1 if fails(load_tables(run.storage), run.storage.read_json(DONE)) else 0


@app.command(
    rich_help_panel="Measure",
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale pairs --pairs pairs.csv                 columns text_a and text_b, all-MiniLM, τ 1.0 and 0.8\n\n"
    + "  tempscale pairs --pairs mined.jsonl.gz --column-a query --column-b negatives --out runs/negatives\n\n"
    + "  tempscale pairs --pairs sts.parquet --column-a sentence1 --column-b sentence2 --tau 1.0 --paper",
)
@configured(PairsConfig, RESUME, JSON)
def pairs(config: PairsConfig, console: Console, resume: bool, as_json: bool = False) -> int:
    """Measure second-order collapse (d_μ, d_Σ, SOCM) of explicit pairs of texts, under each temperature.

    Where a column holds lists, such as a query's hard negatives, each text of a list makes a pair.

    Columns id, id_a and id_b are kept where they are there. Standard errors know which pairs share a text.
    """
    with begun(config, config.pairs.source, console) as journal:
        from tempscale_jobs.pairs.run import pairs as run_pairs

        run = run_pairs(config, journal, fresh=not resume)
    print_end(config, run, as_json)
    return 0


@app.command(
    rich_help_panel="Measure",
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale diagnose                                200 docstrings by length, all-MiniLM, τ 1.0 and 0.8\n\n"
    + "  tempscale diagnose --corpus docs.parquet --model ./tuned --model ./backbone --texts 400 --out runs/why",
)
@configured(DiagnoseConfig, RESUME, JSON)
def diagnose(config: DiagnoseConfig, console: Console, resume: bool, as_json: bool = False) -> int:
    """Look inside: attention as a filter (σ_a, σ_s), and what each layer does to the tokens of a text (HC, λ, ρ, r, C).

    A sample of texts, as many from each length interval as there are, runs through each model under each temperature.
    """
    with begun(config, config.corpus.source, console) as journal:
        from tempscale_jobs.diagnose.run import diagnose as run_diagnose

        run = run_diagnose(config, journal, fresh=not resume)
    print_end(config, run, as_json)
    return 0


@app.command(
    rich_help_panel="Measure",
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale evaluate --task SciFact --tau 1.0 --tau 0.9 --tau 0.8     a task of MTEB, from the hub\n\n"
    + "  tempscale evaluate --task 'MTEB(eng, v2)' --model BAAI/bge-base-en-v1.5 --out runs/bge\n\n"
    + "  tempscale evaluate --task retrieval:mine/ --task sts:pairs.parquet  corpus, queries and qrels in mine/\n\n"
    + "  tempscale evaluate --task classification:reviews.parquet --texts-per-interval 500 --windows\n\n"
    + "  tempscale evaluate tasks.toml --role-grid",
)
@configured(EvaluateConfig, CONFIG, RESUME, JSON)
def evaluate(config: EvaluateConfig, console: Console, resume: bool, as_json: bool = False) -> int:
    """Score a model under each temperature on MTEB tasks, by name or of your own data, and say where it helps.

    A cell is a model, a temperature and a task; those that are there are not scored again.
    """
    with begun(config, ", ".join(task_names(config.tasks)), console) as journal:
        from tempscale_jobs.evaluate.run import evaluate as run_evaluate

        run = run_evaluate(config, journal, fresh=not resume)
    print_end(config, run, as_json)
    return 0


@app.command(
    rich_help_panel="Temperature",
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale tune --corpus docs.parquet              without labels: by what collapses in the corpus\n\n"
    + "  tempscale tune --task retrieval:mine/ --model ./tuned\n\n"
    + "  tempscale tune --task SciFact --tau 1.0 --tau 0.9 --tau 0.8 --no-layers",
)
@configured(TuneConfig, CONFIG, RESUME, JSON)
def tune(config: TuneConfig, console: Console, resume: bool, as_json: bool = False) -> int:
    """Choose a temperature for a model and say why, or to leave it at 1: nothing is chosen that does not beat noise.

    With tasks: by their scores on one half of the items, reported on the other. Without: by prefix gap and exposure.
    """
    with begun(config, ", ".join(task_names(config.tasks)) or config.texts().source, console) as journal:
        from tempscale_jobs.tune.run import tune as run_tune

        run = run_tune(config, journal, fresh=not resume)
    print_end(config, run, as_json)
    return 0


@app.command(
    rich_help_panel="Correction",
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale correct --embeddings vectors.parquet --length-column tokens --correction t/corrections/length.json\n\n"
    + "  tempscale correct --embeddings asked.parquet --side queries --correction t/corrections/length.json --out asked/",
)
@configured(CorrectConfig, RESUME, JSON)
def correct(config: CorrectConfig, console: Console, resume: bool, as_json: bool = False) -> int:
    """Apply a correction that tempscale tune fitted to a table of embeddings; no text is embedded again.

    Corrected rows are left in vectors/ of the run folder, Parquet in the order of the table, with all its other columns.
    Their inner products are the corrected similarities. Documents and queries are corrected by two calls, see --side.
    """
    with begun(config, config.embeddings.source, console) as journal:
        from tempscale_jobs.correct.run import correct as run_correct

        run = run_correct(config, journal, fresh=not resume)
    print_end(config, run, as_json)
    return 0
