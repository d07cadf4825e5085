"""The `tempscale` command, also as `python -m tempscale_jobs`."""

import os
import sys

_NUMBA = ".numba_config.yaml"
"""A file of settings that numba reads in the current folder; one is the folder of compiled code that it loads and runs."""


def import_installed_packages_only() -> None:
    """Let this process, and those that it starts, import nothing from the current folder or one that is relative to it.

    `python -m` puts the current folder first, and so does an empty entry of PYTHONPATH. Full paths in PYTHONPATH are kept.
    """
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [entry for entry in given if os.path.isabs(entry)]
    relative = {os.path.abspath(entry) for entry in given if entry not in kept} if "PYTHONPATH" in os.environ else set()
    # Nothing that Python itself needs is the first one, but it may be there a second time, as an installed project.
    if not sys.flags.safe_path and sys.path and os.path.abspath(sys.path[0]) == os.path.abspath(os.curdir):
        del sys.path[0]
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and entry not in relative.difference(kept)]
    if relative:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    os.environ["PYTHONSAFEPATH"] = "1"


def main() -> None:
    """The console command."""
    import_installed_packages_only()
    if os.path.isfile(_NUMBA):
        print(f"error: numba would obey '{_NUMBA}' of the current folder; start from another folder", file=sys.stderr)
        sys.exit(2)
    if sys.flags.optimize > 1:
        # Ray Data and altair cannot be imported without their docstrings, and --help would be empty.
        os.environ.pop("PYTHONOPTIMIZE", None)
        os.execv(sys.executable, [sys.executable, "-m", "tempscale_jobs", *sys.argv[1:]])  # noqa: S606 - itself
    from tempscale_jobs.cli import app

    app.main()


if __name__ == "__main__":
    main()
