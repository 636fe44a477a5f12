"""`after=RUN`: a job that starts when another run, or each member of a sweep, is complete."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.features.feature import Feature, Followed


class After(Feature):
    """Let a job wait in the queue until another run is complete."""

    name = "after"

    def wanted(self) -> bool:
        """Return whether the job waits for another run."""
        return self.config.after is not None

    def problems_here(self) -> list[str]:
        """This machine has no queue."""
        return [
            "after=RUN lets a job wait in a queue, and this machine has none; name a cluster with cluster=..., or leave it out."
        ]

    def problems_in_allocation(self) -> list[str]:
        """An allocation does not wait."""
        return [
            "after= lets a job wait in the queue, and an allocation has begun; leave it out, or leave the allocation."
        ]

    def follow(self, info: Mapping[str, Any], scheduler: str, results: Path) -> Followed | None:
        """Return the jobs of the other run."""
        if info.get("after") is None:
            return None
        from train_anywhere.features.after.following import follow

        return follow(str(info["after"]), scheduler, results)

    def why(self, run: Any, state: str, info: Mapping[str, Any]) -> str:
        """Return why a job that waited for another run never started."""
        from train_anywhere.features.after.following import settle

        return settle(run, state, info)
