"""With `cluster.no_kill=true` Slurm keeps a job RUNNING whose batch script is gone with its node: nobody would start the ranks again.

So the side processes of the next nodes look whether the first one still writes what its ranks do. Where it has not for long, and
the node of the batch script does not answer Slurm twice either, the job goes back to the queue.
"""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence

from train_anywhere.distributed.launcher_env import places
from train_anywhere.monitor.ranks import read_json, short
from train_anywhere.runs.attempts import job_name, running_job
from train_anywhere.runs.debug import keep
from train_anywhere.runs.folder import RunDir

SILENT_S = 90.0
"""Several times as long as a node is silent between two messages (see `features/hangs/rank_watch.py`), and as a shared disk may be late."""

ANSWER_S = 30.0
"""The batch script gives a node as long to answer, see before_ranks.sh.j2."""

WATCHING = 3
"""Nodes that do this: the second of the job, and others for when that is gone too, each so much later."""


class ScriptWatch:
    """On one node.

    Args:
        requeue: whether the job goes back to the queue; else it is cancelled.
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

    def look(self, now: float) -> None:
        """Look, and end this start of the job if its script is gone. Raises OSError: Slurm's programs are not here."""
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
            what = "goes back to the queue" if "requeue" in self.end else "is cancelled"
            said = f"{host}, on which the batch script ran, does not answer any more: the job {what}."
            keep(self.run, "script", said)  # what is printed went by way of that node
        if self._missed >= 2:  # and at each further look: Slurm may not answer now
            asked([*self.end, self.job])

    def close(self) -> None:
        """Nothing is left."""


def script_watch(run: RunDir, requeue: bool, host: str) -> ScriptWatch | None:
    """That of this node; None where none is needed."""
    hosts = [*dict.fromkeys(places(os.environ.get("TRAIN_HOSTS", "")).values())]
    named = [short(name) for name in hosts]
    if short(host) not in named[1 : WATCHING + 1]:
        return None
    return ScriptWatch(run, requeue, named.index(short(host)), hosts[0])


def batch_host(job: str) -> str | None:
    """The node of the batch script; None where Slurm does not say."""
    found = re.search(r"\bBatchHost=(\S+)", asked(["scontrol", "show", "job", job]) or "")
    return found[1] if found else None


def answers(job: str, host: str) -> bool:
    """Whether a node of the job starts a process. srun takes the number of a job only, which is that of one member."""
    one = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", f"--nodelist={host}"]
    return asked(["srun", f"--jobid={job}", *one, "true"]) is not None


def asked(command: Sequence[str]) -> str | None:
    """What a program of Slurm's prints; None where it fails, or takes too long. Raises OSError: it is not here."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            env=outside(os.environ),
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None


def outside(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without those of the step, which srun would take for options."""
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {k: v for k, v in environ.items() if not k.startswith(("SLURM", "SRUN")) or k in kept}
