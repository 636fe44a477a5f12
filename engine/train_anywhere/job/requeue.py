"""The requests of a job to Slurm's queue: its requeue, and the end of jobs that continue it.

If the supervisor of a job was killed, the batch script starts a second one, which stops the ranks and records the cause.
"""

import math
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from train_anywhere.distributed import programs
from train_anywhere.errors import STOPPED, CheckpointError, SchedulerError
from train_anywhere.files.atomic import make_folder, try_read, write_atomic
from train_anywhere.job.running_ranks import NodeSteps, log_size, read_log
from train_anywhere.job.signals import Signals
from train_anywhere.job.supervisor import Supervisor
from train_anywhere.runs.attempts import describe_exit_code, read_bad_nodes, record_failure, running_job
from train_anywhere.runs.folder import ATTEMPTS, RunDir, now
from train_anywhere.slurm.scheduler.queue import JOB_ID

VERDICT_S = 2.0
"""Seconds for this line to appear: Slurm sends TERM to the steps of the job first."""

LOOK_S = 2.0
"""Seconds between two looks whether the program has requeued a cancelled job."""

PERSIST_S, PAUSE_S = 300.0, 5.0
"""Seconds in which a Slurm that does not answer is asked again, and between two of these calls. A signal ends the pause."""

ANSWER_S = 30.0
"""Seconds for a node, or for one call of Slurm's programs, to answer."""


ENDED_BY = re.compile(
    r"^slurmstepd[^ ]*: error: \*+ JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+)\b)?", re.M | re.I
)
"""The line in which Slurm prints why it ends a job, with no reason, or its signal, after `scancel`. Its queue then no longer shows why."""


class JobQueue:
    """The requests of a job to the scheduler's queue; `reason`: why Slurm ends it, see `find_reason`."""

    def __init__(self, steps: NodeSteps, signals: Signals) -> None:
        self.steps, self.signals, self.options = steps, signals, steps.options
        self.reason: str | None = None
        self._looked, self._start = 0.0, int(steps.environ.get("SLURM_RESTART_COUNT") or 0)
        self._log = log_size()

    def _show(self) -> str:
        """Return what Slurm shows of this job, or "" if it does not answer."""
        return self.ask("scontrol", "show", "job", self.steps.environ["TRAIN_JOB"]) or ""

    def find_reason(self) -> str | None:
        """Return why Slurm ends this job: "" after `scancel`. None if it does not, or that is not known.

        SIGNAL: the job only has got one, which looks like `scancel` in the log.
        """
        if self.reason is None and self.steps.slurm and (found := ENDED_BY.search(read_log(self._log))):
            reason = (found[1] or "").upper()
            self.reason = "" if reason.startswith("SIGNAL") else reason
            if self.reason == "" and "JobState=RUNNING" in self._show():
                self.reason = "SIGNAL"
        return self.reason

    def is_cancelled(self) -> bool:
        """Return whether `scancel` has ended this job."""
        return self.find_reason() == ""

    def explain(self, name: str) -> str:
        """Return USR1 if this job will return to the queue after a signal, else TERM."""
        if name != "TERM" or not self.steps.slurm:
            return "USR1" if name == "USR1" else "TERM"
        end = time.monotonic() + VERDICT_S
        while (reason := self.find_reason()) is None and time.monotonic() < end:
            if "JobState=RUNNING" in self._show():
                return "USR1"  # a preemption, before it requeues the job
            time.sleep(0.1)
        return "USR1" if reason in ("JOB REQUEUE", "PREEMPTION", "SIGNAL") else "TERM"

    def stay_away(self, ended: bool = False) -> None:
        """Cancel a cancelled job again if its program has requeued it.

        `ended`: the ranks have ended, so look now, and cancel the jobs that continue the run.
        """
        if not ended and (self.reason != "" or time.monotonic() < self._looked + LOOK_S):
            return
        self._looked, job = time.monotonic(), self.steps.environ["TRAIN_JOB"]
        if self.steps.slurm:
            started = re.search(r"\bRestarts=(\d+)", self._show())
            if started and int(started[1]) > self._start:
                # allowed again now; a program that handles TERM would requeue the job at each cancel
                if self.ask("scontrol", "update", f"JobId={job}", "Requeue=0") is not None:
                    self._looked = math.inf
                self.ask("scancel", job)
        for one in self.find_next_jobs() if ended else ():
            self.ask(*(["scancel", "--state=PENDING"] if self.steps.slurm else ["qdel"]), one)

    def persist(self, call: Callable[[], bool], suggestion: str = "") -> bool:
        """Repeat a call to Slurm as long as the job has time, then print `suggestion`."""
        end = time.monotonic() + PERSIST_S
        while not call():
            self.signals.wait(0)
            if self.signals.requested:
                end = self.signals.requested_at + self.options.signal_seconds * 0.9
            if time.monotonic() >= end:
                command = suggestion or f"python src/jobs.py resubmit {shlex.quote(str(self.steps.run.path))}"
                why = "Slurm refused, or did not answer in time, and this job does not try again."
                print(f"{why} Type: {command}", file=sys.stderr, flush=True)
                return False
            self.signals.wait(PAUSE_S)
        return True

    def come_back(self, run: RunDir, hung: bool = False) -> None:
        """Requeue this job, without the nodes that failed twice. `hung`: the ranks of `run` were killed because they hung."""
        # the requeue sends TERM to all processes of this script
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        job, back = self.steps.environ["TRAIN_JOB"], False
        preempted = run.read_state() == "preempted" and not hung
        saved = preempted and try_read(run.checkpoints / "newest").strip()
        how = " with a checkpoint saved" if saved else " without a new checkpoint"

        def requeue() -> bool:
            nonlocal back
            if not (shown := self._show()):
                return False
            # a job that is not RUNNING is being cancelled, or was requeued by a call whose answer was lost; salloc's can't be requeued
            if "JobState=RUNNING" not in shown or "BatchFlag=0" in shown:
                return True
            if not back:
                back = True
                print(f"Stopped{'' if self.options.program else how}: back to the queue.", flush=True)
            return self.ask("scontrol", "requeue", job) is not None

        if self.persist(requeue) and back and (bad := read_bad_nodes(self.steps.run)):
            # Slurm changes ExcNodeList only while the job is pending
            names = ",".join([*filter(None, [self.options.exclude]), *bad])
            change = ["scontrol", "update", f"JobId={job}", f"ExcNodeList={names}"]
            self.persist(lambda: self.ask(*change) is not None, " ".join(change))

    def ask(self, *command: str) -> str | None:
        """Return the output of one of Slurm's programs, or None if it fails, which is printed."""
        with suppress(SchedulerError):
            answer = programs.run(command, ANSWER_S, environ=self.steps.environ)
            if answer.code == 0:
                return answer.out
            print(answer.err, end="", file=sys.stderr, flush=True)
        return None

    def find_next_jobs(self) -> list[str]:
        """Return the jobs that wait in the queue with this job's script."""
        if self.steps.slurm:
            form = ["--me", "--noheader", "--array", "--states=PENDING", "--format=%i|%T|%o"]
            listed = self.ask("squeue", *form) or ""
            rows = [line.split("|", 2) for line in listed.splitlines() if line.count("|") > 1]
            own, this = os.path.realpath(self.steps.run.path / "job.sbatch"), self.steps.environ["TRAIN_JOB"]
            return [job for job, _, script in rows if job != this and os.path.realpath(script) == own]
        found = []
        for job in try_read(self.steps.run.jobs).split():
            if re.fullmatch(JOB_ID, job) and job != running_job():
                shown = re.sub(r"[\n\t]", "", self.ask("qstat", "-f", job) or "")
                found += [job] if f":{self.steps.run.path}/pbs.out" in shown else []
        return found


