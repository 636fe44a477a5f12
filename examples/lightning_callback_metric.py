r"""A callback of your own, and metrics of torchmetrics.

    python src/train.py task._target_=examples.lightning_callback_metric.LitDigits \
        data._target_=examples.lightning_module.DigitsData \
        callbacks.weights._target_=examples.lightning_callback_metric.WeightNorm

`callbacks.weights` is a name that you choose; arguments of the callback are keys: `callbacks.weights.every_n_epochs=2`.
"""

import lightning.pytorch as pl
import torch
from torch import Tensor
from torch.nn import functional
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from examples import lightning_module


class LitDigits(lightning_module.LitDigits):
    """The same network with metric objects, exact over all batches and ranks: F1 is not a mean over batches."""

    def __init__(self, hidden: int = 64) -> None:
        super().__init__(hidden)
        self.accuracy = MulticlassAccuracy(10, average="micro")
        self.f1 = MulticlassF1Score(10)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the metric objects: Lightning computes and resets them at the end of the epoch."""
        images, labels = batch
        logits = self(images)
        self.accuracy(logits, labels)
        self.f1(logits, labels)
        self.log_dict({"val_acc": self.accuracy, "val_f1": self.f1})
        self.log("val_loss", functional.cross_entropy(logits, labels))


class WeightNorm(pl.Callback):
    """Logs the norm of all weights, which goes to metrics.csv and TensorBoard like any other metric."""

    def __init__(self, every_n_epochs: int = 1) -> None:
        self.every_n_epochs = every_n_epochs

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log it; all ranks have the same weights."""
        if trainer.current_epoch % self.every_n_epochs == 0:
            weights = torch.cat([p.detach().flatten() for p in pl_module.parameters()])
            pl_module.log("weight_norm", weights.norm())
