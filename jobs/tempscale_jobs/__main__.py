"""The `tempscale` command, also as `python -m tempscale_jobs`."""

import os
import sys

_NUMBA = ".numba_config.yaml"
"""A file of settings that numba reads in the current folder; one is the folder of compiled code that it loads and runs."""


def import_installed_packages_only() -> None:
    """Let this process, and those that it starts, import nothing from the current folder or one that is relative to it.

    `python -m` puts the current folder first, and an empty entry of PYTHONPATH names it. Full paths in PYTHONPATH are kept.
    """
    try:
        here = os.getcwd()
    except OSError:  # It was removed.
        here = ""
    ours = _homes()
    given = os.environ["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in os.environ else []
    kept = [entry for entry in given if os.path.isabs(entry)]
    relative = {os.path.normpath(os.path.join(here, entry)) for entry in given if entry not in kept}
    # Only the first: the current folder may also be that of a project which is installed.
    if (
        not sys.flags.safe_path
        and sys.path[:1] in ([""], [here])
        and here not in kept
        and here not in (set(ours) - {*sys.path[1:]})
    ):
        del sys.path[0]
    kept += [home for home in ours if home in relative]
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and (entry in kept or entry not in relative)]
    if given:
        os.environ["PYTHONPATH"] = os.pathsep.join(kept)
    os.environ["PYTHONSAFEPATH"] = "1"


def _homes() -> list[str]:
    """The folders that our own packages are in, which may be on the path by a relative entry alone."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    above = os.path.dirname(home)  # In a checkout.
    return [home, above] if os.path.isfile(os.path.join(above, "tempscale", "__init__.py")) else [home]


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
