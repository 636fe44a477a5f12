"""The position where training resumes, and Lightning's loop counters for it."""

from typing import Any

import lightning.pytorch as pl

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.config.schema import Trainer
from train_anywhere.training.plan import Plan, validation_due


def steps_done(trainer: pl.Trainer) -> int:
    """Return the optimizer steps of the run, as `train_anywhere.training.lightning.trainer.Trainer` counts them."""
    steps: int = trainer.steps_done  # type: ignore[attr-defined]
    return steps


def resume_position(saved: SavedCheckpoint | None, config: Trainer, plan: Plan) -> tuple[int, int]:
    """Return the epoch and batch to resume at, both from 0; batch `plan.train_batches` is the validation of the epoch.

    The plan may have changed since the checkpoint was written (`resume=RUN trainer.limit_train_batches=10`).
    An epoch or a run that is already complete by the new plan is not resumed.
    """
    if saved is None:
        return 0, 0
    if saved.batch == plan.train_batches and validation_due(
        config, plan, saved.epoch, saved.batch, saved.step
    ):
        return saved.epoch, saved.batch
    epoch, batch = (saved.epoch, saved.batch) if saved.batch < plan.train_batches else (saved.epoch + 1, 0)
    over = saved.step >= plan.total_steps or epoch >= plan.max_epochs
    return (plan.max_epochs, 0) if over else (epoch, batch)


def user_position(
    saved: SavedCheckpoint, plan: Plan, epochs: int, ranks: float, last: bool
) -> tuple[int, int]:
    """Return the epoch and batch to resume at in a user's loaders, both from 0.

    Args:
        saved: the checkpoint.
        plan: the plan of the resumed run; its number of epochs is an estimate.
        epochs: the epochs of the resumed run.
        ranks: the checkpoint's number of ranks divided by that of this run. Each rank reads its own batches, so fewer ranks
            have more of them.
        last: whether the validation of the epoch's end comes first.
    """
    epoch, batch = saved.epoch, int(saved.batch * ranks)
    if batch and not last and (batch >= plan.train_batches or saved.step >= plan.total_steps):
        epoch, batch = epoch + 1, 0
    return (epoch, batch) if epoch < epochs else (epochs, 0)


def set_loop_counters(
    state: dict[str, Any], epoch: int, batch: int, last: bool, steps: int, to_validate: bool
) -> None:
    """Set the saved state of the fit loop to `epoch` complete epochs and `batch` batches of the next one.

    Lightning saves its counters in the middle of a hook and guesses at loading which hook it was.
    Here they get the values that they have between two batches, between two epochs, or before a validation.

    The state is `checkpoint["loops"]["fit_loop"]`, changed in place. `last`: no batch of the epoch is left; `steps` optimizer steps
    are done; `to_validate`: the validation after the last one is still to be run.
    """
    started = epoch + 1 if batch else epoch
    # Lightning counts a step after its validation
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = steps - int(to_validate)
    state["epoch_progress"] = _counters(started, started, epoch)
    batches = state["epoch_loop.batch_progress"]["total"]["ready"]
    state["epoch_loop.batch_progress"] = {
        "total": _counters(batches, batches, batches)["total"],
        "current": _counters(batch, batch, batch)["current"],
        "is_last_batch": last,
    }
    state["epoch_loop.val_loop.batch_progress"] = {
        # Lightning resumes a validation that had started
        "total": _counters(int(to_validate), int(to_validate), 0)["total"],
        "current": _counters(0, 0, 0)["current"],
        "is_last_batch": False,
    }


def _counters(ready: int, started: int, done: int) -> dict[str, Any]:
    counts = {"ready": ready, "started": started, "processed": done, "completed": done}
    return {"total": counts, "current": dict(counts)}
