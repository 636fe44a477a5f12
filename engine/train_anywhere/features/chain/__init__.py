"""`cluster.chain=N`: N jobs in a row that continue one run. `slurm/scheduler/jobs_in_turn.py` submits them."""

from train_anywhere.config.schema import Config
from train_anywhere.features.feature import Feature


class Chain(Feature):
    """Submit several jobs, each of which starts when the one before has ended."""

    name = "chain"

    def wanted(self, config: Config) -> bool:
        """With `cluster.chain` above 1."""
        return config.cluster.chain > 1

    def problems_of_job(self, config: Config, members: int) -> list[str]:
        """An array is not chained."""
        if members == 1:
            return []
        return [
            f"cluster.chain={config.cluster.chain} works for a single run, not for a sweep; use cluster.chain=1."
        ]
