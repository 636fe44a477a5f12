"""Restarts of the ranks within a job: `cluster.retries`, replays, and elastic jobs that lose a node.

restart         decides after a failure whether the ranks are started again, and on which nodes
script_watch    requeues an elastic job whose batch script is gone with its node
"""

from collections.abc import Callable

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Feature, Part
from train_anywhere.runs.folder import RunDir


class Restarts(Feature):
    """Start the ranks again in the same job."""

    name = "restarts"

    def wanted(self, config: Config) -> bool:
        """With `cluster.retries`, `trainer.detect_nan=replay`, or an elastic job that keeps its nodes (`cluster.no_kill`)."""
        t, (fewest, most) = config.trainer, config.trainer.span
        replays = t.detect_nan == "replay" and not t.fast_dev_run
        return bool(config.cluster.retries) or replays or (fewest < most and config.cluster.no_kill)

    def parts(self, run: RunDir, config: Config, host: str) -> list[Callable[[], Part]]:
        """Return the watch of the batch script, on the second and further nodes of a job that survives the first."""
        from train_anywhere.features.restarts.script_watch import script_watch

        watch = script_watch(run, config, host)
        return [lambda: watch] if watch else []
