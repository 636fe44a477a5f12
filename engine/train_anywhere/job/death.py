"""The end of a job whose supervisor was killed: the batch script starts a second one, which stops the ranks and records the cause."""

import os
import re
import signal
import sys
import time
from contextlib import suppress

from train_anywhere.errors import STOPPED, CheckpointError
from train_anywhere.files.atomic import read_text, write_atomic
from train_anywhere.files.ordinary import make_folder
from train_anywhere.job.requeue import QueuedJob
from train_anywhere.job.supervisor import Supervisor
from train_anywhere.runs.attempts import extend_newest, running_job
from train_anywhere.runs.debug import describe_exit_code
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now

DIED = "supervisor-died"
"""File in RUN/monitor/ with the job that was requeued because its supervisor was killed; it is not requeued a second time."""


PATIENCE_S = 5.0
"""Seconds between TERM and KILL to the ranks' launcher."""


def end_after_death(supervisor: Supervisor, job: QueuedJob, code: int, group: int) -> int:
    """Stop the ranks, record the cause, requeue the job once, and return its exit code.

    A run that was complete, or had saved a checkpoint and stopped, stays what it was.

    Args:
        supervisor: one that has started no ranks.
        job: the job.
        code: exit code of the supervisor that was killed.
        group: process group of the launcher; 0 if it is not known.
    """
    info = supervisor.read_info()
    state, own = info.get("state"), (info.get(ATTEMPTS) or [{}])[-1].get("job") == running_job()
    _stop_ranks(job, group)
    if state == "completed":
        return 0
    if state == "queued" or (state == "running" and own):  # else another job trains here
        reason = f"the supervisor of the job was killed ({describe_exit_code(code)})"
        print(f"{reason}; its ranks were stopped.", file=sys.stderr, flush=True)
        with suppress(OSError, CheckpointError):
            ended = {ATTEMPTS: extend_newest(job.run, ended_by="failed", reason=reason)} if own else {}
            job.run.update(state="failed", ended=now(), **ended)
    supervisor.place.publish()
    decided = state == "failed" and job.options.retries is None  # a failure that no retry follows
    if decided or not job.options.requeue or not _is_first(job.run):
        return 1
    job.come_back(supervisor)
    return STOPPED


def _stop_ranks(job: QueuedJob, group: int) -> None:
    """End the launcher and the steps that outlive it. To kill the job itself would cancel it."""
    deadline = time.monotonic() + PATIENCE_S
    _signal(group, signal.SIGTERM)
    while _signal(group, 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    _signal(group, signal.SIGKILL)
    if job.slurm:
        steps = job.ask("squeue", "--steps", "--noheader", f"--jobs={running_job()}", "--format=%i") or ""
        if numbered := re.findall(r"^\S+\.\d+$", steps, re.MULTILINE):
            job.ask("scancel", *numbered)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group, and return whether it exists. 0 only looks."""
    with suppress(ProcessLookupError, PermissionError):
        if group > 1:
            os.killpg(group, number)
            return True
    return False


def _is_first(run: RunDir) -> bool:
    """Record that this job comes back because its supervisor was killed, and return whether it is the first time."""
    file, job = run.monitor / DIED, running_job() or ""
    with suppress(OSError, ValueError):
        if file.exists() and read_text(file).strip() == job:
            return False
        make_folder(run.monitor)
        write_atomic(file, f"{job}\n")
        return True
    return False
