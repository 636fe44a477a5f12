"""Wait for jobs to end, through times in which the scheduler does not answer."""

import sys
import time
from collections.abc import Sequence

from slurm import queue
from src.errors import SchedulerError

PATIENCE = 3600.0
"""Seconds without an answer after which waiting is given up: a scheduler's maintenance is longer, its restart is not."""


class Waiting:
    """Whether jobs may still run, asked again and again."""

    def __init__(self) -> None:
        self._silent_since: float | None = None

    def living(self, scheduler: str, job_ids: Sequence[str]) -> bool:
        """Whether one of the jobs may still run; also while the scheduler can't be asked, which is said once.

        Raises:
            SchedulerError: it could not be asked for `PATIENCE`.
        """
        try:
            living = bool(queue.queued(scheduler, job_ids).living(job_ids))
        except SchedulerError as error:
            self._no_answer(error)
            return True
        if self._silent_since is not None:
            print("The scheduler answers again.", file=sys.stderr, flush=True)
        self._silent_since = None
        return living

    def _no_answer(self, error: SchedulerError) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            print(f"{error} The job goes on; asking again ...", file=sys.stderr, flush=True)
        if time.monotonic() - self._silent_since > PATIENCE:
            raise SchedulerError(
                f"{error} That was so for {PATIENCE / 60:g} minutes: the job may still run, and waiting for its end is given up."
            )
