"""Restarts of the ranks within a job: `cluster.retries`, and elastic jobs that lose a node.

restart         decides after a failure whether to restart the ranks, and on which nodes
script_watch    requeues an elastic job that lost the node with its batch script
"""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

from train_anywhere.config.cluster import Cluster
from train_anywhere.config.schema import Trainer
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.runs.attempts import with_times
from train_anywhere.runs.folder import ATTEMPTS, RunDir

SHOWN = 5
"""Most restarts of which the report and the status show the parts."""


def may_restart(cluster: Cluster, trainer: Trainer) -> bool:
    """Return whether a job has `cluster.retries`, or is elastic with `cluster.no_kill`."""
    fewest, most = trainer.node_range
    return bool(cluster.retries) or (fewest < most and cluster.no_kill)


def _describe(failed: Mapping[str, float], attempt: Mapping[str, Any]) -> str:
    """Return the parts of a restart, from what the supervisor has measured and the times of the next attempt."""
    spent = attempt.get("seconds") or {}
    known = {**failed}
    if first := spent.get("first"):
        known |= {"start": spent.get("before", 0.0) + spent.get("start", 0.0), "first step": first}
    where = f"step {attempt['from_step']}: " if "from_step" in attempt else ""
    return where + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in known.items())


class Restarts(Feature):
    """Restart the ranks in the same job."""

    name = "restarts"

    def is_on(self) -> bool:
        """Return whether the ranks may be restarted."""
        return may_restart(self.config.cluster, self.config.trainer)

    def rows(self, run: RunDir, info: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the seconds of each part of the last restarts."""
        attempts = info.get(ATTEMPTS) or [{}]
        attempts = [*attempts[:-1], with_times(run, attempts[-1])]
        again = [(a["restart"], b) for a, b in itertools.pairwise(attempts) if a.get("restart")]
        parts = [_describe(*pair) for pair in again[-SHOWN:]]
        more = ["the last ones"] * (len(again) > SHOWN)
        return {"Restarts": f"{len(again)}: {'; '.join([*more, *parts])}"} if again else {}

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of the batch script, on nodes 2 to 4 of a job that survives the loss of node 1."""
        from train_anywhere.features.restarts.script_watch import script_watch

        c, (fewest, most) = self.config.cluster, self.config.trainer.node_range
        if c.scheduler != "slurm" or not c.no_kill or fewest == most:
            return []
        watch = script_watch(run, c.requeue, host)
        return [lambda: watch] if watch else []
