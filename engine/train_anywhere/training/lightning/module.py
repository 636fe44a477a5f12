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
from train_anywhere.training.lightning.optim import apply_settings, configured_optimizer
from train_anywhere.training.plan import Plan
from train_anywhere.training.schedules import learning_rate


class RunningSums:
    """Sums over batches, kept on the device: adding does not wait for it, reading them does.

    Args:
        count: how many there are.

    Attributes:
        watched: count the batches before the first whose sums are no numbers, see `features/replay/recompute.py`.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.sums: Tensor | None = None
        self.watched = False
        self._batches, self._good = 0, torch.zeros((), dtype=torch.int64)

    def add(self, sums: Tensor) -> None:
        """Add the sums of a batch [count]."""
        self.sums = sums.double() if self.sums is None else self.sums + sums
        if self.watched:
            self._batches += 1
            self._good = torch.isfinite(self.sums).all() + self._good.to(sums.device)

    def counted(self) -> tuple[int, int]:
        """Batches since the last call, and how many were good until one was not."""
        batches, self._batches = self._batches, 0
        good, self._good = int(self._good), torch.zeros((), dtype=torch.int64)
        return batches, good

    def take(self, device: torch.device) -> Tensor:
        """The sums of this rank since the last call, float64 [count]."""
        taken, self.sums = self.sums, None
        return torch.zeros(self.count, dtype=torch.float64, device=device) if taken is None else taken


class TaskModule(pl.LightningModule):
    """Trains and tests a network: weighted loss, exact metrics; the task says what the loss is.

    The loss is the mean over rows of weight * loss of the row; averaged over ranks, that of all real rows.

    Args:
        task: one of src/tasks with its `step`.
        network: what turns a batch into predictions.
        devices: that share the global batch, for the scaling of the learning rate.
    """

    def __init__(self, task: Task, network: nn.Module, config: Config, plan: Plan, devices: int) -> None:
        super().__init__()
        self.task, self.network = task, network
        self.config, self.plan, self.devices = config, plan, devices
        count = len(task.sums)
        self.train_sums, self.eval_sums = RunningSums(count), RunningSums(count)
        # what the task calls; a strategy may put something in between. In a list, so that it is no second part of this module
        self.called: list[Any] = [network]

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The network's predictions."""
        return self.called[0](*inputs, **named)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of this rank's batch."""
        return (self._losses(batch, self.train_sums, training=True) * batch.weight).mean()

    def validation_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count one batch; the sums are reduced once, after all batches."""
        self._losses(batch, self.eval_sums, training=False)

    def test_step(self, batch: Batch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Count one batch."""
        self._losses(batch, self.eval_sums, training=False)

    def configure_optimizers(self) -> Any:
        """The optimizer of the configuration, and the schedule if it is torch's own."""
        return configured_optimizer(self.config, self.plan, self.network, self.devices)

    def on_train_start(self) -> None:
        """A run may resume with other settings than it was saved with."""
        optimizer = cast(torch.optim.Optimizer, self.optimizers())
        apply_settings(self.config, self.network, optimizer)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Set the learning rate: a function of the step alone, so there is no schedule to restore."""
        set_learning_rate(self, self.config, self.plan, self.devices, optimizer)

    def _losses(self, batch: Batch, sums: RunningSums, training: bool) -> Tensor:
        losses, counted = self.task.step(self.called[0], batch.rows, batch.weight, training)  # type: ignore[attr-defined]
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
    """Give all groups of the optimizer the learning rate of the present step, unless torch's own schedule does."""
    if isinstance(config.schedule, OtherSchedule):
        return
    lr = learning_rate(config, plan, module.trainer.steps_done, devices)
    for group in optimizer.param_groups:
        group["lr"] = lr
