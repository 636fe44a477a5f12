"""One task of srun, whose rank is a fork of a process on its node.

    python -m train_anywhere.launch.warm_rank RUN

The fork has the environment, CPUs, folder and streams that srun gave to this process. Meanwhile this one waits, passes signals on, and
ends as the rank does, so that srun, Slurm and their messages are the same as without a fork. If there is no fork, it becomes the rank.
"""

import json
import os
import resource
import signal
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from train_anywhere.files.root import ROOT

WAIT_S = 15.0
"""Time for the process of the node to start; importing the framework is not part of it."""

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)


def address(environ: Mapping[str, str] = os.environ) -> str:
    """Return the socket of the node's process: a name that its containers see too."""
    return f"\0train_anywhere-{os.getuid()}-{environ['SLURM_JOB_ID']}-{environ['SLURMD_NODENAME']}"


def is_own(connection: socket.socket) -> bool:
    """Return whether the other end of a Unix socket is a process of this user."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", peer)[1]) == os.getuid()


def read_line(connection: socket.socket) -> str:
    """Read one short line without its end. Empty if the peer has closed the connection."""
    with suppress(OSError), connection.makefile("rb", buffering=0) as stream:
        return stream.readline().decode().rstrip("\n")
    return ""


def connect(name: str | bytes, seconds: float) -> socket.socket | None:
    """Connect to a process that forks. Return None if it does not listen in time, or is another user's."""
    end = time.monotonic() + seconds
    while True:
        connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            connection.connect(name)
            return connection if is_own(connection) else None
        connection.close()
        if time.monotonic() >= end:
            return None
        time.sleep(0.05)


def request_fork(
    connection: socket.socket, command: Sequence[str], environ: Mapping[str, str], cwd: str, streams: Sequence[int], **more: Any
) -> str:  # fmt: skip
    """Request a fork with these streams. Return its process id, or why there is none; the exit code follows in another line."""
    umask = os.umask(0o22)  # it can be read only by setting another one
    os.umask(umask)
    own = {"cwd": cwd, "umask": umask, "starter": os.getpid(), **more}
    request = json.dumps({"command": [*command], "environ": {**environ}, **own})
    with suppress(OSError):
        socket.send_fds(connection, [b"."], streams)
        connection.sendall(f"{request}\n".encode())
        return read_line(connection)
    return ""


def main(run: str) -> None:
    """Run the rank as a fork, and end as it does."""
    command = [sys.executable, "-u", str(ROOT / "src" / "train.py"), "--run", run]
    why = "no process of this node has imported the framework"
    if connection := connect(address(), WAIT_S):
        cpus = sorted(os.sched_getaffinity(0))
        answer = request_fork(connection, command, os.environ, os.getcwd(), [0, 1, 2], cpus=cpus)
        why = answer or "its process has ended"
    if not connection or not why.isdigit():
        if os.environ.get("SLURM_LOCALID") == "0":
            node = os.environ["SLURMD_NODENAME"]
            print(f"The ranks on {node} start as new interpreters: {why}.", file=sys.stderr, flush=True)
        os.execv(command[0], command)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(int(why), number))
    code = int(read_line(connection) or -signal.SIGKILL)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left one, if any
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1])
