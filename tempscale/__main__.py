"""`python -m tempscale` runs the `tempscale` command of the package tempscale_jobs."""

import importlib.util
import os
import runpy
import sys

if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]  # The current folder: a package of this name among the user's files must not be imported.
if importlib.util.find_spec("tempscale_jobs") is None:
    print("error: the tempscale command is in the package tempscale_jobs, which is not installed here", file=sys.stderr)
    sys.exit(2)  # 1 means a failed gate.
runpy.run_module("tempscale_jobs", run_name="__main__", alter_sys=True)
