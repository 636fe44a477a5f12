"""Run one of several runs of this machine at a time: `python -m train_anywhere.launch.local_member RUN`."""

import sys
from pathlib import Path

from train_anywhere.distributed.layout import local_layout
from train_anywhere.errors import REFUSED, ConfigError
from train_anywhere.launch.exits import follow_parent
from train_anywhere.launch.processes import run_here, run_monitor
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import load_frozen


def main(path: str) -> int:
    """Run it, a trial with the values that Optuna proposes, and return its exit code."""
    follow_parent()
    run = RunDir(Path(path))
    config = load_frozen(run)
    try:
        with run_monitor(run, config):
            return run_here(run, local_layout(config), retries=config.cluster.retries)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
