"""Check that all ranks have the same weights."""

import hashlib

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import Strategy
from torch import nn

from train_anywhere.errors import RanksDifferError


class CompareWeights(pl.Callback):
    """Callback that compares the weights of all ranks every few epochs."""

    def __init__(self, every_n_epochs: int) -> None:
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Compare the weights if due. Raises RanksDifferError."""
        if (trainer.current_epoch + 1) % self.every_n_epochs == 0:
            refuse_different_weights(pl_module, trainer.strategy)


def refuse_different_weights(module: nn.Module, strategy: Strategy) -> None:
    """Compare a checksum of the weights over the ranks. All ranks must call it.

    Raises:
        RanksDifferError: some ranks differ from rank 0; all ranks raise it.
    """
    ranks = getattr(strategy, "world_size", 1)
    if ranks == 1:
        return
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    own = torch.tensor([int.from_bytes(digest.digest()[:6])], dtype=torch.int64, device=strategy.root_device)
    checksums = strategy.all_gather(own).flatten().tolist()
    others = [str(rank) for rank, checksum in enumerate(checksums) if checksum != checksums[0]]
    if others:
        named = f"rank {others[0]}" if len(others) == 1 else f"ranks {', '.join(others)}"
        raise RanksDifferError(
            f"the weights of {named} of {ranks} are not those of rank 0: each rank changes them in its own way (a step that depends on "
            "the rank, or weights that change without a gradient); the checkpoints hold those of rank 0."
        )
