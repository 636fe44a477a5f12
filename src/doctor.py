"""Check that training works here or on a cluster: `python src/doctor.py --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]  # in a fork without engine/, the installed one

import src  # noqa: E402, F401  refuses to continue without an engine
from train_anywhere.commands.doctor import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
