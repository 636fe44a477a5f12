"""`trainer.detect_nan`: prints a loss of nan or inf when it is measured, or ends the run."""

from train_anywhere.features.feature import Feature, Observer, Rank
from train_anywhere.features.nan_watch.nan_watch import NanWatch


class ReportNan(Feature):
    """Report a loss of nan or inf."""

    name = "nan_watch"

    def wanted(self) -> bool:
        """Return whether `trainer.detect_nan` is not off."""
        return self.config.trainer.detect_nan != "off"

    def observer(self, rank: Rank) -> Observer:
        """Return the watch; the first rank prints."""
        return NanWatch(self.config.trainer.detect_nan, prints=rank.first == 0)
