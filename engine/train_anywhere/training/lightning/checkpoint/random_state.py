"""Random states of torch, numpy and Python on each rank, saved and restored with the checkpoint."""

import math
import random
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from train_anywhere.errors import CheckpointError
from train_anywhere.training.lightning.checkpoint.position import steps_done
from train_anywhere.training.resuming import other_devices

TWISTER = 624
"""Words in the state of a Mersenne twister, which Python, numpy and torch (on the CPU) all use."""

STATE = np.dtype(
    [
        ("python", "<u4", TWISTER + 1),  # the last word is the position
        ("python_spare", "<f8"),  # the second number of a Gaussian pair; NaN where there is none
        ("numpy", "<u4", TWISTER),
        ("numpy_position", "<u4"),
        ("numpy_has_spare", "<u4"),
        ("numpy_spare", "<f8"),
        ("cpu", "u1", torch.get_rng_state().numel()),
        ("has_cuda", "u1"),
        ("cuda", "u1", 16),  # seed and offset
    ]
)
"""The states of one rank, numbers only: reading them can't run code."""

SIZE = STATE.itemsize

PICKLED = 16384
"""Bytes per rank in checkpoints of earlier versions, which held a pickle."""


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


REMEDY = "move its folder below checkpoints/ away to resume from the one before it."


class RandomState(pl.Callback):
    """Seeds each rank for training, and saves and restores the states of all ranks with the checkpoint.

    Args:
        seed: of the run. Every rank draws numbers of its own, so that dropout differs between their rows.
        tell: prints a line.
    """

    def __init__(self, seed: int, tell: Callable[[str], None]) -> None:
        self.seed, self.tell = seed, tell
        self.saved: Tensor | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Restore this rank's state, or begin a new stream if there is none for this number of ranks."""
        if self.saved is not None and len(self.saved) == trainer.world_size:
            _restore(self.saved[trainer.global_rank])
        else:
            if self.saved is not None:
                self.tell(other_devices(len(self.saved), trainer.world_size))
            begin = np.random.SeedSequence([self.seed, steps_done(trainer), trainer.global_rank])
            seed_everything(int(begin.generate_state(1)[0]))

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Gather the states of all ranks: uint8 [world size, SIZE]."""
        own = _state(pl_module.device).to(pl_module.device)
        checkpoint["random_states"] = trainer.strategy.all_gather(own).reshape(-1, SIZE).cpu()

    def on_load_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the states until training starts: setting up draws random numbers too.

        Raises:
            CheckpointError: the checkpoint holds anything else.
        """
        saved = checkpoint.get("random_states")
        if isinstance(saved, Tensor) and saved.shape[1:] == (PICKLED,):
            self.tell(
                "the random states of this checkpoint are a pickle, as earlier versions wrote it: reading one can run code, "
                "so random numbers start afresh."
            )
            return
        _refuse_other_numbers(saved)
        self.saved = saved


def _state(device: torch.device) -> Tensor:
    """All states of this process as bytes: uint8 [SIZE]."""
    state = np.zeros((), STATE)
    _, state["python"], spare = random.getstate()
    state["python_spare"] = math.nan if spare is None else spare
    (
        _,
        state["numpy"],
        state["numpy_position"],
        state["numpy_has_spare"],
        state["numpy_spare"],
    ) = np.random.get_state()
    state["cpu"] = torch.get_rng_state().numpy()
    if device.type == "cuda":
        state["has_cuda"], state["cuda"] = 1, torch.cuda.get_rng_state(device).numpy()
    return torch.frombuffer(bytearray(state.tobytes()), dtype=torch.uint8)


def _restore(state: Tensor) -> None:
    """Set all states of this process; raises CheckpointError if torch refuses one."""
    s = np.frombuffer(state.numpy().tobytes(), STATE)[0]
    spare = None if math.isnan(s["python_spare"]) else float(s["python_spare"])
    random.setstate((3, tuple(s["python"].tolist()), spare))
    words, position = s["numpy"], int(s["numpy_position"])
    np.random.set_state(
        ("MT19937", words, position, int(s["numpy_has_spare"]), float(s["numpy_spare"])),
    )
    try:
        torch.set_rng_state(torch.from_numpy(s["cpu"].copy()))
        if s["has_cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.from_numpy(s["cuda"].copy()))
    except RuntimeError as error:
        raise CheckpointError(
            f"the checkpoint's random states are not torch's ({error}); {REMEDY}"
        ) from error


def _refuse_other_numbers(saved: Any) -> None:
    """Raise CheckpointError for anything but states: numpy would read memory beyond a wrong position."""
    if (
        not isinstance(saved, Tensor)
        or saved.dtype != torch.uint8
        or saved.shape[1:] != (SIZE,)
        or not len(saved)
    ):
        found = f"{saved.dtype} {list(saved.shape)}" if isinstance(saved, Tensor) else type(saved).__name__
        raise CheckpointError(
            f"the checkpoint's random states are {found}, not bytes [ranks, {SIZE}]; {REMEDY}"
        )
    states = np.frombuffer(saved.contiguous().numpy().tobytes(), STATE)
    if (states["python"][:, -1] > TWISTER).any() or (states["numpy_position"] > TWISTER).any():
        raise CheckpointError(f"the checkpoint's random states have a position above {TWISTER}; {REMEDY}")
