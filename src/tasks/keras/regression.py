"""Regression: squared error as loss, MAE and R2 as metrics. Needs only Keras."""

from typing import Any

import keras


class Regression(keras.Model):
    """A network for batches of {"columns": float32 [b, ...], "targets": float32 [b, outputs]}.

    Args:
        network: maps columns to predictions [b, outputs].
        optimizer: a Keras optimizer or its name; `train.py` passes the one of `optimizer=` with its schedule.
    """

    def __init__(self, network: keras.Model, optimizer: Any = "adamw") -> None:
        super().__init__(name="regression")
        self.network = network
        self.compile(
            optimizer=optimizer,
            loss="mean_squared_error",
            metrics=[keras.metrics.MeanAbsoluteError(name="mae"), keras.metrics.R2Score(name="r2")],
        )

    def call(self, batch: dict[str, Any], training: bool | None = None) -> Any:
        """Return the predictions of a batch."""
        return self.network(batch["columns"], training=training)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        """Return the mean squared error. The targets are part of the batch `x`."""
        return super().compute_loss(x, x["targets"], y_pred, sample_weight, training)

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> dict[str, Any]:
        """Count a batch, and return the metrics of all batches so far."""
        return super().compute_metrics(x, x["targets"], y_pred, sample_weight)
