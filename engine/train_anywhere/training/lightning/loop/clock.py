"""Takes the times within a batch, for the heartbeat: when it came, when the forward pass and the average of the gradients were done."""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import own as heartbeat
from train_anywhere.training.lightning.loop.pace import Pace
from train_anywhere.training.lightning.loop.waiting import Waiting
from train_anywhere.training.plan import Plan


class Clock(pl.Callback):
    """The first callback of all, so that the work of the others is not taken for a wait for data or for other ranks."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.pace: Pace | None = None
        self.waiting: Waiting | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The strategy is known."""
        self.pace, self.waiting = Pace(trainer), Waiting(trainer, pl_module)

    def batch_over(self) -> None:
        """From here on the next batch is waited for."""
        if self.pace:
            self.pace.begin()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """The batch has come."""
        heartbeat.fetched()
        if self.waiting and batch_idx % self.plan.accumulate == 0:
            self.waiting.begin()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """The forward pass is over."""
        if self.pace:
            self.pace.forward()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """The gradients are averaged."""
        if self.waiting:
            self.waiting.averaged()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After a batch, and so perhaps after an optimizer step."""
        if self.pace and self.waiting and (batch_idx + 1) % self.plan.accumulate == 0:
            self.waiting.end()
            self.pace.follow(self.waiting.last)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """The parameters are left without hooks."""
        if self.pace:
            self.pace.follow(None)
