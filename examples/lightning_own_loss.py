r"""A task with its own loss: quantile regression, with any network of `model=` and the optimizer of the configuration.

    python src/train.py task._target_=examples.lightning_own_loss.Quantiles \
        data._target_=examples.lightning_own_loss.open_data model=mlp checkpoint.monitor=val/loss

A LightningModule that needs an argument `network` gets that of the section `model`, and a function for the optimizer. The data set is
read by index, so batches are the same on one GPU and on sixteen. `make new-task NAME=mine` writes such files for both frameworks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from torch import Tensor, nn

from train_anywhere.data import Splits

LEVELS = (0.1, 0.5, 0.9)
"""The quantiles that the network predicts: 10 %, 50 % and 90 % of the targets lie below them."""


class Quantiles(pl.LightningModule):
    """Predicts quantiles of a target. A network for it has an output for each of them."""

    def __init__(self, network: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.network, self.make_optimizer = network, make_optimizer

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        return self._measure("train", batch)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """Log the metrics of a batch."""
        self._measure("val", batch)

    def configure_optimizers(self) -> Any:
        """Return the optimizer and schedule of the configuration."""
        return self.make_optimizer(self.network)

    def _measure(self, part: str, batch: dict[str, Tensor]) -> Tensor:
        predicted = self.network(batch["x"])
        error = batch["y"] - predicted  # [b, 3]
        levels = torch.tensor(LEVELS, device=error.device)
        loss = torch.maximum(error * levels, error * (levels - 1)).mean()
        inside = ((error[:, 0] >= 0) & (error[:, -1] <= 0)).float().mean()
        self.log_dict({f"{part}/loss": loss, f"{part}/coverage": inside}, batch_size=len(error))
        return loss


@dataclass
class Table:
    """A data set: rows in memory that are read by their indices."""

    x: np.ndarray
    y: np.ndarray

    def __len__(self) -> int:
        return len(self.x)

    def read(self, indices: np.ndarray, epoch: int, train: bool) -> dict[str, np.ndarray]:
        """Return the rows of a batch; `train` is true for those that may be augmented."""
        return {"x": self.x[indices], "y": self.y[indices]}


def open_data(rows: int = 2000) -> Splits:
    """Return a sine with noise that grows with x: `rows` to train on. The model takes `shape` and `outputs` from the facts."""
    train, val = (make_table(n, seed) for seed, n in enumerate((rows, 500)))
    return Splits(train, val, facts={"shape": (1,), "outputs": len(LEVELS)})


def make_table(rows: int, seed: int) -> Table:
    """Return synthetic rows, the same in every run."""
    random = np.random.default_rng(seed)
    x = random.uniform(0, 1, (rows, 1)).astype("float32")
    return Table(x, np.sin(6 * x) + x * random.normal(0, 0.3, x.shape).astype("float32"))
