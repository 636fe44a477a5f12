"""`after=RUN`: start a job when another run, or every member of a sweep, is complete."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from train_anywhere.features.feature import Check, Dependency, Feature


class After(Feature):
    """Let a job wait in the queue until another run is complete."""

    name = "after"

    def is_on(self) -> bool:
        """Return whether the job waits for another run."""
        return self.config.after is not None

    def check(self, stage: Check, members: int) -> list[str]:
        """Return a message where there is no queue to wait in."""
        messages = {
            "here": "after=RUN makes a job wait in a queue, and this machine has none; name a cluster with cluster=..., or leave "
            "after= out.",
            "allocation": "after= makes a job wait in the queue, but this allocation has already started; leave it out, or leave the "
            "allocation.",
        }
        return [messages[stage]] if stage in messages else []

    def find_dependency(self, info: Mapping[str, Any], scheduler: str, results: Path) -> Dependency | None:
        """Return the other run and its jobs, if `info` names one."""
        if info.get("after") is None:
            return None
        from train_anywhere.features.after.dependency import find_dependency

        return find_dependency(str(info["after"]), scheduler, results)

    def exit_reason(self, run: Any, state: str, info: Mapping[str, Any]) -> str:
        """Return why a job that waited for another run never started."""
        from train_anywhere.features.after.dependency import settle_state

        return settle_state(run, state, info)
