"""Requeue an elastic job that lost the node with its batch script.

With `cluster.no_kill=true` Slurm keeps such a job RUNNING, and nothing would restart its ranks. So the monitor processes of the next
nodes check whether the first node still writes the state of its ranks. If it has not for a long time, and the node of the batch script
does not answer Slurm twice, they requeue the job.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from train_anywhere.distributed.launcher_env import hosts_by_rank
from train_anywhere.files.plain_json import read_json
from train_anywhere.monitor.ranks import short
from train_anywhere.runs.attempts import job_name, running_job
from train_anywhere.runs.debug import append_debug
from train_anywhere.runs.folder import RunDir

SILENT_S = 90.0
"""Seconds of silence: several times the interval of a node's writes (see `features/hangs/rank_watch.py`) and the delay of a shared disk."""

ANSWER_S = 30.0
"""Seconds for a node to answer, the same as in before_ranks.sh.j2."""

WATCHERS = 3
"""Number of nodes with this watch: the second of the job and the next ones, each waiting longer, in case that one is lost too."""


class ScriptWatch:
    """Service that watches the batch script from one node.

    Args:
        run: the run folder.
        requeue: whether to requeue the job; else it is cancelled.
        place: 1 for the second node of the job, 2 for the third.
        first: the first node.
    """

    every_seconds = 15.0

    def __init__(self, run: RunDir, requeue: bool, place: int, first: str) -> None:
        self.run, self.file = run, run.monitor / f"ranks-{first}.json"
        self.job, self.number = job_name() or "", running_job() or ""
        self.end = ["scontrol", "requeue"] if requeue else ["scancel"]
        self.patience = SILENT_S * place
        self._number = read_json(self.file).get("number")
        self._since, self._missed = time.monotonic(), 0

    def poll(self, now: float) -> None:
        """Requeue or cancel the job if its batch script is lost. Raises OSError: Slurm's programs are not installed here."""
        number = read_json(self.file).get("number")
        if number != self._number:
            self._number, self._since, self._missed = number, time.monotonic(), 0
        if time.monotonic() - self._since < self.patience:
            return
        host = batch_host(self.job)
        if host is None or answers(self.number, host):
            self._since, self._missed = time.monotonic(), 0
            return
        self._missed += 1
        if self._missed == 2:
            action = "requeueing" if "requeue" in self.end else "cancelling"
            message = f"{host}, on which the batch script ran, does not answer any more: {action} the job."
            append_debug(
                self.run, "script", message
            )  # not printed: the output of the job went through that node
        if self._missed >= 2:  # repeated at each further poll, since Slurm may not answer now
            run_client([*self.end, self.job])

    def close(self) -> None:
        """Do nothing."""


def script_watch(run: RunDir, requeue: bool, host: str) -> ScriptWatch | None:
    """Return the watch of this node; None if it needs none."""
    hosts = [*dict.fromkeys(hosts_by_rank(os.environ.get("TRAIN_HOSTS", "")).values())]
    names = [short(name) for name in hosts]
    if short(host) not in names[1 : WATCHERS + 1]:
        return None
    return ScriptWatch(run, requeue, names.index(short(host)), hosts[0])


def batch_host(job: str) -> str | None:
    """Return the node of the batch script; None if Slurm does not report it."""
    found = re.search(r"\bBatchHost=(\S+)", run_client(["scontrol", "show", "job", job]) or "")
    return found[1] if found else None


def answers(job: str, host: str) -> bool:
    """Return whether a node of the job starts a process. `job` is a plain job id, also for an array's member: srun takes no other."""
    one = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", f"--nodelist={host}"]
    return run_client(["srun", f"--jobid={job}", *one, "true"]) is not None


def run_client(command: Sequence[str]) -> str | None:
    """Run a Slurm command and return its output; None if it fails or takes too long. Raises OSError: it is not installed."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            env=without_step(os.environ),
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def without_step(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without variables of the job step, which srun would read as options."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {k: v for k, v in environ.items() if not k.startswith(("SLURM", "SRUN")) or k in kept}
