"""Restarts of the ranks within a job: `cluster.retries`, replays, and elastic jobs that lose a node.

restart         decides after a failure whether the ranks are started again, and on which nodes
script_watch    requeues an elastic job whose batch script is gone with its node
"""

from collections.abc import Callable

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Feature, Part
from train_anywhere.runs.folder import RunDir


def may_restart(config: Config) -> bool:
    """Return whether a job has `cluster.retries`, `trainer.detect_nan=replay`, or is elastic and keeps its nodes (`cluster.no_kill`)."""
    t, (fewest, most) = config.trainer, config.trainer.span
    replays = t.detect_nan == "replay" and not t.fast_dev_run
    return bool(config.cluster.retries) or replays or (fewest < most and config.cluster.no_kill)


class Restarts(Feature):
    """Start the ranks again in the same job."""

    name = "restarts"

    def wanted(self) -> bool:
        """Return whether the ranks may be started again."""
        return may_restart(self.config)

    def parts(self, run: RunDir, host: str) -> list[Callable[[], Part]]:
        """Return the watch of the batch script, on the second and further nodes of a job that survives the first."""
        from train_anywhere.features.restarts.script_watch import script_watch

        c, (fewest, most) = self.config.cluster, self.config.trainer.span
        if c.scheduler != "slurm" or not c.no_kill or fewest == most:
            return []
        watch = script_watch(run, c.requeue, host)
        return [lambda: watch] if watch else []
