"""Train for some epochs, in plain Python: write checkpoints locally, and continue from the newest copy in the run folder.

python src/run.py -- examples/programs/resumable.py --epochs 20

The flags of the folders are those of Ibex' guide; src/run.py sets the variables, and copies the local folder in the background.
"""

import argparse
import json
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--fails", type=int, help="rank that fails, as an example of a failure")
parser.add_argument("--seconds", type=float, default=0.1, help="how long an epoch takes")
parser.add_argument(
    "--read-checkpoints-from", type=Path, default=os.environ.get("TRAIN_PERSISTENT_CHECKPOINTS")
)
parser.add_argument("--write-checkpoints-to", type=Path, default=os.environ.get("TRAIN_LOCAL_CHECKPOINTS"))


def main() -> None:
    """Train from the newest checkpoint to the last epoch."""
    options = parser.parse_args()
    saved = options.read_checkpoints_from / "newest.json"
    epoch = json.loads(saved.read_text())["epoch"] if saved.exists() else 0
    print(f"starting at epoch {epoch}", flush=True)
    rank = int(os.environ.get("RANK", 0))
    if options.fails == rank:
        raise SystemExit("this rank fails")
    while epoch < options.epochs:
        time.sleep(options.seconds)
        epoch += 1
        print(f"epoch {epoch}/{options.epochs}", flush=True)
        if rank:
            continue
        new = options.write_checkpoints_to / "newest.json.new"
        new.write_text(json.dumps({"epoch": epoch}))
        new.replace(options.write_checkpoints_to / "newest.json")


if __name__ == "__main__":
    main()
