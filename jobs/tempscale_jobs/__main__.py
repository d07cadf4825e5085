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
        current_folder = os.getcwd()
    except OSError:  # It was removed.
        current_folder = ""
    homes = _homes()
    entries = os.environ["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in os.environ else []
    allowed = [entry for entry in entries if os.path.isabs(entry)]
    relative = {os.path.normpath(os.path.join(current_folder, entry)) for entry in entries if entry not in allowed}
    # Only the first: the current folder may also be that of a project which is installed.
    if (
        not sys.flags.safe_path
        and sys.path[:1] in ([""], [current_folder])
        and current_folder not in allowed
        and current_folder not in (set(homes) - {*sys.path[1:]})
    ):
        del sys.path[0]
    allowed += [home for home in homes if home in relative]
    sys.path[:] = [entry for entry in sys.path if os.path.isabs(entry) and (entry in allowed or entry not in relative)]
    if entries:
        os.environ["PYTHONPATH"] = os.pathsep.join(allowed)
    os.environ["PYTHONSAFEPATH"] = "1"


def _homes() -> list[str]:
    """The folders that our own packages are in, which may be on the path by a relative entry alone."""
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    parent = os.path.dirname(home)  # In a checkout.
    return [home, parent] if os.path.isfile(os.path.join(parent, "tempscale", "__init__.py")) else [home]


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
    from tempscale_jobs.collecting import collect_seldom

    collect_seldom()  # Before the imports of the command.
    from tempscale_jobs.cli import app

    app.main()


if __name__ == "__main__":
    main()
