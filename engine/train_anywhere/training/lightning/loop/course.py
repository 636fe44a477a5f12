"""How far a run is, and what ends it: what the Trainer does not know."""

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl

from train_anywhere.training.early_stopping import describe_early_end
from train_anywhere.training.plan import Plan


class Course:
    """How far a run has come, and what ends it.

    Args:
        plan: the size of the run.

    Attributes:
        steps_done: optimizer steps of the run so far. With several optimizers, Lightning's `global_step` adds up their steps.
        skips: whether a hook or step of the module has ended an epoch early, by -1 or StopIteration.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan, self.steps_done, self.skips = plan, 0, False
        self._ended = False
        self._waiting: list[Callable[[float], None]] = []

    def end(self, trainer: pl.Trainer) -> None:
        """End the training after this step, as the configuration says."""
        self._ended = trainer.should_stop = True

    def note_skipped_batches(self, trainer: pl.Trainer) -> None:
        """Note whether the module has ended the epoch early."""
        done = trainer.fit_loop.epoch_loop.batch_progress.current
        self.skips |= not trainer.should_stop and done.completed < done.ready

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

    def when_opened(self, call: Callable[[float], None]) -> None:
        """Call a function once Lightning has opened the training loaders.

        Its argument is the number of training batches of an epoch, infinite if it is not known.
        """
        self._waiting.append(call)

    def loaders_opened(self, trainer: pl.Trainer) -> None:
        """Call the functions of `when_opened`. All ranks call this."""
        if trainer.train_dataloader is not None and self._waiting:
            calls, self._waiting = self._waiting, []
            for call in calls:
                call(trainer.num_training_batches)
