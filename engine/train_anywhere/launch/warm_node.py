"""The process of a node that forks its ranks, in a job step with one task on each node that lasts as long as the job.

    python -m train_anywhere.launch.warm_node RUN < PIPE

It starts a fork server, and waits for the node's tasks of srun (`launch/warm_rank.py`). It ends when its input is closed.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from train_anywhere.launch.fork_main import read_line
from train_anywhere.launch.forkserver import ForkedProcess, ForkServer
from train_anywhere.launch.processes import fork_server
from train_anywhere.launch.rank import load_frozen
from train_anywhere.launch.warm_rank import SIGNALS, address, is_own
from train_anywhere.runs.folder import RunDir


def main(run: RunDir) -> None:
    """Fork ranks until the input is closed."""
    for number in SIGNALS:  # the tasks of the ranks get them
        signal.signal(number, signal.SIG_IGN)
    listener = listen()  # before anything that takes time
    server = fork_server(load_frozen(run).framework, 1)
    threading.Thread(target=accept, args=(listener, server), daemon=True).start()
    sys.stdin.buffer.read()
    os._exit(0)  # the server ends with this process, and its forks with the server


def listen() -> socket.socket:
    """Return the socket to which the tasks of this node connect."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address())
    listener.listen(1024)
    return listener


def accept(listener: socket.socket, server: ForkServer) -> None:
    """Serve each task that connects, for ever."""
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve, args=(connection, server), daemon=True).start()


def serve(connection: socket.socket, server: ForkServer) -> None:
    """Fork a rank, pass signals on to it, and report its exit code. It is killed with the task that stands for it."""
    with connection, suppress(OSError, ValueError):
        if not is_own(connection):
            return
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        request = json.loads(read_line(connection))
        forked, why = _fork(server, request, streams)
        for number in streams:
            os.close(number)
        connection.sendall(f"{why or 'forked'}\n".encode())
        watched: list[Any] = [connection, forked]
        while forked:
            if connection in select.select(watched, [], [])[0]:
                numbers = [int(number) for number in connection.recv(1 << 10).split()]
                for number in numbers or [signal.SIGKILL]:
                    forked.send_signal(number)
                if numbers:
                    continue
            connection.sendall(f"{forked.wait()}\n".encode())
            return


def _fork(
    server: ForkServer, request: Mapping[str, Any], streams: list[int]
) -> tuple[ForkedProcess | None, str]:
    """Return the fork, or None and why there is none."""
    if not set(request["cpus"]) <= os.sched_getaffinity(0):
        return None, "they have CPUs that are not those of the node's process"
    if not server.list_differences(request["environ"]):
        own = {"umask": request["umask"], "cpus": request["cpus"]}
        if forked := server.fork(request["command"], request["environ"], request["cwd"], streams, own):
            return forked, ""
    return None, server.why_not(request["environ"])


if __name__ == "__main__":
    main(RunDir(Path(sys.argv[1])))
