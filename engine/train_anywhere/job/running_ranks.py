"""The launcher of the ranks while it runs, and job steps next to it."""

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from train_anywhere.files.atomic import make_folder, open_file, read_text
from train_anywhere.runs.attempts import STARTED, describe_exit_code
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

OWN_OF_PROCESS = re.compile(
    r"(PWD|OLDPWD|SHLVL|_|HOSTNAME|SLURM_.*|PBS_.*|OMPI_.*|PMIX_.*|PRTE_.*|TRAIN_JOB)"
)
"""Variables that mpirun does not pass to ranks on other nodes."""

PASSED = {
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "OMP_NUM_THREADS", "TRAIN_LOCAL_DISK", "TRAIN_HOSTS", STARTED, "MASTER_ADDR", "MASTER_PORT",
}  # fmt: skip
"""Variables that mpirun always passes."""

OF_LIBRARIES = re.compile(
    r"(TRAIN|NCCL|GLOO|HOROVOD|UCX|OMP|TORCH|TF|XLA|KERAS|HF|TRANSFORMERS|WANDB|MLFLOW)_\w+"
)
"""Variables with which users configure libraries. The image of a container may have other values."""

APPTAINER = ("APPTAINERENV_", "SINGULARITYENV_")
"""Prefixes of variables whose values replace those of an image.

A variable without one does not: https://apptainer.org/docs/user/main/environment_and_metadata.html, Environment Variable Precedence
"""

PART_OF_NODE = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""Variables with which srun gives a step only a part of the CPUs of its node."""


class NodeSteps:
    """The nodes of a job, and the words and the environment with which processes start there.

    Attributes:
        options: the request of the batch script, see `job/__main__.py`.
        hosts: the nodes on which the ranks run.
        environ: the environment of the ranks.
        elastic: whether the ranks may start on fewer nodes than the job has.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.run, self.environ = options, RunDir(options.run), {**os.environ}
        self.slurm, self.elastic = options.scheduler == "slurm", options.fewest is not None
        self.hosts: list[str] = []
        # with those that the batch script exports for features and in `cluster.setup`
        self._passed = PASSED | {*options.export.split(",")} - {""}
        self.parent = os.getppid()
        self.override_image()

    def container_options(self) -> list[str]:
        """Return the options of srun that run a step in the container."""
        names = ",".join(self.names_in_container())
        return [word.replace("{names}", names) for word in shlex.split(self.options.container)]

    def in_container(self, *words: str) -> list[str]:
        """Return a command of the ranks' Python, inside the container if there is one."""
        return [*shlex.split(self.options.inside), self.options.python, *words]

    def step(self, hosts: Sequence[str], *options: str) -> list[str]:
        """Return the words that start one process on each of some nodes, next to the ranks."""
        count = len(hosts)
        words = ["srun", "--overlap", "--mem=0", "--export=ALL", "--ntasks-per-node=1", *options]
        return [*words, f"--nodes={count}", f"--ntasks={count}", f"--nodelist={','.join(hosts)}"]

    def one_task_on(self, host: str) -> list[str]:
        """Return the words that start one process without GPUs on a node, next to the ranks."""
        return self.step([host], *(["--gres=none"] if self.options.gpus else []))

    def spawn_on_each_node(
        self, command: Sequence[str], stderr: IO[bytes] | int | None = None
    ) -> "subprocess.Popen[bytes]":
        """Start a command on each node with all its CPUs and GPUs, on PBS only here. It ends when its input is closed."""
        more = ["--no-kill"] if self.options.no_kill else []
        more += ["--cpu-bind=none", *([f"--gpus={self.options.gpus}"] if self.options.gpus else [])]
        step = self.step(self.hosts, "--whole", "--kill-on-bad-exit=0", "--wait=0", *more)
        words = [*step, *self.container_options()] if self.slurm else []
        environ = {k: v for k, v in self.environ.items() if k not in PART_OF_NODE}
        return spawn([*words, *command], environ, subprocess.PIPE, stderr)

    def names_in_container(self) -> list[str]:
        """Return the variables of the job that replace those of the image. Paths of programs stay the image's."""
        own = {name for name in self.environ if OF_LIBRARIES.fullmatch(name)}
        # a module sets variables for the programs of the node
        modules = self._before().get("LOADEDMODULES") != self.environ.get("LOADEDMODULES")
        names = {*(self._passed if modules else self.exports())} & {*self.environ}
        return sorted({n for n in names | own if not n.startswith(APPTAINER)} - {"PATH", "LD_LIBRARY_PATH"})

    def override_image(self) -> None:
        """Set Apptainer's variables for the job's in the container. Those that the user has set stay."""
        if self.options.inside:
            typed = {name.partition("_")[2] for name in os.environ if name.startswith(APPTAINER)}
            own = {*self.names_in_container()} - typed
            self.environ |= {APPTAINER[0] + name: self.environ[name] for name in own}

    def _before(self) -> dict[str, str]:
        """Return the environment with which the batch script started. Empty without /proc."""
        with suppress(OSError):
            text = Path(f"/proc/{self.parent}/environ").read_bytes().decode(errors="surrogateescape")
            return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
        return {}

    def exports(self) -> list[str]:
        """Return the variables that mpirun passes on to its daemons on other nodes."""
        before = self._before()
        changed = {
            k for k, v in self.environ.items() if before.get(k) != v and not OWN_OF_PROCESS.fullmatch(k)
        }
        names = (self._passed | changed) & {*self.environ}
        return sorted(name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name))


