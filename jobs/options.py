"""The options of the command line as types: what each is called, what it means, and where `--help` shows it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def option(panel: str, text: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """An option in its panel of `--help`."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


_TEXTS, _MODEL, _MEASURED, RUN = "Texts", "Model and temperature", "What is measured", "The run"
_PAIRS, _TASKS, GATE = "Pairs", "Tasks", "The gate"

PUBLISHED_REGULARIZATION = 1e-9
"""ε of S2's published code: what --paper stands for."""

Config = Annotated[
    Path | None, typer.Argument(metavar="[CONFIG.toml]", help="A configuration; options given here win over it.")
]
Source = Annotated[
    str | None,
    option(
        _TEXTS,
        "Parquet, JSONL, CSV or text: a file, folder or glob (local, s3://, gs://, hf://datasets/…); "
        "a Lance or Delta table; hf:NAME[:CONFIG][:SPLIT]; or docstrings:PKG,…",
        "SRC",
    ),
]
Queries = Annotated[
    str | None,
    option(_TEXTS, "Texts that search the corpus, from a source like --corpus: whose texts fill their results?", "SRC"),
]
IdColumn = Annotated[str | None, option(_TEXTS, "Column of the ids (default: id where there is one, else a digest).")]
TextColumn = Annotated[str | None, option(_TEXTS, "Column of the texts (default: text).")]
EmbeddingColumn = Annotated[
    str | None,
    option(_TEXTS, "Embeddings of your own: their column. No model is run, and lengths are words unless --length-column."),
]
LengthColumn = Annotated[str | None, option(_TEXTS, "Column of the lengths beside --embedding-column.")]
Dims = Annotated[int | None, option(_TEXTS, "Leading dimensions of --embedding-column to keep (Matryoshka models).", "N")]
PairsSource = Annotated[
    str,
    option(
        _PAIRS, "Parquet, JSONL or CSV with two columns of texts: a file, folder or glob (local, s3://, gs://, "
        "hf://datasets/…), or hf:NAME[:CONFIG][:SPLIT].", "FILE", "--pairs",
    ),
]  # fmt: skip
ColumnA = Annotated[str | None, option(_PAIRS, "Column of the first texts; each of a list makes pairs (default: text_a).")]
ColumnB = Annotated[str | None, option(_PAIRS, "Column of the second texts; each of a list makes pairs (default: text_b).")]
RowLimit = Annotated[int | None, option(_PAIRS, "The first N rows only.", "N", "--limit")]
Alpha = Annotated[float | None, option(_MEASURED, "α of SOCM = (1−d_μ)^α·d_Σ^β (default: 1).", "α")]
Beta = Annotated[float | None, option(_MEASURED, "β of the same (default: 1).", "β")]
Paper = Annotated[
    bool, option(_MEASURED, "d_Σ as S2's published code has it, with its ε = 1e-9; a little lower.", None, "--paper")
]
Sample = Annotated[int | None, option(_TEXTS, "A seeded random sample of N texts, stable from night to night.", "N")]
Limit = Annotated[int | None, option(_TEXTS, "The first N rows only.", "N")]
Models = Annotated[
    list[str] | None,
    option(_MODEL, "Folder or hub name; repeat for several (default: the installed demo MiniLM).", "M"),
]
Model = Annotated[str | None, option(_MODEL, "Folder or hub name (default: the installed demo MiniLM).", "M")]
Taus = Annotated[
    list[float] | None,
    option(
        _MODEL, "Attention temperature in (0, 2]; repeat it: changes are told against the first (default: 1.0 0.8).", "T"
    ),
]
Tau = Annotated[float | None, option(_MODEL, "Attention temperature in (0, 2].", "T")]
TemperatureFile = Annotated[
    Path | None,
    option(_MODEL, "A temperature or schedule as data, TOML or JSON: log_length = 64. Added after --tau.", "FILE"),
]
FoldedFile = Annotated[
    Path | None, option(_MODEL, "One by layer or head as data, TOML or JSON: by_layer = [1.0, 0.9, …].", "FILE")
]
MaxLength = Annotated[int | None, option(_MODEL, "Cut texts at N tokens (default: the model's own limit).", "N")]
Long = Annotated[
    str | None,
    option(
        _MODEL, "Texts beyond that: cut and counted, or run in chunks of it, all tokens of which count (default: truncate).",
        "truncate|chunk",
    ),
]  # fmt: skip
Precision = Annotated[
    str | None,
    option(
        _MODEL, "What the model computes in; bfloat16 is faster, and its error is measured and reported (default: float32).",
        "float32|bfloat16",
    ),
]  # fmt: skip
TuneBatches = Annotated[
    bool | None,
    option(
        _MODEL, "Measure once which size of micro-batches is fastest here, instead of a constant of the device.", None,
        "--tune-batches", show_default=False,
    ),
]  # fmt: skip
Intervals = Annotated[
    str | None,
    option(_MEASURED, "Lower edges of the length intervals in tokens (default: 0,32,64,100,200,300,400,500).", "EDGES"),
]
SocmSample = Annotated[int | None, option(_MEASURED, "Texts whose pairs get SOCM; 0 leaves it out (default: 1000).", "N")]
SocmError = Annotated[
    float | None,
    option(_MEASURED, "Draw the SOCM sample by length interval, large enough for this standard error in every cell.", "SE"),
]
SocmTop = Annotated[
    str | None,
    option(_MEASURED, "Most collapsed pairs: of the SOCM sample, or exactly of the whole corpus.", "sample|corpus"),
]
Cosine = Annotated[
    str | None,
    option(
        _MEASURED, "Every pair, or only mean and variance in closed form, which takes no time (default: full).",
        "full|moments",
    ),
]  # fmt: skip
CosinePrecision = Annotated[
    str | None,
    option(
        _MEASURED,
        "Precision of the pairs' products: on a GPU tf32 and bfloat16 are faster. Means stay exact; another cosine moves by "
        "at most 0.001 or 0.008 (default: float32).",
        "float32|tf32|bfloat16",
    ),
]
Neighbours = Annotated[
    int | None,
    option(_MEASURED, "Nearest texts of each text, for exposure and hubness; 0 leaves them out (default: 10).", "K"),
]
Seed = Annotated[int | None, option(_MEASURED, "Seed of every sample (default: 0).")]
Out = Annotated[str | None, option(RUN, "The run folder (default: runs/audit).", "DIR")]
DiagnoseOut = Annotated[str | None, option(RUN, "The run folder (default: runs/diagnose).", "DIR", "--out")]
EvaluateOut = Annotated[str | None, option(RUN, "The run folder (default: runs/evaluate).", "DIR", "--out")]
Tasks = Annotated[
    list[str] | None,
    option(
        _TASKS, "A task or benchmark of MTEB, or your own as [NAME=]TYPE:PATH: retrieval, reranking, classification, "
        "clustering, sts; a file, for retrieval a folder with corpus, queries and qrels. Repeatable.", "TASK", "--task",
        "--tasks",
    ),
]  # fmt: skip
TextsPerInterval = Annotated[
    int | None,
    option(
        _TASKS, "Test classifications of your own on so many texts of each length interval, as S1 with 500.", "N",
        "--texts-per-interval",
    ),
]  # fmt: skip
Windows = Annotated[
    bool | None,
    option(
        _TASKS, "Fill intervals that hold fewer with windows of longer texts, drawn by seed and marked.", None, "--windows",
        show_default=False,
    ),
]  # fmt: skip
RoleGrid = Annotated[
    bool | None,
    option(_MODEL, "Also every query τ with every document τ, for retrieval.", None, "--role-grid", show_default=False),
]
Prompts = Annotated[
    str | None, option(_MODEL, "Put the model's own prompts before queries and documents (default: none).", "none|model")
]
Audits = Annotated[
    list[str] | None,
    option(
        _MEASURED,
        "A finished audit of the same models, whose SOCM is set beside their scores. Repeatable.",
        "RUN",
        "--audit",
    ),
]
Backbones = Annotated[
    list[str] | None,
    option(
        _MEASURED, "Which model one was made from, for the difference to it. Repeatable.", "MODEL=BACKBONE", "--backbone"
    ),
]
TuneOut = Annotated[str | None, option(RUN, "The run folder (default: runs/tune).", "DIR", "--out")]
TuneTasks = Annotated[
    list[str] | None,
    option(
        _TASKS, "Choose by scores: a task of MTEB, or your own as TYPE:PATH, as for tempscale evaluate. Repeatable. Without "
        "one the choice is made by what collapses in --corpus.", "TASK", "--task", "--tasks",
    ),
]  # fmt: skip
Candidates = Annotated[
    list[float] | None,
    option(
        _MODEL, "A constant to try; repeat it. The first is what it may be left at (default: 1.0, five others and five "
        "schedules by length).", "T", "--tau",
    ),
]  # fmt: skip
Schedules = Annotated[
    list[Path] | None,
    option(_MODEL, "A schedule to try as data, TOML or JSON; added after --tau. Repeatable.", "FILE", "--temperature"),
]
Layers = Annotated[
    bool | None,
    option(
        _MODEL, "Whether to search one τ for each layer, by gradient, as a candidate (default: --layers).", None,
        "--layers/--no-layers", show_default=False,
    ),
]  # fmt: skip
LookedTexts = Annotated[
    int | None, option(_MEASURED, "Texts to look into, spread over the length intervals (default: 200).", "N", "--texts")
]
NamedPair = Annotated[
    tuple[str, str] | None,
    option(_MEASURED, "Ids of two texts to draw token by token (default: the most collapsed of the most alike).", "ID ID"),
]
RepeatedPairs = Annotated[
    int | None,
    option(_MEASURED, "Pairs of tokens whose repetition is embedded at growing length; 0 leaves it out (default: 8).", "N"),
]
VersionsOf = Annotated[
    str | None,
    option(
        _MEASURED, "Column that names the document of which a text is a version, as its summaries are: whole documents are "
        "looked into, and what length changes is told with the content held.", "COLUMN",
    ),
]  # fmt: skip
PairsOut = Annotated[str | None, option(RUN, "The run folder (default: runs/pairs).", "DIR", "--out")]
NewFolder = Annotated[str, option(_MODEL, "The new checkpoint's folder; must be new or empty.", "DIR")]
CacheFolder = Annotated[str, typer.Argument(metavar="DIR", help="The folder that --cache named.")]
CacheAction = Annotated[str, typer.Argument(metavar="[list|prune]", help="Say what it holds, or make it smaller.")]
UnusedFor = Annotated[
    int | None,
    option(RUN, "prune: remove the embeddings of models and temperatures that no run used for so long.", "DAYS", min=0),
]
KeepRuns = Annotated[
    list[str] | None,
    option(RUN, "prune: remove texts that none of these finished runs holds. Repeatable.", "RUN", "--keep"),
]
FinishedRun = Annotated[str, typer.Argument(metavar="RUN", help="The folder of a finished run.")]
Beside = Annotated[
    list[str] | None,
    option(RUN, "A finished run of diagnose or evaluate whose findings an audit's report is to hold too.", "RUN", "--with"),
]
Night = Annotated[
    str | None, option(RUN, "What {night} in --out and --corpus stands for (default: today's date in UTC).", "DATE")
]
Baseline = Annotated[
    str | None,
    option(
        GATE,
        "Compare with a finished run, or `latest`, the last passing or accepted night of the same model and temperature: a "
        "change beyond its size and its noise is exit code 1. Thresholds and sizes stand in the configuration, [gate].",
        "RUN|latest",
    ),
]
History = Annotated[
    str | None,
    option(GATE, "Folder of the record of nights (default: history beside the nights, or below --out).", "DIR"),
]
LogFormat = Annotated[
    str | None, option(RUN, "json: one JSON object a line, each with the run's id (default: text).", "text|json")
]
Resume = Annotated[bool, option(RUN, "Go on with the run in --out, or start it over.", None, "--resume/--fresh")]
KeepText = Annotated[
    bool | None,
    option(
        RUN, "Whether words of the worst pairs may stand in tables and report (default: --text).", None,
        "--text/--no-text", show_default=False,
    ),
]  # fmt: skip
Workers = Annotated[int | None, option(RUN, "Model actors and tile tasks at once (default: all cores or GPUs).", "N")]
Cache = Annotated[
    str | None,
    option(RUN, "A folder of embeddings by content: what earlier runs embedded is taken from it, the rest added.", "DIR"),
]
Address = Annotated[
    str | None,
    option(RUN, "A Ray cluster of which this machine is one: auto or HOST:PORT (default: an in-process Ray).", "RAY"),
]
ShowPlan = Annotated[
    bool,
    option(RUN, "Print the estimated texts, tokens, pairs, time, memory and disk, and stop.", None, "--plan"),
]
