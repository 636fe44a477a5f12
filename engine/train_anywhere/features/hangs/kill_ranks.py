"""Kill ranks that hang and record how the run ended: with `monitor.hang=requeue`, and after `monitor.idle=stop`."""

import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal

from train_anywhere.errors import CheckpointError
from train_anywhere.files.atomic import write_atomic
from train_anywhere.monitor.ranks import GONE, RankStatus, process_state
from train_anywhere.runs.attempts import KILLED, record_kill, start_of_job
from train_anywhere.runs.folder import RunDir

TIMES = 3
"""A run that hangs at the same step for the third time has failed: it would be requeued for ever."""

GRACE_S = 10.0
"""Seconds for killed processes to exit; a process that waits for a dead disk does not."""


def is_repeated_hang(hangs: Iterable[Mapping[str, Any]], step: int) -> bool:
    """Return whether another hang at `step` is the third without progress; `hangs` are the earlier ones, with their `step`."""
    return sum(hang["step"] >= step for hang in hangs) >= TIMES - 1


def end_run(
    run: RunDir, ranks: Iterable[RankStatus], state: Literal["preempted", "failed"], **fields: Any
) -> None:
    """Record how the run ended, with `fields` of its attempt, and kill the ranks of this node, which is that of rank 0.

    Rank 0 is stopped first, so that two processes never write the records. They are written before it is killed, since the batch
    script reads them as soon as the launcher exits.
    """
    there = list(ranks)
    send(there, signal.SIGSTOP)
    with suppress(OSError, CheckpointError):
        record_kill(run, state, **fields)
        write_atomic(run.monitor / KILLED, f"{start_of_job()}\n")
    kill(there)


def kill(ranks: Iterable[RankStatus]) -> list[int]:
    """Kill ranks of this node and wait until they exit; return the numbers of those that don't."""
    there = list(ranks)
    send(there, signal.SIGKILL)
    end = time.monotonic() + GRACE_S
    while (left := alive_ranks(there)) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def alive_ranks(ranks: Iterable[RankStatus]) -> list[int]:
    """Return numbers of the ranks whose process still runs."""
    return [r.rank for r in ranks if process_state(r.pid, r.started) != GONE]


def send(ranks: Iterable[RankStatus], number: int) -> None:
    """Send a signal to ranks of this node, if their process id still belongs to them."""
    for rank in ranks:
        if process_state(rank.pid, rank.started) != GONE:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(rank.pid, number)
