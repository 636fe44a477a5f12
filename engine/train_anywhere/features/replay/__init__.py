"""`trainer.detect_nan=replay`: recompute a loss of nan or inf, to find out whether the machine or the model is at fault.

bad_loss     the record of such a loss in run.json
recompute    checks the losses in the training loop, and gives the verdict
"""

from collections.abc import Iterator
from typing import Any

from train_anywhere.features.feature import Feature, Observer, Rank
from train_anywhere.features.replay.bad_loss import history, pending, read
from train_anywhere.runs.folder import ATTEMPTS, RunDir


class ReplayNan(Feature):
    """Recompute a loss of nan or inf from the same weights and batches."""

    name = "replay"
    needs_batch_counts = True

    def is_on(self) -> bool:
        """Return whether `trainer.detect_nan=replay`."""
        return self.config.trainer.detect_nan == "replay" and not self.config.trainer.fast_dev_run

    def observer(self, rank: Rank) -> Observer | None:
        """Return the observer of losses; None for a user's module, whose steps can't be recomputed."""
        if not rank.native:
            return None
        from train_anywhere.features.replay.recompute import Replay

        return Replay(rank)

    def resume_until(self, run: RunDir) -> int | None:
        """Return the last step before the loss to recompute, if there is one."""
        found = pending(run)
        return found.until if found else None

    def restart_reason(self, run: RunDir) -> str:
        """Return a line for the log if the ranks that just failed have a loss to recompute."""
        newest = (run.read_info().get(ATTEMPTS) or [{}])[-1]
        found = read(newest)
        recompute = found is not None and not found.verdict
        return "Recomputing the steps from an earlier checkpoint." if recompute else ""

    def verdicts(self, facts: Any) -> Iterator[str]:
        """Return a sentence for each loss that was finite when recomputed."""
        for found in history(facts.info):
            if found.verdict == "machine":
                yield (
                    f"{found.metric} was nan or inf in step {found.step}, first on {found.ranks_and_hosts}, but finite when recomputed: "
                    "a device there may be defective."
                )
