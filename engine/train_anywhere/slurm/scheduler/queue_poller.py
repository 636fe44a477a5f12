"""Wait for jobs to end, even while the scheduler does not answer for some time."""

import sys
import time
from collections.abc import Sequence

from train_anywhere.errors import SchedulerError
from train_anywhere.slurm.scheduler import queue

MAX_SILENCE_S = 3600.0
"""Longest time without an answer before waiting is given up. A restart of the scheduler takes less, its maintenance more."""


class QueuePoller:
    """Polls the queue, and tolerates a scheduler that does not answer for some time."""

    def __init__(self) -> None:
        self._silent_since: float | None = None

    def any_active(self, scheduler: str, job_ids: Sequence[str]) -> bool:
        """Return whether a job may still run. True also while the scheduler does not answer, which is printed once.

        Raises:
            SchedulerError: no answer for `MAX_SILENCE_S`.
        """
        known = self.poll(scheduler, job_ids)
        return known is None or bool(known.active(job_ids))

    def poll(self, scheduler: str, job_ids: Sequence[str]) -> queue.JobStates | None:
        """Return the states of jobs in the queue; None while the scheduler does not answer.

        Raises:
            SchedulerError: no answer for `MAX_SILENCE_S`.
        """
        try:
            known = queue.query_queue(scheduler, job_ids)
        except SchedulerError as error:
            self._no_answer(error)
            return None
        if self._silent_since is not None:
            print("The scheduler answers again.", file=sys.stderr, flush=True)
        self._silent_since = None
        return known

    def _no_answer(self, error: SchedulerError) -> None:
        if self._silent_since is None:
            self._silent_since = time.monotonic()
            print(f"{error} The job continues; asking again ...", file=sys.stderr, flush=True)
        if time.monotonic() - self._silent_since > MAX_SILENCE_S:
            raise SchedulerError(
                f"{error} No answer for {MAX_SILENCE_S / 60:g} minutes: the job may still run, but this command stops waiting for it."
            )
