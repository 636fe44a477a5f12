"""What user code does in a hook: which hooks it has, and a StopIteration that it raises."""

import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from train_anywhere.data.torch.user_loader import raised_by_row
from train_anywhere.errors import user_error
from train_anywhere.training.lightning.loop.steps import takes_iterator
from train_anywhere.training.lightning.private import wrap_evaluation_step


def refuse_user_stop_iteration(trainer: pl.Trainer) -> None:
    """Turn a StopIteration of user code into an error: Lightning would end the epoch.

    A step that takes a `dataloader_iter` ends the epoch in this way.
    """
    fit = trainer.fit_loop
    called = [(fit, name) for name in ("on_advance_start", "advance", "on_advance_end")]
    called += [(fit.epoch_loop, "advance"), (fit.epoch_loop, "on_advance_end")]
    for loop, name in [*called, (fit.epoch_loop.manual_optimization, "advance")]:
        setattr(loop, name, partial(call_without_user_stop, loop, getattr(loop, name)))
    for loop in (fit.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop):
        wrap_evaluation_step(loop, partial(partial, call_without_user_stop, loop))


def call_without_user_stop(owner: Any, method: Callable[..., Any], *arguments: Any) -> Any:
    """Return what a method of a loop returns. Raises RuntimeError for a StopIteration of user code."""
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
