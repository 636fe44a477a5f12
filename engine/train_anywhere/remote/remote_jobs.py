"""The verbs of `jobs.py` on a host, and one table of the runs of all hosts.

What hosts answer is checked and typed here, since a host may have another version, or belong to someone else.
"""

import random
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from train_anywhere.errors import REFUSED, ProjectError, SubmitError
from train_anywhere.files import HAS_PROJECT
from train_anywhere.files.atomic import loads
from train_anywhere.files.terminal.printable import one_line
from train_anywhere.remote.connection import LOST, Connection, LostConnectionError
from train_anywhere.remote.hosts import list_hosts, read_host
from train_anywhere.remote.remote_command import in_folder, run_once
from train_anywhere.runs.facts import RecordedProgress
from train_anywhere.runs.folder import Check, fits, is_integer, is_string, is_string_list
from train_anywhere.slurm.status.gather import Report, RunReports

T = TypeVar("T")


REPORT: dict[str, Check] = {
    **dict.fromkeys(("id", "name", "path", "state", "written", "trouble"), is_string),
    **dict.fromkeys(
        ("started", "took"),
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v < 1e11,
    ),
    "overrides": lambda value: isinstance(value, Mapping) and is_string_list([*value.values()]),
    "progress": lambda value: isinstance(value, Mapping) and fits(value, PROGRESS),
    "best": lambda value: isinstance(value, list) and [*map(type, value)] in ([str, float], [str, int]),
}
"""Checks of what a report of `jobs.py status --json` and `list --json` has."""

OPTIONAL = {"started", "took", "best"}
"""What may be null in a report."""

PROGRESS: dict[str, Check] = {"step": is_integer, "steps": is_integer}


def read_reports(host: str, answer: str) -> list[Report]:
    """Return the runs that `jobs.py status --json` or `list --json` has printed on a host. Raises SubmitError."""
    return _read(host, answer, "{", lambda content: [_report(run) for run in content["runs"]])


def _report(run: Mapping[str, Any]) -> Report:
    known = {key: run[key] for key in REPORT}
    path, missing = Path(known["path"]), {key for key in REPORT if known[key] is None} - OPTIONAL
    if missing or not fits(known, REPORT) or path.parts[-2:] != (known["name"], known["id"]):
        raise ValueError(f"it names the run {known}")
    progress = RecordedProgress(**{key: known["progress"].get(key) for key in PROGRESS})
    best = known["best"] and (known["best"][0], float(known["best"][1]))
    return Report(**{**known, "path": path, "progress": progress, "best": best})


def read_prepared(host: str, answer: str) -> tuple[str, list[str]]:
    """Return what `run_copies.prepare` has printed on a host: the project's folder and the starts of a run. Raises SubmitError."""

    def read(content: Any) -> tuple[str, list[str]]:
        folder, starts = content
        if not (is_string(folder) and folder.startswith("/") and is_string_list(starts)):
            raise ValueError("it names no folder")
        return folder, starts

    return _read(host, answer, "[", read)


def _read(host: str, answer: str, start: str, read: Callable[[Any], T]) -> T:
    """Return what `read` makes of the JSON in an answer, from its first bracket. Raises SubmitError if it is of another form."""
    try:
        return read(loads(answer[answer.index(start) :]))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise SubmitError(
            f"{host}: its answer can't be read ({one_line(repr(error))[:300]}); `python src/train.py on={host} dry_run=true` sends it this "
            "version."
        ) from error


LIMIT_S = 30.0
"""Time that each host has for its part of the table of all hosts."""

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
