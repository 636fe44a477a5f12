"""Lightning's loop over the batches of an epoch, changed to save and validate between two batches."""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from train_anywhere.data.torch.user_loader import raised_by_row
from train_anywhere.errors import user_error
from train_anywhere.training.lightning.loop.private import _TrainingEpochLoop
from train_anywhere.training.lightning.loop.steps import is_last_batch, takes_iterator


class EpochLoop(_TrainingEpochLoop):
    """The loop over the batches of one epoch.

    Attributes:
        mid_epoch: whether a validation is running after which the epoch continues.
        modes: whether each layer was in training mode before the newest validation.
    """

    mid_epoch = False

    def __init__(self, trainer: pl.Trainer) -> None:
        super().__init__(trainer)
        self.modes: dict[str, bool] = {}

    def advance(self, data_fetcher: Any) -> None:
        """Train on one batch. Raises StopIteration if none is left."""
        if self.restarting:  # type: ignore[has-type]
            if self.val_loop.restarted_mid_evaluation:
                return  # `on_advance_end` runs the validation before or in which the run was stopped
            self.restarting = False
        super().advance(data_fetcher)

    def on_advance_end(self, data_fetcher: Any) -> None:
        """Call `after_batch` of callbacks after all hooks of a batch, then validate if due.

        After a validation within the epoch, call `validation_over` of callbacks, unless the run ends with it.
        """
        trainer: Any = self.trainer
        self._call("after_batch", trainer, self.batch_idx)
        over, validates = is_last_batch(trainer) or trainer.should_stop, self.validation_follows()
        self.mid_epoch = not over and validates
        if validates:
            self.modes = {n: layer.training for n, layer in trainer.lightning_module.named_modules()}
            self._call("before_validation", trainer)
        super().on_advance_end(data_fetcher)
        if self.mid_epoch and not trainer.should_stop:
            self._call("validation_over", trainer, trainer.lightning_module)
        if self.mid_epoch and not trainer.should_stop:
            trainer.validated_weights.forget()
        self.mid_epoch = False

    def validation_follows(self) -> bool:
        """Return whether a validation follows the batch just trained."""
        fetcher = self.trainer.fit_loop._data_fetcher
        assert fetcher is not None
        return self._should_check_val_fx(fetcher)

    def _broadcast_sigterm_tensor(self) -> None:
        """Do nothing: the ranks agree to stop when they reduce their metrics."""

    def _call(self, name: str, *arguments: Any) -> None:
        """Call a method of the callbacks that have it."""
        for callback in self.trainer.callbacks:
            if hasattr(callback, name):
                getattr(callback, name)(*arguments)


def refuse_user_stop_iteration(owner: Any, *names: str) -> None:
    """Turn a StopIteration of user code into an error: Lightning would end the epoch.

    A step that takes a `dataloader_iter` ends the epoch in this way.
    """
    for name in names:
        setattr(owner, name, partial(_call_without_user_stop, owner, getattr(owner, name)))


def _call_without_user_stop(owner: Any, method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except StopIteration as end:
        trainer = owner.trainer
        stage = "training" if trainer.training else "test" if trainer.testing else "validation"
        if takes_iterator(trainer, stage):
            raise
        frames = [frame.f_code for frame, _ in traceback.walk_tb(end.__traceback__)]
        # on_train_batch_start has returned -1
        own = Path(frames[-1].co_filename).name == "training_epoch_loop.py"
        fetched = any(Path(code.co_filename).name == "fetchers.py" for code in frames)
        if own or (fetched and not raised_by_row(end)):
            raise
        raise user_error(end) from end


def overrides(owner: Any, name: str) -> bool:
    """Return whether an owner of hooks overrides one, in its class or on the object."""
    bases = (pl.LightningModule, pl.Callback, pl.LightningDataModule)
    base = next(b for b in bases if isinstance(owner, b))
    return getattr(getattr(owner, name), "__func__", None) is not getattr(base, name)
