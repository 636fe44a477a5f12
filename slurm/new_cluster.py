"""Write the preset of the cluster whose login node this is: `python slurm/new_cluster.py --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(ROOT), str(ROOT / "engine")]  # in a fork without engine/, the installed one

import src  # noqa: E402, F401  refuses to continue without an engine
from train_anywhere.commands.new_cluster import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
