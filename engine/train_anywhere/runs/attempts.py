"""The attempts of a run: its start, then one more for each resume. Kept in run.json, which rank 0 writes by `runs/recorder.py`.

Each attempt records when, in which job and on which hosts it ran, the step it started from, the step it reached, and why it
ended.
"""

import itertools
import os
import re
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from typing import Any, Literal

from train_anywhere.files.atomic import read_text
from train_anywhere.files.ordinary import open_file, overwrite
from train_anywhere.files.plain_json import loads
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now
from train_anywhere.runs.run_info import is_attempt

COUNT = "steps"
"""File of the run folder with the optimizer steps done, renewed every few seconds: how far a killed attempt had trained."""

TIMES = "times.json"
"""File in RUN/monitor/ with the seconds in each section, renewed every few seconds: where the time of a killed attempt went."""

ENDS = "ended"
"""File in RUN/monitor/ with a line for each attempt that the batch script saw end: its `STARTED` and its end, in unix seconds."""

STARTED = "TRAIN_STARTED"
"""Variable in which the batch script hands on when it began, in unix seconds: the allocation's time counts from there."""

JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID")
"""Variables in which the schedulers name the job around a process."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended, as a framework's training loop returns it.

    Attributes:
        state: completed, or preempted when a signal asked to stop before the end.
        epoch: epochs completed.
        step: optimizer steps done.
        metrics: flat, by the names that the task gives them: `val/loss`.
        checkpoint: folder of the newest checkpoint, if one was written.
        rate: rows per second of training, over all ranks, in `unit`s; None if too little was measured.
    """

    state: Literal["completed", "preempted"]
    epoch: int
    step: int
    metrics: dict[str, float]
    checkpoint: str | None
    rate: float | None = None
    unit: str = "samples"


def record_hang(run: RunDir, state: Literal["preempted", "failed"], step: int) -> None:
    """The attempt hung and is ended from outside; rank 0, which is stopped, records nothing any more."""
    trains = run.info().get("state") == "running"  # else its rank 0 has not come so far
    parts = {ATTEMPTS: ended_attempts(run, ended_by="hang", step=step)} if trains else {}
    run.update(state=state, ended=now(), **parts)


def ended_attempts(run: RunDir, **fields: Any) -> list[dict[str, Any]]:
    attempts = run.info().get(ATTEMPTS, [])
    if not attempts:
        return []
    return [*attempts[:-1], with_times(run, {**attempts[-1], **fields})]


def with_times(run: RunDir, attempt: Mapping[str, Any]) -> dict[str, Any]:
    """The newest attempt with `seconds` and `until` from what was recorded while it ran, unless it has them or they are older."""
    try:
        times = loads(read_text(run.monitor / TIMES))
        fits = times["until"] >= attempt["started"] and "seconds" not in attempt
        known = {**attempt, "until": times["until"], "seconds": times["seconds"]}
        return known if fits and is_attempt(known) else {**attempt}
    except (OSError, ValueError, TypeError, KeyError):
        return {**attempt}


def with_ends(run: RunDir, attempts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The attempts, with `script_ended` where the batch script has recorded when it was done with them."""
    try:
        lines = [line.split() for line in read_text(run.monitor / ENDS).splitlines()]
        ends = {moment(line[0]): moment(line[1]) for line in lines if len(line) == 2}
    except (OSError, ValueError, OverflowError):
        ends = {}
    began = [attempt.get("allocated") for attempt in attempts]
    return [
        {**attempt, "script_ended": ends[start]} if start in ends else {**attempt}
        for attempt, start in zip(attempts, began, strict=True)
    ]


def moment(seconds: str) -> str:
    """Unix seconds, as `now` writes them. Raises ValueError, OverflowError, OSError."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(timespec="seconds")


def running_job(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the number of the job that this process runs in, as run folders record it; `job_name` is for Slurm's clients."""
    return next((environ[name] for name in JOB_VARIABLES if environ.get(name)), None)


def job_name(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the name of this job for a Slurm client: `24_1` for a member of an array.

    The plain number of one member is that of the array too, and means all members to squeue, scontrol and scancel.
    """
    array, member = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    job = running_job(environ)
    return job and (environ.get("TRAIN_JOB") or (f"{array}_{member}" if array and member else job))


def hosts(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The nodes of this job, from the batch script's TRAIN_HOSTS (host:tasks,...); without a job, this machine."""
    listed = environ.get("TRAIN_HOSTS")
    return [h.rpartition(":")[0] for h in listed.split(",")] if listed else [socket.gethostname()]


def job_ids(run: RunDir, environ: Mapping[str, str] = os.environ) -> list[str]:
    """The jobs of this run: those that were submitted for it, and the running one."""
    known: list[str] = []
    with suppress(FileNotFoundError):
        known = read_text(run.jobs).split()
    running = running_job(environ)
    # a member of an array is listed as 7_2, and runs as a job of another number
    member = environ.get("SLURM_ARRAY_JOB_ID")
    return known if not running or running in known or member else [*known, running]


def logged_step(run: RunDir) -> int:
    """The last step in metrics.csv; 0 without one."""
    try:
        lines = read_text(run.metrics_csv, largest=inf).splitlines()
    except (OSError, ValueError):
        return 0
    steps = [line.split(",")[0] for line in lines]
    return max((int(s) for s in steps if re.fullmatch("[0-9]{1,19}", s)), default=0)


def counted_step(run: RunDir) -> int:
    """The last step that the heartbeat of `runs/lock.py` counted; 0 without one."""
    try:
        return int(read_text(run.path / COUNT))
    except (OSError, ValueError):
        return 0


def count_step(run: RunDir, step: int) -> None:
    """Record the number of optimizer steps done; if the disk refuses it, the count of lost steps is less exact."""
    file, text = run.path / COUNT, f"{step}\n".encode()
    with suppress(OSError):
        try:
            overwrite(file, text)
        except FileNotFoundError:
            with open_file(file, "ab") as new:
                new.write(text)


def lost_steps(info: Mapping[str, Any]) -> int:
    """Steps that were trained twice, because an attempt had trained on after the checkpoint that the next one began with."""
    ends = ((a.get("step"), b.get("from_step")) for a, b in itertools.pairwise(info.get(ATTEMPTS) or []))
    return sum(max(0, last - first) for last, first in ends if last is not None and first is not None)


def resume_summary(info: Mapping[str, Any]) -> str:
    """'resumed 3 times, 0 steps lost'; empty for a run that was never resumed. Lost steps were trained twice.

    Where it went on with another number of nodes: '..., on 4, then 3 nodes'.
    """
    attempts, lost = info.get(ATTEMPTS, []), lost_steps(info)
    if len(attempts) < 2:
        return ""
    times = f"{len(attempts) - 1} time{'s' if len(attempts) > 2 else ''}"
    nodes = [key for key, _ in itertools.groupby(len(a.get("hosts") or [""]) for a in attempts)]
    changed = f", on {', then '.join(map(str, nodes))} node{'s'[: nodes[-1] > 1]}" if len(nodes) > 1 else ""
    return f"resumed {times}, {lost} step{'' if lost == 1 else 's'} lost{changed}"
