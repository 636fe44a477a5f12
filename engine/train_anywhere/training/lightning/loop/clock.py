"""Report to the heartbeat when a batch arrived, and when its forward pass and gradient averaging were done."""

from typing import Any

import lightning.pytorch as pl
import torch

from train_anywhere.monitor.heartbeat import Heartbeat
from train_anywhere.training.lightning.loop.pace import Pace
from train_anywhere.training.lightning.loop.wait_timer import WaitTimer


class Clock(pl.Callback):
    """The first of all callbacks, so that the work of others does not count as waiting for data or for other ranks."""

    def __init__(self, heartbeat: Heartbeat) -> None:
        self.heartbeat, self._timing = heartbeat, False
        self.pace: Pace | None = None
        self.wait_timer: WaitTimer | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Create the timers, now that the strategy is set up."""
        self.pace, self.wait_timer = (
            Pace(trainer, self.heartbeat),
            WaitTimer(trainer, pl_module, self.heartbeat),
        )

    def batch_over(self) -> None:
        """Start the time of the next batch."""
        if self.pace:
            self.pace.start()

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Report that the batch has arrived."""
        self.heartbeat.fetched()
        if self.wait_timer and not self._timing:
            self._timing = True
            self.wait_timer.start()

    def on_before_backward(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, loss: torch.Tensor
    ) -> None:
        """Report the end of the forward pass."""
        if self.pace:
            self.pace.forward()

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        """Report that the gradients are averaged."""
        if self.wait_timer:
            self.wait_timer.mark_average()

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report the end of an optimizer step, if the batch completes one."""
        if self.pace and self.wait_timer and not trainer.fit_loop.epoch_loop._should_accumulate():
            self._timing = False
            self.wait_timer.end()
            self.pace.watch(self.wait_timer.last)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Remove the hook from the parameters."""
        if self.pace:
            self.pace.watch(None)