def spawn(
    command: Sequence[str],
    environ: Mapping[str, str],
    stdin: int = subprocess.DEVNULL,
    stderr: IO[bytes] | int | None = None,
) -> "subprocess.Popen[bytes]":
    """Start a program in a new session, with default signals. A missing one ends with 127."""

    def default_signals() -> None:
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            with suppress(OSError, ValueError):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    try:
        return subprocess.Popen(
            command, env=environ, stdin=stdin, stderr=stderr, start_new_session=True, preexec_fn=default_signals,
        )  # fmt: skip
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return spawn(["sh", "-c", "exit 127"], environ)


def find_ranks(run: str, name: str = "USR1") -> list[str]:
    """Return a command that signals the ranks of a run on its node, but not their launcher."""
    folder = re.sub(r"\W", ".", os.path.basename(run), flags=re.ASCII)
    return ["pkill", f"-{name}", "-f", "--", rf"^([^-]|[^ ]-)+ -u .*/train.py --run .*{folder}$"]


class RankLauncher:
    """A started launcher with the processes next to it.

    They are the monitor process of each node, and the step that waits for a preemption. `job` is a `train_anywhere.job.batch_job.JobRanks`.
    """

    def __init__(self, job: Any, process: "subprocess.Popen[bytes]") -> None:
        self.job = job
        self.steps: NodeSteps = (steps := job.steps)
        self._log, self._stopped = log_size(), False
        self.process, self._seen = process, self._log
        self.failed_at: float | None = None
        self._monitor: subprocess.Popen[bytes] | None = None
        self._listener: subprocess.Popen[bytes] | None = None
        if steps.options.monitor:
            node = steps.in_container("-m", "train_anywhere.features.node", str(steps.run.path))
            errors: IO[bytes] | int = subprocess.DEVNULL
            with suppress(OSError):
                make_folder(steps.run.monitor)
                errors = open_file(steps.run.monitor / "errors.txt", "wb")
            self._monitor = steps.spawn_on_each_node(node, errors)
        # Slurm signals a preemption only to job steps. Ranks of srun that train save at this TERM too, a program waits for USR1
        waits = steps.slurm and (steps.options.launch != "srun" or steps.options.program)
        if waits:
            step = [*steps.one_task_on(steps.hosts[0]), "cat"]
            self._listener = spawn(step, steps.environ, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def poll(self) -> int | None:
        """Return the exit code of the launcher as of a shell, or None while it runs."""
        if self._listener and (ended := self._listener.poll()) is not None:
            if ended in (143, -signal.SIGTERM):
                self.job.signals.note("TERM")
            self._listener = None
        self.job.queue.stay_away()
        if os.getppid() != self.steps.parent:  # the batch script, which would end this job, was killed
            self.stop()
        if self.failed_at is None and (size := log_size()) > self._seen:
            self._seen = size
            self.failed_at = time.time() if ENDED.search(read_log(self._log)) else None
        code = self.process.poll()
        if code is None:
            return None
        self._close()
        if code < 0 and not self._stopped:
            self._stopped = True
            self.job.stop_orphans(self.process.pid)
        return 128 - code if code < 0 else code

    def _close(self) -> None:
        for process in (self._monitor, self._listener):
            if process and process.stdin:
                with suppress(OSError):
                    process.stdin.close()  # they exit when their input is closed
        with suppress(OSError, ValueError):
            errors = self.steps.run.monitor / "errors.txt"
            lines = read_text(errors).splitlines() if self._monitor else []
            if lines and all(re.match(NORMAL_END, line) for line in lines):
                open_file(errors, "wb").close()  # only what Slurm prints at any stop
        self._monitor = self._listener = None

    def pass_on(self, name: str) -> None:
        """Pass USR1 or TERM on to the ranks."""
        steps = self.steps
        if name == "USR1" and steps.options.launch in ("srun", "mpirun"):
            self.process.send_signal(signal.SIGUSR1)
            return
        # torchrun and horovodrun forward no signal, and TERM ends all launchers: find the ranks on their nodes, by their first option
        kill = find_ranks(str(steps.run.path), name)
        step = steps.step(steps.hosts, "--cpus-per-task=1")
        # in a cancelled job no step starts, and Slurm itself sends TERM to the running ones
        spawn([*(step if steps.slurm and not self.job.queue.is_cancelled() else []), *kill], steps.environ)

    def stop(self) -> None:
        """End the launcher, which ends its ranks."""
        self._stopped = True
        self.process.terminate()

    def first_exit(self) -> str:
        """Return which rank was killed first, if the launcher has printed it in the log, or that it was killed itself."""
        code, name = self.process.returncode or 0, self.steps.options.launch
        itself = f"{name} was killed ({describe_exit_code(128 - code)})" if code < 0 else ""
        return find_first_exit(read_log(self._log)) or itself


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


def log_size() -> int:
    """Return the size of the file to which this process writes its errors, or 0."""
    with suppress(OSError):
        return os.fstat(2).st_size
    return 0


def read_log(start: int) -> str:
    """Return what was written to this process's errors since they had this size."""
    with suppress(OSError, ValueError), open("/proc/self/fd/2", "rb") as file:
        if not file.seekable():
            return ""
        end = file.seek(0, os.SEEK_END)
        file.seek(max(start, end - LOG_BYTES))
        return file.read().decode(errors="replace")
    return ""
