r"""A native task: quantile regression, with a loss for each row, and sums from which the metrics are computed.

    python src/train.py task._target_=examples.native_task.Quantiles \
        data._target_=examples.native_task.open_data model=mlp

The engine averages the loss over all rows that count, adds up the sums of all batches and ranks, and calls `measure` with the totals.
So loss and metrics are the same on one GPU and on sixteen. `make new-task NAME=mine` writes the files of a task for both frameworks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from train_anywhere.data import Splits
from train_anywhere.tasks import Task

LEVELS = (0.1, 0.5, 0.9)
"""The quantiles that the network predicts: 10 %, 50 % and 90 % of the targets lie below them."""


class Quantiles(Task):
    """Predicts quantiles of a target. A network for it has an output for each of them."""

    sums = ("loss", "inside", "count")  # what `step` adds up
    metrics = {"loss": "min", "coverage": "max"}  # noqa: RUF012  what `measure` returns
    headline = "loss"  # the checkpoint with the best one is kept

    def measure(self, sums: Sequence[float]) -> dict[str, float]:
        """Return the mean loss, and the fraction of targets between the lowest and the highest quantile."""
        loss, inside, count = sums
        return {"loss": loss / count, "coverage": inside / count}

    def step(
        self, network: nn.Module, batch: dict[str, Tensor], weight: Tensor, training: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of each row [b], and the sums of the batch [3]. Rows with a weight of 0 only fill up the batch."""
        predicted = network(batch["x"])
        error = batch["y"] - predicted  # [b, 3]
        levels = torch.tensor(LEVELS, device=error.device)
        losses = torch.maximum(error * levels, error * (levels - 1)).mean(1)
        inside = (error[:, 0] >= 0) & (error[:, -1] <= 0)
        real = (weight > 0).float()
        return losses, torch.stack([(losses.detach() * real).sum(), (inside * real).sum(), real.sum()])


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
