"""The command line: run in a process of its own or in this one, or only read."""

import shlex
import subprocess
import sys

import typer
from typer.testing import CliRunner

UsageError = typer.BadParameter.__mro__[1]
"""click's; which click it is that typer uses is typer's own affair."""


def tempscale(*arguments):
    """Exit code, stdout and stderr of a command in a process of its own."""
    run = subprocess.run([sys.executable, "-m", "tempscale_jobs", *arguments], capture_output=True, text=True, timeout=120)
    return run.returncode, run.stdout, run.stderr


def in_process(*arguments):
    """The same command without a new process, whose imports would take most of the time."""
    from tempscale_jobs.cli.app import app

    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def said(output):
    """What was printed, without the frames and line breaks of a narrow terminal."""
    return " ".join(output.replace("│", " ").split())


def parsed(words):
    """What our own command line makes of `tempscale …`, without running it: command names and their parameters."""
    from tempscale_jobs.cli.app import app

    assert words[0].rpartition("/")[2] == "tempscale", words
    group = typer.main.get_command(app)
    context = group.make_context("tempscale", words[1:])
    name, command, rest = group.resolve_command(context, [*context._protected_args, *context.args])
    if name == "submit":
        own, _, inner = f" {shlex.join(rest)}".partition(" -- ")
        assert inner, f"submit without a command: {words}"
        found = [(name, command.make_context(name, [*shlex.split(own), "--", *shlex.split(inner)], parent=context).params)]
        return found + parsed(["tempscale", *shlex.split(inner)])
    return [(name, command.make_context(name, rest, parent=context).params)]
