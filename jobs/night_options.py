"""The options of `history`, `compare` and `submit` as types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jobs.options import GATE, RUN, option

HistoryFolder = Annotated[str, typer.Argument(metavar="FOLDER", help="The folder of the nights, or of their record.")]
Accept = Annotated[
    str | None,
    option(GATE, "Accept a run on purpose, by its night, id or folder: it may then be the baseline `latest`.", "RUN"),
]
Prune = Annotated[
    bool, option(RUN, "Remove the embeddings of old nights; tables, reports and the record stay.", None, "--prune")
]
KeepNights = Annotated[int | None, option(RUN, "prune: nights whose embeddings stay.", "N", "--keep", min=1)]
LastNights = Annotated[int, option(RUN, "How many nights to print.", "N", "--last", min=1)]
RunA = Annotated[str, typer.Argument(metavar="RUN_A", help="The folder of a finished audit.")]
RunB = Annotated[str, typer.Argument(metavar="RUN_B", help="The folder of another one, later.")]
CompareOut = Annotated[str | None, option(RUN, "Also leave what was found as Parquet tables.", "DIR", "--out")]
JobCommand = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- COMMAND …", help="audit, pairs, diagnose, evaluate or tune, with options of its own."),
]
HeadAddress = Annotated[
    str | None,
    option(
        RUN, "The dashboard of the cluster (default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265).", "URL",
        "--address",
    ),
]  # fmt: skip
WorkingDir = Annotated[
    Path | None,
    option(RUN, "The folder that is packed for the job (default: that of CONFIG.toml).", "DIR", "--working-dir"),
]
ImageCode = Annotated[
    bool,
    option(RUN, "Run the tempscale of the cluster's image: nothing is packed, unless --working-dir.", None, "--image-code"),
]
JobNight = Annotated[
    str | None,
    option(RUN, "The night's date, for {night} in --out and for the job's name (default: today in UTC).", "DATE", "--night"),
]
Detach = Annotated[bool, option(RUN, "Submit and do not wait: print the submission id.", None, "--detach")]
Again = Annotated[bool, option(RUN, "Submit once more what is done.", None, "--again")]
Join = Annotated[
    bool,
    option(RUN, "Where this night's job is there, running or done, wait for it and do not refuse.", None, "--join"),
]
