"""Start a real Slurm of several nodes on this machine: `python slurm/testbed.py --help`."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]  # in a fork without engine/, the installed one

import src  # noqa: E402, F401  refuses to continue without an engine

TOOL = (
    [ROOT / "tools/testbed"]
    if (ROOT / "tools/testbed").is_dir()
    else [ROOT / "wheels/template.py", "testbed"]
)
"""The program: a tool of the template, which the sdist of the engine has."""

if __name__ == "__main__":
    os.execv(sys.executable, [sys.executable, *map(str, TOOL), *sys.argv[1:]])
