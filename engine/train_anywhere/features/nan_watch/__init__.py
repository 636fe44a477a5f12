"""`trainer.detect_nan`: report a loss of nan or inf when it is measured, or end the run."""

from train_anywhere.features.feature import Feature, Observer, Rank
from train_anywhere.features.nan_watch.nan_watch import NanWatch


class ReportNan(Feature):
    """Report a loss of nan or inf."""

    name = "nan_watch"

    def is_on(self) -> bool:
        """Return whether `trainer.detect_nan` is not off."""
        return self.config.trainer.detect_nan != "off"

    def observer(self, rank: Rank) -> Observer:
        """Return the observer of losses; only the first rank prints."""
        return NanWatch(self.config.trainer.detect_nan, rank.run if rank.first_device == 0 else None)
