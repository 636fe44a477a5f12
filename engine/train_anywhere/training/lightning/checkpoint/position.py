"""Where training resumes: Lightning's loop counters."""

from typing import Any

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.training.plan import Plan


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
    state["epoch_loop.state_dict"]["_batches_that_stepped"] = steps
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
