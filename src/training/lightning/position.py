"""Where in the run training goes on, and Lightning's loop counters for that place."""

from typing import Any

from src.checkpoints.info import SavedCheckpoint
from src.config.schema import Trainer
from src.training.plan import Plan


def validation_due(config: Trainer, plan: Plan, epoch: int, step: int) -> bool:
    """Whether the epoch, which counts from 0, ends with a validation: every few do, and the last one always.

    Args:
        step: optimizer steps done at its end.
    """
    last = step >= plan.total_steps
    return plan.val_batches > 0 and (last or (epoch + 1) % config.check_val_every_n_epoch == 0)


def position(saved: SavedCheckpoint | None, config: Trainer, plan: Plan) -> tuple[int, int]:
    """Epoch and batch to go on with, both from 0; batch `plan.train_batches` is the validation of the epoch.

    The plan may have changed since the checkpoint was written (`resume=RUN trainer.limit_train_batches=10`):
    an epoch that is now over is not gone on with, nor is a run.
    """
    if saved is None:
        return 0, 0
    if saved.batch == plan.train_batches and validation_due(config, plan, saved.epoch, saved.step):
        return saved.epoch, saved.batch
    epoch, batch = (saved.epoch, saved.batch) if saved.batch < plan.train_batches else (saved.epoch + 1, 0)
    over = saved.step >= plan.total_steps or epoch >= plan.max_epochs
    return (plan.max_epochs, 0) if over else (epoch, batch)


def set_loops(state: dict[str, Any], epoch: int, batch: int, train_batches: int) -> None:
    """Make the saved state of the fit loop say: done are `epoch` epochs and `batch` batches of the next.

    Lightning saves its counters as they stand in the middle of a hook and guesses on loading which hook it
    was; here they are set to what they are between two batches, between two epochs, or before a validation.

    Args:
        state: `checkpoint["loops"]["fit_loop"]`; changed in place.
        batch: `train_batches` where only the validation of the epoch is left.
    """
    begun = epoch + 1 if batch else epoch
    to_validate = int(batch == train_batches)  # Lightning validates a finished epoch if it had begun to
    state["epoch_progress"] = _counters(begun, begun, epoch)
    state["epoch_loop.batch_progress"] = _counters(batch, batch, batch) | {"is_last_batch": bool(to_validate)}
    state["epoch_loop.val_loop.batch_progress"] = {
        "total": _counters(to_validate, to_validate, 0)["total"],
        "current": _counters(0, 0, 0)["current"],
        "is_last_batch": False,
    }


def _counters(ready: int, started: int, done: int) -> dict[str, Any]:
    counts = {"ready": ready, "started": started, "processed": done, "completed": done}
    return {"total": counts, "current": dict(counts)}
