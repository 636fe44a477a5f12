"""The verbs of `jobs.py` on a host, and one table of the runs of all hosts."""

import random
import re
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from train_anywhere.errors import REFUSED, ProjectError, SubmitError
from train_anywhere.files import HAS_PROJECT
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.remote.answers import read_reports
from train_anywhere.remote.connection import LOST, Connection, LostConnectionError
from train_anywhere.remote.hosts import list_hosts, read_host
from train_anywhere.remote.remote_command import in_folder, run_once
from train_anywhere.slurm.status.gather import Report, RunReports

LIMIT_S = 30.0
"""Time that each host has for its part of the table of all hosts."""

START = ["src/jobs.py"] if HAS_PROJECT else ["-m", "train_anywhere"]
"""Start of a verb's command, for Python."""

FOLLOWING = {"-f", "--follow", "--watch"}


def run_verb(name: str, verb: str, words: Sequence[str]) -> int:
    """Run `jobs.py words...` on a host with the streams of this process; return its exit code.

    Raises:
        ProjectError: the host is not known or can't be reached, or nothing was sent to it yet.
    """
    host = read_host(name)
    if verb == "resubmit":
        return run_once(host, [*START, *words], None)
    connection = Connection(host)
    query(connection, ["-c", ""])
    tty = verb in ("shell", "prune") or (
        bool(FOLLOWING & {*words}) and sys.stdin.isatty() and sys.stdout.isatty()
    )
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


def list_everywhere(words: Sequence[str]) -> RunReports:
    """Return the runs of all hosts for `jobs.py list words...`, newest first, and a message for each host without an answer."""

    def ask(name: str, pause: float = 1.0) -> list[Report] | str:
        try:
            answer = query(Connection(read_host(name), LIMIT_S), [*START, *words, "--json"])
            found = [run for run in read_reports(name, answer) if not run.trouble]
            return [replace(run, name=f"{name}:{run.name}") for run in found]
        except LostConnectionError as error:  # a log-in node takes few log-ins at a time
            if pause > 5:
                return str(error)
            time.sleep(pause + random.random())
            return ask(name, 2 * pause)
        except ProjectError as error:
            return str(error)

    if not (names := list_hosts()):
        raise SubmitError(
            "configs/hosts/ has no host: `python slurm/new_cluster.py NAME --on SSH_HOST` writes one."
        )
    with ThreadPoolExecutor(len(names)) as threads:
        answers = [*threads.map(ask, names)]
    runs = [run for answer in answers if not isinstance(answer, str) for run in answer]
    trouble = tuple(answer for answer in answers if isinstance(answer, str))
    runs.sort(key=lambda run: -(run.started or 0))
    return RunReports(runs, trouble=trouble, code=REFUSED if len(trouble) == len(names) else 0)
