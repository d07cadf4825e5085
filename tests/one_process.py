"""Command lines that one process runs, one after the other, as a program of its own: without Ray of another test."""

import json
import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent
_RUN = """
import json, sys
sys.path.insert(0, sys.argv[2])
from command_line import in_process
found = []
for words in json.load(open(sys.argv[1])):
    code, out, err = in_process(*words)
    found.append({"code": code, "out": out, "err": err, "ray": "ray" in sys.modules})
print("\\n" + json.dumps(found))
"""


def ran(lines, folder, *, without=(), **environment):
    """What each command line ended with: code, out, err and whether Ray was imported until then.

    `without` are modules that are not installed there, for this process and for those that it starts.
    """
    (folder / "lines.json").write_text(json.dumps(lines))
    (folder / "sitecustomize.py").write_text(
        "import sys\nfrom importlib.machinery import PathFinder\n"
        f"names = {set(without)!r}\n"
        "class Installed(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        "        return None if name.partition('.')[0] in names else super().find_spec(name, path, target)\n"
        "sys.meta_path[:] = [Installed if finder is PathFinder else finder for finder in sys.meta_path]\n"
    )
    known = os.environ | {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)} | environment
    done = subprocess.run(
        [sys.executable, "-c", _RUN, "lines.json", str(TESTS)], cwd=folder, env=known, capture_output=True, text=True,
        timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
