"""The process of a node that forks its ranks, in a job step as long as the job.

    python -m train_anywhere.launch.warm_node RUN < PIPE

It starts a fork server, to which the node's tasks of srun (`launch/warm_rank.py`) connect. It ends when its input is closed.
"""

import os
import signal
import sys
from pathlib import Path

from train_anywhere.launch.processes import fork_server
from train_anywhere.launch.warm_rank import SIGNALS, address
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import load_frozen


def main(run: RunDir) -> None:
    """Fork ranks until the input is closed."""
    for number in SIGNALS:  # the tasks of the ranks get them
        signal.signal(number, signal.SIG_IGN)
    with fork_server(load_frozen(run).framework, 1, address()):
        while os.read(0, 4096):
            pass
        os._exit(0)  # the server ends with this process, and its forks with the server


if __name__ == "__main__":
    main(RunDir(Path(sys.argv[1])))
