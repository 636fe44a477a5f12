"""The other end of a command from another machine, which runs in the project's folder there.

A request has an id. The first call with it starts the command in a new session, so that a lost connection does not stop it.
Further calls show the output and the exit code of the same command.
"""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

REQUESTS = Path(".remote", "requests")

POLL_MS, START_S = 20, 20.0
"""Time between two looks at the output, and time for a request of another call to start its command."""

COMMAND = 'folder=$0; "$@"; code=$?; echo $code > "$folder/.code" && mv "$folder/.code" "$folder/code"'
"""Script of bash that runs a command and records its exit code."""


def main(arguments: Sequence[str]) -> int:
    """Start the command of a request, unless it was started before, and show its output; return its exit code."""
    folder, command = REQUESTS / arguments[0], [sys.executable, *arguments[1:]]
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.stat().st_mtime))
        note = f"note: this command was started at {when}; its answer was lost, and is shown now"
        print(note, file=sys.stderr, flush=True)
    except OSError as error:  # such as a full disk
        print(f"error: {REQUESTS.resolve()} can't be written: {error.strerror}.", file=sys.stderr)
        return 2
    else:
        with open(folder / "out", "wb") as out, open(folder / "err", "wb") as err:
            words, nothing = ["bash", "-c", COMMAND, str(folder), *command], subprocess.DEVNULL
            started = subprocess.Popen(words, stdin=nothing, stdout=out, stderr=err, start_new_session=True)
        with suppress(OSError):  # the disk is full now, and the command goes its way
            (folder / "process").write_text(f"{started.pid} {socket.gethostname()}")
    if not _follow(folder):
        return 0
    try:
        return min(int((folder / "code").read_text()), 254)  # ssh itself exits with 255
    except (OSError, ValueError):
        print(
            f"error: the command was killed on {socket.gethostname()} before it ended, and may have submitted a job: look at "
            "`python src/jobs.py list` before you type it again.",
            file=sys.stderr,
        )
        return 2


def _follow(folder: Path) -> bool:
    """Copy the output to this process's streams until the command ends; return False if the reader has gone before."""
    end = time.monotonic() + START_S
    while not (folder / "process").exists():
        if time.monotonic() > end:
            return True
        time.sleep(0.1)
    listening = select.poll()
    listening.register(1, 0)  # reports only that the other end is closed
    with open(folder / "out", "rb") as out, open(folder / "err", "rb") as err:
        ended = False
        while not ended:
            if listening.poll(POLL_MS):
                return False
            ended = _is_over(folder)
            for source, target in ((out, sys.stdout), (err, sys.stderr)):
                target.buffer.write(source.read())
                target.flush()
    return True


def _is_over(folder: Path) -> bool:
    """Return whether the command has ended or was killed; the latter is not known on another login node."""
    pid, host = (folder / "process").read_text().split() or ("0", "")  # being written
    with suppress(ChildProcessError):  # not started by this call
        os.waitpid(int(pid), os.WNOHANG)
    return (folder / "code").exists() or (host == socket.gethostname() and not Path("/proc", pid).exists())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
