"""`cluster.chain=N`: N jobs in a row that continue one run. `slurm/scheduler/jobs_in_turn.py` submits them."""

from train_anywhere.features.feature import Feature


class Chain(Feature):
    """Submit several jobs, each of which starts when the one before has ended."""

    name = "chain"

    def wanted(self) -> bool:
        """Return whether `cluster.chain` is above 1."""
        return self.config.cluster.chain > 1

    def problems_of_job(self, members: int) -> list[str]:
        """An array is not chained."""
        if members == 1:
            return []
        return [
            f"cluster.chain={self.config.cluster.chain} works for a single run, not for a sweep; use cluster.chain=1."
        ]
