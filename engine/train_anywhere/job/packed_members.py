"""Several members of a sweep in one job.

Each member has a supervisor of its own, a process that this one starts, signals and waits for. A member that fails ends none of the others.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from train_anywhere.errors import STOPPED, CheckpointError, listed
from train_anywhere.files.atomic import open_file, read_text
from train_anywhere.job.batch_job import JobRanks
from train_anywhere.job.share import share_environment
from train_anywhere.job.supervisor import POLL_S, Signals, Supervisor
from train_anywhere.runs.attempts import job_name, running_job
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler.client import UNCLEAR

ENDED = ("completed", "failed", "cancelled")
"""States of members that a job does not start again."""


class MemberSupervisor:
    """The supervisor of one member, a process.

    Args:
        words: the options and the command of the job's first member.
        slot: number of the member in the job, from 0.

    Attributes:
        code: exit code of the member; None while it runs.
    """

    def __init__(self, run: RunDir, slot: int, words: Sequence[str], options: argparse.Namespace) -> None:
        self.run, self.slot = run, slot
        self.code: int | None = None
        at = words.index("--")
        own = [word for word in words[:at] if not re.match("--(requeue|members=|last=)", word)]
        command = [str(run.path) if word == str(options.run) else word for word in words[at:]]
        self._words = [*own, f"--slot={slot}", *command]
        self._share = share_environment(slot, options.members, options.cpus_per_task)
        self._group, self._died = 0, False
        self._start([])

    def _start(self, words: Sequence[str]) -> None:
        """Start the supervisor, with further options. It reads signals from a pipe, and answers into another one."""
        read, self._signals = os.pipe()
        self._answers, write = os.pipe()
        os.set_blocking(self._answers, False)
        program = str(Path(__file__).with_name("__main__.py"))
        command = [sys.executable, "-I", program, str(self.run.path), str(read), str(write)]
        with ExitStack() as stack, tempfile.TemporaryFile() as given:
            given.write(
                "".join(f"{word}\0" for word in [*words, *self._words]).encode(errors="surrogateescape")
            )
            given.seek(0)
            # the first member has the log of the job
            names = log_names() if self.slot else ()
            logs = [stack.enter_context(open_file(self.run.path / name, "ab")) for name in names]
            out, err = logs or (None, None)
            environ, pipes = os.environ | self._share, (read, write)
            self._process = subprocess.Popen(
                command, stdin=given, stdout=out, stderr=err, pass_fds=pipes, env=environ
            )
        os.close(read)
        os.close(write)

    def signal(self, name: str) -> None:
        """Pass a signal on."""
        with suppress(BrokenPipeError):
            if self.code is None:
                os.write(self._signals, f"{name}\n".encode())

    def poll(self) -> int | None:
        """Return the exit code, or None while the member runs. If its supervisor was killed, another one stops the ranks."""
        if self.code is not None or (ended := self._process.poll()) is None:
            return self.code
        with suppress(BlockingIOError, IndexError):
            answers = os.read(self._answers, 65536).decode()
            self._group = int(re.findall(r"^ranks (\d+)", answers, re.M)[-1])
        os.close(self._answers)
        os.close(self._signals)
        if ended >= 0 or self._died:
            self.code = 1 if ended < 0 else ended
        else:
            self._died = True
            self._start([f"--died={128 - ended}", f"--launcher={self._group}"])
        return self.code


def log_names() -> list[str]:
    """Return the names of this job's logs in run folders: output and errors."""
    array, task = os.environ["SLURM_ARRAY_JOB_ID"], os.environ["SLURM_ARRAY_TASK_ID"]
    return [f"slurm-{array}_{task}.{end}" for end in ("out", "err")]


def find_members(options: argparse.Namespace) -> dict[int, RunDir]:
    """Return the members that this job has to run, by their number in it. Others have ended, or have a newer job."""
    base, _, first = options.run.name.rpartition("-")
    found: dict[int, RunDir] = {}
    for slot, number in enumerate(range(int(first), min(int(first) + options.members, options.last + 1))):
        run = RunDir(options.run.with_name(f"{base}-{number}"))
        newest, state = UNCLEAR, None
        with suppress(OSError, CheckpointError):  # the ranks report a damaged folder
            newest = (read_text(run.jobs).split() or [UNCLEAR])[-1]
            state = run.read_info().get("state")
        if newest in (UNCLEAR, job_name(), running_job()) and state not in ENDED:
            found[slot] = run
    return found


def supervise_members(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Supervise the members of this job, and return its exit code. If one was stopped with a checkpoint, requeue the job."""
    signals, found = Signals(options.signals), find_members(options)
    job = JobRanks(options, signals, print)
    members = [MemberSupervisor(run, slot, words, options) for slot, run in found.items()]
    print(f"Members of this job: {listed(run.id for run in found.values()) or 'none is left'}.", flush=True)
    while any(member.poll() is None for member in members):
        for name in signals.wait(POLL_S):
            meaning = job.explain(name)
            for member in members:
                member.signal(meaning)
    stopped = [member.run for member in members if member.code == STOPPED]
    if stopped and options.requeue:
        options.run = stopped[0].path
        job.queue.come_back(Supervisor(JobRanks(options, signals, print), signals))
    if job.queue.is_cancelled():
        job.queue.stay_away(ended=True)
    return STOPPED if stopped else next((member.code for member in members if member.code), 0)
