"""Modules and callbacks that freeze, unfreeze, average, swap or merge weights; for the tests of what is trained and which model is kept."""

import signal
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from torch import Tensor, nn

from tests.training.lightning.strangers import ROWS, VAL, Plain, Rows


def rows(noise: float = 0.0) -> dict[str, Any]:
    """Validated and tested with the same rows."""
    return {"train": Rows(ROWS, noise=noise), "val": Rows(VAL, 1), "test": Rows(VAL, 1)}


class Parted(Plain):
    """A backbone with batch normalization, and a head; its optimizer has what is trained."""

    def __init__(self, dropout: float = 0.0, norm: bool = True) -> None:
        super().__init__(dropout=dropout)
        middle = [nn.BatchNorm1d(8)] if norm else []
        self.backbone = nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh(), nn.Dropout(dropout))
        self.layers = nn.Sequential(self.backbone, nn.Linear(8, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)


class Unfreezing(Parted):
    """Trains its backbone later, in a group of its own; normalization is in eval mode from then on.

    Args:
        at: the hook that unfreezes, in epoch 1; on_train_batch_start does it at batch 2.
        ranks: the ranks on which it does; none: on all.
    """

    def __init__(
        self,
        dropout: float = 0.0,
        at: str = "on_train_epoch_start",
        ranks: Iterable[int] = (),
        norm: bool = True,
    ) -> None:
        super().__init__(dropout, norm)
        self.at, self.ranks = at, list(ranks)

    def setup(self, stage: str) -> None:
        self.backbone.requires_grad_(False)

    def unfreeze(self, hook: str) -> None:
        if (
            hook == self.at
            and self.current_epoch == 1
            and self.global_rank in (self.ranks or [self.global_rank])
        ):
            self.backbone.requires_grad_(True)
            self.backbone[1].eval()
            optimizer: Any = self.optimizers()
            optimizer.add_param_group({"params": list(self.backbone.parameters()), "lr": 0.02})

    def on_train_epoch_start(self) -> None:
        self.unfreeze("on_train_epoch_start")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            self.unfreeze("on_train_batch_start")


class Freezing(Parted):
    """Trains all its layers first, and then the head only."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.backbone.requires_grad_(False)


class Thawing(BaseFinetuning):
    """Unfreezes the backbone in epoch 1, normalization too."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(pl_module.backbone, train_bn=False)

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(pl_module.backbone, optimizer, lr=0.003)


class Stopping(pl.Callback):
    """Sends SIGTERM after a step, as a scheduler does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_train_batch_end(self, trainer: Any, *arguments: Any) -> None:
        if trainer.global_step == self.step:
            signal.raise_signal(signal.SIGTERM)


class Spare(Plain):
    """Has a layer that no step uses."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = nn.Linear(4, 4)
