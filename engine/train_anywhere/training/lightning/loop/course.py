"""How far a run is, what ends it, what all ranks agree on, and what was trained: what the Trainer does not know."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.errors import ProjectError
from train_anywhere.features.feature import Observers
from train_anywhere.job.rank_process import Stop
from train_anywhere.training.early_stopping import Timer, describe_early_end
from train_anywhere.training.plan import Plan
from train_anywhere.training.reporting.progress import Progress


class Course:
    """How far a run has come, and what ends it.

    Args:
        plan: the size of the run.
        opened: called once Lightning has opened the training loaders, with the batches of an epoch, infinite if not known.

    Attributes:
        steps_done: optimizer steps of the run so far. With several optimizers, Lightning's `global_step` adds up their steps.
        skips: whether a hook or step of the module has ended an epoch early, by -1 or StopIteration.
        stopped: whether user code had ended the training that resumes, before a validation that is still to be run.
    """

    def __init__(self, plan: Plan, opened: Callable[[float], None] = lambda batches: None) -> None:
        self.plan, self.steps_done, self.skips, self.stopped = plan, 0, False, False
        self._ended = self._is_open = False
        self._opened = opened

    def end(self, trainer: pl.Trainer) -> None:
        """End the training after this step, as the configuration says."""
        self._ended = trainer.should_stop = True

    def early_end(self, trainer: pl.Trainer) -> str | None:
        """Return a line about who ended the training, if user code did before its last step."""
        stops = trainer.should_stop and not self._ended
        if not (stops or self.skips) or self.steps_done >= self.plan.total_steps:
            return None
        who: str | None = f"a -1 or StopIteration of {type(trainer.lightning_module).__name__}"
        if stops:
            early: Any = trainer.early_stopping_callbacks
            who = next((type(one).__name__ for one in early if one.stopping_reason_message), None)
        line = describe_early_end(who, self.steps_done, self.plan.total_steps)
        return line if self.plan.steps_known else line.rpartition(" of ")[0]

    def loaders_opened(self, trainer: pl.Trainer) -> None:
        """Call `opened` if the loaders are open. All ranks call this."""
        if trainer.train_dataloader is not None and not self._is_open:
            self._is_open = True
            self._opened(trainer.num_training_batches)


class Agreement:
    """Requests to stop, save, end and profile, on which all ranks agree: `stopping` and `saving` are what they agreed on.

    The requests are reduced together with the metrics, so all ranks know of them at the same step without an extra collective. A single
    rank checks them after each step. `writes` is whether this is rank 0 of a run that writes checkpoints.
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
            own = torch.tensor([*requests, *efficiency.sums], dtype=torch.float64)
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


@dataclass
class TrainingCheck:
    """Counts batches without a loss, and looks for the first gradient."""

    batches: int = 0
    skipped: int = 0
    stepped: bool = False
    has_gradient: bool = False

    def look_at(self, optimizer: Any) -> None:
        """See whether an optimizer has gradients to use."""
        if not self.has_gradient:
            self.stepped = True
            used = (p for group in optimizer.param_groups for p in group["params"])
            self.has_gradient = any(p.grad is not None for p in used)

    def describe(self, trainer: pl.Trainer) -> str:
        """Return a note about what was not trained, or "". Raises ProjectError if no step ran."""
        if not self.batches and not trainer.should_stop:
            raise ProjectError("nothing was trained: no batch reached training_step.")
        skipped = "training_step or the loader returned None"
        if self.batches and self.skipped == self.batches:
            return (
                f"nothing was trained: all {self.batches} batches were skipped ({skipped}); return the loss."
            )
        if not any(optimizer.param_groups for optimizer in trainer.optimizers):
            return "the module has no optimizer, so no weight was changed."
        if self.stepped and not self.has_gradient:
            return (
                "nothing was trained: no parameter of the optimizer ever had a gradient; pass the parameters that the loss depends on to "
                "the optimizer."
            )
        return f"{self.skipped} of {self.batches} batches were skipped: {skipped}." if self.skipped else ""
