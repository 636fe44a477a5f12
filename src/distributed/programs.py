"""Run a client of the scheduler (squeue, sbatch, qstat, ...): bounded in time, and whatever it prints is text.

A client that can't be asked is a `SchedulerError`; what an answer means is left to the caller.
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

from src.errors import NoAnswer, SchedulerError

QUERY = 60.0
"""Seconds for a question. Slurm 22.05's clients give up after 8 s without a connection and 10 s without an answer; sites raise that."""

SUBMIT = 120.0
"""Seconds for a submission, which also waits for the site's plugins."""

MOST = 64 << 20
"""Bytes that a client prints at most; one that prints more will not end."""

LOOK = 0.2
"""Seconds between looks at how much a client has printed so far."""

KEPT = 400
"""Characters of a client's words that an error message repeats."""

OPTIONS = re.compile(r"S(QUEUE|ACCT|CANCEL|CONTROL|INFO)_")
"""Variables that stand for options of Slurm's clients: SQUEUE_PARTITION=gpu would hide the jobs of other partitions."""


@dataclass(frozen=True)
class Answer:
    """What a client printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Its own words on one line, for a message: errors, else output."""
        words = (self.err.strip() or self.out.strip())[: 10 * KEPT]
        said = "".join(c if c.isprintable() or c.isspace() else "?" for c in words)
        return shorten(said, KEPT, placeholder=" ...")


def run(
    command: Sequence[str], limit: float, text: str = "", environ: Mapping[str, str] | None = None
) -> Answer:
    """The answer of a client, which gets nothing from the terminal and no Ctrl-C.

    Args:
        limit: seconds, after which it is ended with all that it started.
        text: its standard input.
        environ: its environment; by default one in which what it prints can be parsed.

    Raises:
        SchedulerError: it can't be started.
        NoAnswer: it does not answer in time, or without an end.
    """
    name, pipe = command[0], subprocess.PIPE
    # a file instead of a pipe, which would have to be filled while the answer is read
    with TemporaryFile() if text else open(os.devnull, "r+b") as given:
        given.write(text.encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=given,
                stdout=pipe,
                stderr=pipe,
                env=parsed() if environ is None else environ,
                start_new_session=True,
            )
        except OSError as error:
            raise SchedulerError(_not_started(name, error)) from None
    try:
        out, err = _printed(process, limit)
    except NoAnswer as error:
        raise NoAnswer(f"{name} {error} and was ended.") from None
    finally:
        _end(process)
    return Answer(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def ask(command: Sequence[str], unknown: str) -> str:
    """What a question was answered with; "" where the answer is that nothing is known.

    Args:
        unknown: a regular expression for the words of a failure that is an answer, such as "Invalid job id".

    Raises:
        SchedulerError: in all other cases.
    """
    answer = run(command, QUERY)
    if answer.code == 0:
        return answer.out
    if re.search(unknown, answer.err + answer.out):
        return ""
    raise SchedulerError(f"{command[0]} failed with {ended(answer)}.")


def ended(answer: Answer) -> str:
    """How a client ended, and its words: 'exit code 1: Unable to contact slurm controller'."""
    how = f"signal {-answer.code}" if answer.code < 0 else f"exit code {answer.code}"
    return f"{how}: {answer.words.rstrip('.')}" if answer.words else how


def parsed(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """An environment in which a client prints what was asked for, in English."""
    return {**{k: v for k, v in environ.items() if not OPTIONS.match(k)}, "LC_ALL": "C"}


def _printed(process: subprocess.Popen[bytes], limit: float) -> tuple[bytes, bytes]:
    """Output and errors of a client. Raises NoAnswer, which says what it did instead of ending."""
    ends = time.monotonic() + limit
    while True:
        try:
            return process.communicate(timeout=min(LOOK, max(0.0, ends - time.monotonic())))
        except subprocess.TimeoutExpired as so_far:
            if len(so_far.stdout or b"") + len(so_far.stderr or b"") > MOST:
                raise NoAnswer(f"printed more than {MOST >> 20} MiB") from None
            if time.monotonic() >= ends:
                raise NoAnswer(f"did not answer within {limit:g} s") from None


def _not_started(name: str, error: OSError) -> str:
    path = shutil.which(name)
    if isinstance(error, FileNotFoundError) and not path:
        return f"{name} is not on this machine: run this on a login node of the cluster."
    return f"{path or name} can't be started: {error.strerror}."


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a client that has not answered, with its process group, and let go of its pipes."""
    if process.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe:
            with suppress(OSError):
                pipe.close()
