"""Further starts of a job and of its ranks: retries, elastic jobs, `after=`, chains."""

import itertools
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from train_anywhere.distributed import programs
from train_anywhere.errors import NoAnswerError, listed
from train_anywhere.features.feature import Check, Feature, NodeService
from train_anywhere.files.atomic import read_json
from train_anywhere.monitor.ranks import short
from train_anywhere.runs.attempts import (
    append_debug,
    extend_newest,
    hosts,
    job_name,
    read_bad_nodes,
    running_job,
)
from train_anywhere.runs.folder import RunDir

SHOWN = 5
"""Most restarts of which the report and the status show the parts."""

SILENT_S, ANSWER_S = 90.0, 30.0
"""Seconds of silence, several times the interval of a node's writes (see `features/hangs/watch.py`) and the delay of a shared disk;
and seconds for a node to answer, the same as in before_ranks.sh.j2."""

WATCHERS = 3
"""Number of nodes with a `ScriptWatch`: the second of the job and the next ones, each waiting longer, in case that one is lost too."""


class Queue(Feature):
    """Wait for another run, `after=RUN`, and queue several jobs in a row, `cluster.chain`: see `slurm/status/dependency.py`."""

    def check(self, stage: Check, members: int) -> list[str]:
        """Return a message where there is no queue to wait in, and for a chain of a sweep."""
        chain, problems = self.config.cluster.chain, list[str]()
        if self.config.after is not None and stage == "here":
            problems.append(
                "after=RUN makes a job wait in a queue, and this machine has none; name a cluster with cluster=..., or leave after= out."
            )
        if self.config.after is not None and stage == "allocation":
            problems.append(
                "after= makes a job wait in the queue, but this allocation has already started; leave it out, or leave the allocation."
            )
        if chain > 1 and members > 1 and stage == "job":
            problems.append(
                f"cluster.chain={chain} works for a single run, not for a sweep; use cluster.chain=1."
            )
        return problems


class Restarts(Feature):
    """Restart the ranks in the same job, as `job/restart.py` decides, without the nodes of `runs/attempts.py` that failed twice."""

    def is_on(self) -> bool:
        """Return whether a job has `cluster.retries`, or is elastic with `cluster.no_kill`."""
        fewest, most = self.config.trainer.node_range
        return bool(self.config.cluster.retries) or (fewest < most and self.config.cluster.no_kill)

    def rows(self, run: RunDir, info: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the seconds of each part of the last restarts."""
        attempts = extend_newest(run, info)
        again = [(a["restart"], b) for a, b in itertools.pairwise(attempts) if a.get("restart")]
        shown = ["the last ones"] * (len(again) > SHOWN)
        # the parts that were measured before a restart, and by the next attempt
        for known, attempt in again[-SHOWN:]:
            spent = attempt.get("seconds") or {}
            if first := spent.get("first"):
                start = spent.get("before", 0.0) + spent.get("start", 0.0)
                known = {**known, "start": start, "first step": first}
            where = f"step {attempt['from_step']}: " if "from_step" in attempt else ""
            shown.append(where + listed(f"{name} {seconds:.1f} s" for name, seconds in known.items()))
        return {"Restarts": f"{len(again)}: {'; '.join(shown)}"} if again else {}

    def verdicts(self, facts: Any) -> list[str]:
        """Return a sentence with the excluded nodes, if any."""
        nodes = read_bad_nodes(facts.run) if facts.run else []
        if not nodes:
            return []
        names, verb = listed(nodes), "is" if len(nodes) == 1 else "are"
        return [
            f"{names} failed more than once and {verb} excluded: report this to the site, and meanwhile use "
            f"cluster.exclude={','.join(nodes)}."
        ]

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of the batch script, on nodes 2 to 4 of a job with `no_kill`."""
        c, (fewest, most) = self.config.cluster, self.config.trainer.node_range
        names, own = [short(name) for name in hosts()], short(host)
        survives = c.scheduler == "slurm" and c.no_kill and fewest < most
        if not survives or own not in names[1 : WATCHERS + 1]:
            return []
        return [lambda: ScriptWatch(run, c.requeue, names.index(own), hosts()[0])]


class ScriptWatch(NodeService):
    """Service that requeues, or cancels, an elastic job which lost the node with its batch script.

    With `cluster.no_kill=true` Slurm keeps such a job RUNNING, and nothing would restart its ranks. So the monitor processes of the next
    nodes check whether the first node still writes the state of its ranks. If it has not for a long time, and the node of the batch
    script does not answer Slurm twice, they requeue the job. `place` is 1 on the second node of the job, 2 on the third.
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
        """Requeue or cancel the job if its batch script is lost. Raises SchedulerError."""
        number = read_json(self.file).get("number")
        if number != self._number:
            self._number, self._since, self._missed = number, time.monotonic(), 0
        if time.monotonic() - self._since < self.patience:
            return
        found = re.search(r"\bBatchHost=(\S+)", run_client(["scontrol", "show", "job", self.job]) or "")
        if found is None or answers(self.number, found[1]):
            self._since, self._missed = time.monotonic(), 0
            return
        self._missed += 1
        if self._missed == 2:
            action = "requeueing" if "requeue" in self.end else "cancelling"
            message = (
                f"{found[1]}, on which the batch script ran, does not answer any more: {action} the job."
            )
            # not printed: the output of the job went through that node
            append_debug(self.run, "script", message)
        if self._missed >= 2:  # repeated at each further poll, since Slurm may not answer now
            run_client([*self.end, self.job])


def answers(job: str, host: str) -> bool:
    """Return whether a node of the job starts a process.

    `job` is a plain job id, also for an array's member: srun takes no other.
    """
    one = ["--overlap", "--nodes=1", "--ntasks=1", "--mem=0", f"--nodelist={host}"]
    return run_client(["srun", f"--jobid={job}", *one, "true"]) is not None


def run_client(command: Sequence[str]) -> str | None:
    """Return the output of a Slurm command, None if it fails or is late. Raises SchedulerError if it can't be started."""
    # srun would read variables of the job step as options
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SRUN")) or k in kept}
    try:
        answer = programs.run(command, ANSWER_S, environ=environ)
    except NoAnswerError:
        return None
    return answer.out if answer.code == 0 else None
