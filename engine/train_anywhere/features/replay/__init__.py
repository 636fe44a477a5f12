"""`trainer.detect_nan=replay`: a loss of nan or inf is computed again, to tell a broken machine from a broken model.

bad_loss     what run.json records of such a loss
recompute    looks at the losses in the training loop, and gives the verdict
"""

from collections.abc import Iterator
from typing import Any

from train_anywhere.features.feature import Feature, Observer, Rank
from train_anywhere.features.replay.bad_loss import history, pending, read
from train_anywhere.runs.folder import ATTEMPTS, RunDir


class ReplayNan(Feature):
    """Compute a loss of nan or inf again, from the same weights and batches."""

    name = "replay"
    counts = True

    def wanted(self) -> bool:
        """Return whether `trainer.detect_nan=replay`."""
        return self.config.trainer.detect_nan == "replay" and not self.config.trainer.fast_dev_run

    def observer(self, rank: Rank) -> Observer | None:
        """Return what looks at the losses; steps that a user's module makes can't be computed again."""
        if not rank.native:
            return None
        from train_anywhere.features.replay.recompute import Replay

        return Replay(rank.run, rank.accumulate, rank.first, rank.devices, rank.total, rank.keep)

    def resume_until(self, run: RunDir) -> int | None:
        """Return the last step before the loss that is to be computed again."""
        found = pending(run)
        return found.until if found else None

    def starts_again(self, run: RunDir) -> str:
        """Return a line if the ranks that have just failed saw a loss of nan that is to be computed again."""
        newest = (run.info().get(ATTEMPTS) or [{}])[-1]
        found = read(newest)
        again = found is not None and not found.verdict
        return "The steps are computed again, from a checkpoint before." if again else ""

    def verdicts(self, facts: Any) -> Iterator[str]:
        """Yield losses that were numbers when they were computed again."""
        for found in history(facts.info):
            if found.verdict == "machine":
                yield (
                    f"{found.metric} was nan or inf in step {found.step}, first on {found.where}, and a number when it was computed again: "
                    "a device there may be defective."
                )