DIED = "supervisor-died"
"""File in RUN/monitor/ with the job that was requeued because its supervisor or launcher was killed; it is not requeued a second time."""

PATIENCE_S = 5.0
"""Seconds between TERM and KILL to the ranks' launcher."""


def end_after_death(supervisor: Supervisor, queue: JobQueue, code: int, group: int) -> int:
    """Stop the ranks, record the cause, requeue the job once, and return its exit code.

    A run that was complete, or had saved a checkpoint and stopped, stays what it was.

    `code` is the exit code of the supervisor that was killed, and `group` the process group of its launcher, 0 if that is not known.
    """
    info = supervisor.read_info()
    state, own = info.get("state"), (info.get(ATTEMPTS) or [{}])[-1].get("job") == running_job()
    stop_ranks(queue, group)
    if state == "completed":
        return 0
    if state == "queued" or (state == "running" and own):  # else another job trains here
        reason = f"the supervisor of the job was killed ({describe_exit_code(code)})"
        print(f"{reason}; its ranks were stopped.", file=sys.stderr, flush=True)
        with suppress(OSError, CheckpointError):
            if own:
                record_failure(queue.steps.run, reason)
            else:
                queue.steps.run.update(state="failed", ended=now())
    supervisor.place.publish()
    decided = state == "failed" and queue.options.retries is None  # a failure that no retry follows
    if decided or not queue.options.requeue or not is_first(queue.steps.run):
        return 1
    queue.come_back(queue.steps.run)
    return STOPPED


def stop_ranks(queue: JobQueue, group: int) -> None:
    """End the launcher and the steps that outlive it. To kill the job itself would cancel it."""
    deadline = time.monotonic() + PATIENCE_S
    _signal(group, signal.SIGTERM)
    while _signal(group, 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    _signal(group, signal.SIGKILL)
    while queue.steps.slurm:
        options = ("--steps", "--noheader", f"--jobs={running_job()}", "--format=%i %j")
        steps = queue.ask("squeue", *options) or ""
        # other members of a sweep may run in this job
        name = ".*" if queue.options.slot is None else re.escape(queue.steps.run.id)
        numbered = re.findall(rf"^(\S+\.\d+) {name}$", steps, re.MULTILINE)
        if not numbered or time.monotonic() > deadline + PATIENCE_S:
            return
        queue.ask("scancel", *numbered)
        time.sleep(0.5)


def _signal(group: int, number: int) -> bool:
    """Send a signal to a process group, and return whether it exists. 0 only looks."""
    with suppress(ProcessLookupError, PermissionError):
        if group > 1:
            os.killpg(group, number)
            return True
    return False


def is_first(run: RunDir) -> bool:
    """Record that this job comes back as its supervisor or launcher died. Return whether it is new."""
    file, job = run.monitor / DIED, running_job() or ""
    with suppress(OSError, ValueError):
        if try_read(file).strip() == job:
            return False
        make_folder(run.monitor)
        write_atomic(file, f"{job}\n")
        return True
    return False
