"""The launcher of the ranks while it runs, and job steps next to it."""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from train_anywhere.files.atomic import make_folder, open_file, read_text
from train_anywhere.job.supervisor import default_signals
from train_anywhere.runs.attempts import describe_exit_code
from train_anywhere.runs.folder import RunDir
from train_anywhere.slurm.scheduler.queue import NORMAL_END

EXITS = (
    r"^srun: error: Node failure on (?P<failed>\S+)",
    r"^srun: error: (?P<node>\S+): tasks? (?P<rank>\d+)[-,\d]*: (?P<how>Killed|Out Of Memory|Segmentation fault|Aborted|Bus error)",
    r"process rank (?P<rank>\d+) with PID \d+ on node (?P<node>\S+) exited on\s+signal \d+ \((?P<how>[^)]*)\)",
    r"^rank (?P<rank>\d+) ended with signal (?P<how>SIG\w+)",
)  # fmt: skip
"""Lines in which srun, mpirun and `launch/launcher.py` name the rank that was killed first."""

ENDED = re.compile(
    "|".join([r"^srun: error: \S+: tasks? [-,\d]+: ", *(re.sub(r"\?P<\w+>", "?:", e) for e in EXITS)]), re.M
)
"""Lines with which launchers report that a rank has failed."""

SIGNALS_OF = {
    "Killed": "SIGKILL", "Out Of Memory": "SIGKILL", "Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS",
}  # fmt: skip
"""Signals by their description in these lines."""

LOG_BYTES = 2**16
"""Bytes at the end of the log in which the lines are searched."""

ENDED_BY = re.compile(
    r"^slurmstepd[^ ]*: error: \*+ JOB \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+)\b)?", re.M | re.I
)
"""The line in which Slurm prints why it ends a job, with no reason, or its signal, after `scancel`. Its queue then no longer shows why."""

PART_OF_NODE = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""Variables with which srun gives a step only a part of the CPUs of its node."""


class Steps:
    """The nodes of a job, and the words that start processes there.

    Attributes:
        elastic: whether the ranks may start on fewer nodes than the job has.
        reason: why Slurm ends this job, see `find_reason`.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.run, self.environ = options, RunDir(options.run), {**os.environ}
        self.slurm, self.elastic = options.scheduler == "slurm", options.fewest is not None
        self.hosts: list[str] = []
        self.reason: str | None = None
        self._log = _log_size()

    def find_reason(self) -> str | None:
        """Return why Slurm ends this job: "" after `scancel`. None if it does not, or that is not known."""
        if self.reason is None and self.slurm and (found := ENDED_BY.search(_read_log(self._log))):
            reason = (found[1] or "").upper()
            self.reason = "" if reason.startswith("SIGNAL") else reason
        return self.reason

    def is_cancelled(self) -> bool:
        """Return whether `scancel` has ended this job."""
        return self.find_reason() == ""

    def container_options(self) -> list[str]:
        """Return the options of srun that run a step in the container."""
        names = ",".join(self.names_in_container())
        return [word.replace("{names}", names) for word in shlex.split(self.options.container)]

    def names_in_container(self) -> list[str]:
        """Return the variables of the job that replace those of the image."""
        raise NotImplementedError

    def in_container(self, *words: str) -> list[str]:
        """Return a command of the ranks' Python, inside the container if there is one."""
        return [*shlex.split(self.options.inside), self.options.python, *words]

    def one_task_on(self, host: str) -> list[str]:
        """Return the words that start one process on a node, next to the ranks."""
        gres = ["--gres=none"] if self.options.gpus else []
        step = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--mem=0", "--export=ALL", *gres]
        return [*step, f"--nodelist={host}"]

    def one_task(self, host: str, command: Sequence[str]) -> list[str]:
        """Return a command that runs another one inside the container on a node, on PBS here."""
        return [*self.one_task_on(host), *self.container_options(), *command] if self.slurm else [*command]

    def each_node(self, command: Sequence[str], options: Sequence[str] = ()) -> list[str]:
        """Return a command that runs on each node with all its CPUs and GPUs, on PBS only here."""
        if not self.slurm:
            return [*command]
        count = len(self.hosts)
        step = ["srun", "--overlap", "--whole", "--mem=0", *options, f"--nodes={count}", f"--ntasks={count}"]
        nodes = ",".join(self.hosts) if self.elastic else self.environ["SLURM_JOB_NODELIST"]
        gpus = [f"--gpus={self.options.gpus}"] if self.options.gpus else []
        step += [
            f"--nodelist={nodes}",
            "--ntasks-per-node=1",
            *gpus,
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--export=ALL",
        ]
        return [*step, *self.container_options(), *command]

    def whole_environment(self) -> dict[str, str]:
        """Return the environment of a step that gets whole nodes."""
        return {k: v for k, v in self.environ.items() if k not in PART_OF_NODE}


