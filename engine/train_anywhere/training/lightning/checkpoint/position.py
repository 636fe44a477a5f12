"""Where training resumes: Lightning's loop counters, and the random states of each rank."""

import math
import random
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from train_anywhere.checkpoints.disk.manifest import SavedCheckpoint
from train_anywhere.errors import CheckpointError
from train_anywhere.training.plan import Plan, device_count_message


def resume_position(
    saved: SavedCheckpoint, plan: Plan, epochs: int, ranks: float, last: bool
) -> tuple[int, int]:
    """Return the epoch and batch to resume at, both from 0.

    `epochs` are those of the resumed run; `ranks` are the checkpoint's divided by those of this run: fewer ranks read more batches each.
    With `last` the validation of the epoch's end comes first.
    """
    epoch, batch = saved.epoch, int(saved.batch * ranks)
    if batch and not last and (batch >= plan.train_batches or saved.step >= plan.total_steps):
        epoch, batch = epoch + 1, 0
    return (epoch, batch) if epoch < epochs else (epochs, 0)


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


TWISTER = 624
"""Number of words in the state of a Mersenne twister, which Python, numpy and torch (on the CPU) all use."""

STATE = np.dtype(
    [
        ("python", "<u4", TWISTER + 1),  # the last word is the position
        ("python_spare", "<f8"),  # the second number of a Gaussian pair; NaN without one
        ("numpy", "<u4", TWISTER),
        ("numpy_position", "<u4"),
        ("numpy_has_spare", "<u4"),
        ("numpy_spare", "<f8"),
        ("cpu", "u1", torch.get_rng_state().numel()),
        ("has_cuda", "u1"),
        ("cuda", "u1", 16),  # seed and offset
    ]
)
"""The random states of one rank, numbers only: reading them can't run code."""

NUMPY = ("numpy", "numpy_position", "numpy_has_spare", "numpy_spare")
"""Names of numpy's state in `STATE`, in its own order."""

SIZE = STATE.itemsize


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


REMEDY = "move its folder out of checkpoints/ to resume from the one before it."


class RandomState(pl.Callback):
    """Callback that seeds each rank, and saves and restores the random states of all ranks.

    Args:
        seed: the seed of the run. Each rank derives its own from it, so that dropout differs between the ranks' rows.
    """

    def __init__(self, seed: int, report: Callable[[str], None]) -> None:
        self.seed, self.report = seed, report
        self.saved: Tensor | None = None
        self._kept: Tensor | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start a new stream of numbers if none was saved for this number of ranks."""
        if self.saved is None or len(self.saved) != trainer.world_size:
            if self.saved is not None:
                self.report(device_count_message(len(self.saved), trainer.world_size))
            # rank 0 continues with the numbers that Lightning alone would draw
            if trainer.global_rank or self.saved is not None:
                sequence = np.random.SeedSequence([self.seed, trainer.steps_done, trainer.global_rank])
                seed_everything(int(sequence.generate_state(1)[0]))

    def training_started(self, trainer: pl.Trainer) -> None:
        """Restore this rank's state after all start hooks, which may have drawn numbers."""
        if self.saved is not None and len(self.saved) == trainer.world_size:
            _restore(self.saved[trainer.global_rank])

    def keep_states(self, trainer: pl.Trainer) -> None:
        """Keep the state before a save or a validation, whose hooks may draw numbers.

        A run that is stopped in a validation within training runs it again.
        """
        if self._kept is None:
            self._kept = _state(trainer.lightning_module.device)

    before_validation = keep_states

    def release_states(self) -> None:
        """Forget the state that was kept."""
        self._kept = None

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Forget the state before the validation."""
        self.release_states()

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Gather the states of all ranks: uint8 [world size, SIZE]."""
        own = _state(pl_module.device) if self._kept is None else self._kept
        own = own.to(pl_module.device)
        checkpoint["random_states"] = trainer.strategy.all_gather(own).reshape(-1, SIZE).cpu()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the states until training starts: the setup draws too.

        Raises:
            CheckpointError: the entry is not random states.
        """
        self.saved = checkpoint.get("random_states")
        _check_states(self.saved)


def _state(device: torch.device) -> Tensor:
    """Return all random states of this process as bytes: uint8 [SIZE]."""
    state = np.zeros((), STATE)
    _, state["python"], spare = random.getstate()
    state["python_spare"] = math.nan if spare is None else spare
    for name, value in zip(NUMPY, np.random.get_state()[1:], strict=True):
        state[name] = value
    state["cpu"] = torch.get_rng_state().numpy()
    if device.type == "cuda":
        state["has_cuda"], state["cuda"] = 1, torch.cuda.get_rng_state(device).numpy()
    return torch.frombuffer(bytearray(state.tobytes()), dtype=torch.uint8)


def _restore(state: Tensor) -> None:
    """Set all random states of this process. Raises CheckpointError if torch refuses one."""
    s = np.frombuffer(state.numpy().tobytes(), STATE)[0]
    spare = None if math.isnan(s["python_spare"]) else float(s["python_spare"])
    random.setstate((3, tuple(s["python"].tolist()), spare))
    np.random.set_state(("MT19937", *(s[name] for name in NUMPY)))
    try:
        torch.set_rng_state(torch.from_numpy(s["cpu"].copy()))
        if s["has_cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(s["cuda"].copy()))
    except RuntimeError as error:
        raise CheckpointError(
            f"the checkpoint's random states are not torch's ({error}); {REMEDY}"
        ) from error


def _check_states(saved: Any) -> None:
    """Raise CheckpointError unless these are random states, which numpy does not check."""
    bits = saved.dtype == torch.uint8 and saved.shape[1:] == (SIZE,) if isinstance(saved, Tensor) else False
    if not bits or not len(saved):
        found = f"{saved.dtype} {list(saved.shape)}" if isinstance(saved, Tensor) else type(saved).__name__
        raise CheckpointError(
            f"the checkpoint's random states are {found}, not bytes [ranks, {SIZE}]; {REMEDY}"
        )
    states = np.frombuffer(saved.contiguous().numpy().tobytes(), STATE)
    if (states["python"][:, -1] > TWISTER).any() or (states["numpy_position"] > TWISTER).any():
        raise CheckpointError(f"the checkpoint's random states have a position above {TWISTER}; {REMEDY}")
