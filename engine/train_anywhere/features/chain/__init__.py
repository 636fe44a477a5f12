"""`cluster.chain=N`: N jobs in a row continue one run. `slurm/scheduler/client.py` submits them."""

from train_anywhere.features.feature import Check, Feature


class Chain(Feature):
    """Submit several jobs, each of which starts when the previous one has ended."""

    name = "chain"

    def is_on(self) -> bool:
        """Return whether `cluster.chain` is above 1."""
        return self.config.cluster.chain > 1

    def check(self, stage: Check, members: int) -> list[str]:
        """Return a message for a sweep: a job array can't be chained."""
        if members == 1 or stage != "job":
            return []
        return [
            f"cluster.chain={self.config.cluster.chain} works for a single run, not for a sweep; use cluster.chain=1."
        ]
