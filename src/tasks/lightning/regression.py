"""Regression: squared error as loss, mean absolute error and R2 as metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import lightning.pytorch as pl
from torch import Tensor, nn
from torch.nn import functional
from torchmetrics import MeanAbsoluteError, MetricCollection, R2Score

Batch = Mapping[str, Tensor]


class Regression(pl.LightningModule):
    """A network that is trained on a table: each row has one or more numbers to predict.

    Batches are {"columns": float32 [b, columns], "targets": float32 [b, outputs]}.

    Args:
        network: maps columns to predictions [b, outputs].
        make_optimizer: maps the network to what `configure_optimizers` may return, such as an optimizer of its parameters.
    """

    def __init__(self, network: nn.Module, make_optimizer: Callable[[nn.Module], Any]) -> None:
        super().__init__()
        self.network, self.make_optimizer = network, make_optimizer
        metrics = MetricCollection({"mae": MeanAbsoluteError(), "r2": R2Score()})
        self.train_metrics, self.val_metrics = metrics.clone("train/"), metrics.clone("val/")
        self.test_metrics = metrics.clone("test/")

    def forward(self, columns: Tensor) -> Tensor:
        """Map columns to predictions [b, outputs]."""
        return self.network(columns)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the mean loss of a batch."""
        return self._measure("train", self.train_metrics, batch)

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the metrics of a batch."""
        self._measure("val", self.val_metrics, batch)

    def test_step(self, batch: Batch, batch_idx: int) -> None:
        """Log the metrics of a batch."""
        self._measure("test", self.test_metrics, batch)

    def predict_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """Return the predictions [b, outputs]."""
        return self(batch["columns"])

    def configure_optimizers(self) -> Any:
        """Return the optimizer, and its schedule if it has one."""
        return self.make_optimizer(self.network)

    def _measure(self, part: str, metrics: MetricCollection, batch: Batch) -> Tensor:
        targets = batch["targets"]
        predictions = self(batch["columns"]).float()
        loss = functional.mse_loss(predictions, targets)
        metrics.update(predictions, targets)
        self.log(f"{part}/loss", loss, batch_size=len(targets))
        self.log_dict(metrics, on_step=False, on_epoch=True)
        return loss
