"""`python -m tempscale` is the `tempscale` command, which the package of jobs holds."""

from __future__ import annotations

import importlib.util
import runpy
import sys

if importlib.util.find_spec("tempscale_jobs") is None:
    print("error: the tempscale command is in the package tempscale_jobs, which is not installed here", file=sys.stderr)
    sys.exit(2)  # 1 is a failed gate's.
runpy.run_module("tempscale_jobs", run_name="__main__", alter_sys=True)
