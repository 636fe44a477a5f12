"""Job steps next to the ranks, on one node or on each, inside their container or outside."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO

from train_anywhere.job.supervisor import default_signals
from train_anywhere.runs.folder import RunDir

PART_OF_NODE = ("SLURM_CPUS_PER_TASK", "SRUN_CPUS_PER_TASK", "SLURM_TRES_PER_TASK")
"""Variables with which srun gives a step only a part of the CPUs of its node."""


class Steps:
    """The nodes of a job, and the words that start processes there.

    Args:
        options: those of the supervisor, see `__main__`.

    Attributes:
        environ: environment of the ranks.
        hosts: nodes of the ranks.
        elastic: whether the ranks may start on fewer nodes than the job has.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.run, self.environ = options, RunDir(options.run), {**os.environ}
        self.slurm, self.elastic = options.scheduler == "slurm", options.fewest is not None
        self.hosts: list[str] = []

    def container_options(self) -> list[str]:
        """Return the options of srun that run a step in the container."""
        return shlex.split(self.options.container)

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

    def each_node(
        self, command: Sequence[str], options: Sequence[str] = (), inside: bool = True
    ) -> list[str]:
        """Return a command that runs another one once on each node, on PBS only here.

        It gets all CPUs and GPUs that the job has there.
        """
        if not self.slurm:
            return [*command]
        count = len(self.hosts)
        step = ["srun", "--overlap", "--whole", "--mem=0", *options, f"--nodes={count}", f"--ntasks={count}"]
        step += (
            [f"--nodelist={','.join(self.hosts)}"]
            if self.elastic
            else [f"--nodelist={self.environ['SLURM_JOB_NODELIST']}"]
        )
        step += ["--ntasks-per-node=1", *([f"--gpus={self.options.gpus}"] if self.options.gpus else [])]
        step += [
            "--kill-on-bad-exit=0",
            "--wait=0",
            "--export=ALL",
            *(self.container_options() if inside else []),
        ]
        return [*step, *command]

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


def find_ranks(run: str, number: str = "USR1") -> list[str]:
    """Return a command that signals the ranks of a run on its node, but not their launcher."""
    name = re.sub(r"\W", ".", os.path.basename(run), flags=re.ASCII)
    return ["pkill", f"-{number}", "-f", "--", rf"^([^-]|[^ ]-)+ -u .*/train.py --run .*{name}$"]
