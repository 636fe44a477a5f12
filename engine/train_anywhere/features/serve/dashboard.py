"""Run a command that serves a page, until the end of this program's input.

python -m train_anywhere.features.serve.dashboard COMMAND ADDRESS LOG

It prints the port once the command answers there, or why it does not.
"""

import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from train_anywhere.files.atomic import open_file

PORT, ADDRESS = "{port}", "{address}"
"""Placeholders in the command for a free port and for `monitor.serve_address`."""

START_S, RETRY_S = 120.0, 0.2
"""Longest start in seconds, from a busy shared disk, and seconds between two attempts to connect."""

END_S = 2.0

KILLED_WITH_PARENT = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""Prefix that kills the command if this program is killed, with util-linux's setpriv; empty on a Mac, which has none."""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its output in the log, until the input ends."""
    command, address, log = arguments
    port = free_port(address)
    words = [w.replace(PORT, str(port)).replace(ADDRESS, address) for w in shlex.split(command)]
    if not shutil.which(words[0]):
        print(f"{words[0]} is not installed, or not on PATH", flush=True)
        return
    with open_file(Path(log), "wb") as out:
        process = subprocess.Popen(
            [*KILLED_WITH_PARENT, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        if problem := _wait(process, address, port):
            print(problem.format(log=log), flush=True)
        else:
            print(port, flush=True)
            sys.stdin.read()  # until the process that started this one exits
    finally:
        stop(process)


def _wait(process: subprocess.Popen[bytes], address: str, port: int) -> str:
    """Wait until the command answers. Return why it does not, or ""."""
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            return f"it exited with code {process.returncode}, see {{log}}"
        with suppress(OSError), socket.create_connection((address, port), timeout=1):
            return ""
        if select.select([0], [], [], RETRY_S)[0]:
            return "it had not started when the job ended"
    return f"nothing answers on port {port} after {START_S:.0f} s, see {{log}}"


def free_port(address: str) -> int:
    """Return a port of an address that is free now. Raises OSError."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the command and the processes that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        print(error.strerror or error, flush=True)
