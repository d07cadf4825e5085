"""The commands of the nightly job on a cluster. See `cli`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from jobs import night_options
from jobs.answering import EXIT_CODES, answer

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer()


@app.command(
    context_settings={"allow_interspersed_args": False},  # What follows the command's name belongs to it.
    epilog=EXIT_CODES.replace("Exit codes: ", "Exit codes, the job's own: ")
    + " A job that was stopped, killed or lost is incomplete.\n\nExamples:\n\n"
    + "  tempscale submit -- audit nightly.toml                           the folder of nightly.toml is packed\n\n"
    + "  tempscale submit --address http://head:8265 --night 2026-11-22 -- audit nightly.toml\n\n"
    + "  tempscale submit --image-code -- tune --corpus s3://texts/docs.parquet --out s3://texts/tuned",
)
def submit(
    context: typer.Context,
    command: night_options.JobCommand = None,
    address: night_options.HeadAddress = None,
    working_dir: night_options.WorkingDir = None,
    image_code: night_options.ImageCode = False,
    night: night_options.JobNight = None,
    detach: night_options.Detach = False,
    again: night_options.Again = False,
    join: night_options.Join = False,
) -> None:
    """Run a command on a Ray cluster as a job: pack, submit, show its log, end with its exit code.

    A night's run is submitted once; an attempt after one that did not end goes on where that stopped. The night is today in
    UTC, or what --night says: after midnight, --night DATE goes on with the day before.
    """
    name, *arguments = command or [""]
    parsed = _parsed(context, name, arguments)  # A mistyped option is told here, before anything is sent.

    def run(console: Console) -> int:
        from jobs import submission
        from jobs.errors import UsageError

        if parsed is None:
            told = f"tempscale {name} does not run as a job" if name else "no command is given"
            raise UsageError(f"{told}; submit one of {', '.join(submission.RUNS)}: tempscale submit -- audit nightly.toml")
        try:
            sent = submission.read(parsed, night, working_dir, image_code)
        except typer.Exit as ended:  # The command has said why.
            return ended.exit_code
        from jobs.submit import submit as submit_job

        return submit_job(sent, address, console, detach=detach, again=again, join=join)

    answer(run)


def _parsed(context: typer.Context, name: str, arguments: list[str]) -> Any:
    """The context of a command that may run as a job, its options read; None for any other."""
    from jobs import cli, submission

    if name not in submission.RUNS:
        return None
    group: Any = typer.main.get_command(cli.app)
    return group.commands[name].make_context(name, arguments, parent=context.parent)
