"""Restarts of the ranks within a job: `cluster.retries`, and elastic jobs that lose a node.

restart         decides after a failure whether to restart the ranks, and on which nodes
script_watch    requeues an elastic job that lost the node with its batch script
"""

from collections.abc import Callable

from train_anywhere.config.cluster import Cluster
from train_anywhere.config.schema import Trainer
from train_anywhere.features.feature import Feature, NodeService
from train_anywhere.runs.folder import RunDir


def may_restart(cluster: Cluster, trainer: Trainer) -> bool:
    """Return whether a job has `cluster.retries`, or is elastic with `cluster.no_kill`."""
    fewest, most = trainer.node_range
    return bool(cluster.retries) or (fewest < most and cluster.no_kill)


class Restarts(Feature):
    """Restart the ranks in the same job."""

    name = "restarts"

    def is_on(self) -> bool:
        """Return whether the ranks may be restarted."""
        return may_restart(self.config.cluster, self.config.trainer)

    def node_services(self, run: RunDir, host: str) -> list[Callable[[], NodeService]]:
        """Return the watch of the batch script, on nodes 2 to 4 of a job that survives the loss of node 1."""
        from train_anywhere.features.restarts.script_watch import script_watch

        c, (fewest, most) = self.config.cluster, self.config.trainer.node_range
        if c.scheduler != "slurm" or not c.no_kill or fewest == most:
            return []
        watch = script_watch(run, c.requeue, host)
        return [lambda: watch] if watch else []
