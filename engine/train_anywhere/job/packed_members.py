"""Several members of a sweep in one job.

Each member has a supervisor of its own, a process that this one starts, signals and waits for. A member that fails ends none of the others.
If this process is killed, they end too, and the next one stops the ranks and requeues the job once, for the members that had not ended.
"""

import argparse
import os
import sys
from contextlib import suppress
from mmap import mmap
from multiprocessing import get_context

from train_anywhere.distributed.layout import SHARE
from train_anywhere.errors import STOPPED, CheckpointError, listed
from train_anywhere.files.atomic import open_file, try_read
from train_anywhere.job.batch_job import supervise_job
from train_anywhere.job.requeue import JobQueue, is_first
from train_anywhere.job.running_ranks import NodeSteps
from train_anywhere.job.signals import Signals, end_with_parent
from train_anywhere.job.supervisor import POLL_S
from train_anywhere.runs.attempts import job_name, running_job
from train_anywhere.runs.folder import RunDir
from train_anywhere.runs.study import ENDED
from train_anywhere.slurm.scheduler.client import UNCLEAR


class MemberSupervisor:
    """The supervisor of a member of this job, a fork; `code` is its exit code, None while it runs. `options` are those of the job."""

    def __init__(self, run: RunDir, slot: int, options: argparse.Namespace) -> None:
        command = [str(run.path) if word == str(options.run) else word for word in options.command]
        own = {"run": run.path, "slot": slot, "requeue": False, "command": command}
        self.run, self._options = run, argparse.Namespace(**{**vars(options), **own})
        self.code: int | None = None
        self._died = False
        self._launcher = mmap(-1, 16)
        self._start()

    def _start(self) -> None:
        """Start the supervisor, which reads signals from a pipe."""
        self._options.signals, self._signals = os.pipe()
        self._process = get_context("fork").Process(target=_supervise, args=(self._options, self._launcher))
        self._process.start()
        os.close(self._options.signals)

    def signal(self, name: str) -> None:
        """Pass a signal on."""
        with suppress(BrokenPipeError):
            if self.code is None:
                os.write(self._signals, f"{name}\n".encode())

    def poll(self) -> int | None:
        """Return the exit code, or None while the member runs. If its supervisor was killed, another one stops the ranks."""
        if self.code is not None or (ended := self._process.exitcode) is None:
            return self.code
        os.close(self._signals)
        if ended < 0 and not self._died:
            self._died, self._options.died = True, 128 - ended
            self._options.launcher = int(self._launcher[:].strip(b"\0") or 0)
            self._start()
        else:
            self.code = 1 if ended < 0 else ended
        return self.code


def _supervise(options: argparse.Namespace, launcher: mmap) -> None:
    """Supervise a member in a fork, and write the process group of its launcher into shared memory."""

    def report(group: int) -> None:
        launcher[:] = str(group).encode().ljust(16, b"\0")

    end_with_parent()
    os.environ[SHARE] = f"{options.slot}/{options.members}/{options.cpus_per_task}"
    task = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    # the first member has the log of the job
    for number, end in ((1, "out"), (2, "err")) if options.slot else ():
        with open_file(options.run / f"slurm-{task}.{end}", "ab") as log:
            os.dup2(log.fileno(), number)
    sys.exit(supervise_job(options, report))


def find_members(options: argparse.Namespace) -> dict[int, RunDir]:
    """Return the members that this job has to run, by their number in it. Others have ended, or have a newer job."""
    base, _, first = options.run.name.rpartition("-")
    found: dict[int, RunDir] = {}
    for slot, number in enumerate(range(int(first), min(int(first) + options.members, options.last + 1))):
        run = RunDir(options.run.with_name(f"{base}-{number}"))
        newest = (try_read(run.jobs).split() or [UNCLEAR])[-1]
        if newest in (UNCLEAR, job_name(), running_job()) and run.read_state() not in ENDED:
            found[slot] = run
    return found


def supervise_members(options: argparse.Namespace) -> int:
    """Supervise the members of this job, and return its exit code. If one was stopped with a checkpoint, requeue the job."""
    signals, found = Signals(options.signals), find_members(options)
    queue = JobQueue(NodeSteps(options), signals)
    members = [MemberSupervisor(run, slot, options) for slot, run in found.items()]
    print(f"Members of this job: {listed(run.id for run in found.values()) or 'none is left'}.", flush=True)
    while None in [member.poll() for member in members]:
        for name in signals.wait(POLL_S):
            meaning = queue.explain(name)
            for member in members:
                member.signal(meaning)
    stopped = [member.run for member in members if member.code == STOPPED]
    # this process continues a supervisor that was killed, and has stopped the members that ran
    if options.died is not None and options.requeue and is_first(queue.steps.run):
        stopped = [member.run for member in members if member.code]
        for run in stopped:
            with suppress(OSError, CheckpointError):
                run.update(state="queued")
    if stopped and options.requeue:
        queue.come_back(stopped[0])
    if queue.is_cancelled():
        queue.stay_away(ended=True)
    return STOPPED if stopped else next((member.code for member in members if member.code), 0)
