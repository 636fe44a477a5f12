"""Where in the run training goes on, and Lightning's loop counters for that place."""

from typing import Any

from src.checkpoint_store import Saved
from src.plan import Plan


def position(saved: Saved | None, plan: Plan) -> tuple[int, int]:
    """Epoch and batch to go on with, both from 0.

    The plan may have changed since the checkpoint was written (`resume=RUN trainer.limit_train_batches=10`):
    an epoch that is now over is not gone on with, nor is a run.
    """
    if saved is None:
        return 0, 0
    epoch, batch = (saved.epoch, saved.batch) if saved.batch < plan.train_batches else (saved.epoch + 1, 0)
    return (epoch, batch) if epoch < plan.max_epochs else (plan.max_epochs, 0)


def set_loops(state: dict[str, Any], epoch: int, batch: int) -> None:
    """Make the saved state of Lightning's fit loop say: done are `epoch` epochs and `batch` batches of the next.

    Lightning saves its counters as they stand in the middle of a hook and guesses on loading which hook that
    was; here they are set to what they are between two batches, or between two epochs.

    Args:
        state: `checkpoint["loops"]["fit_loop"]`; changed in place.
    """
    begun = epoch + 1 if batch else epoch
    epochs = {"ready": begun, "started": begun, "processed": epoch, "completed": epoch}
    batches = dict.fromkeys(("ready", "started", "processed", "completed"), batch)
    state["epoch_progress"] = {"total": epochs, "current": dict(epochs)}
    state["epoch_loop.batch_progress"] = {"total": batches, "current": dict(batches), "is_last_batch": False}
