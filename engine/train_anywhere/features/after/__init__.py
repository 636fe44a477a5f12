"""`after=RUN`: start a job when another run, or every member of a sweep, is complete: see `slurm/status/dependency.py`."""

from train_anywhere.features.feature import Check, Feature


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