def spawn(
    command: Sequence[str],
    environ: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stderr: IO[bytes] | int | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program in a new session, with default signals. A missing one ends with 127."""
    try:
        return subprocess.Popen(
            command,
            env=environ,
            stdin=stdin,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=default_signals,
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return spawn(["sh", "-c", "exit 127"], environ)


def find_ranks(run: str, name: str = "USR1") -> list[str]:
    """Return a command that signals the ranks of a run on its node, but not their launcher."""
    folder = re.sub(r"\W", ".", os.path.basename(run), flags=re.ASCII)
    return ["pkill", f"-{name}", "-f", "--", rf"^([^-]|[^ ]-)+ -u .*/train.py --run .*{folder}$"]


class Launcher:
    """A started launcher with the processes next to it.

    They are the monitor process of each node, and the step that waits for a preemption.

    Args:
        note: is called with a signal that the waiting step got.
        lost: returns whether the batch script, which would end this job, was killed.
        orphaned: is called if the launcher was killed, and the ranks live on.
    """

    def __init__(
        self,
        job: Steps,
        process: "subprocess.Popen[bytes]",
        note: Callable[[str], None],
        lost: Callable[[], bool],
        orphaned: Callable[[], None],
    ) -> None:
        self.job, self._note, self._lost, self._orphaned = job, note, lost, orphaned
        self._log, self._stopped = _log_size(), False
        self.process, self._seen = process, self._log
        self.failed_at: float | None = None
        self._monitor = self._start_monitor() if job.options.monitor else None
        # Slurm signals a preemption only to job steps. Ranks of srun that train save at this TERM too, a program waits for USR1
        waits = job.slurm and (job.options.launch != "srun" or job.options.program)
        self._listener: subprocess.Popen[bytes] | None = None
        if waits:
            step = [*job.one_task_on(job.hosts[0]), "cat"]
            self._listener = spawn(step, job.environ, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def _start_monitor(self) -> "subprocess.Popen[bytes]":
        job = self.job
        options = [*(["--no-kill"] if job.options.no_kill else []), "--cpu-bind=none"]
        command = job.in_container("-m", "train_anywhere.features.node", str(job.run.path))
        with _open_errors(job.run) as errors:
            step = job.each_node(command, options)
            return spawn(step, job.whole_environment(), stdin=subprocess.PIPE, stderr=errors)

    def poll(self) -> int | None:
        """Return the exit code of the launcher as of a shell, or None while it runs."""
        if self._listener and (ended := self._listener.poll()) is not None:
            if ended in (143, -signal.SIGTERM):
                self._note("TERM")
            self._listener = None
        if self._lost():
            self.stop()
        if self.failed_at is None and (size := _log_size()) > self._seen:
            self._seen = size
            self.failed_at = time.time() if ENDED.search(_read_log(self._log)) else None
        code = self.process.poll()
        if code is None:
            return None
        self._close()
        if code < 0 and not self._stopped:
            self._stopped = True
            self._orphaned()
        return 128 - code if code < 0 else code

    def _close(self) -> None:
        for process in (self._monitor, self._listener):
            if process and process.stdin:
                with suppress(OSError):
                    process.stdin.close()  # they exit when their input is closed
        with suppress(OSError, ValueError):
            errors = self.job.run.monitor / "errors.txt"
            lines = read_text(errors).splitlines() if self._monitor else []
            if lines and all(re.match(NORMAL_END, line) for line in lines):
                open_file(errors, "wb").close()  # only what Slurm prints at any stop
        self._monitor = self._listener = None

    def tell(self, name: str) -> None:
        """Pass USR1 or TERM on to the ranks."""
        job = self.job
        if name == "USR1" and job.options.launch in ("srun", "mpirun"):
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGUSR1)
            return
        # torchrun and horovodrun forward no signal, and TERM ends all launchers: find the ranks on their nodes, by their first option
        kill = find_ranks(str(job.run.path), name)
        count = len(job.hosts)
        step = [
            "srun",
            "--overlap",
            f"--nodelist={','.join(job.hosts)}",
            f"--nodes={count}",
            f"--ntasks={count}",
        ]
        step += ["--ntasks-per-node=1", "--cpus-per-task=1", "--mem=0", "--export=ALL"]
        # in a cancelled job no step starts, and Slurm itself sends TERM to the running ones
        spawn([*(step if job.slurm and not job.is_cancelled() else []), *kill], job.environ)

    def stop(self) -> None:
        """End the launcher, which ends its ranks."""
        self._stopped = True
        with suppress(ProcessLookupError):
            self.process.terminate()

    def first_exit(self) -> str:
        """Return which rank was killed first, if the launcher has printed it in the log, or that it was killed itself."""
        code, name = self.process.returncode or 0, self.job.options.launch
        itself = f"{name} was killed ({describe_exit_code(128 - code)})" if code < 0 else ""
        return find_first_exit(_read_log(self._log)) or itself


def find_first_exit(log: str) -> str:
    """Return which rank was killed first, by the lines of srun, mpirun or `launch/launcher.py`."""
    found = [match for pattern in EXITS for match in re.finditer(pattern, log, re.MULTILINE)]
    if not found:
        return ""
    first = min(found, key=re.Match.start).groupdict()
    if first.get("failed"):
        return f"node {first['failed']} failed"
    number = SIGNALS_OF.get(first["how"], first["how"])
    node = f" on {first['node']}" if first.get("node") else ""
    memory = ", often the memory limit" if number == "SIGKILL" else ""
    return f"rank {first['rank']}{node}: {number}{memory}"


def _open_errors(run: RunDir) -> IO[bytes]:
    """Return the file for the errors of the monitor processes, or the null device."""
    with suppress(OSError):
        make_folder(run.monitor)
        return open_file(run.monitor / "errors.txt", "wb")
    return open(os.devnull, "wb")


def _log_size() -> int:
    """Return the size of the file to which this process writes its errors, or 0."""
    with suppress(OSError):
        return os.fstat(2).st_size
    return 0


def _read_log(start: int) -> str:
    """Return what was written to this process's errors since they had this size."""
    with suppress(OSError, ValueError), open("/proc/self/fd/2", "rb") as file:
        if not file.seekable():
            return ""
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - LOG_BYTES))
        return file.read().decode(errors="replace")
    return ""
