"""The process of a node that forks its ranks, in a job step as long as the job.

    python -m train_anywhere.launch.warm_node RUN < PIPE

It starts a fork server, and passes the node's tasks of srun (`launch/warm_rank.py`) on to it. It ends when its input is closed.
"""

import os
import select
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.launch.forkserver import ForkServer
from train_anywhere.launch.processes import fork_server
from train_anywhere.launch.warm_rank import SIGNALS, address, is_own
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.reopen.frozen import load_frozen


def main(run: RunDir) -> None:
    """Fork ranks until the input is closed."""
    for number in SIGNALS:  # the tasks of the ranks get them
        signal.signal(number, signal.SIG_IGN)
    listener = listen()  # before anything that takes time
    serve(listener, fork_server(load_frozen(run).framework, 1), 0)
    os._exit(0)  # the server ends with this process, and its forks with the server


def listen() -> socket.socket:
    """Return the socket to which the tasks of this node connect."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address())
    listener.listen(1024)
    return listener


def serve(listener: socket.socket, server: ForkServer, until: int) -> None:
    """Pass each task of this user on to the server, until the descriptor `until` can be read."""
    watched: list[Any] = [listener, until]
    while until not in select.select(watched, [], [])[0]:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            if is_own(connection):
                server.pass_on(connection)


if __name__ == "__main__":
    main(RunDir(Path(sys.argv[1])))
