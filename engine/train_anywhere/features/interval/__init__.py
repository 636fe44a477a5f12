"""Checkpoints within an epoch: `checkpoint.every_n_steps`, `checkpoint.every_n_seconds`, and `checkpoint.interval=auto`."""

from train_anywhere.features.feature import Feature, Observer, Rank
from train_anywhere.features.interval.interval import Interval


class CheckpointInterval(Feature):
    """Save a checkpoint every so many steps or seconds."""

    name = "interval"

    def wanted(self) -> bool:
        """Return whether the run writes checkpoints."""
        return not self.config.trainer.fast_dev_run

    def observer(self, rank: Rank) -> Observer:
        """Return the counter of steps and seconds since the newest checkpoint."""
        return Interval(self.config.checkpoint, rank.devices)
