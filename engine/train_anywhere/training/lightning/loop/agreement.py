"""What all ranks agree on at the same step: to stop, to save, to end and to profile."""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.features.feature import Observers
from train_anywhere.job.rank_process import Stop
from train_anywhere.training.early_stopping import Timer
from train_anywhere.training.lightning.loop.course import Course
from train_anywhere.training.reporting.progress import Progress


class Agreement:
    """Requests to stop, save, end and profile, on which all ranks agree.

    The requests are reduced together with the metrics, so all ranks know of them at the same step without an extra collective. A single
    rank checks them after each step.

    Args:
        course: how far the run is.
        observers: called after steps, validations and checkpoints.
        writes: whether this is rank 0 of a run that writes checkpoints.

    Attributes:
        stopping: whether all ranks have agreed to stop.
        saving: whether all ranks have agreed to save a checkpoint.
    """

    def __init__(
        self, course: Course, stop: Stop, timer: Timer, progress: Progress, observers: Observers, writes: bool
    ) -> None:
        self.course = course
        self.stop, self.timer, self.progress, self.observers = stop, timer, progress, observers
        self.writes, self.stopping, self.saving = writes, False, False

    def update(self, trainer: pl.Trainer, exchange: bool = True) -> None:
        """Apply the requests of a single rank, or with `exchange` those of all ranks, which call this together."""
        if trainer.world_size > 1 and not exchange:
            return
        efficiency = self.progress.heartbeat.efficiency
        saves = bool(self.progress.requests.save) or self.observers.requests_checkpoint()
        requests = [
            self.stop.requested is not None,
            self.writes and saves,  # by a feature or `jobs.py save`
            self.timer.is_over,
            self.progress.take_profile(),
        ]
        if trainer.world_size > 1:
            own = torch.tensor([*requests, *efficiency.numbers()], dtype=torch.float64)
            reduced: Any = trainer.strategy.reduce(own.to(trainer.strategy.root_device), reduce_op="sum")
            requests = reduced.tolist()
            efficiency.set_sums(requests[4:])
        self.stopping, self.saving, over = (request > 0 for request in requests[:3])
        self.progress.request_profile(int(requests[3]))
        if over and not trainer.should_stop:
            self.course.end(trainer)
            self.progress.note(self.timer.end(self.course.steps_done))

    def saved(self, step: int, seconds: float) -> None:
        """Note that a checkpoint of this step was saved, for which training waited some seconds."""
        self.observers.after_checkpoint(seconds)
        self.progress.requests.saved(step)
        self.saving = False
