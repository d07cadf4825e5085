"""The commands about a temperature: what it does to scores, which to choose, how to keep it. See `cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from jobs import options
from jobs.answering import NO_GATE, answer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer()


@app.command(
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale evaluate --task SciFact --tau 1.0 --tau 0.9 --tau 0.8     a task of MTEB, from the hub\n\n"
    + "  tempscale evaluate --task 'MTEB(eng, v2)' --model BAAI/bge-base-en-v1.5 --out runs/bge\n\n"
    + "  tempscale evaluate --task retrieval:mine/ --task sts:pairs.parquet  corpus, queries and qrels in mine/\n\n"
    + "  tempscale evaluate --task classification:reviews.parquet --texts-per-interval 500 --windows\n\n"
    + "  tempscale evaluate tasks.toml --role-grid"
)
def evaluate(
    config: options.Config = None,
    task: options.Tasks = None,
    texts_per_interval: options.TextsPerInterval = None,
    windows: options.Windows = None,
    model: options.Models = None,
    tau: options.Taus = None,
    temperature: options.TemperatureFile = None,
    role_grid: options.RoleGrid = None,
    max_length: options.MaxLength = None,
    precision: options.Precision = None,
    prompts: options.Prompts = None,
    audit: options.Audits = None,
    backbone: options.Backbones = None,
    intervals: options.Intervals = None,
    seed: options.Seed = None,
    out: options.EvaluateOut = None,
    resume: options.Resume = True,
    workers: options.Workers = None,
    address: options.Address = None,
) -> None:
    """Score a model under each temperature on MTEB tasks, by name or of your own data, and say where it helps.

    A cell is a model, a temperature and a task; those that are there are not scored again.
    """

    def run(console: Console) -> int:
        from jobs import commands, inputs
        from jobs.errors import UsageError
        from jobs.evaluate_config import EvaluateConfig
        from jobs.strict import checked

        data = inputs.read_toml(str(config)) if config is not None else {}
        given = {
            "tasks": inputs.read_tasks(task or [], texts_per_interval, windows) or None,
            "embedding.models": model or None, "embedding.temperatures": commands.temperatures(tau, temperature) or None,
            "embedding.role_grid": role_grid, "embedding.max_length": max_length, "embedding.precision": precision,
            "embedding.prompts": prompts, "audits": audit or None, "backbones": inputs.read_pairs(backbone or []) or None,
            "analysis.intervals": None if intervals is None else inputs.read_edges(intervals), "seed": seed, "out": out,
            "execution.workers": workers, "execution.address": address,
        }  # fmt: skip
        inputs.nested(given, data)
        if not data.get("tasks"):
            raise UsageError(
                "no task is named; give --task with a task or benchmark of MTEB, such as SciFact, or TYPE:PATH of your own"
            )
        return commands.evaluate(checked(EvaluateConfig, data), console, fresh=not resume)

    answer(run)


@app.command(
    epilog=NO_GATE
    + "\n\nExamples:\n\n"
    + "  tempscale tune --corpus docs.parquet              without labels: by what collapses in the corpus\n\n"
    + "  tempscale tune --task retrieval:mine/ --model ./tuned\n\n"
    + "  tempscale tune --task SciFact --tau 1.0 --tau 0.9 --tau 0.8 --no-layers"
)
def tune(
    config: options.Config = None,
    task: options.TuneTasks = None,
    corpus: options.Source = None,
    id_column: options.IdColumn = None,
    text_column: options.TextColumn = None,
    sample: options.Sample = None,
    limit: options.Limit = None,
    texts_per_interval: options.TextsPerInterval = None,
    windows: options.Windows = None,
    model: options.Model = None,
    tau: options.Candidates = None,
    temperature: options.Schedules = None,
    layers: options.Layers = None,
    max_length: options.MaxLength = None,
    precision: options.Precision = None,
    intervals: options.Intervals = None,
    seed: options.Seed = None,
    out: options.TuneOut = None,
    resume: options.Resume = True,
    workers: options.Workers = None,
    address: options.Address = None,
) -> None:
    """Choose a temperature for a model and say why, or to leave it at 1: nothing is chosen that does not beat noise.

    With tasks: by their scores on one half of the items, told on the other. Without: by prefix gap and exposure.
    """

    def run(console: Console) -> int:
        from jobs import commands, inputs
        from jobs.strict import checked
        from jobs.tune_config import TuneConfig

        data = inputs.read_toml(str(config)) if config is not None else {}
        schedules = [inputs.read_temperature(str(file)) for file in temperature or []]
        candidates = [*(tau or ([1.0] if schedules else [])), *schedules]
        if limit is not None or sample is not None:
            for name in ("sample", "limit"):  # An option wins over what it excludes in the file.
                (data.get("corpus") or {}).pop(name, None)
        given = {
            "tasks": inputs.read_tasks(task or [], texts_per_interval, windows) or None, "corpus.source": corpus,
            "corpus.id_column": id_column, "corpus.text_column": text_column, "corpus.sample": sample, "corpus.limit": limit,
            "embedding.models": [model] if model else None, "embedding.temperatures": candidates or None,
            "embedding.max_length": max_length, "embedding.precision": precision, "choosing.layers": layers,
            "choosing.intervals": None if intervals is None else inputs.read_edges(intervals), "seed": seed, "out": out,
            "execution.workers": workers, "execution.address": address,
        }  # fmt: skip
        inputs.nested(given, data)
        return commands.tune(checked(TuneConfig, data), console, fresh=not resume)

    answer(run)


@app.command(
    epilog="Exit codes: 0 written · 2 the model, temperature or folder cannot be used.\n\n"
    "Embed queries and the whole index again, together: vectors of the two models do not mix."
)
def export(
    out: options.NewFolder,
    model: options.Model = None,
    tau: options.Tau = None,
    temperature: options.FoldedFile = None,
) -> None:
    """Fold a temperature into a plain safetensors checkpoint, with tokenizer, further stages and a model card.

    Any server that runs the base model runs it. Schedules by length or role cannot be folded: attach them at run time.
    """

    def write(console: Console) -> int:
        from jobs import inputs
        from jobs.errors import UsageError

        if (tau is None) == (temperature is None):
            raise UsageError("give either --tau T or --temperature FILE")
        value = inputs.temperature_of(tau if temperature is None else inputs.read_temperature(str(temperature)))
        from jobs.export import export as fold_and_write
        from tempscale.checkpoint import default_model

        done = fold_and_write(model or default_model(), value, out)
        console.print(
            f"checkpoint: {done.folder}\n"
            f"  temperature {value.canonical}, {done.dtype}; largest difference from attaching it: {done.difference:.1g}\n"
            "  embed queries and the whole index again, together: vectors of the two models do not mix",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip
        return 0

    answer(write)
