"""`monitor.hang=requeue`: the ranks that hang are ended, and the run is left as after a preemption, so that its job comes back."""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.monitor.ranks import GONE, Seen, process_state
from train_anywhere.runs.attempts import record_hang, running_job
from train_anywhere.runs.folder import RunDir

TIMES = 3
"""A run that hangs at the same step for the third time has failed: it would come back for ever."""

GRACE_S = 10.0
"""Time for killed processes to end; one that waits for a dead disk does not."""

MARK = "hang"
"""File in RUN/monitor that names the start of the job that was ended, for the batch script."""


def start_of_job(environ: Mapping[str, str] = os.environ) -> str:
    """Names this start of this job: '123/0', and '123/1' after it was requeued; the batch script computes the same."""
    return f"{running_job(environ) or 'local'}/{environ.get('SLURM_RESTART_COUNT') or 0}"


def too_often(hangs: Iterable[Mapping[str, Any]], step: int) -> bool:
    """Whether another hang at `step` would be the third one without progress since.

    Args:
        hangs: the earlier ones, with their `step`.
    """
    return sum(hang["step"] >= step for hang in hangs) >= TIMES - 1


def end_run(run: RunDir, ranks: Iterable[Seen], step: int, failed: bool) -> None:
    """Record how the run ended, and kill the ranks of this node, on which rank 0 is.

    Rank 0 is stopped first: as long as it can write, the records are its own. They are written before it is killed, since
    the batch script reads them as soon as its launcher ends.
    """
    there = list(ranks)
    send(there, signal.SIGSTOP)
    with suppress(OSError, CheckpointError):
        record_hang(run, "failed" if failed else "preempted", step)
        write_atomic(run.monitor / MARK, f"{start_of_job()}\n")
    kill(there)


def kill(ranks: Iterable[Seen]) -> list[int]:
    """Kill ranks of this node and wait for their end; returns those that don't end."""
    there = list(ranks)
    send(there, signal.SIGKILL)
    end = time.monotonic() + GRACE_S
    while (left := alive(there)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def alive(ranks: Iterable[Seen]) -> list[int]:
    """Numbers of the ranks whose process still runs."""
    return [r.rank for r in ranks if process_state(r.pid, r.started) != GONE]


def send(ranks: Iterable[Seen], number: int) -> None:
    """Send a signal to ranks of this node that are still the processes that they were."""
    for rank in ranks:
        if process_state(rank.pid, rank.started) != GONE:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(rank.pid, number)
