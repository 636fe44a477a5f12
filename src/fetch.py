"""Download the weights and data of a run on a login node: `python src/fetch.py --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]  # without engine/: the installed package

import src  # noqa: E402, F401  exits with a message if the engine is not installed
from train_anywhere.commands.fetch import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
