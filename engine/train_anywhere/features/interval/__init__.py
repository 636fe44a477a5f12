"""Checkpoints within an epoch: `checkpoint.every_n_steps`, `checkpoint.every_n_seconds`, and `checkpoint.interval=auto`."""

from train_anywhere.features.feature import Feature, Observer, Rank
from train_anywhere.features.interval.interval import Interval


class CheckpointInterval(Feature):
    """Save checkpoints at an interval of steps or seconds."""

    name = "interval"

    def is_on(self) -> bool:
        """Return whether the run writes checkpoints."""
        return not self.config.trainer.fast_dev_run

    def observer(self, rank: Rank) -> Observer:
        """Return the observer that counts steps and seconds since the newest checkpoint."""
        return Interval(self.config.checkpoint, rank.devices)
