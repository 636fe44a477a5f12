"""Random numbers that go on where they stood: of torch, numpy and Python, on each rank."""

import pickle
import random
from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor

from src.progress import other_devices

SIZE = 16384
"""Bytes set aside for the state of one rank; it takes about 12,000."""


def seed_everything(seed: int) -> None:
    """Seed Python, numpy and torch on every device."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


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
        """Restore this rank's state, or begin a new stream where there is none for this number of ranks."""
        if self.saved is not None and len(self.saved) == trainer.world_size:
            _restore(self.saved[trainer.global_rank])
        else:
            if self.saved is not None:
                self.tell(other_devices(len(self.saved), trainer.world_size))
            begin = np.random.SeedSequence([self.seed, trainer.global_step, trainer.global_rank])
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
        """Keep the states until training starts: setting up draws random numbers too."""
        self.saved = checkpoint["random_states"]


def _state(device: torch.device) -> Tensor:
    """All states of this process as bytes: uint8 [SIZE]."""
    cuda = torch.cuda.get_rng_state(device).numpy() if device.type == "cuda" else None
    data = pickle.dumps((random.getstate(), np.random.get_state(), torch.get_rng_state().numpy(), cuda))
    return torch.frombuffer(bytearray(data.ljust(SIZE, b"\0")), dtype=torch.uint8)


def _restore(state: Tensor) -> None:
    python, numpy, cpu, cuda = pickle.loads(state.numpy().tobytes())
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(torch.from_numpy(cpu))
    if cuda is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(torch.from_numpy(cuda))
