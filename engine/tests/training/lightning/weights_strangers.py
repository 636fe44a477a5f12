"""Modules and callbacks that freeze, unfreeze, average, swap or merge weights."""

import copy
import signal
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import BaseFinetuning
from torch import nn

from engine.tests.training.lightning.strangers import ROWS, VAL, Plain, Rows


def rows(noise: float = 0.0) -> dict[str, Any]:
    """Validated and tested with the same rows."""
    return {"train": Rows(ROWS, noise=noise), "val": Rows(VAL, 1), "test": Rows(VAL, 1)}


class Parted(Plain):
    """A backbone with batch norm, and a head. The optimizer has the trained parameters."""

    def __init__(self, dropout: float = 0.0, norm: bool = True) -> None:
        super().__init__(dropout=dropout)
        middle = [nn.BatchNorm1d(8)] if norm else []
        self.backbone = nn.Sequential(nn.Linear(4, 8), *middle, nn.Tanh(), nn.Dropout(dropout))
        self.layers = nn.Sequential(self.backbone, nn.Linear(8, 1))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW([p for p in self.parameters() if p.requires_grad], lr=0.01)


class Unfreezing(Parted):
    """Trains its backbone later in its own group, with normalization in eval mode from then on.

    Args:
        at: the hook that unfreezes, in epoch 1. on_train_batch_start does it at batch 2.
        ranks: the ranks that unfreeze. None: all of them.
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


class Averaging(Parted):
    """Averages its weights by itself and puts the averages in place for validation and test.

    Args:
        swap: exchange weights and averages; else keep a copy of the weights meanwhile.
    """

    def __init__(self, dropout: float = 0.0, norm: bool = True, swap: bool = True) -> None:
        super().__init__(dropout, norm)
        self.average, self.swap = copy.deepcopy(self.layers).requires_grad_(False), swap

    def on_train_batch_end(self, *arguments: Any) -> None:
        with torch.no_grad():
            for mean, new in zip(
                self.average.state_dict().values(), self.layers.state_dict().values(), strict=True
            ):
                mean.copy_(0.7 * mean + 0.3 * new)

    def exchange(self) -> None:
        with torch.no_grad():
            own, other = self.layers.state_dict(), self.average.state_dict()
            self.kept = {name: value.clone() for name, value in own.items()}
            for name, value in own.items():
                value.copy_(other[name])
                if self.swap:
                    other[name].copy_(self.kept[name])

    def put_back(self) -> None:
        if self.swap:
            self.exchange()
        else:
            self.layers.load_state_dict(self.kept)

    on_validation_start = on_test_start = exchange
    on_validation_end = on_test_end = put_back


class Merging(Parted):
    """Changes its weights when the training has ended, as merging LoRA into a network does.

    Args:
        at: the hook that does.
    """

    def __init__(self, dropout: float = 0.0, norm: bool = True, at: str = "on_train_end") -> None:
        super().__init__(dropout, norm)
        setattr(self, at, self.merge)

    def merge(self) -> None:
        with torch.no_grad():
            self.layers[1].weight.mul_(1.1)


class Pruning(Parted):
    """Sets small weights to 0 after each epoch, when it has been validated."""

    def on_train_epoch_end(self) -> None:
        with torch.no_grad():
            self.layers[1].weight[self.layers[1].weight.abs() < 0.2] = 0


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
