"""Tasks of version 0.1, with `step` and sums, as LightningModules. Only in version 0.2."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from train_anywhere.data.torch.loader import to_arrays, to_tensors
from train_anywhere.files.removal import print_once
from train_anywhere.tasks import OLD_TASK, Task


class OldTask(pl.LightningModule):
    """A LightningModule that calls `step` of a task; rows have equal weights.

    Args:
        task: has `step(network, batch, weight, training)`, and maybe `prepare` and `generate`.
        network, make_optimizer: as in src/tasks/lightning/regression.py.
    """

    def __init__(self, task: Task, network: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.task, self.network, self.make_optimizer = task, network, make_optimizer
        self._sums: list[Tensor] = []
        print_once(OLD_TASK.format(type(task).__qualname__))
        if hasattr(task, "generate"):
            self.generate = lambda *arguments: task.generate(network, *arguments)

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """Return the network's predictions."""
        return self.network(*inputs, **named)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Change a batch as the task does, in arrays."""
        prepare = getattr(self.task, "prepare", None)
        return to_tensors(prepare(to_arrays(batch))) if prepare else batch

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Return the mean loss of the rows."""
        losses, sums = self._measure(batch, training=True)
        self.log_dict(self.task.report("train", sums.tolist()), batch_size=len(losses))
        return losses.mean()

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Keep the sums of a batch."""
        self._sums.append(self._measure(batch, training=False)[1].double())

    test_step = validation_step

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of all batches and ranks."""
        self._log_epoch("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of all batches and ranks."""
        self._log_epoch("test")

    def configure_optimizers(self) -> Any:
        """Return the optimizer and schedule of the configuration."""
        return self.make_optimizer(self.network)

    def _measure(self, batch: Any, training: bool) -> tuple[Tensor, Tensor]:
        first = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
        step: Any = self.task
        losses, sums = step.step(self.network, batch, torch.ones(len(first), device=self.device), training)
        return losses, sums.detach()

    def _log_epoch(self, part: str) -> None:
        sums = self.trainer.strategy.reduce(torch.stack(self._sums).sum(0), reduce_op="sum")
        self._sums.clear()
        self.log_dict(self.task.report(part, sums.tolist()), batch_size=1)
