"""The command that runs another one as a job of a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tempscale_jobs.cli.options import argument, option
from tempscale_jobs.cli.start import EXIT_CODES, answer
from tempscale_jobs.submit.command import COMMANDS

app = typer.Typer()


@app.command(
    rich_help_panel="Nights",
    context_settings={"allow_interspersed_args": False},  # What follows the command's name belongs to it.
    epilog=EXIT_CODES.replace("Exit codes: ", "Exit codes, the job's own: ")
    + " A job that was stopped, killed or lost is incomplete.\n\nExamples:\n\n"
    + "  tempscale submit -- audit nightly.toml                           the folder of nightly.toml is packed\n\n"
    + "  tempscale submit --address http://head:8265 --night 2026-11-22 -- audit nightly.toml\n\n"
    + "  tempscale submit --image-code -- tune --corpus s3://texts/docs.parquet --out s3://texts/tuned",
)
def submit(
    context: typer.Context,
    command: Annotated[
        list[str] | None,
        argument("-- COMMAND …", "audit, pairs, diagnose, evaluate or tune, with options of its own."),
    ] = None,
    address: Annotated[
        str | None,
        option(
            "The run",
            "The dashboard of the cluster (default: RAY_API_SERVER_ADDRESS, else http://127.0.0.1:8265).",
            metavar="URL",
        ),
    ] = None,
    working_dir: Annotated[
        Path | None,
        option("The run", "The folder that is packed for the job (default: that of CONFIG.toml).", metavar="DIR"),
    ] = None,
    image_code: Annotated[
        bool,
        option(
            "The run",
            "Run the tempscale of the cluster's image: nothing is packed, unless --working-dir.",
            "--image-code",
        ),
    ] = False,
    night: Annotated[
        str | None,
        option(
            "The run",
            "The night's date, for {night} in --out and for the job's name (default: today in UTC).",
            metavar="DATE",
        ),
    ] = None,
    detach: Annotated[bool, option("The run", "Submit and do not wait: print the submission id.", "--detach")] = False,
    again: Annotated[bool, option("The run", "Submit once more what is done.", "--again")] = False,
    join: Annotated[
        bool,
        option("The run", "Where this night's job is there, running or done, wait for it and do not refuse.", "--join"),
    ] = False,
) -> None:
    """Run a command on a Ray cluster as a job: pack, submit, show its log, end with its exit code.

    A night's run is submitted once; an attempt after one that did not end goes on where that stopped.

    The night is today in UTC, or what --night says: after midnight, --night DATE goes on with the day before.
    """
    name, *arguments = command or [""]
    parsed = _parsed(context, name, arguments)  # A mistyped option is reported by its command, before anything is sent.

    def send(console: Any) -> int:
        from tempscale_jobs.errors import UsageError
        from tempscale_jobs.submit.command import read

        if parsed is None:
            mistake = f"tempscale {name} does not run as a job" if name else "no command is given"
            raise UsageError(f"{mistake}; submit one of {', '.join(COMMANDS)}: tempscale submit -- audit nightly.toml")
        submission = read(parsed, night, working_dir, image_code)
        from tempscale_jobs.submit.watch import SubmitOptions
        from tempscale_jobs.submit.watch import submit as submit_job

        return submit_job(submission, address, console, SubmitOptions(detach, again, join))

    answer(send)


def _parsed(context: typer.Context, name: str, arguments: list[str]) -> Any:
    """The context of a command that may run as a job, its options parsed; None for any other."""
    if name not in COMMANDS:
        return None
    group: Any = context.find_root().command
    return group.commands[name].make_context(name, arguments, parent=context.parent)
