"""Where in an epoch the Trainer is, from the counters that it shows, and where a run resumes."""

import math
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.utilities.combined_loader import CombinedLoader
from lightning.pytorch.utilities.signature_utils import is_param_in_hook_signature

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.training.plan import Plan


def is_last_batch(trainer: pl.Trainer) -> bool:
    """Return whether the newest batch is the last one of its epoch."""
    batches = trainer.fit_loop.epoch_loop.batch_progress
    return batches.current.ready == trainer.num_training_batches or batches.is_last_batch


def newest_epoch(trainer: pl.Trainer) -> int:
    """Return the newest epoch that has started, from 0. In its last hooks the Trainer's `current_epoch` is the next one."""
    return trainer.fit_loop.epoch_progress.current.started - 1


def accumulates(trainer: pl.Trainer) -> bool:
    """Return whether the gradients of the newest batch wait for those of further batches."""
    if trainer.fit_loop.epoch_loop.batch_progress.current.ready % trainer.accumulate_grad_batches == 0:
        return False
    return trainer.strategy.handles_gradient_accumulation or not is_last_batch(trainer)


def are_over(trainer: pl.Trainer) -> bool:
    """Return whether `max_steps` optimizer steps are done."""
    return 0 <= trainer.fit_loop.max_steps <= trainer.global_step


def is_stopping(trainer: pl.Trainer) -> bool:
    """Return whether training ends after this step: `should_stop` waits for `min_epochs` and `min_steps`."""
    loop = trainer.fit_loop
    epochs, steps = loop.epoch_progress.current.processed, trainer.global_step
    return trainer.should_stop and epochs >= (loop.min_epochs or 0) and steps >= (loop.min_steps or 0)


def validation_follows(trainer: pl.Trainer) -> bool:
    """Return whether Lightning validates after the batch just trained, as its training loop decides."""
    every, batches, loop = trainer.check_val_every_n_epoch, trainer.val_check_batch, trainer.fit_loop
    if not trainer.enable_validation or (every and (trainer.current_epoch + 1) % every):
        return False
    last, limit = loop.epoch_loop.batch_progress.is_last_batch, trainer.limit_train_batches
    if is_stopping(trainer) or (last and takes_iterator(trainer)):
        return True
    if batches in (None, math.inf):  # the loader has no length
        return last or (isinstance(limit, int) and (loop.batch_idx + 1) % limit == 0)
    done = loop.total_batch_idx if every is None else loop.batch_idx
    return bool((done + 1) % batches == 0)


def training_loaders(trainer: pl.Trainer) -> list[Any]:
    """Return the opened training loaders, also those of a nested collection. Empty before they are opened."""
    opened = trainer.train_dataloader
    return [] if opened is None else CombinedLoader(opened).flattened


def takes_iterator(trainer: pl.Trainer, stage: str = "training") -> bool:
    """Return whether a step reads the batches itself, by an argument `dataloader_iter`."""
    step = getattr(trainer.lightning_module, f"{stage}_step")
    return is_param_in_hook_signature(step, "dataloader_iter", explicit=True)


def resume_position(
    saved: SavedCheckpoint, plan: Plan, epochs: int, ranks: float, last: bool, over: bool
) -> tuple[int, int]:
    """Return the epoch and batch to resume at, both from 0.

    `epochs` are those of the resumed run, and `over` is whether `max_steps` ended the epoch. `ranks` are the checkpoint's divided by those
    of this run: fewer ranks read more batches each. With `last` the validation of the epoch's end comes first.
    """
    epoch, batch = saved.epoch, int(saved.batch * ranks)
    if batch and not last and (batch >= plan.train_batches or over):
        epoch, batch = epoch + 1, 0
    return (epoch, batch) if epoch < epochs or epochs == -1 else (epochs, 0)


def set_loop_counters(
    state: dict[str, Any], epoch: int, batch: int, last: bool, steps: int, to_validate: bool
) -> None:
    """Set the saved state of the fit loop to `epoch` complete epochs and `batch` batches.

    Lightning saves its counters in the middle of a hook and guesses at loading which hook it was.
    Here they get the values that they have between two batches, between two epochs, or before a validation.

    The state is `checkpoint["loops"]["fit_loop"]`, changed in place. `last`: no batch of the epoch is left; `steps` optimizer steps
    are done; `to_validate`: the validation after the last one is still to be run.
    """
    started = epoch + 1 if batch else epoch
    batches = state["epoch_loop.batch_progress"]["total"]["ready"]
    total, current = _count(batches, batches), _count(batch, batch)
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
    state["epoch_progress"] = {name: _count(started, epoch) for name in ("total", "current")}
    state["epoch_loop.batch_progress"] = {"total": total, "current": current, "is_last_batch": last}
    # Lightning resumes a validation that had started
    total, current = _count(int(to_validate), 0), _count(0, 0)
    state["epoch_loop.val_loop.batch_progress"] = {"total": total, "current": current, "is_last_batch": False}


def _count(started: int, done: int) -> dict[str, int]:
    return {"ready": started, "started": started, "processed": done, "completed": done}
