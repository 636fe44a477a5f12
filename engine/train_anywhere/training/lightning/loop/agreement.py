"""What all ranks agree on at the same step: to stop, to save, to end and to profile."""

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

    def numbers(self, device: torch.device) -> torch.Tensor:
        """Return what is reduced with the metrics: the requests, and the efficiency."""
        requests = [
            self.stop.requested is not None,
            self._requests_checkpoint(),
            self.timer.is_over,
            self.progress.take_profile(),
        ]
        numbers = [*requests, *self.progress.heartbeat.efficiency.numbers()]
        return torch.tensor(numbers, dtype=torch.float64, device=device)

    def apply(self, trainer: pl.Trainer, sums: list[float]) -> None:
        """Apply the sums of `numbers` over all ranks."""
        self.stopping, self.saving, over = (request > 0 for request in sums[:3])
        self.progress.request_profile(int(sums[3]))
        self.progress.heartbeat.efficiency.set_sums(sums[4:])
        self._end_training(trainer, over)

    def reduce(self, trainer: pl.Trainer, device: torch.device) -> None:
        """Let several ranks agree now. All ranks must call this."""
        if trainer.world_size > 1:
            self.apply(trainer, trainer.strategy.reduce(self.numbers(device), reduce_op="sum").tolist())

    def check(self, trainer: pl.Trainer) -> None:
        """Update the requests of a single rank, and end training if its time is over."""
        if trainer.world_size == 1:
            self.stopping, self.saving = self.stop.requested is not None, self._requests_checkpoint()
            self._end_training(trainer, self.timer.is_over)
            self.progress.request_profile(self.progress.take_profile())

    def saved(self, step: int, seconds: float) -> None:
        """Note that a checkpoint of this step was saved, for which training waited some seconds."""
        self.observers.after_checkpoint(seconds)
        self.progress.requests.saved(step)
        self.saving = False

    def _end_training(self, trainer: pl.Trainer, over: bool) -> None:
        """End training at this step if `trainer.max_time` is over."""
        if over and not trainer.should_stop:
            self.course.end(trainer)
            self.progress.note(self.timer.end(self.course.steps_done))

    def _requests_checkpoint(self) -> bool:
        """Return whether rank 0 wants to save now, as a feature or `jobs.py save` requests."""
        return self.writes and (bool(self.progress.requests.save) or self.observers.requests_checkpoint())
