"""The step of a native task, as the LightningModule that the Trainer uses."""

from typing import Any, cast

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from train_anywhere.config.choices import OtherSchedule
from train_anywhere.config.schema import Config
from train_anywhere.data.torch.loader import Batch
from train_anywhere.errors import ConfigError
from train_anywhere.tasks import Task
from train_anywhere.training.lightning.optim import BASE_LR, apply_settings, configure_optimizer
from train_anywhere.training.plan import Plan, learning_rate


class RunningSums:
    """Sums over batches, kept on the device: adding does not wait for the device, reading does.

    Args:
        count: the number of sums.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sums: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        """Add the sums of a batch [count]."""
        self.sums = sums.double() if self.sums is None else self.sums + sums

    def take(self, device: torch.device) -> Tensor:
        """Return the sums of this rank since the last call, float64 [count]."""
        taken, self.sums = self.sums, None
        return torch.zeros(self.count, dtype=torch.float64, device=device) if taken is None else taken


class TaskModule(pl.LightningModule):
    """Trains and tests a network with a task's loss, weighted by row, and exact metrics.

    The loss is the mean over rows of weight * loss. Its average over the ranks is the mean loss of all real rows.

    The task is one of src/tasks with a `step`; `devices` share the global batch, which scales the learning rate.
    """

    def __init__(self, task: Task, network: nn.Module, config: Config, plan: Plan, devices: int) -> None:
        super().__init__()
        self.task, self.network = task, network
        self.config, self.plan, self.devices = config, plan, devices
        count = len(task.sums)
        self.train_sums, self.eval_sums = RunningSums(count), RunningSums(count)
        # the network as the task calls it, which a strategy may replace; in a list, so that it is not registered as a submodule twice
        self.wrapped: list[Any] = [network]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the network's predictions."""
        return self.wrapped[0](*inputs, **named)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the loss of this rank's batch."""
        return (self._losses(batch, self.train_sums, training=True) * batch.weight).mean()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add the sums of a batch; they are reduced once, after all batches."""
        self._losses(batch, self.eval_sums, training=False)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Add the sums of a batch."""
        self._losses(batch, self.eval_sums, training=False)

    def configure_optimizers(self) -> Any:
        """Return the optimizer of the configuration, and the schedule if it is one of torch."""
        return configure_optimizer(self.config, self.plan, self.network, self.devices)

    def on_train_start(self) -> None:
        """Apply the optimizer settings of the configuration, which may have changed since the checkpoint."""
        optimizer = cast(torch.optim.Optimizer, self.optimizers())
        apply_settings(self.config.optimizer, self.config.trainer.precision, self.network, optimizer)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate, which depends only on the step, so no schedule needs to be restored."""
        set_learning_rate(self, self.config, self.plan, self.devices, optimizer)

    def _losses(self, batch: Batch, sums: RunningSums, training: bool) -> Tensor:
        losses, counted = self.task.step(self.wrapped[0], batch.rows, batch.weight, training)  # type: ignore[attr-defined]
        if losses.shape != batch.weight.shape or counted.shape != (sums.count,):
            name = type(self.task).__qualname__
            raise ConfigError(
                f"the step of task {name} returned losses {list(losses.shape)} and sums {list(counted.shape)}; it must return one loss "
                f"for each of the {len(batch.weight)} rows, and one sum for each of {', '.join(self.task.sums)}."
            )
        sums.add(counted.detach())
        return cast(Tensor, losses)


def set_learning_rate(
    module: pl.LightningModule, config: Config, plan: Plan, devices: int, optimizer: torch.optim.Optimizer
) -> None:
    """Set the learning rate of the current step in all groups of the optimizer, unless a schedule of torch does."""
    if isinstance(config.schedule, OtherSchedule):
        return
    position = (config.optimizer, config.schedule, plan, module.trainer.steps_done, devices)
    lr = learning_rate(*position)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate(*position, group[BASE_LR]) if BASE_LR in group else lr
