"""Run any program of this project, here or on a cluster: `python src/run.py --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]  # without engine/: the installed package

import src  # noqa: E402, F401  exits with a message if the engine is not installed
from train_anywhere.commands.run import run  # noqa: E402

if __name__ == "__main__":
    run()
