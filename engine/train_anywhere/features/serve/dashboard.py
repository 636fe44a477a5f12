"""`python -m train_anywhere.features.serve.dashboard COMMAND ADDRESS LOG`: a command that serves a page, and ends with its input.

Prints the port once it answers there, or why it never will, as `features/serve/board.py` does.
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

from train_anywhere.files.ordinary import open_file

PORT, ADDRESS = "{port}", "{address}"
"""What stands in the command for the free port it is to serve at, and for `monitor.serve_address`."""

STARTS_WITHIN_S, LOOK_EVERY_S = 120.0, 0.2
"""How long a start may take from a busy shared disk, and between two tries to connect."""

ENDS_WITHIN_S = 2.0

WITH_THIS = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
"""util-linux' setpriv ends the command where this program is killed; a Mac has none."""


def main(arguments: Sequence[str]) -> None:
    """Run the command with its output in the log, until the input ends."""
    command, address, log = arguments
    port = free_port(address)
    words = [w.replace(PORT, str(port)).replace(ADDRESS, address) for w in shlex.split(command)]
    if not shutil.which(words[0]):
        print(f"{words[0]} is not installed there, or not on PATH", flush=True)
        return
    with open_file(Path(log), "wb") as out:
        process = subprocess.Popen(
            [*WITH_THIS, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        if said := _wait(process, address, port):
            print(said.format(log=log), flush=True)
        else:
            print(port, flush=True)
            sys.stdin.read()  # ends with whoever started this
    finally:
        end(process)


def _wait(process: subprocess.Popen[bytes], address: str, port: int) -> str:
    """Until it answers: empty; else why it does not."""
    until = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < until:
        if process.poll() is not None:
            return f"it ended with exit code {process.returncode}, see {{log}}"
        with suppress(OSError), socket.create_connection((address, port), timeout=1):
            return ""
        if select.select([0], [], [], LOOK_EVERY_S)[0]:
            return "it was not there yet when the job ended"
    return f"nothing answers at port {port} after {STARTS_WITHIN_S:.0f} s, see {{log}}"


def free_port(address: str) -> int:
    """A port of an address at which nobody listens now.

    Raises:
        OSError: the address is not this node's.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def end(process: subprocess.Popen[bytes]) -> None:
    """End the command and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDS_WITHIN_S)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        print(error.strerror or error, flush=True)
