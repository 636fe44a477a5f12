"""Run a client of the scheduler (squeue, sbatch, qstat, ...) with limits of time and output.

A client that can't be started or does not answer raises a `SchedulerError`; the caller interprets the answer.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from textwrap import shorten

from train_anywhere.errors import NoAnswerError, SchedulerError

QUERY_TIMEOUT_S = 60.0
"""Limit of a query. Slurm 22.05's clients give up after 8 s without a connection and 10 s without an answer; sites raise that."""

SUBMIT_TIMEOUT_S = 120.0
"""Limit of a submission, which also waits for the site's plugins."""

MAX_OUTPUT = 64 << 20
"""Bytes; a client that prints more is killed, since it may never stop."""

CHECK_EVERY_S = 0.2
"""Seconds between checks of the amount that a client has printed."""

MAX_QUOTED = 400
"""Characters of a client's message that an error of this project quotes."""

CLIENT_OPTIONS = re.compile(r"S(QUEUE|ACCT|CANCEL|CONTROL|INFO)_")
"""Variables that set options of Slurm's clients: SQUEUE_PARTITION=gpu would hide the jobs of other partitions."""


@dataclass(frozen=True)
class Answer:
    """The output, errors and exit code of a client. A negative code is a signal."""

    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The errors, else the output, on one line."""
        printed = (self.err.strip() or self.out.strip())[: 10 * MAX_QUOTED]
        clean = "".join(c if c.isprintable() or c.isspace() else "?" for c in printed)
        return shorten(clean, MAX_QUOTED, placeholder=" ...")


def run(
    command: Sequence[str], limit: float, text: str = "", environ: Mapping[str, str] | None = None
) -> Answer:
    """Run a client detached from the terminal and from Ctrl-C.

    After `limit` seconds the client and its process group are killed. `text` is its standard input, `environ` its environment, by
    default `client_environment()`.

    Raises:
        SchedulerError: the client can't be started.
        NoAnswerError: the client does not answer in time, or prints too much.
    """
    name, pipe = command[0], subprocess.PIPE
    environ = client_environment() if environ is None else environ
    # a file, because a pipe would have to be filled while the answer is read
    with TemporaryFile() if text else open(os.devnull, "r+b") as stdin:
        stdin.write(text.encode())
        stdin.seek(0)
        try:
            process = subprocess.Popen(
                command, stdin=stdin, stdout=pipe, stderr=pipe, env=environ, start_new_session=True
            )
        except OSError as error:
            path = shutil.which(name)
            if isinstance(error, FileNotFoundError) and not path:
                why = f"{name} is not on this machine: run this on a login node of the cluster."
            else:
                why = f"{path or name} can't be started: {error.strerror}."
            raise SchedulerError(why) from None
    with process:
        try:
            out, err = _read_output(process, name, limit)
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
    return Answer(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def query(command: Sequence[str], unknown: str) -> str:
    """Return the output of a query.

    It is empty if the client fails with a message that matches `unknown`, such as "Invalid job id". Raises SchedulerError on any other
    failure.
    """
    answer = run(command, QUERY_TIMEOUT_S)
    if answer.code == 0:
        return answer.out
    if re.search(unknown, answer.err + answer.out):
        return ""
    raise SchedulerError(f"{command[0]} failed with {describe_exit(answer)}.")


def describe_exit(answer: Answer) -> str:
    """Return how a client exited: 'exit code 1: Unable to contact slurm controller'."""
    how = f"signal {-answer.code}" if answer.code < 0 else f"exit code {answer.code}"
    return f"{how}: {answer.message.rstrip('.')}" if answer.message else how


def client_environment() -> dict[str, str]:
    """Return an environment in which a client prints exactly what was requested, in English."""
    return {**{k: v for k, v in os.environ.items() if not CLIENT_OPTIONS.match(k)}, "LC_ALL": "C"}


def _read_output(process: subprocess.Popen[bytes], name: str, limit: float) -> tuple[bytes, bytes]:
    """Return output and errors of a client. Raises NoAnswerError."""
    deadline = time.monotonic() + limit
    while True:
        try:
            return process.communicate(timeout=min(CHECK_EVERY_S, max(0.0, deadline - time.monotonic())))
        except subprocess.TimeoutExpired as so_far:
            if len(so_far.stdout or b"") + len(so_far.stderr or b"") > MAX_OUTPUT:
                raise NoAnswerError(
                    f"{name} printed more than {MAX_OUTPUT >> 20} MiB and was killed."
                ) from None
            if time.monotonic() >= deadline:
                raise NoAnswerError(f"{name} did not answer within {limit:g} s and was killed.") from None
