"""`python -m tempscale` is the `tempscale` command, which the package of jobs holds."""

import importlib.util
import os
import runpy
import sys

if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    del sys.path[0]  # The current folder, whose files are the user's data: a package there is not the one that is meant.
if importlib.util.find_spec("tempscale_jobs") is None:
    print("error: the tempscale command is in the package tempscale_jobs, which is not installed here", file=sys.stderr)
    sys.exit(2)  # 1 is a failed gate's.
runpy.run_module("tempscale_jobs", run_name="__main__", alter_sys=True)
