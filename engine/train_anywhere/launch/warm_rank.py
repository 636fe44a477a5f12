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
from collections.abc import Mapping
from contextlib import suppress
from typing import TextIO

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


def connect() -> socket.socket | None:
    """Connect to the node's process. Return None if it is late, or another user's."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        connection = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            connection.connect(address())
            return connection if is_own(connection) else None
        connection.close()
        time.sleep(0.05)
    return None


def ask(command: list[str]) -> tuple[int, TextIO | None, str]:
    """Ask for a fork. Return its process id and answers, or why there is none."""
    if not (connection := connect()):
        return 0, None, "no process of this node has imported the framework"
    umask = os.umask(0o22)
    os.umask(umask)
    cpus, own = sorted(os.sched_getaffinity(0)), {"cwd": os.getcwd(), "umask": umask, "starter": os.getpid()}
    request = {"command": command, "environ": {**os.environ}, "cpus": cpus, **own}
    answers, answer = connection.makefile(), ""
    with suppress(OSError):
        socket.send_fds(connection, [b"."], [0, 1, 2])
        connection.sendall(json.dumps(request).encode(errors="surrogateescape") + b"\n")
        answer = answers.readline().strip()
    if answer.isdigit():
        return int(answer), answers, ""
    return 0, None, answer or "its process has ended"


def main(run: str) -> None:
    """Run the rank as a fork, and end as it does."""
    command = [sys.executable, "-u", str(ROOT / "src" / "train.py"), "--run", run]
    rank, answers, why = ask(command)
    if answers is None:
        if os.environ.get("SLURM_LOCALID") == "0":
            node = os.environ["SLURMD_NODENAME"]
            print(f"The ranks on {node} start as new interpreters: {why}.", file=sys.stderr, flush=True)
        os.execv(command[0], command)
    for number in SIGNALS:
        signal.signal(number, lambda number, _: os.kill(rank, number))
    code = int(answers.readline() or -signal.SIGKILL)
    if code >= 0:
        os._exit(code)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank has left one, if any
    if code != -signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main(sys.argv[1])
