"""The verbs of `jobs.py` on a host."""

import re
import sys
from collections.abc import Sequence

from train_anywhere.errors import SubmitError
from train_anywhere.files import HAS_PROJECT
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.remote.connection import LOST, Connection
from train_anywhere.remote.hosts import read_host
from train_anywhere.remote.remote_command import in_folder, run_once

START = ["src/jobs.py"] if HAS_PROJECT else ["-m", "train_anywhere"]
"""Start of a verb's command, for Python."""

FOLLOWING = {"-f", "--follow", "--watch"}


def run_verb(name: str, verb: str, words: Sequence[str]) -> int:
    """Run `jobs.py words...` on a host with the streams of this process; return its exit code.

    Raises ProjectError: the host is not known or can't be reached, or nothing was sent to it yet.
    """
    host = read_host(name)
    if verb == "resubmit":
        return run_once(host, [*START, *words], None)
    connection = Connection(host)
    query(connection, ["-c", ""])
    follows = FOLLOWING & {*words} and sys.stdin.isatty() and sys.stdout.isatty()
    tty = verb in ("shell", "prune") or bool(follows)
    code = connection.run(in_folder(host, [*START, *words]), tty)
    if code == LOST:
        raise SubmitError(f"the connection to {name} was lost; the run there is not affected.")
    return code


def query(connection: Connection, words: Sequence[str]) -> str:
    """Return what Python prints in the project's folder on a host. Raises SubmitError with its message if it fails."""
    done = connection.capture(in_folder(connection.host, words))
    if done.returncode:
        said = re.split("[eE]rror: ", done.stderr.strip())[-1]
        raise SubmitError(f"{connection.host.name}: {one_line(' '.join(said.split()))[:600]}")
    return done.stdout
