"""Several members of a sweep in one job.

Each member has a supervisor of its own, a process that this one starts, signals and waits for. A member that fails ends none of the others.
If this process is killed, they end too, and the next one stops the ranks and requeues the job once, for the members that had not ended.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from train_anywhere.errors import STOPPED, CheckpointError, listed
from train_anywhere.files.atomic import open_file, read_text
from train_anywhere.job.batch_job import JobRanks
from train_anywhere.job.requeue import is_first
from train_anywhere.job.share import SHARE
from train_anywhere.job.signals import Signals, end_with_parent
from train_anywhere.job.supervisor import POLL_S, Supervisor
from train_anywhere.runs.attempts import job_name, running_job
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler.client import UNCLEAR

ENDED = ("completed", "failed", "cancelled")
"""States of members that a job does not start again."""


class MemberSupervisor:
    """The supervisor of the member `slot` of a job, a process; `code` is its exit code, None while it runs.

    `words` are the options and the command of the job's first member.
    """

    def __init__(self, run: RunDir, slot: int, words: Sequence[str], options: argparse.Namespace) -> None:
        self.run, self.slot = run, slot
        self.code: int | None = None
        at = words.index("--")
        own = [word for word in words[:at] if not re.match("--(requeue|members=|last=)", word)]
        command = [str(run.path) if word == str(options.run) else word for word in words[at:]]
        self._words = [*own, f"--slot={slot}", *command]
        self._environ = os.environ | {SHARE: f"{slot}/{options.members}/{options.cpus_per_task}"}
        self._died = False
        self._start([])

    def _start(self, words: Sequence[str]) -> None:
        """Start the supervisor, with further options. It reads signals from a pipe, and answers into another one."""
        read, self._signals = os.pipe()
        self._answers, write = os.pipe()
        os.set_blocking(self._answers, False)
        program = str(Path(__file__).with_name("__main__.py"))
        command = [sys.executable, "-I", program, str(self.run.path), str(read), str(write)]
        task = f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
        # the first member has the log of the job
        names = [self.run.path / f"slurm-{task}.{end}" for end in ("out", "err")] if self.slot else []
        with ExitStack() as stack:
            out, err = [stack.enter_context(open_file(name, "ab")) for name in names] or (None, None)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=out, stderr=err, pass_fds=(read, write), env=self._environ,
                preexec_fn=end_with_parent,
            )  # fmt: skip
        given = "".join(f"{word}\0" for word in [*words, *self._words])
        with suppress(BrokenPipeError), self._process.stdin as stdin:  # type: ignore[union-attr]
            stdin.write(given.encode(errors="surrogateescape"))
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
        groups = ["0"]
        with suppress(BlockingIOError):
            groups += re.findall(r"^ranks (\d+)", os.read(self._answers, 65536).decode(), re.M)
        os.close(self._answers)
        os.close(self._signals)
        if ended < 0 and not self._died:
            self._died = True
            self._start([f"--died={128 - ended}", f"--launcher={groups[-1]}"])
        else:
            self.code = 1 if ended < 0 else ended
        return self.code


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
    while None in [member.poll() for member in members]:
        for name in signals.wait(POLL_S):
            meaning = job.explain(name)
            for member in members:
                member.signal(meaning)
    stopped = [member.run for member in members if member.code == STOPPED]
    # this process continues a supervisor that was killed, and has stopped the members that ran
    if options.died is not None and options.requeue and is_first(job.run):
        stopped = [member.run for member in members if member.code]
        for run in stopped:
            with suppress(OSError, CheckpointError):
                run.update(state="queued")
    if stopped and options.requeue:
        options.run = stopped[0].path
        job.queue.come_back(Supervisor(JobRanks(options, signals, print), signals))
    if job.queue.is_cancelled():
        job.queue.stay_away(ended=True)
    return STOPPED if stopped else next((member.code for member in members if member.code), 0)
